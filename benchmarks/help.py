"""Time ``flbench --help``, as whole processes. Target: under 0.3 s.

python -m benchmarks.help [repeats]
"""

from __future__ import annotations

import sys

from benchmarks.processes import report, seconds_of

if __name__ == "__main__":
    report("flbench --help", seconds_of(["--help"], int(sys.argv[1]) if sys.argv[1:] else 20), 0.3)
