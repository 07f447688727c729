"""The golden and conformance tests kill every mutation; ``python -m tests.mutation`` prints which test kills which."""

from __future__ import annotations

import pytest

from flbench.registry import HEADS, METHODS
from tests.mutation import engine_harness
from tests.mutation.engine_mutations import ENGINE_MUTATIONS
from tests.mutation.harness import FILES, FOLDER, MUTATIONS, checks_of, killer_of, mutated
from tests.mutation.mutations import Mutation


def test_a_mutation_is_undone() -> None:
    before = dict(METHODS.classes)
    with mutated(next(mutation for mutation in MUTATIONS if mutation.file == "base")):
        assert METHODS["fedavg"] is not before["fedavg"]
        assert METHODS["scaffold"] is not before["scaffold"]
    assert METHODS.classes == before
    with pytest.raises(ValueError, match="occurs 0 times"), mutated(Mutation("fedlc", "", "no such code", "")):
        pass
    assert METHODS.classes == before


def test_every_mutation_applies_and_compiles() -> None:
    for mutation in ENGINE_MUTATIONS:
        path = FOLDER.parent / (mutation.file.replace(".", "/") + ".py")
        compile(mutation.apply(path.read_text(encoding="utf-8")), mutation.what, "exec")
    for mutation in MUTATIONS:
        source = (FOLDER / f"{mutation.file}.py").read_text(encoding="utf-8")
        compile(mutation.apply(source), mutation.what, "exec")


@pytest.mark.nightly  # each of its checks is a test by itself
@pytest.mark.parametrize("executor", ["loop", "stacked"])
@pytest.mark.parametrize("file", FILES)
def test_the_unmutated_code_passes(file: str, executor: str) -> None:
    for check in checks_of(file, executor):
        check()


@pytest.mark.nightly
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: f"{mutation.file}: {mutation.what}")
def test_every_mutation_is_killed(mutation: Mutation) -> None:
    for executor in ("loop", "stacked"):
        assert (killer_of(mutation, executor) is None) == bool(mutation.equivalent)


def test_replaced_code_is_restored() -> None:
    learned = next(
        mutation for mutation in ENGINE_MUTATIONS if mutation.what == "the scale of cosines learned by default"
    )
    with engine_harness.mutated(learned):
        assert HEADS.parse("cosine").learned
    assert not HEADS.parse("cosine").learned
    assert engine_harness.killer_of(Mutation("models.heads.unit", "nothing", "= 10.0", "= 10.0")) is None


@pytest.mark.nightly
@pytest.mark.parametrize("mutation", ENGINE_MUTATIONS, ids=lambda mutation: f"{mutation.file}: {mutation.what}")
def test_every_mutation_of_the_engine_is_killed(mutation: Mutation) -> None:
    assert (engine_harness.killer_of(mutation) is None) == bool(mutation.equivalent)
