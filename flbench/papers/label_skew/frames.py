"""The frame of probed cells: probes beside accuracy, from the last record, and from the one before the first round."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flbench.config import Federated
from flbench.metric_specs import Record
from flbench.report.cells import Cell, tick_of
from flbench.report.runs import Collection, Run, compared_fields

if TYPE_CHECKING:
    import pandas as pd

#: The probes that are read.
READ = ("features", "drift", "sharpness")

#: The fields that decide what a probe measures before training.
_AT_BIRTH = ("dataset", "model", "norm", "bias", "precision", "partition", "clients", "min_size", "val_fraction")

Probes = Mapping[str, Any]

#: What a cell is. ``shared``: whether a federated method trained one model for all clients; ``place``: the labels of
#: everything but method, norm and learning rate, ``column`` as text: cells that share it may be compared; ``method``:
#: with its settings, without the names of methods that compute the same.
PLACE = ("cell", "is_federated", "personal", "shared", "place", "column", "partition", "method", "norm", "lr")

#: Numbers of a cell over its seeds, NaN where no finished seed has one: geometric means of lengths, growths and
#: lambdas, plain means of the others. ``acc``: the report's metric; ``rank``: the effective rank of the features;
#: ``share``: that of the first singular value's square in all squares; ``length``: of a feature; ``growth``: of that
#: length since before the first round; ``head_growth``: of the longest class embedding; ``agreement``: of the clients'
#: updates; ``lambda``: lambda_max of the global model, ``local_lambda`` the largest over clients; ``used``: the
#: learning rate over 2 / lambda_max at the end, below 1 where gradient descent is stable. ``first_``: before the first
#: round.
NUMBERS = (
    *("acc", "rank", "share", "first_share", "length", "first_length", "growth", "head_growth", "agreement"),
    *("first_lambda", "first_local_lambda", "last_lambda", "last_local_lambda", "used"),
)

#: Numbers of the seeds that have them, as dictionaries; ``lost``: class accuracy lost by local steps.
BY_SEED = ("growths", "ranks", "shares", "lost")


class Births:
    """Records of round 0, read once for all runs that begin with the same network on the same data.

    Methods, learning rates and numbers of steps change nothing before the first round: a sweep of thousands of runs has
    a few hundred beginnings.
    """

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self._known: dict[tuple[Any, ...], Probes] = {}

    def of(self, run: Run) -> Probes:
        """Return the probes before the first round; empty where there were none."""
        if run.result is None or 0 not in run.result.evaluated or not probes_of(run.record):
            return {}
        key = (*(getattr(run.experiment, name, None) for name in _AT_BIRTH), run.experiment.seed, run.fingerprint)
        key = (*map(repr, key), run.result.probes)
        if key not in self._known:
            records = self._collection.source.metrics(run.run_id, run.result) if self._collection.source else []
            first = next((record for record in records if record["round"] == 0), None)
            self._known[key] = probes_of(first)
        return self._known[key]


def probes_of(record: Record | None) -> Probes:
    """Return the probes in a record."""
    return (record or {}).get("probes") or {}


def has_probes(run: Run) -> bool:
    """Return whether a run that finished recorded any of the probes that are read."""
    return any(name in probes_of(run.record) for name in READ)


def probed(cells: Iterable[Cell], births: Births) -> pd.DataFrame:
    """Return a row for each cell with probes."""
    import pandas as pd

    rows = [_row(cell, births) for cell in cells if any(map(has_probes, cell.runs))]
    types = {**dict.fromkeys(NUMBERS, float), **dict.fromkeys(("is_federated", "personal", "shared"), bool)}
    return pd.DataFrame(rows, columns=[*PLACE, *NUMBERS, *BY_SEED]).astype(types)


def _row(cell: Cell, births: Births) -> dict[str, Any]:
    experiment, is_federated = cell.experiment, isinstance(cell.experiment, Federated)
    names = [name for name in compared_fields(experiment) if name not in ("method", "norm", "lr")]
    place = {**{name: tick_of(cell, name).label for name in names}, "data": cell.fingerprint or ""}
    runs = [run for run in cell.runs if run.state == "done" and has_probes(run)]
    seeds = [run.experiment.seed for run in runs]
    ends, begins = [probes_of(run.record) for run in runs], [births.of(run) for run in runs]

    def ratios(size: Callable[[Probes], float | None]) -> list[float | None]:
        sizes = [(size(begin), size(end)) for begin, end in zip(begins, ends, strict=True)]
        return [after / before if before and after is not None else None for before, after in sizes]

    def of(records: Sequence[Probes], probe: str, name: str) -> list[float | None]:
        return [number(one, probe, name) for one in records]

    growths, ranks, shares = ratios(_length), of(ends, "features", "rank"), of(ends, "features", "first_share")
    length, growth, last = _geometric(map(_length, ends)), _geometric(growths), _geometric(of(ends, *_LAMBDA))
    return {
        "cell": cell,
        "is_federated": is_federated,
        "personal": cell.personal,
        "shared": is_federated and not cell.personal,
        "place": place,
        "column": repr(place),
        "partition": tick_of(cell, "partition").label if is_federated else "all data",
        "method": experiment.method.label() if is_federated else "centralized",
        "norm": tick_of(cell, "norm").label,
        "lr": float(experiment.lr),
        "acc": cell.summary.mean if cell.summary else None,
        "rank": _mean(ranks),
        "share": _mean(shares),
        "first_share": _mean(of(begins, "features", "first_share")),
        "length": length,
        "first_length": length / growth if length and growth else None,
        "growth": growth,
        "head_growth": _geometric(
            ratios(lambda probes: max(probes.get("features", {}).get("head_norms") or (), default=None))
        ),
        "agreement": _mean(of(ends, "drift", "agreement")),
        "first_lambda": _geometric(of(begins, *_LAMBDA)),
        "first_local_lambda": _geometric(map(_sharpest_client, begins)),
        "last_lambda": last,
        "last_local_lambda": _geometric(map(_sharpest_client, ends)),
        "used": None if last is None else experiment.lr * last / 2,
        "growths": {seed: one for seed, one in zip(seeds, growths, strict=True) if one},
        "ranks": {seed: one for seed, one in zip(seeds, ranks, strict=True) if one is not None},
        "shares": {seed: one for seed, one in zip(seeds, shares, strict=True) if one is not None},
        "lost": _lost(cell.runs),
    }


def rows_of(cells: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of the frame, with None in place of a missing number."""
    return [
        {str(name): None if isinstance(value, float) and math.isnan(value) else value for name, value in row.items()}
        for row in cells.to_dict("records")
    ]


def at_best_rate(tuned: pd.DataFrame) -> pd.DataFrame:
    """Return the cells whose learning rate was chosen, or is the only one of their row and column.

    Where nothing is tuned (``tune: []``), a row with several rates has no best one: each of them is a column.
    """
    return tuned[~tuned.duplicated(["column", "method", "norm"], keep=False)]


def number(probes: Probes, probe: str, name: str) -> float | None:
    """Return a finite number that a probe recorded."""
    value = probes.get(probe, {}).get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


#: The probe of lambda_max, and its name there.
_LAMBDA = ("sharpness", "lambda_max")


def _lost(runs: Iterable[Run]) -> dict[int, float]:
    """Return the mean class accuracy of the global model less that after local steps, by seed."""
    found = {}
    for run in runs:
        probes = probes_of(run.record) if run.state == "done" else {}
        before, after = (number(probes, "overfit", name) for name in ("mean_before", "mean_after"))
        if before is not None and after is not None:
            found[run.experiment.seed] = before - after
    return found


def _length(probes: Probes) -> float | None:
    return number(probes, "features", "norm")


def _sharpest_client(probes: Probes) -> float | None:
    local = [value for value in probes.get("sharpness", {}).get("local") or () if value is not None]
    return max(local, default=None)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _geometric(values: Iterable[float | None]) -> float | None:
    """The geometric mean of the values above zero."""
    known = [math.log(value) for value in values if value is not None and value > 0]
    return math.exp(math.fsum(known) / len(known)) if known else None
