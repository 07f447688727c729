"""``python -m tests.mutation`` prints every mutation and the test that kills it."""

from __future__ import annotations

from tests.mutation.harness import killer_of
from tests.mutation.mutations import MUTATIONS


def main() -> None:
    survivors = 0
    print(f"{'file':<12}{'mutation':<40}killed by")
    for mutation in MUTATIONS:
        killer = killer_of(mutation)
        survivors += killer is None
        fate = killer or f"SURVIVES: {mutation.equivalent or 'unexplained'}"
        print(f"{mutation.file:<12}{mutation.what:<40}{fate}", flush=True)
    print(f"{len(MUTATIONS)} mutations, {len(MUTATIONS) - survivors} killed")


if __name__ == "__main__":
    main()
