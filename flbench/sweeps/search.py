"""Check the ``search`` section of a sweep against its experiments, and fill in its defaults."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from flbench.choices import ON_VALIDATION_DATA, OVER_TAIL, TAIL
from flbench.config import REQUEST_FIELDS, Experiment, Training, normal_path
from flbench.halving import Halving, Race
from flbench.messages import unknown
from flbench.metric_specs import METRICS
from flbench.refinement import Refinement
from flbench.sweeps.layout import POINT
from flbench.sweeps.source import Source
from flbench.sweeps.spec import Refine, Report, SweepSpec

#: The default rungs, as shares of the rounds; chosen with ``benchmarks/halving.py``, as the default of ``keep``.
SHARES = (0.1, 0.4, 1)

#: The default share of the settings that a rung keeps.
KEEP = Fraction(2, 5)


def read_search(source: Source, spec: SweepSpec, experiments: Sequence[Experiment]) -> Halving | None:
    """Return the search of a sweep, or None; raises SpecError where it does not fit the experiments."""
    section = spec.search
    if section is None:
        return None
    axes = tuple(_axis(source, name, spec.report, experiments) for name in section.axis)
    trainings = _by_rounds(source, experiments)
    rungs = tuple(
        _rungs(source, section.rungs, rounds, runs) if section.halves else (rounds,)
        for rounds, runs in trainings.items()
    )
    on_val, tail = section.select_by in ON_VALIDATION_DATA, TAIL if section.select_by in OVER_TAIL else 1
    if on_val and not all(getattr(run, "val_fraction", 0) for run in experiments):
        hint = f"{section.select_by} needs held-out data: set val_fraction, for example to 0.1, in base"
        raise source.error(("search", "select_by"), f"{hint}, or select_by: last, which selects on the test data")
    metric = "val_acc" if on_val else spec.report.metric
    refine = None if section.refine is None else _refinement(source, section.refine, axes, metric, spec.report)
    search = Halving(axes, rungs, section.keep or KEEP, metric, tail, refine)
    _check_problems(source, search, experiments)
    races = search.races((None, run.cell_id, run.to_json()) for run in experiments)
    if all(len(race.candidates) == 1 for race in races):
        raise source.error(("search", "axis"), f"nothing to choose: no two cells differ in {' and '.join(axes)} alone")
    _check_grids(source, search, races)
    return search


def default_rungs(rounds: int, every: int) -> tuple[int, ...]:
    """Return ``SHARES`` of the rounds as rungs that are evaluated every ``every`` rounds.

    >>> default_rungs(200, 10), default_rungs(20, 10)
    ((20, 80, 200), (10, 20))
    """
    rungs = {min(rounds, max(1, round(share * rounds / every)) * every) for share in SHARES}
    return (*sorted(rungs - {rounds}), rounds)


def _axis(source: Source, name: str, report: Report, experiments: Sequence[Experiment]) -> str:
    """Return the path of a tuned field that defines runs and that the report does not compare."""
    try:
        path = normal_path(name)
    except ValueError as error:
        raise source.error(("search", "axis"), str(error)) from None
    if path in {"seed", "kind", *REQUEST_FIELDS}:
        raise source.error(("search", "axis"), f"{path} is no hyper-parameter, expected one such as lr or method.mu")
    if not any(hasattr(run, path.partition(".")[0]) for run in experiments):
        fields = dict.fromkeys(field for run in experiments for field in type(run).model_fields)
        raise source.error(("search", "axis"), unknown("field", path, fields, "these experiments"))
    if path in map(normal_path, (*report.rows, *report.cols)):
        hint = f"{path} is in the report's rows or columns, which a search would drop"
        raise source.error(("search", "axis"), f"{hint}; expected a tuned field such as lr")
    return path


def _by_rounds(source: Source, experiments: Sequence[Experiment]) -> dict[int, list[Training]]:
    """Return the experiments, which must be trainings, by their numbers of rounds, fewest first."""
    found: dict[int, list[Training]] = {}
    for run in experiments:
        if not isinstance(run, Training):
            raise source.error(("search",), f"only trainings on data sets can be searched, got a {run.kind} experiment")
        found.setdefault(run.rounds, []).append(run)
    return dict(sorted(found.items()))


def _rungs(source: Source, given: tuple[int, ...] | None, rounds: int, runs: Sequence[Training]) -> tuple[int, ...]:
    """Return the rungs of all runs with a number of rounds."""
    rungs = given or default_rungs(rounds, max(run.eval_every for run in runs))
    if rungs[-1] != rounds:
        hint = f"expected the rounds of all runs, {rounds}, as the last, got {rungs[-1]}"
        raise source.error(("search", "rungs"), f"{hint}; without rungs, each number of rounds has its own")
    for rung in rungs[:-1]:
        if skipping := next((run.eval_every for run in runs if rung % run.eval_every), None):
            hint = f"no run is evaluated after round {rung}: eval_every is {skipping}"
            raise source.error(("search", "rungs"), f"{hint}; change one of them, so that it divides every rung")
    return rungs


def _refinement(source: Source, section: Refine, axes: tuple[str, ...], metric: str, report: Report) -> Refinement:
    """Return how a tuned field is refined."""
    if len(axes) > 1:
        raise source.error(("search", "refine"), f"expected one tuned field, got {' and '.join(axes)}")
    if section.margin is None and not METRICS[metric].percent:
        raise source.error(("search", "refine"), f"give the least gain in {metric} for which it goes on: margin")
    margin = POINT if section.margin is None else section.margin
    for key, mistake in METRICS[metric].wrong_units(margin=margin, target=None):
        raise source.error(("search", "refine", key), mistake)
    return Refinement(axes[0], margin, section.max_steps, section.until, tuple(map(normal_path, report.cols)))


def _check_grids(source: Source, search: Halving, races: Sequence[Race[None]]) -> None:
    """Check that the rows of a column, if they are refined, begin with one grid of two or more positive numbers."""
    if search.refine is None:
        return
    axis, firsts = search.refine.axis, dict[str, list[float]]()
    for race in races:
        if odd := [value for value in race.values if not (type(value) is float and value > 0)]:
            hint = f"expected a field of positive real numbers, such as lr; {axis} has the value {odd[0]!r}"
            raise source.error(("search", "refine"), hint)
        values = sorted(race.values)
        if len(values) < 2:
            hint = f"expected two or more values of {axis} in every row and column, got {values[0]} alone"
            raise source.error(("search", "refine"), hint)
        if (first := firsts.setdefault(race.column, values)) != values:
            hint = f"expected the same values of {axis} in all rows of a column, got {first} and {values}"
            raise source.error(("search", "refine"), hint)


def _check_problems(source: Source, search: Halving, experiments: Sequence[Experiment]) -> None:
    """Check that settings which are compared solve one problem: of its fields only the rounds are not the race's."""
    firsts: dict[str, tuple[str, int]] = {}
    for run in experiments:
        raw = run.to_json()
        problem = search.problem_of(raw)
        first, rounds = firsts.setdefault(search.race_of(raw), (problem, run.rounds))
        if first != problem:
            hint = f"expected the same rounds for all values of {' and '.join(search.axes)} in a row and column"
            raise source.error(("search",), f"{hint}, got {rounds} and {run.rounds}")
