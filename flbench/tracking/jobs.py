"""Collect the runs that are mirrored together: those of a planned sweep, or those that no sweep contains."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

from flbench.choices import TrackingMode
from flbench.errors import UserError
from flbench.planning import OPTIONS, with_planned_data
from flbench.store import RunRequest, Store, read_plan, strict_json
from flbench.sweeps import Sweep, load_sweep
from flbench.tracking.sink import MakeSweepView, Tracker
from flbench.tracking.trackers import Wandb


@dataclass(frozen=True)
class Job:
    """Runs that are mirrored together; ``sweep`` is None for those that no sweep contains.

    Attributes:
        trackers: where its runs are sent unless the command line says otherwise.
        folder: holds the locks: the plan's directory, or the store's.
        make_view: makes what is shown of the sweep.
    """

    runs: Mapping[str, RunRequest]
    trackers: Sequence[Tracker]
    folder: Path
    sweep: Sweep | None = None
    make_view: MakeSweepView | None = None

    def chosen(self, given: Sequence[Tracker], mode: TrackingMode | None) -> list[Tracker]:
        """Return the given trackers, or the job's own; ``mode`` replaces that of W&B.

        A tracker without settings has those of the job's own tracker of that name.
        """
        own = {tracker.name: tracker for tracker in self.trackers}
        trackers = [tracker if tracker.settings() else own.get(tracker.name, tracker) for tracker in given]
        return [
            replace(tracker, mode=mode) if mode and isinstance(tracker, Wandb) else tracker
            for tracker in trackers or self.trackers
        ]


def job_of_plan(plan: Path, make_view: MakeSweepView) -> Job:
    """Return the job of a plan, given its directory in the store; raises UserError if its sweep cannot be read."""
    sweep = planned_sweep(plan)
    runs = {entry.run_id: entry.request() for entry in read_plan(plan / "plan.jsonl", added=True)}
    return Job(runs, trackers_of(sweep), plan, sweep, make_view)


def trackers_of(sweep: Sweep) -> list[Tracker]:
    """Return the trackers that a sweep file names: W&B, as in the section `wandb`, and those of `track`."""
    return [Wandb(**sweep.spec.wandb.model_dump()), *sweep.spec.track]


def job_of_runs(store: Store, run_ids: Sequence[str]) -> Job:
    """Return a job of single runs, without those that this version cannot read."""
    runs = {}
    for run_id in run_ids:
        with suppress(FileNotFoundError, UserError):
            runs[run_id] = RunRequest.of(store.run(run_id).experiment())
    return Job(runs, [Wandb()], store.root)


def unplanned_runs(store: Store) -> list[str]:
    """Return the runs that no sweep contains: those of ``flbench run`` and ``flbench import``."""
    planned = store.planned_ids()
    return [run_id for run_id in store.run_ids() if run_id not in planned]


def sweeps_by_run(store: Store) -> dict[str, list[str]]:
    """Return the names of the sweeps that contain each planned run."""
    sweeps: dict[str, list[str]] = {}
    for directory, run_ids in store.readable_plans():
        for run_id in run_ids:
            names = sweeps.setdefault(run_id, [])
            if directory.parent.name not in names:
                names.append(directory.parent.name)
    return sweeps


def planned_sweep(plan: Path) -> Sweep:
    """Return the sweep of a plan, with the options that were given on its command line.

    Raises:
        UserError: the sweep cannot be read, or differs from the one that was planned.
    """
    path = plan / "spec.yaml"
    stored = strict_json.read_json(plan / OPTIONS)
    problem = UserError(f"{path}: this is not the sweep that was planned; `flbench sweep` plans it again")
    for options in _options_in_comments(path) if stored is None else [stored.get("options")]:
        given: dict[str, list[str]] = {"set": [], "only": [], "limit": []}
        for option in options if isinstance(options, list) else ():
            if found := re.fullmatch(r"--(set|only) (.+)|--(limit) (\d+)", str(option), re.DOTALL):
                name, value = filter(None, found.groups())
                given[name].append(value)
        limit = int(given["limit"][0]) if given["limit"] else None
        try:
            sweep = with_planned_data(load_sweep(path, given["set"], given["only"], limit), plan)
        except UserError as error:
            problem = error
        else:
            if sweep.spec_hash == plan.name:
                return sweep
    raise problem


def _options_in_comments(path: Path) -> list[list[str]]:
    """Return what may be the options of a plan that an earlier flbench has written, as the first lines of its spec.

    The file's own first line may be such a comment, too: then there were no options.
    """
    lines = path.read_text("utf-8", errors="replace").splitlines()  # load_sweep names what is no text
    comments = takewhile(re.compile("# --(set|only|limit) ").match, lines)
    return [[line.removeprefix("# ") for line in comments], []]
