"""What W&B is told of a run: a pure function of the run's files and of the sweeps that name it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flbench.config import digest
from flbench.store import Result, RunDir, RunState, files

#: Characters of a tag that W&B takes.
LONGEST_TAG = 64

#: A short name for people, from an experiment as plain JSON.
Namer = Callable[[Mapping[str, Any]], str]

Status = Literal["done", "diverged", "failed", "running"]


@dataclass(frozen=True)
class View:
    """One run as W&B shows it; everything but the metrics, which ``stamp`` stands for.

    Attributes:
        config: the experiment, as plain JSON.
        stamp: changes whenever the metrics do.
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
        """Equal for views that W&B shows alike."""
        raw = files.to_line({**vars(self), "config": dict(self.config), "summary": dict(self.summary)})
        return digest(raw)

    @property
    def exit_code(self) -> int:
        """How W&B shows the end: 0 finished, 1 failed."""
        return int(self.status not in ("done", "diverged"))


class Viewer:
    """Makes the views of a store's runs; ``sweeps`` says which sweeps name a run."""

    def __init__(self, name: Namer, sweeps: Mapping[str, Sequence[str]]) -> None:
        self._name, self._sweeps = name, sweeps

    def finished(self, run: RunDir) -> tuple[View, Result] | None:
        """The run as far as it ever got, and the result that says so; None where it has no result or is damaged."""
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
            "environment": {key: value for key, value in result.environment.items() if key != "host"},
        }
        view = self._view(run, result.status, {"rounds": result.rounds}, summary, result.metrics_sha256)
        return None if view is None else (view, result)

    def failed(self, run: RunDir, state: RunState) -> View | None:
        """A run that was given up."""
        why = state.kind or state.status
        summary = {"status": "failed", "failure": why, "message": state.message, "attempts": state.attempts}
        return self._view(run, "failed", {}, summary, f"attempt {state.attempts}")

    def running(self, run: RunDir, state: RunState, rounds: int) -> View | None:
        """A run that somebody works on."""
        summary = {"status": "running", "attempts": state.attempts}
        return self._view(run, "running", {"rounds": rounds}, summary, f"attempt {state.attempts}")

    def _view(
        self, run: RunDir, status: Status, changes: Mapping[str, Any], summary: Mapping[str, Any], stamp: str
    ) -> View | None:
        raw = files.read_json(run.path / "experiment.json")
        if raw is None:
            return None
        config = {**{key: value for key, value in raw.items() if key not in ("schema", "run_id", "cell_id")}, **changes}
        sweeps = self._sweeps.get(run.run_id, ())
        components = [_component_name(config.get(field)) for field in ("method", "norm", "normalized")]
        shown = [status] if status in ("diverged", "failed") else []
        return View(
            run_id=run.run_id,
            name=self._name(config),
            group=str(raw.get("cell_id", "")),
            job_type=str(config.get("kind", "federated")),
            tags=tuple(dict.fromkeys(tag[:LONGEST_TAG] for tag in (*sweeps, *components, *shown) if tag)),
            config=config,
            summary=summary,
            status=status,
            stamp=stamp,
        )


@dataclass(frozen=True)
class Board:
    """A sweep as W&B shows it: its table, its figures, and what they were made of."""

    sweep: str
    run_id: str
    config: Mapping[str, Any]
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    figures: Sequence[Path]


def _component_name(raw: Any) -> str:
    if isinstance(raw, Mapping):
        return str(raw.get("name", ""))
    return raw if isinstance(raw, str) else ""
