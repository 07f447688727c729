"""Read the ``report`` section of a sweep: its fields and values exist, and each entry has an effect on the cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

from flbench.choices import ON_VALIDATION_DATA, Measure
from flbench.config import Experiment, GivenValue, Layer, Training, ValidCell, Where, normal_path
from flbench.errors import UserError
from flbench.messages import did_you_mean, format_scalar, unknown
from flbench.metric_specs import METRICS
from flbench.sweeps.axes import check_axis, check_metric
from flbench.sweeps.layout import Layout, Pair
from flbench.sweeps.match import Condition, Rule, values_here
from flbench.sweeps.source import Source, component_form
from flbench.sweeps.spec import AGAINST, BETWEEN, CONTRAST_KEYS, IF, MEASURE, Report, SweepSpec, Values

#: The parts of a file that make its cells.
OF_CELLS = ("base", "axes", "zip", "grids", "exclude", "overrides")


def read_report(
    source: Source, spec: SweepSpec, cells: Sequence[ValidCell], experiments: Sequence[Experiment]
) -> Layout:
    """Return how a sweep is reported; raises SpecError for a mistake in ``report``.

    An entry without an effect is a mistake in the file. Where ``--set`` changes the cells, the entries of the file were
    written for other cells, and only those that ``--set`` gives must have an effect.

    Args:
        source: the file.
        spec: its content.
        cells: all cells, also those that ``--only`` and ``--limit`` leave out.
        experiments: the runs that they keep.
    """
    report = spec.report
    _check_axes(source, report, cells)
    try:
        check_metric(report.metric, experiments)
    except UserError as error:
        raise source.error(("report", "metric"), str(error)) from None
    for key, mistake in METRICS[report.metric].wrong_units(margin=report.margin, target=report.target):
        raise source.error(("report", key), mistake)
    if report.select_by in ON_VALIDATION_DATA and any(not getattr(run, "val_fraction", True) for run in experiments):
        hint = f"{report.select_by} needs held-out data: set val_fraction, for example to 0.1, in base"
        raise source.error(("report", "select_by"), hint)

    def read(values: Values, *where: str | int) -> tuple[Condition, ...]:
        return Condition.each_of(source, source.read_layer(values, ("report", *where)))

    headline = tuple(read(one, "headline", at) for at, one in enumerate(report.headline or ()))
    baseline = None if report.baseline is None else read(report.baseline, "baseline")
    contrasts = [
        read_contrast(source, contrast, ("report", "contrasts", index))
        for index, contrast in enumerate(report.contrasts)
    ]
    effects = _Effects(source, cells)
    for at, wanted in enumerate(headline):
        effects.require(("report", "headline", at), *wanted)
    if baseline is not None:
        effects.require(("report", "baseline"), *baseline)
    for index, pairs in enumerate(contrasts):
        first = pairs[0]
        if first.measure == "easy":
            where = ("report", "contrasts", index, MEASURE)
            if spec.search is not None and spec.search.halves:
                raise source.error(where, "easy needs all rates trained to the end, and the sweep's search drops some")
            effects.require_variation(where, "lr")
        for column in first.between or (None,):
            for one in (*(pair.value for pair in pairs), first.against):
                effects.require(("report", "contrasts", index), one, *first.among, *([column] if column else []))
    if "tune" in report.model_fields_set:
        for index, field in enumerate(report.tune):
            effects.require_variation(("report", "tune", index), normal_path(field))
    layout = Layout(
        report.metric,
        report.rows,
        report.cols,
        report.select_by,
        tune=report.tune,
        contrasts=tuple(pair for pairs in contrasts for pair in pairs),
        margin=report.margin,
        target=report.target,
        headline=None if report.headline is None else headline,
    )
    return layout if baseline is None else replace(layout, baseline=baseline)


def _check_axes(source: Source, report: Report, cells: Sequence[ValidCell]) -> None:
    """Raise SpecError for an axis that the tables of these cells cannot have, or that is given twice."""
    trainings = [cell for cell in cells if issubclass(cell.assembler.model, Training)]
    found = trainings or cells
    given = [part for part in ("rows", "cols", "tune") if part in report.model_fields_set]
    for part in given:
        for index, field in enumerate(getattr(report, part)):
            where = ("report", part, index)
            try:
                if trainings:
                    check_axis(field)
                path = normal_path(field)
            except (UserError, ValueError) as error:
                raise source.error(where, str(error)) from None
            if not any(cell.has(path) for cell in found):
                name, _, setting = path.partition(".")
                here = values_here(name, (cell.label(name) for cell in found))
                raise source.error(where, f"no cell has {path}: fix or remove it{f'; {here}' if setting else ''}")
    places: dict[str, str] = {}
    for part in ("rows", "cols"):
        for path in map(normal_path, getattr(report, part)):
            if path in places and given:
                both = f"{path} is an axis twice, in {places[path]} and in {part}"
                raise source.error(("report", part if part in given else places[path]), f"{both}: give it once")
            places[path] = part


class _Effects:
    """Refuses conditions that match no cell, and fields that do not vary."""

    def __init__(self, source: Source, cells: Sequence[ValidCell]) -> None:
        self._source, self._cells = source, cells
        self._are_changed = source.has_option(OF_CELLS)

    def require(self, where: Where, *conditions: Condition) -> None:
        """Raise SpecError where no cell meets all conditions of an entry."""
        if self._is_excused(*(one.given.where for one in conditions)) or self._is_met(*conditions):
            return
        for one in conditions:
            if not self._is_met(one):
                here = values_here(one.field, (cell.label(one.field) for cell in self._cells))
                message = f"{format_scalar(one.given.raw)} matches no cell: fix or remove it; {here}"
                raise self._source.error(one.given.where, message)
        together = " and ".join(f"{one.field}: {format_scalar(one.given.raw)}" for one in conditions)
        raise self._source.error(where, f"matches no cell: fix or remove it; here no cell has {together}")

    def require_variation(self, where: Where, path: str) -> None:
        """Raise SpecError where all cells have the same value of a field."""
        if self._is_excused(where) or self._varies(path):
            return
        fields = dict.fromkeys(field for cell in self._cells for field in cell.assembler.fields)
        varying = ", ".join(filter(self._varies, fields)) or "nothing"
        raise self._source.error(where, f"{path} does not vary: fix or remove it; here varies: {varying}")

    def _is_excused(self, *places: Where) -> bool:
        return self._are_changed and not any(map(self._source.is_option, places))

    def _is_met(self, *conditions: Condition) -> bool:
        return any(all(one.rule.matches(cell.values, cell.assembler) for one in conditions) for cell in self._cells)

    def _varies(self, path: str) -> bool:
        return len({cell.label(path) for cell in self._cells} - {None}) > 1


def read_contrast(source: Source, contrast: Values, where: Where) -> tuple[Pair, ...]:
    """Return a planned comparison of each value of one field with another one, in one column or between two."""
    key = _compared_field(source, contrast, where)
    raw, reference = contrast[key], contrast[AGAINST]
    if isinstance(reference, list):
        raise source.error((*where, AGAINST), f"expected one value, got {reference!r}")
    among = contrast.get(IF, {})
    if not isinstance(among, dict):
        raise source.error((*where, IF), f"expected a mapping, as {{method: fedavg}}, got {among!r}")
    ((path, given),) = source.read_layer({key: raw}, where).items()
    layer = source.read_layer(among, (*where, IF))
    between = _columns(source, contrast[BETWEEN], path, (*where, BETWEEN)) if BETWEEN in contrast else ()
    Rule(source, {path: given})
    (against,) = Condition.each_of(source, {path: GivenValue(reference, (*where, AGAINST))})
    meant = Condition.each_of(source, layer)
    columns = tuple(one for column in between for one in Condition.each_of(source, column))
    measure = contrast.get(MEASURE, "far")
    if measure not in get_args(Measure):
        raise source.error((*where, MEASURE), unknown("measure", str(measure), get_args(Measure)))
    if between and measure != "far":
        hint = f"{BETWEEN} compares differences of the metric, and {measure} has differences of ranks: leave one out"
        raise source.error((*where, MEASURE), hint)
    pairs = [
        Pair(value, against, meant, columns, measure)
        for one in _each(path, given)
        for value in Condition.each_of(source, one)
    ]
    for pair in pairs:
        if _form(path, pair.value.given.raw) == _form(path, reference):
            hint = f"{path} {format_scalar(reference)} is compared with itself"
            raise source.error((*where, AGAINST), f"expected another value than those compared: {hint}")
    return tuple(pairs)


def _compared_field(source: Source, contrast: Values, where: Where) -> str:
    """Return the key of the field whose values are compared."""
    fields = [key for key in contrast if key not in CONTRAST_KEYS]
    for key in fields:
        try:
            normal_path(key)
        except ValueError as error:
            is_key = did_you_mean(key, CONTRAST_KEYS)
            raise source.error((*where, key), unknown("key", key, CONTRAST_KEYS) if is_key else str(error)) from None
    if len(fields) > 1:
        condition = ", ".join(f"{key}: {format_scalar(contrast[key])}" for key in fields[1:])
        hint = f"got {' and '.join(fields)}; restrict the cells with if: {{{condition}}}"
        raise source.error(where, f"expected one field, {hint}")
    if not fields or AGAINST not in contrast:
        raise source.error(where, f"expected one field and {AGAINST!r}, as {{norm: [fn, ln], against: none}}")
    return fields[0]


def _columns(source: Source, between: Any, compared: str, where: Where) -> tuple[Layer, ...]:
    """Return two different values of one field, other than the field ``compared``."""
    pairs = list(between.items()) if isinstance(between, dict) else []
    values = pairs[0][1] if len(pairs) == 1 else None
    if not isinstance(values, list) or len(values) != 2 or values[0] == values[1]:
        form = 'expected one field with two different values, as {partition: ["classes:1", iid]}'
        raise source.error(where, f"{form}, got {between!r}")
    ((path, given),) = source.read_layer(between, where).items()
    if path == compared:
        raise source.error(where, f"expected another field than {compared}, whose values are compared")
    return _each(path, given)


def _each(path: str, given: GivenValue) -> tuple[Layer, ...]:
    """Return a condition for each value of a list, or for a single value."""
    if not isinstance(given.raw, list):
        return ({path: given},)
    return tuple({path: GivenValue(one, (*given.where, index))} for index, one in enumerate(given.raw))


def _form(path: str, raw: Any) -> Any:
    """Return a value in the form in which equal ones are equal: ``ln`` and ``{name: ln}``."""
    return component_form(path, raw) or raw
