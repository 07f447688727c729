"""``python -m tests.mutation`` prints every mutation and the test that kills it."""

from __future__ import annotations

from tests.mutation import engine_harness
from tests.mutation.engine_mutations import ENGINE_MUTATIONS
from tests.mutation.harness import MUTATIONS, killer_of


def main() -> None:
    survivors = 0
    print(f"{'file':<24}{'mutation':<48}killed by")
    for mutation in (*MUTATIONS, *ENGINE_MUTATIONS):
        killer = killer_of(mutation) if mutation in MUTATIONS else engine_harness.killer_of(mutation)
        survivors += killer is None
        fate = killer or f"SURVIVES: {mutation.equivalent or 'unexplained'}"
        print(f"{mutation.file:<24}{mutation.what:<48}{fate}", flush=True)
    total = len(MUTATIONS) + len(ENGINE_MUTATIONS)
    print(f"{total} mutations, {total - survivors} killed")


if __name__ == "__main__":
    main()
