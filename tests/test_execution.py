"""A run is a pure function of its experiment: stopping, resuming, extending or more evaluations change no number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flbench.config import Experiment, parse_experiment
from flbench.errors import UserError
from flbench.execution import Runner
from flbench.execution_types import Outcome, Settings
from flbench.store import Lease, Store
from tests.report.stores import claim

SMALL = {
    "model": {"name": "mlp", "widths": [8, 8]},
    "clients": 4,
    "E": 2,
    "batch_size": 8,
    "eval_every": 2,
    "rounds": 6,
}


def experiment(**fields: Any) -> Experiment:
    return parse_experiment({**SMALL, "partition": "classes:3", **fields})


def run(
    store: Store, wanted: Experiment, stop: Callable[[], bool] = lambda: False, **settings: Any
) -> tuple[Outcome, list[dict[str, Any]]]:
    """Claim, execute and end one attempt, as a worker does."""
    attempt = claim(store, wanted)
    ends: list[Outcome | Exception] = []
    Runner(Settings(**settings)).execute([attempt], should_stop=stop, ended=lambda _, end: ends.append(end))
    (outcome,) = ends
    if isinstance(outcome, Exception):
        raise outcome
    attempt.end("interrupted" if outcome.status == "stopped" else "ok", round=outcome.round)
    seconds = [record["seconds"] for record in attempt.records()]
    assert seconds == sorted(seconds), "a resumed run goes on from the checkpoint's"
    return outcome, [without_time(record) for record in attempt.records()]


def without_time(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != "seconds"}


def after(calls: int) -> Callable[[], bool]:
    """Return a ``should_stop`` that is false for this many calls."""
    left: Iterator[bool] = iter([False] * (calls - 1))
    return lambda: next(left, True)


@pytest.mark.parametrize("executor", ["loop", "stacked"])
@pytest.mark.parametrize(
    "fields",
    [
        {"method": "fedavg"},
        {"method": "scaffold", "participation": 0.5, "momentum": 0.9},
        {"method": "fedyogi", "norm": "ln"},
        {"method": "fedbn", "norm": "bn"},
        {"kind": "centralized", "momentum": 0.9, "norm": "bn"},
    ],
    ids=lambda fields: str(fields.get("method", "centralized")),
)
def test_a_stopped_and_resumed_run_has_the_same_numbers(fields: dict[str, Any], executor: str, tmp_path: Path) -> None:
    if fields.get("kind") == "centralized":
        wanted = parse_experiment({**{k: v for k, v in SMALL.items() if k != "clients"}, **fields})
    else:
        wanted = experiment(**fields)
    _, expected = run(Store(tmp_path / "undisturbed"), wanted, executor=executor)
    store = Store(tmp_path / "disturbed")
    for _ in range(2):
        assert run(store, wanted, after(2), executor=executor)[0].status == "stopped"
    outcome, found = run(store, wanted, executor=executor)
    assert outcome == Outcome("done", 6)
    assert found == expected
    assert [record["round"] for record in found] == [2, 4, 6]


def test_an_extended_run_has_the_numbers_of_a_longer_one(tmp_path: Path) -> None:
    _, expected = run(Store(tmp_path / "long"), experiment(rounds=10))
    store = Store(tmp_path / "extended")
    run(store, experiment(rounds=6))
    longer = experiment(rounds=10)
    assert longer.run_id == experiment(rounds=6).run_id
    _, found = run(store, longer)
    assert found == expected
    assert "resumed after round 6" in (store.run(longer.run_id).attempts()[-1].log_path).read_text()


def test_a_result_covers_a_shorter_request(store: Store) -> None:
    run(store, experiment(rounds=6))
    assert store.claim(experiment(rounds=4), Lease.here()) is None


def test_more_evaluations_do_not_change_the_numbers(store: Store, tmp_path: Path) -> None:
    run(store, experiment(eval_every=3))
    _, found = run(store, experiment(eval_every=1, probes=["drift"]))
    assert [record["round"] for record in found] == [0, 1, 2, 3, 4, 5, 6], "with probes also before the first round"
    assert ("probes" in found[0], found[0]["train_loss"]) == (False, None), "nobody has sent anything yet"
    drift = found[1].pop("probes")["drift"]
    assert 0 < drift["agreement"] <= 1
    _, expected = run(Store(tmp_path / "other"), experiment(eval_every=6))
    assert {k: v for k, v in found[-1].items() if k != "probes"} == expected[-1]


@pytest.mark.parametrize(("first", "then"), [("loop", "stacked"), ("stacked", "native")])
def test_a_resumed_run_keeps_its_numerics_or_starts_over(first: Any, then: Any, store: Store) -> None:
    wanted = experiment()
    run(store, wanted, after(3), executor=first)
    _, found = run(store, wanted, executor=then)
    log = store.run(wanted.run_id).attempts()[-1].log_path.read_text()
    assert f"not resuming from round 3: it was computed with {{'device': 'cpu', 'executor': {first!r}" in log
    assert [record["round"] for record in found] == [2, 4, 6]


def test_a_diverged_run_is_done_and_reports_the_round(store: Store) -> None:
    wanted = experiment(lr=1e30, rounds=6)
    outcome, _ = run(store, wanted)
    assert outcome.status == "diverged"
    result = store.run(wanted.run_id).result_for(wanted)
    assert result is not None and result.status == "diverged" and result.rounds == outcome.round <= 2
    assert store.claim(wanted, Lease.here()) is None, "never tried again"


def test_metrics_of_a_run(store: Store) -> None:
    _, records = run(store, experiment(method="scaffold", val_fraction=0.2))
    last = records[-1]
    weights = 64 * 8 + 8 * 8 + 8 * 10
    assert last["bytes_down"] == 6 * 4 * 2 * weights * 4  # rounds, clients, weights and control, bytes a number
    assert last["bytes_up"] == last["bytes_down"]
    assert len(last["clients"]) == 4 and len(last["recall"]) == 10
    assert 0 <= last["acc_worst"] <= last["acc"] <= 1
    assert 0 <= last["val_acc"] <= 1
    assert last["train_loss"] > 0


def test_fedbn_reports_the_whole_test_set_and_the_own_shard(store: Store) -> None:
    _, records = run(store, experiment(method="fedbn", norm="bn", rounds=4))
    assert records[-1]["acc"] == records[-1]["acc_global"]
    assert "acc_personal" in records[-1]


def test_batches_do_not_depend_on_the_method(store: Store) -> None:
    """Comparisons are paired: the first round of SCAFFOLD, whose controls are zero, equals FedAvg's to the bit."""
    _, fedavg = run(store, experiment(eval_every=1, rounds=1))
    _, scaffold = run(store, experiment(eval_every=1, rounds=1, method={"name": "scaffold", "variant": "text"}))
    for record in (fedavg[0], scaffold[0]):
        record.pop("bytes_up"), record.pop("bytes_down")
    assert fedavg == scaffold


def test_every_precision_learns_and_is_another_run(store: Store) -> None:
    losses = {}
    for precision in ("fp32", "fp64", "bf16"):
        wanted = experiment(precision=precision, partition="iid", E=20, eval_every=5, rounds=5, lr=0.05)
        _, (record,) = run(store, wanted)
        assert record["loss"] < 2.28, "chance is 2.30"
        losses[precision] = record["loss"]
    assert 0 < abs(losses["fp32"] - losses["fp64"]) < 1e-3
    assert 1e-5 < abs(losses["bf16"] - losses["fp64"]) < 0.1


def test_augmentation_changes_the_numbers(store: Store) -> None:
    _, plain = run(store, experiment())
    _, augmented = run(store, experiment(augment="flip-crop"))
    assert plain[-1]["loss"] != augmented[-1]["loss"]


def test_tf32_is_not_computed_on_a_cpu(store: Store) -> None:
    with pytest.raises(UserError, match="precision: fp32"):
        run(store, experiment(precision="tf32"))


def test_a_result_has_the_number_of_images(store: Store) -> None:
    run(store, experiment(rounds=2))
    result = store.run(experiment(rounds=2).run_id).results()[0]
    assert result.environment["samples"] == "1442/355"
