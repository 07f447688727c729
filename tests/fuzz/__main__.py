"""``python -m tests.fuzz --cases 1500 --seed 0``: fuzz the command line; exit code 1 if any case has a finding."""

from __future__ import annotations

import argparse
import sys
import time

from tests.fuzz.cases import KINDS
from tests.fuzz.run import fuzz

#: Seconds between two progress lines.
PROGRESS = 5.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz the command line.")
    parser.add_argument("--cases", type=int, default=1500)
    parser.add_argument("--start", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="run only this case")
    parser.add_argument("--kind", choices=list(KINDS), help="only cases of this kind")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this many seconds")
    given = parser.parse_args()
    numbers = range(given.start, given.start + given.cases) if given.only is None else [given.only]
    began = reported = time.monotonic()
    ran, found = 0, 0
    print("building the stores and files that the cases mutate", file=sys.stderr, flush=True)
    for number, finding in fuzz(given.seed, numbers, given.seconds, given.kind):
        ran += 1
        if finding is not None:
            found += 1
            print(f"{finding.text(given.seed)}\n", flush=True)
        if time.monotonic() - reported > PROGRESS:
            reported = time.monotonic()
            done = f"case {number} of {numbers[0]} to {numbers[-1]}, {reported - began:.0f} s"
            print(f"{done}: {ran} cases run, {found} findings", file=sys.stderr, flush=True)
    print(f"{ran} cases, seed {given.seed}, {time.monotonic() - began:.0f} s: {found} findings")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
