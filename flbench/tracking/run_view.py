"""What trackers show of a run, built from the run's files and the names of the sweeps that contain it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean
from typing import Any, Literal

from flbench.config import canonical_json, digest, parse_experiment
from flbench.messages import text_without_directories, without_directories
from flbench.run_names import label
from flbench.store import Result, RunDir, RunState, strict_json
from flbench.store.results import without_private

#: Longest tag, and longest name or group, that W&B accepts, in characters.
LONGEST_TAG, LONGEST_NAME = 64, 128

#: Fields that a run's name always shows; other fields only if they differ from their defaults.
NAMED = frozenset({"method", "norm", "partition", "lr", "local_steps", "seed"})

Status = Literal["done", "diverged", "failed", "running"]


@dataclass(frozen=True)
class RunView:
    """One run as trackers show it, without its metrics; ``stamp`` changes when those change.

    Attributes:
        name: as people read it; it ends with the run's id if the fields alone would be too long or name directories.
        group: what the seeds of a cell have in common: such a name without the seed, and the cell's id for the run's.
        config: the experiment, as plain JSON, and the id of its cell. No text in it is an absolute path.
    """

    run_id: str
    name: str
    group: str
    job_type: str
    tags: tuple[str, ...]
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    status: Status
    stamp: str

    @property
    def digest(self) -> str:
        """Return a digest of all that a tracker shows of the run."""
        return digest(strict_json.to_line({**vars(self), "config": dict(self.config), "summary": dict(self.summary)}))

    @property
    def exit_code(self) -> int:
        """Return 0 if the run is shown as finished, 1 if as failed."""
        return int(self.status not in ("done", "diverged"))


def finished_view(run: RunDir, sweeps: Sequence[str]) -> tuple[RunView, Result] | None:
    """Return the view of a run's longest result, and the result; None if there is none or the run is damaged."""
    results = run.results()
    if not results:
        return None
    result = results[-1]
    summary = {
        "status": result.status,
        "rounds": result.rounds,
        "train_seconds": result.seconds,
        "attempts": result.attempt,
        "data_fingerprint": result.fingerprint,
        "numerics": result.numerics,
        "environment": without_private(result.environment),
    }
    view = _view(run, sweeps, result.status, summary, result.metrics_sha256, rounds=result.rounds)
    return None if view is None else (view, result)


def failed_view(run: RunDir, sweeps: Sequence[str], state: RunState) -> RunView | None:
    """Return the view of a run that has failed and is not retried; None if the run is damaged."""
    reason = state.kind or state.status
    message = state.message and text_without_directories(state.message)
    summary = {"status": "failed", "failure": reason, "message": message, "attempts": state.attempts}
    return _view(run, sweeps, "failed", summary, f"attempt {state.attempts}")


def running_view(run: RunDir, sweeps: Sequence[str], state: RunState, rounds: int) -> RunView | None:
    """Return the view of a run that a worker executes; None if the run is damaged."""
    summary = {"status": "running", "attempts": state.attempts}
    return _view(run, sweeps, "running", summary, f"attempt {state.attempts}", rounds=rounds)


def _view(
    run: RunDir, sweeps: Sequence[str], status: Status, summary: Mapping[str, Any], stamp: str, **changes: Any
) -> RunView | None:
    raw = strict_json.read_json(run.path / "experiment.json")
    if raw is None:
        return None
    full = {**{key: value for key, value in raw.items() if key not in ("schema", "run_id")}, **changes}
    config = without_directories(full)
    components = (config.get(field) for field in ("method", "norm", "normalized"))
    names = [part.get("name") if isinstance(part, Mapping) else part for part in components]
    names += [label(config, {}, (field,)) for field in ("dataset", "partition")]
    shown = [status] if status in ("diverged", "failed") else []
    return RunView(
        run_id=run.run_id,
        name=_bounded_name(full, run.run_id),
        group=_bounded_name({name: value for name, value in full.items() if name != "seed"}, str(raw.get("cell_id"))),
        job_type=str(config.get("kind", "federated")),
        tags=tuple(dict.fromkeys(str(tag)[:LONGEST_TAG] for tag in (*sweeps, *names, *shown) if tag)),
        config=config,
        summary=summary,
        status=status,
        stamp=stamp,
    )


def _bounded_name(experiment: Mapping[str, Any], own_id: str) -> str:
    """Return the name of a run or a cell in at most ``LONGEST_NAME`` characters, without directories.

    Of a longer name the beginning and the end are kept, which has the seed, and the id that tells it from others.
    """
    shown = name_of(without_directories(experiment))
    if shown == name_of(experiment) and len(shown) <= LONGEST_NAME:
        return shown
    room = LONGEST_NAME - len(f" {own_id}")
    half = (room - 1) // 2
    return f"{shown if len(shown) <= room else f'{shown[:half]}…{shown[-half:]}'} {own_id}"


def name_of(experiment: Mapping[str, Any]) -> str:
    """Return the name that trackers show, the same in every sweep."""
    kind = str(experiment.get("kind", "federated"))
    defaults = {**_defaults(kind), "kind": "federated"}
    usual = {name for name, value in defaults.items() if experiment.get(name) == value}
    return label(experiment, {kind: usual - NAMED})


@cache
def _defaults(kind: str) -> dict[str, Any]:
    return parse_experiment({"kind": kind}).to_json()


def settings_of(config: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """Return an experiment's settings as numbers and texts: components by their label, lists as JSON.

    >>> settings_of({"lr": 0.1, "norm": {"name": "gn", "groups": 4}, "probes": [], "val_fraction": None})
    {'lr': 0.1, 'norm': 'gn(groups=4)', 'probes': '[]'}
    """
    settings: dict[str, bool | int | float | str] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            settings[name] = label(config, {}, (name,)) or canonical_json(value)
        elif value is not None:
            settings[name] = value if isinstance(value, (bool, int, float, str)) else canonical_json(value)
    return settings


def rows_of(records: Iterable[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Return evaluations as numbers by name, which every tracker draws as curves.

    Of a list (of clients, classes or singular values) these are its minimum, mean and maximum, without missing values;
    what a probe measures is named after the probe.

    >>> rows_of([{"round": 5, "acc": 0.5, "recall": [0.25, None, 0.75], "probes": {"rank": {"rank": 3.0}}, "f1": None}])
    [{'round': 5, 'acc': 0.5, 'recall/min': 0.25, 'recall/mean': 0.5, 'recall/max': 0.75, 'probes/rank/rank': 3.0}]
    """
    return [dict(_numbers("", record)) for record in records]


def _numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _numbers(f"{name}/{key}" if name else key, inner)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        if found := list(_flat(value)):
            yield from ((f"{name}/min", min(found)), (f"{name}/mean", fmean(found)), (f"{name}/max", max(found)))
    elif isinstance(value, (int, float)):
        yield name, value


def _flat(values: Sequence[Any]) -> Iterator[float]:
    for value in values:
        if isinstance(value, Sequence) and not isinstance(value, str):
            yield from _flat(value)
        elif isinstance(value, (int, float)):
            yield value
