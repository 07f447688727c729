"""The costs of methods and of probes."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest

from benchmarks import common, methods, probes
from benchmarks.probes import ALL, BETWEEN, EVERY, KEEPING, ROUND
from flbench.bench.timing import Spread, Variant
from flbench.engine.federated import FederatedTrainer
from tests.benchmarks.tiny import tiny


def test_methods_relative_to_fedavg(monkeypatch: pytest.MonkeyPatch) -> None:
    """With rounds of 2 s of FedAvg and 5 s of another method, its factor is 2.5."""
    timed: list[Variant] = []

    def turns(variants: list[Variant], *, clock: Any, **_: Any) -> dict[str, list[float]]:
        assert clock is time.process_time
        for variant in variants:
            variant.work()  # every variant can be executed
        timed.extend(variants)
        return {variant.name: [2.0 if "fedavg" in variant.name else 5.0] for variant in variants}

    monkeypatch.setattr(common, "take_turns", turns)
    rows = methods.measure(["feddyn", "fedavg"], tiny())
    pairs = [("loop", "fedavg"), ("loop", "feddyn"), ("stacked", "fedavg"), ("stacked", "feddyn")]
    assert [variant.name for variant in timed] == [", ".join(pair) for pair in pairs]
    assert [(row["executor"], row["method"]) for row in rows] == pairs
    assert [row["x fedavg"] for row in rows] == [Spread(f, f, f, 1) for f in (1.0, 2.5, 1.0, 2.5)]
    assert [(row["passes"], row["x passes"]) for row in rows] == [(1, 1), (1, 2.5)] * 2


@pytest.mark.parametrize(
    ("name", "passes"),
    [
        ("feddc", 1),
        ("fedlesam", 1),  # its perturbation needs no gradient
        ("fedspeed", 2),
        ("ditto", 2),
        ("fedvls", 4 / 3),
        ("moon", 5 / 3),
        ("fedproto", 1 + 1442 / (2 * 2 * 32) / 3),  # two clients, two steps, and a pass over all samples
        ("norm=ln", 1),
    ],
)
def test_the_passes_of_a_round(name: str, passes: float) -> None:
    case = methods.with_method(tiny(), name)
    assert methods.passes_of(case, case.trainer()) == pytest.approx(passes)


def test_methods_run_in_turns_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []
    step = FederatedTrainer.step

    def watched(trainer: FederatedTrainer, **options: Any) -> Any:
        used.append(trainer.run.method.name)
        return step(trainer, **options)

    monkeypatch.setattr(FederatedTrainer, "step", watched)
    methods.measure(["fedprox"], tiny(repeats=1))
    turns = [method for method, _ in itertools.groupby(used)]
    assert turns == ["fedavg", "fedprox"] * 4  # both executors, after a warm-up


def test_probes_relative_to_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """With rounds of 2 s and measurements of 10 s, the costs follow by hand."""
    names = [ROUND, BETWEEN, KEEPING, *EVERY]
    seconds = {name: [2.0, 2.0] for name in names[:3]} | {name: [10.0, 10.0] for name in EVERY}
    timed: list[Variant] = []

    def turns(variants: list[Variant], **_: Any) -> dict[str, list[float]]:
        for variant in variants:
            variant.work()  # every variant can be executed
        timed.extend(variants)
        return seconds

    monkeypatch.setattr(common, "take_turns", turns)
    rows = {row["what"]: row for row in probes.measure(tiny(repeats=2))}
    assert [variant.name for variant in timed] == names
    assert (rows[ROUND]["ms"].median, rows[BETWEEN]["in rounds"]) == (2000.0, Spread(1.0, 1.0, 1.0, 2))
    assert {name: rows[name]["every"] for name in EVERY} == EVERY
    assert (rows["drift"]["ms"].median, rows["drift"]["in rounds"].median) == (10_000.0, 5.0)
    # 50 rounds take 100 s, the four measurements 40 s.
    assert rows["drift"]["% of the time"] == pytest.approx(100 * 10 / 140)
    assert rows[ALL]["% of the time"] == pytest.approx(100 * 40 / 140)


def test_a_round_without_a_due_probe_keeps_no_client_models(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[bool] = []
    step = FederatedTrainer.step

    def watched(trainer: FederatedTrainer, *, keep_clients: bool = False, wait: bool = True) -> Any:
        kept.append(keep_clients)
        return step(trainer, keep_clients=keep_clients, wait=wait)

    monkeypatch.setattr(FederatedTrainer, "step", watched)
    probes.measure(tiny(repeats=1))
    # The observed round; then in turns a round, one between measurements and one that keeps models, after a warm-up.
    assert [keeps for keeps, _ in itertools.groupby(kept)] == [True, *[False, True] * 2]
