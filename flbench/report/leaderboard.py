"""From runs to the tables of a leaderboard: which cells there are, what each may say, and where it stands.

Nothing is dropped: a cell with missing, failed or diverged runs says so. Nothing is mixed: runs on two versions of the
data are never averaged, and seeds computed with different numerics are marked. What the tables look like is
``compose``'s business.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flbench.config import KINDS, Training
from flbench.errors import UserError
from flbench.messages import by_similarity
from flbench.metric_specs import METRICS, value_of
from flbench.report.board import Details, Leaderboard, Options, Section
from flbench.report.cells import Cell, cells_of, gap_of, grouped
from flbench.report.claims import Chapter
from flbench.report.costs import costs_of, targets_of
from flbench.report.layout import SECTION, Layout, axes_of, has_axis, varies
from flbench.report.lr_range import Ranges, ranges
from flbench.report.paper import Paper
from flbench.report.provenance import Provenance
from flbench.report.runs import Collection, Run, collect, varied_methods
from flbench.report.selection import tune
from flbench.report.sources import Source
from flbench.report.summary import overalls
from flbench.report.tables import Table, lay_out
from flbench.report.ticks import Tick, axis_label, axis_value, tick
from flbench.sweeps import condition
from flbench.sweeps.grid import normal_path

if TYPE_CHECKING:
    from flbench.sweeps import Sweep

#: Settings that are told even where they have their default.
ALWAYS_SAID = frozenset({"lr", "local_steps", "batch_size", "clients", "method", "norm", "partition"})


@dataclass(frozen=True)
class Part:
    """Runs that are laid out alike: those of the sweeps whose report options are the same.

    Attributes:
        layout: their options.
        collection: the runs.
        sweeps: names of the sweeps with their data sets and models; empty for runs that no sweep file names.
    """

    layout: Layout
    collection: Collection
    sweeps: Mapping[str, frozenset[tuple[str, str]]] = field(default_factory=dict)

    def names(self, run: Run) -> list[str]:
        """Return the sweeps on the data set and model of a run."""
        return [name for name, places in self.sweeps.items() if _names_of(run.training) in places]


def options_of(sweeps: Sequence[Sweep], arguments: Sequence[str] = (), **changes: Any) -> Options:
    """Return the options of a leaderboard of some sweeps, named after all of them; ``changes`` come last.

    ``arguments`` are what else the user gave ``flbench report``, for the command that makes the leaderboard again.
    """
    specs = [_public_path(sweep.path) for sweep in sweeps]
    given = dict.fromkeys(option for sweep in sweeps for option in sweep.options)
    words = [word for option in given for word in option.split(" ", 1)]
    options = Options(
        specs=tuple((sweep.name, sweep.spec_hash) for sweep in sweeps),
        command=shlex.join(["flbench", "report", *specs, *words, *arguments]),
    )
    if sweeps:
        options = dataclasses.replace(options, title=", ".join(sweep.name for sweep in sweeps))
    return dataclasses.replace(options, **changes)


def parts_of(source: Source, sweeps: Sequence[Sweep], **changes: Any) -> tuple[Part, ...]:
    """Return the runs of some sweeps by their report options; without sweeps, every run of the source.

    Args:
        source: where the runs are.
        sweeps: which runs, and how they are laid out.
        changes: options that replace those of all sweeps.
    """
    layouts: dict[Layout, list[Sweep]] = {}
    for sweep in sweeps:
        layouts.setdefault(dataclasses.replace(_layout_of(sweep), **changes), []).append(sweep)
    if not sweeps:
        layout = Layout(**changes)
        return (Part(layout, collect(source, select_by=layout.select_by, metric=layout.metric)),)
    parts = []
    for layout, members in layouts.items():
        requests = [experiment for sweep in members for experiment in sweep.experiments]
        found = collect(source, requests, select_by=layout.select_by, metric=layout.metric)
        places = {
            sweep.name: frozenset(_names_of(one) for one in sweep.experiments if isinstance(one, Training))
            for sweep in members
        }
        parts.append(Part(layout, found, places))
    return tuple(parts)


def _layout_of(sweep: Sweep) -> Layout:
    request = sweep.spec.report
    layout = Layout(
        request.metric, request.rows, request.cols, request.select_by, tune=request.tune, target=request.target
    )
    if request.baseline is None:
        return layout
    conditions = tuple(f"{path}={json.dumps(value)}" for path, value in request.baseline.items())
    return dataclasses.replace(layout, baseline=conditions)


def merged(parts: Sequence[Part]) -> Collection:
    """Return the runs of all parts, each once."""
    unique = {(run.run_id, run.rounds): run for part in reversed(parts) for run in part.collection.runs}
    runs = sorted(unique.values(), key=lambda run: (run.cell, run.experiment.seed))
    left_out = dict.fromkeys(note for part in parts for note in part.collection.left_out)
    return Collection(tuple(runs), tuple(left_out), parts[0].collection.source)


def _public_path(path: Path) -> str:
    """The path as seen from here, or the bare name of a file that lies elsewhere."""
    here = Path.cwd()
    resolved = path.resolve()
    return resolved.relative_to(here).as_posix() if resolved.is_relative_to(here) else path.name


def build(parts: Sequence[Part], options: Options | None = None, papers: Sequence[Paper] = ()) -> Leaderboard:
    """Return the leaderboard of some runs; raises UserError for a metric or an axis that does not exist.

    Its tables are those of runs that train on a data set; studies have chapters of their own.

    Args:
        parts: the runs by their report options.
        options: of the whole document.
        papers: what adds chapters about studies and further parts of the document.
    """
    options = options or Options()
    varied = varied_methods(run for part in parts for run in part.collection.runs)
    parts = [
        dataclasses.replace(part, layout=part.layout.spelled_out(), collection=part.collection.naming_variants(varied))
        for part in parts
    ]
    collection = merged(parts)
    sections, gaps = _sections(parts)
    return Leaderboard(
        options=options,
        sections=sections,
        overall=overalls([(one.title, one.layout, [details.table for details in one.details]) for one in sections]),
        collection=collection,
        chapters=chapters_of(collection, papers),
        supplements=tuple(paper.supplement(sections, collection) for paper in papers if paper.supplement),
        provenance=Provenance.of(collection.runs),
        unfinished=dict(sorted(Counter(gaps.values()).items())),
    )


def chapters_of(collection: Collection, papers: Sequence[Paper]) -> tuple[Chapter, ...]:
    """Return a chapter for each kind of study among the runs, in the order of the kinds."""
    writers = {kind: write for paper in papers for kind, write in paper.chapters.items()}
    runs = {kind: [run for run in collection.runs if run.experiment.kind == kind] for kind in KINDS}
    return tuple(writers[kind](members, collection) for kind, members in runs.items() if members and kind in writers)


def _sections(parts: Sequence[Part]) -> tuple[tuple[Section, ...], dict[tuple[str, int], str]]:
    """The sections of all parts by data set and model, and why runs have no value."""
    found: list[tuple[tuple[Tick, ...], Part, list[Run]]] = []
    gaps: dict[tuple[str, int], str] = {}
    for part in parts:
        training = [run for run in part.collection.runs if isinstance(run.experiment, Training)]
        _check(training, part.layout)
        found += [(_place(members[0]), part, members) for members in grouped(training, _place)]
        gaps |= {(run.run_id, run.rounds): why for run in training if (why := gap_of(run, part.layout.metric))}
    often = Counter(place for place, _, _ in found)
    found.sort(key=lambda one: one[0])
    sections = []
    for place, part, members in found:
        title = ", ".join(at.label for at in place)
        title += f" ({', '.join(part.names(members[0]))})" if often[place] > 1 else ""
        sections.append(_section(title, dataclasses.replace(part.collection, runs=tuple(members)), part.layout))
    return tuple(sections), gaps


def _names_of(experiment: Training) -> tuple[str, str]:
    return experiment.dataset.name, experiment.model.name


def _place(run: Run) -> tuple[Tick, ...]:
    return tuple(tick(name, axis_value(run.experiment, name)) for name in SECTION)


def _check(runs: Sequence[Run], options: Layout) -> None:
    if not runs:
        return
    if options.metric not in METRICS:
        known = by_similarity(options.metric, METRICS)
        raise UserError(f"unknown metric {options.metric!r}; known: {', '.join(known)}")
    finished = [run for run in runs if run.record is not None]
    if finished and all(value_of(run.record, options.metric) is None for run in finished):
        recorded = sorted({name for run in finished for name in run.record or ()} & METRICS.keys())
        raise UserError(f"no run recorded {options.metric!r}; recorded: {', '.join(recorded)}")
    for axis in options.tune:
        try:
            normal_path(axis)
        except ValueError as error:
            raise UserError(f"cannot choose the best {axis!r}: {error}") from None
    for axis in (*options.rows, *options.cols):
        if axis in SECTION or axis in ("seed", "kind") or not any(has_axis(run.experiment, axis) for run in runs):
            known = by_similarity(axis, axes_of(run.experiment for run in runs))
            raise UserError(f"cannot lay out a leaderboard by {axis!r}; possible: {', '.join(known)}")


def _section(title: str, collection: Collection, layout: Layout) -> Section:
    cells = cells_of(collection.runs, layout.metric)
    fingerprints = tuple(sorted({cell.fingerprint for cell in cells if cell.fingerprint}))
    if len(fingerprints) > 1:
        layout = dataclasses.replace(layout, rows=(*layout.rows, "data"))
    first = collection.runs[0].training
    tables: list[Table] = []
    tuned: list[Table] = []
    chosen: list[str] = []
    details: list[Details] = []
    found: list[Ranges] = []
    for kind in sorted({cell.experiment.kind for cell in cells}, reverse=True):  # federated before centralized
        members = [cell for cell in cells if cell.experiment.kind == kind]
        everything = lay_out(members, layout)
        best = tune(members, layout)
        of_best = lay_out(best.cells, layout, chosen=best.axes)
        tables += everything
        tuned += of_best
        chosen += best.axes
        details += [_details(table, collection, layout) for table in of_best or everything]
        found += filter(None, [ranges(members, layout)])
    own = [dataclasses.replace(cell, metric="acc_personal") for cell in cells if cell.personal]
    return Section(
        title=title,
        place=_names_of(first),
        layout=layout,
        constants=_constants(cells),
        tables=tuple(tables),
        tuned=tuple(tuned),
        chosen=tuple(dict.fromkeys(chosen)),
        own_shard=tuple(lay_out(own, layout, ranked=False)),
        details=tuple(details),
        ranges=tuple(found),
        fingerprints=fingerprints,
    )


def _details(table: Table, collection: Collection, layout: Layout) -> Details:
    is_baseline = condition(layout.baseline) if layout.baseline else lambda _: False
    baseline = next(
        (table.rows[at[0]] for at, cell in sorted(table.cells.items()) if is_baseline(cell.experiment)), None
    )
    costs = {}
    for (r, c), cell in sorted(table.cells.items()):
        against = None if baseline is None else table.cells.get((table.rows.index(baseline), c))
        comparable = against if against is not None and against.fingerprint == cell.fingerprint else None
        costs[r, c] = costs_of(cell, collection, targets_of(cell, layout.target, comparable))
    return Details(table, baseline, table.to_baseline(baseline), costs)


def _constants(cells: Sequence[Cell]) -> str:
    """The settings that all federated (or else all) cells of a section share, as far as a reader wonders about them."""
    federated = [cell for cell in cells if cell.experiment.kind == "federated"] or list(cells)
    schema = type(federated[0].experiment).model_fields
    shown = []
    for axis in axes_of(cell.experiment for cell in federated):
        value = axis_value(federated[0].experiment, axis)
        usual = axis in schema and (value is None or (axis not in ALWAYS_SAID and value == schema[axis].default))
        if not usual and not varies(federated, axis):
            shown.append(axis_label(axis, federated[0].tick(axis)))
    return ", ".join(shown)
