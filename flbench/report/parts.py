"""From sweeps to the runs of a report: one part for each set of report options, and the options of the document."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flbench.config import Training
from flbench.plugin_files import plugin_files
from flbench.report.board import Options
from flbench.report.runs import Collection, collect
from flbench.run_sources import Source
from flbench.sweeps import Sweep
from flbench.sweeps.layout import Layout


@dataclass(frozen=True)
class Part:
    """The runs of the sweeps with the same report options."""

    layout: Layout
    collection: Collection
    # Names of the sweeps with their data sets and models; empty for runs that no sweep file names.
    sweeps: Mapping[str, frozenset[tuple[str, str]]] = field(default_factory=dict)


def place_of(experiment: Training) -> tuple[str, str]:
    """Return the names of data set and model."""
    return experiment.dataset.name, experiment.model.name


def options_of(sweeps: Sequence[Sweep], arguments: Sequence[str] = ()) -> Options:
    """Return the options of a leaderboard that is named after some sweeps.

    ``arguments`` are further ones of ``flbench report``, for the command that makes the leaderboard again.
    """
    given = dict.fromkeys(option for sweep in sweeps for option in sweep.options)
    plugins = [word for path in plugin_files() for word in ("--plugin", _public(path))]
    words = [sweep.bundled_as or _public(sweep.path.resolve()) for sweep in sweeps]
    words += [word for option in given for word in option.split(" ", 1)]
    return Options(
        title=", ".join(sweep.name for sweep in sweeps) or Options.title,
        specs=tuple((sweep.name, sweep.spec_hash) for sweep in sweeps),
        command=shlex.join(["flbench", *plugins, "report", *words, *arguments]),
    )


def _public(path: Path) -> str:
    """Return a path without its folder where that is outside the working directory, and would name the user."""
    return path.relative_to(Path.cwd()).as_posix() if path.is_relative_to(Path.cwd()) else path.name


def parts_of(source: Source, sweeps: Sequence[Sweep], **changes: Any) -> tuple[Part, ...]:
    """Return the runs of some sweeps by their report options; without sweeps, every run of the source.

    ``changes`` are options that replace those of all sweeps.
    """
    if not sweeps:
        layout = Layout(**changes)
        return (Part(layout, collect(source, select_by=layout.select_by, metric=layout.metric)),)
    groups: dict[tuple[Layout, str], list[Sweep]] = {}
    for sweep in sweeps:
        layout = dataclasses.replace(sweep.layout, **changes)
        # The races of one search are those of its sweep alone.
        groups.setdefault((layout, sweep.spec_hash if sweep.search else ""), []).append(sweep)
    parts = []
    for (layout, _), members in groups.items():
        requests = [experiment for sweep in members for experiment in sweep.experiments]
        found = collect(source, requests, select_by=layout.select_by, metric=layout.metric, search=layout.search)
        places = {
            sweep.name: frozenset(place_of(one) for one in sweep.experiments if isinstance(one, Training))
            for sweep in members
        }
        parts.append(Part(layout, found, places))
    return tuple(parts)


def merged(parts: Sequence[Part]) -> Collection:
    """Return the runs of all parts, each once."""
    unique = {(run.run_id, run.rounds): run for part in reversed(parts) for run in part.collection.runs}
    runs = sorted(unique.values(), key=lambda run: (run.cell, run.experiment.seed))
    left_out = dict.fromkeys(note for part in parts for note in part.collection.left_out)
    return Collection(tuple(runs), tuple(left_out), parts[0].collection.source)
