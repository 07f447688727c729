"""Time ``flbench --help``, as whole processes. Target: under 0.3 s.

uv run python benchmarks/bench_help.py [repeats]
"""

from __future__ import annotations

import sys

from processes import report, seconds_of

if __name__ == "__main__":
    report("flbench --help", seconds_of(["--help"], int(sys.argv[1]) if sys.argv[1:] else 20), 0.3)
