"""``python -m tests.fuzz --cases 1500 --seed 0``: exit code 1 where a case did not end as it should."""

from __future__ import annotations

import argparse
import sys
import time

from tests.fuzz.cases import KINDS
from tests.fuzz.run import fuzz


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz the command line.")
    parser.add_argument("--cases", type=int, default=1500)
    parser.add_argument("--start", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="run one case alone, and print what it puts in")
    parser.add_argument("--kind", choices=list(KINDS), help="only cases of this kind")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    given = parser.parse_args()
    numbers = range(given.start, given.start + given.cases) if given.only is None else [given.only]
    began, ran, found = time.monotonic(), 0, 0
    for _, finding in fuzz(given.seed, numbers, given.seconds, given.kind):
        ran += 1
        if finding is not None:
            found += 1
            print(f"{finding.text(given.seed)}\n", flush=True)
    print(f"{ran} cases, seed {given.seed}, {time.monotonic() - began:.0f} s: {found} did not end as they should")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
