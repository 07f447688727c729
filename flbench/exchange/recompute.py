"""Execute finished runs again in a temporary store, and compare the numbers with the recorded ones.

Runs of this machine are compared bit by bit, runs of others within ``CLOSE``, because processors round differently.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeVar, get_args

from flbench.choices import UsedDevice, UsedExecutor
from flbench.config import parse_experiment
from flbench.errors import UserError
from flbench.exchange.exports import Exported
from flbench.exchange.transfer import import_runs
from flbench.launchers import used_device
from flbench.messages import counted
from flbench.metric_specs import METRICS
from flbench.store import Attempt, Lease, Result, RunDir, RunRequest, Store
from flbench.worker import Options, load_engine

#: Fields of a record that differ between two executions.
TIMES = frozenset({"seconds"})

#: Largest difference of an accuracy between two machines, as a fraction of the test images.
CLOSE = 0.02

#: Exported runs that took longer than this many seconds are executed again only if there are no others.
CHEAP = 60.0

Verdict = Literal["same", "close", "different", "skipped"]

T = TypeVar("T")


@dataclass(frozen=True)
class Recomputed:
    """The outcome of executing a run again."""

    run_id: str
    rounds: int
    verdict: Verdict
    why: str = ""


def recompute(
    store: Store, run_ids: Sequence[str], count: int, data_root: Path | None, *, close: float = 0
) -> Iterator[Recomputed]:
    """Execute ``count`` of the finished runs again, chosen evenly from their ids, which are as good as random.

    Args:
        store: where the runs are.
        run_ids: the runs to choose from.
        count: how many.
        data_root: folder of the data sets.
        close: largest difference of an accuracy from that of another machine; other numbers are not compared then.
            0: every number is compared, bit by bit, and runs that this machine cannot reproduce are skipped.

    Yields:
        A verdict on each run.
    """
    finished = [run for run_id in run_ids if (run := store.run(run_id)).results()]
    with TemporaryDirectory(prefix="flbench-verify-") as scratch:
        target = Store(Path(scratch) / "store")
        for run in _evenly(finished, count):
            result = run.results()[-1]
            try:
                if not close:
                    _require_same_numerics(result)
                verdict, why = _compare(run, result, _execute(run, result, target, data_root, close), close)
            except UserError as error:
                verdict, why = "skipped", str(error)
            yield Recomputed(run.run_id, result.rounds, verdict, why)


def recompute_exported(runs: Sequence[Exported], count: int, data_root: Path | None) -> Iterator[Recomputed]:
    """Execute ``count`` of the cheap runs again, always the same ones, and compare accuracies within ``CLOSE``."""
    by_cost = sorted(runs, key=lambda one: one.result.seconds)
    cheap = [one for one in by_cost if one.result.seconds <= CHEAP] or by_cost[:count]
    chosen = _evenly(sorted(cheap, key=lambda one: one.run_id), count)
    with TemporaryDirectory(prefix="flbench-verify-") as scratch:
        store = Store(Path(scratch) / "store")
        import_runs(store, chosen, Lease.here())
        yield from recompute(store, [one.run_id for one in chosen], count, data_root, close=CLOSE)


def _evenly(items: Sequence[T], count: int) -> list[T]:
    """Return ``count`` of the items at equal distances; all where there are fewer."""
    step = max(1, len(items) / count)
    return [items[int(number * step)] for number in range(min(count, len(items)))]


def _require_same_numerics(result: Result) -> None:
    """Raise UserError where this machine cannot reproduce a result."""
    import torch

    wanted = result.numerics
    if wanted.get("torch") != str(torch.__version__):
        raise UserError(f"computed with torch {wanted.get('torch')}, this is {torch.__version__}")
    if wanted.get("device") == "cuda" and not torch.cuda.is_available():
        raise UserError("computed on a GPU, and there is none")
    if wanted.get("device") == "mps" and not torch.backends.mps.is_available():
        raise UserError("computed on an Apple GPU, and there is none")


def _execute(run: RunDir, result: Result, target: Store, data_root: Path | None, close: float) -> Attempt:
    """Return the attempt in ``target`` that computed a result again; raises UserError where it cannot be computed."""
    # The rounds, evaluations and probes that the result has, which may not be those that were requested last.
    raw = {**run.experiment().to_json(), "rounds": result.wanted, "eval_every": result.eval_every()}
    if "probes" in raw:  # studies have none
        measured = [json.loads(probe) for probe in sorted(result.probes)]
        raw["probes"] = [probe for probe in measured if "name" in probe]
        raw |= next(({"finetune": each["finetune"]} for each in measured if "name" not in each), {})
    experiment = parse_experiment(raw)
    if not result.is_of(RunRequest.of(experiment)):
        raise UserError("computed on other data than it names, or with another source code of a plug-in")
    attempt = target.claim(experiment, Lease.here())
    if attempt is None:
        raise UserError("it was executed already")
    numerics = result.numerics
    device: UsedDevice = used_device("auto") if close else _named(numerics, "device", get_args(UsedDevice))
    executor = _named(numerics, "executor", (*get_args(UsedExecutor), "whole"))
    if close and executor == "native":  # another machine may compile nothing: torch has these numbers but for rounding
        executor = "auto"
    engine = load_engine(Options(data_root, device=device, executor=executor))
    failures: list[Exception] = []

    def ended(_: object, end: object) -> None:
        failures.extend([end] if isinstance(end, Exception) else [])

    engine.execute([attempt], should_stop=lambda: False, ended=ended)
    if failures:
        raise UserError(f"it cannot be executed: {failures[0]}")
    attempt.end("ok")
    return attempt


def _named(numerics: Mapping[str, Any], name: str, known: Sequence[str]) -> Any:
    """Return how a result was computed; raises UserError where its numerics, which anybody may write, do not say it."""
    if numerics.get(name) not in known:
        raise UserError(f"its numerics have no {name}: expected {', '.join(known)}, got {numerics.get(name)!r:.40}")
    return numerics[name]


def _compare(run: RunDir, result: Result, attempt: Attempt, close: float) -> tuple[Verdict, str]:
    """Return a verdict on the result of an attempt, and the reason; raises UserError where they cannot be compared."""
    again = attempt.run.results()[-1]
    if again.fingerprint != result.fingerprint:
        raise UserError("the data set here is another than its own")
    if not close and again.numerics != result.numerics:
        raise UserError(f"computed with {result.numerics}, here with {again.numerics}")
    if again.samples and result.samples not in (None, again.samples):
        counts = "recorded {}/{} images in train and test, computed on {}/{}"
        return "different", counts.format(*result.samples, *again.samples)
    recorded, computed = run.metrics(result), attempt.records()
    difference = _difference(result, recorded, again, computed)
    if not difference:
        return "same", ""
    if not close or result.evaluated != again.evaluated or result.status != again.status:
        return "different", difference
    farthest = _farthest(recorded, computed)
    if farthest is None:
        raise UserError(f"it records no accuracy, and {difference}")
    why = f"accuracies differ by up to {100 * farthest:.2f} points, where {100 * close:g} are allowed"
    return "close" if farthest <= close else "different", why


def _difference(
    old: Result, recorded: Sequence[Mapping[str, Any]], new: Result, computed: Sequence[Mapping[str, Any]]
) -> str:
    """Return the first difference in words; empty if there is none."""
    if (old.status, old.rounds) != (new.status, new.rounds):
        return f"recorded: {old.status} after round {old.rounds}, computed: {new.status} after round {new.rounds}"
    if len(recorded) != len(computed):
        return f"recorded: {counted(len(recorded), 'evaluation')}, computed: {len(computed)}"
    for before, after in zip(recorded, computed, strict=True):
        for name in sorted((before.keys() | after.keys()) - TIMES):
            if before.get(name) != after.get(name):
                values = f"recorded {before.get(name)!r:.60}, computed {after.get(name)!r:.60}"
                return f"round {before.get('round')}, {name}: {values}"
    return ""


def _farthest(recorded: Sequence[Mapping[str, Any]], computed: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the largest difference of an accuracy in records of the same rounds; None where there is no accuracy."""
    pairs = [
        (before[name], after.get(name))
        for before, after in zip(recorded, computed, strict=True)
        for name, metric in METRICS.items()
        if metric.is_comparable and name in before
    ]
    return max((math.inf if b is None or a is None else abs(a - b) for a, b in pairs), default=None)
