"""From the runs of a report to its leaderboard: sections with tables, the first table, chapters."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from flbench.config import KINDS, Training
from flbench.errors import UserError
from flbench.metric_specs import METRICS, value_of
from flbench.report.board import Leaderboard, Options, Section
from flbench.report.cells import (
    Cell,
    Position,
    Unit,
    cells_of,
    gap_of,
    grouped,
    measured,
    merge_rows,
    rows_of,
    tick_of,
    with_columns,
)
from flbench.report.costs import budgets_of, costs_of
from flbench.report.measures import Point, level_of, points_of, speed_of
from flbench.report.paper import Paper
from flbench.report.parts import Part, merged, place_of
from flbench.report.planned import planned
from flbench.report.provenance import Provenance
from flbench.report.runs import Collection, Run, varied_methods
from flbench.report.stats import Contrast, contrasts
from flbench.report.summary import overalls
from flbench.report.tables import Table, lay_out, varies
from flbench.report.ticks import Tick, axis_label, axis_value, tick
from flbench.report.trust import Curve, Grid, end_of, grid_of, rise_of
from flbench.report.tuning import OfKind, budgets, by_kind, ranges
from flbench.report.wording import in_words
from flbench.sweeps.axes import SECTION, axes_of, check_axis, check_metric
from flbench.sweeps.layout import Layout

#: Settings that a section's constants name even at their default.
ALWAYS_NAMED = frozenset({"lr", "local_steps", "batch_size", "clients", "method", "norm", "partition", "rounds"})


def build(parts: Sequence[Part], options: Options | None = None, papers: Sequence[Paper] = ()) -> Leaderboard:
    """Return the leaderboard of some runs; raises UserError for a metric or an axis that does not exist.

    Its tables are those of runs that train on a data set; studies have chapters of their own, which the papers write.
    """
    varied = varied_methods(run for part in parts for run in part.collection.runs)
    named, gaps = [], {}
    for part in parts:
        own = part.collection.runs
        runs = tuple(run if run.varied == varied else dataclasses.replace(run, varied=varied) for run in own)
        collection = dataclasses.replace(part.collection, runs=runs)
        named.append(dataclasses.replace(part, layout=part.layout.spelled_out(), collection=collection))
        for run in runs:
            why = gap_of(run, part.layout.metric)
            if isinstance(run.experiment, Training) and run.state != "dropped" and why:
                gaps[run.run_id, run.rounds] = why
    collection, sections = merged(named), _sections(named)
    writers = {kind: write for paper in papers for kind, write in paper.chapters.items()}
    of_kind = {kind: [run for run in collection.runs if run.experiment.kind == kind] for kind in KINDS}
    return Leaderboard(
        options=options or Options(),
        sections=sections,
        overall=overalls([(one.title, one.layout, one.details) for one in sections]),
        collection=collection,
        chapters=tuple(
            writers[kind](members, collection) for kind, members in of_kind.items() if members and kind in writers
        ),
        supplements=tuple(paper.supplement(sections, collection) for paper in papers if paper.supplement),
        provenance=Provenance.of(collection.runs),
        unfinished=dict(sorted(Counter(gaps.values()).items())),
    )


def _sections(parts: Sequence[Part]) -> tuple[Section, ...]:
    """Return the sections of all parts, in the order of data sets and models."""
    found: list[tuple[tuple[Tick, ...], Part, list[Run]]] = []
    for part in parts:
        runs = [run for run in part.collection.runs if isinstance(run.experiment, Training)]
        _check(runs, part.layout)
        found += [(section_of(members[0]), part, members) for members in grouped(runs, section_of)]
    counts = Counter(ticks for ticks, _, _ in found)
    models = {ticks: place_of(members[0].training)[1] for ticks, _, members in found}
    names_of_data = Counter(ticks[0] for ticks in models)
    names_with_model = Counter((ticks[0], model) for ticks, model in models.items())
    sections = []
    for ticks, part, members in sorted(found, key=lambda one: one[0]):
        title = ", ".join(at.label for at in ticks)
        name = ticks[0].label
        settings = ticks[1].label.removeprefix(models[ticks]) if names_with_model[ticks[0], models[ticks]] > 1 else ""
        spelled = re.sub(r"[\[\]]", "", settings.replace("=", " ")).replace("(", " (", 1)
        words = f"{in_words(name)}, {in_words(models[ticks])}{spelled}"
        if names_of_data[ticks[0]] > 1:
            name = f"{name}, {models[ticks]}" if names_with_model[ticks[0], models[ticks]] == 1 else title
        if counts[ticks] > 1:
            names = [name for name, places in part.sweeps.items() if place_of(members[0].training) in places]
            title, name = (f"{text} ({', '.join(names)})" for text in (title, name))
        collection = dataclasses.replace(part.collection, runs=tuple(members))
        sections.append(_section(title, name, words, collection, part.layout))
    return tuple(sections)


def section_of(run: Run) -> tuple[Tick, ...]:
    """Return the data set and model of a run, which name its section."""
    return tuple(tick(name, axis_value(run.experiment, name)) for name in SECTION)


def _check(runs: Sequence[Run], layout: Layout) -> None:
    """Refuse a metric that the runs do not have, an axis that is none, and a number in another unit.

    An axis that none of the runs has is left out: the runs may be a part of a sweep.

    Raises:
        UserError: one of these.
    """
    if not runs:
        return
    if not any(value_of(run.record, layout.metric) is not None for run in runs):
        check_metric(layout.metric, (run.experiment for run in runs))
    for key, mistake in METRICS[layout.metric].wrong_units(margin=layout.margin, target=layout.target):
        raise UserError(f"{key} of {layout.metric}: {mistake}")
    finished = [run for run in runs if run.record is not None]
    if finished and all(value_of(run.record, layout.metric) is None for run in finished):
        recorded = sorted({name for run in finished for name in run.record or ()} & METRICS.keys())
        raise UserError(f"no run recorded {layout.metric!r}; recorded: {', '.join(recorded)}")
    for axis in (*layout.rows, *layout.cols, *layout.tune):
        check_axis(axis)


def _section(title: str, name: str, words: str, collection: Collection, layout: Layout) -> Section:
    cells = merge_rows(cells_of(collection.runs, layout.metric), layout.rows)
    fingerprints = tuple(sorted({*cells.fingerprint} - {None}))
    if len(fingerprints) > 1:
        layout = dataclasses.replace(layout, rows=(*layout.rows, "data"))
    kinds = by_kind(cells, layout)
    halves = layout.search is not None and layout.search.halves
    searched = {} if layout.search is None else budgets_of(collection.runs, layout.search)
    laid_out = [lay_out(kind.shown, layout, chosen=kind.chosen) for kind in kinds]
    ends: dict[Unit, Mapping[int, Curve]] = {}
    shown = [
        [_with_details(table, collection, layout, searched, kind, ends) for table in tables]
        for kind, tables in zip(kinds, laid_out, strict=True)
    ]
    details = tuple(table for tables in shown for table in tables)
    # Most rates are not trained to the end where a search drops them.
    rates = () if halves else tuple(found for kind in kinds for found in ranges(kind.cells, layout))
    of_details = {cell.key: cell for table in details for cell in table.cells.values()}
    return Section(
        title=title,
        name=name,
        words=words,
        place=place_of(collection.runs[0].training),
        layout=layout,
        constants=", ".join([_constants(rows_of(cells)), *_following(kinds)]),
        tables=tuple(
            table
            for kind, tables in zip(kinds, shown, strict=True)
            for table in (lay_out(kind.cells, layout) if kind.chosen else tables)
        ),
        tuned=tuple(table for kind, tables in zip(kinds, shown, strict=True) if kind.chosen for table in tables),
        chosen=tuple(dict.fromkeys(axis for kind in kinds for axis in kind.chosen)),
        own_shard=tuple(lay_out(measured(cells[cells.personal.astype(bool)], "acc_personal"), layout, ranked=False)),
        details=details,
        planned=planned(kinds, layout, of_details, ends, [one for found in rates for one in found.rows]),
        budgets=tuple(found for kind in kinds for found in budgets(kind)),
        ranges=rates,
        fingerprints=fingerprints,
    )


def _with_details(
    table: Table,
    collection: Collection,
    layout: Layout,
    budgets: Mapping[str, int],
    kind: OfKind,
    ends: dict[Unit, Mapping[int, Curve]],
) -> Table:
    """Return a table with its baseline, the contrasts to it, the costs of its cells, their slopes, grids and speed.

    The last evaluations of its cells are added to ``ends``.
    """
    is_baseline = layout.is_baseline_but_for()
    found = (r for (r, _), cell in table.cells.items() if layout.baseline and is_baseline(cell.experiment))
    row = next(found, None)
    to_baseline: dict[Position, Contrast] = {}
    costs = []
    curves: dict[Unit, Mapping[str, Sequence[Point]]] = {}
    grids = {settings[0].key: grid_of(settings, kind.chosen) for settings in kind.tried}
    compared = [cell for cell in table.cells.values() if cell.contest is not None]
    for contest in grouped(compared, lambda cell: cell.contest):
        values = {cell.at: cell.by_seed for cell in contest}
        if (reference := next((at for at in values if at[0] == row), None)) is not None:
            to_baseline |= contrasts(values, reference)
    for cell in table.cells.values():
        race = None if layout.search is None else layout.search.race_of(cell.experiment.to_json())
        costs.append(costs_of(cell, budgets.get(race) if race else None))
        records = {run.run_id: collection.records(run) for run in cell.runs}
        curves[cell.key] = {run_id: points_of(of_run, cell.metric) for run_id, of_run in records.items()}
        ends[cell.key] = {run.experiment.seed: end_of(records[run.run_id], cell.metric) for run in cell.runs}
    frame = with_columns(
        table.frame,
        to_baseline=[to_baseline.get(at) for at in table.cells],
        costs=costs,
        rise=[rise_of(ends[cell.key]) if cell.complete else None for cell in table.cells.values()],
        grid=[grids.get(cell.key, Grid(1)) for cell in table.cells.values()],
    )
    levels = {
        cell.at: level
        for column in grouped(rows_of(frame), lambda cell: (cell.at[1], cell.fingerprint or ""))
        for level in [level_of(column, layout.target, layout.tie_margin)]
        for cell in column
    }
    frame = with_columns(
        frame, speed=[speed_of(cell, curves[cell.key], levels[cell.at]) for cell in table.cells.values()]
    )
    return dataclasses.replace(table, frame=frame, baseline=None if row is None else table.rows[row])


def _following(kinds: Sequence[OfKind]) -> list[str]:
    """Return ``rounds 1000 with E 1, 20 with E 50``: fields of the problem that columns do not show."""
    texts = []
    for kind in kinds:
        for axis, origin in kind.axes.of_cols:
            values = {tick_of(cell, origin): tick_of(cell, axis) for cell in rows_of(kind.shown)}
            parts = [
                f"{at.label} with {axis_label(origin, by)}" for by, at in sorted(values.items(), key=lambda of: of[0])
            ]
            texts.append(f"{axis} {', '.join(parts)}")
    return list(dict.fromkeys(texts))


def _constants(cells: Sequence[Cell]) -> str:
    """Return the settings that all federated (or else all) cells of a section share, without usual defaults."""
    federated = [cell for cell in cells if cell.kind == "federated"] or list(cells)
    first = federated[0].experiment
    shown = []
    for axis in axes_of(type(cell.experiment) for cell in federated):
        value = axis_value(first, axis)
        is_field = axis in type(first).model_fields
        usual = is_field and (value is None or (axis not in ALWAYS_NAMED and first.has_default(axis)))
        if not usual and not varies(federated, axis):
            shown.append(axis_label(axis, tick_of(federated[0], axis)))
    return ", ".join(shown)
