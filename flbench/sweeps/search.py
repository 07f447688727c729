"""Check the ``search`` section of a sweep against its experiments, and fill in its defaults."""

from __future__ import annotations

from collections.abc import Sequence

from flbench.config import REQUEST_FIELDS, Experiment, Training, normal_path
from flbench.halving import Halving
from flbench.messages import unknown
from flbench.sweeps.source import Source
from flbench.sweeps.spec import SweepSpec

#: The default rungs, as shares of the rounds; chosen with ``benchmarks/bench_halving.py``, as the default of ``keep``.
SHARES = (0.1, 0.4, 1)


def read_search(source: Source, spec: SweepSpec, experiments: Sequence[Experiment]) -> Halving | None:
    """Return the search of a sweep, or None; raises SpecError where it does not fit the experiments."""
    section = spec.search
    if section is None:
        return None
    axes = tuple(_axis(source, name, experiments) for name in section.axis)
    rounds = _rounds(source, experiments)
    every = max(experiment.eval_every for experiment in experiments)
    rungs = section.rungs or default_rungs(rounds, every)
    if rungs[-1] != rounds:
        raise source.error(
            ("search", "rungs"), f"expected the rounds of all runs, {rounds}, as the last, got {rungs[-1]}"
        )
    for rung in rungs[:-1]:
        if skipping := next((run.eval_every for run in experiments if rung % run.eval_every), None):
            hint = f"no run is evaluated after round {rung}: eval_every is {skipping}"
            raise source.error(("search", "rungs"), f"{hint}; change one of them, so that it divides every rung")
    if section.select_by == "val" and not all(getattr(run, "val_fraction", 0) for run in experiments):
        hint = "val needs held-out data: set val_fraction, for example to 0.1, in base"
        raise source.error(("search", "select_by"), f"{hint}, or select_by: last, which selects on the test data")
    metric = "val_acc" if section.select_by == "val" else spec.report.metric
    search = Halving(axes, rungs, section.keep, metric)
    races = search.races((None, run.cell_id, run.to_json()) for run in experiments)
    if all(len(race) == 1 for race in races):
        raise source.error(("search", "axis"), f"nothing to choose: no two cells differ in {' and '.join(axes)} alone")
    return search


def default_rungs(rounds: int, every: int) -> tuple[int, ...]:
    """Return ``SHARES`` of the rounds as rungs that are evaluated every ``every`` rounds.

    >>> default_rungs(200, 10), default_rungs(20, 10)
    ((20, 80, 200), (10, 20))
    """
    rungs = {min(rounds, max(1, round(share * rounds / every)) * every) for share in SHARES}
    return (*sorted(rungs - {rounds}), rounds)


def _axis(source: Source, name: str, experiments: Sequence[Experiment]) -> str:
    """Return the path of a tuned field that defines runs."""
    try:
        path = normal_path(name)
    except ValueError as error:
        raise source.error(("search", "axis"), str(error)) from None
    if path in {"seed", "kind", *REQUEST_FIELDS}:
        raise source.error(("search", "axis"), f"{path} is no hyper-parameter, expected one such as lr or method.mu")
    if not any(hasattr(run, path.partition(".")[0]) for run in experiments):
        fields = dict.fromkeys(field for run in experiments for field in type(run).model_fields)
        raise source.error(("search", "axis"), unknown("field", path, fields, "these experiments"))
    return path


def _rounds(source: Source, experiments: Sequence[Experiment]) -> int:
    """Return the rounds of the experiments, which must be trainings of the same length."""
    if other := next((run.kind for run in experiments if not isinstance(run, Training)), None):
        raise source.error(("search",), f"only trainings on data sets can be searched, got a {other} experiment")
    several = sorted({run.rounds for run in experiments})
    if len(several) > 1:
        raise source.error(("search",), f"expected the same rounds in every cell, got {several[0]} and {several[-1]}")
    return several[0]
