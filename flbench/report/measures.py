"""How far and how fast the cells of a column get: plateaus, the level that they are compared at, rounds to this level.

The third measure, how easily a learning rate is found that works, is in ``tuning.py``.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from flbench.metric_specs import METRICS, Record, value_of
from flbench.report.cells import Cell
from flbench.report.stats import Summary, summarize

#: Rounds are counted to this share of the lowest plateau of the column.
SHARE = 0.95

#: A network whose mean accuracy is below that of guessing times this number has learned nothing.
CHANCE = 1.5


class Point(NamedTuple):
    """What a record says of a curve."""

    round: int
    value: float | None  # None where it is not recorded, or not finite
    bytes: float | None  # sent and received by all clients up to the round


def points_of(records: Iterable[Record], metric: str) -> tuple[Point, ...]:
    """Return the curve of a run from all its records."""
    found = []
    for record in records:
        value = value_of(record, metric)
        is_finite = value is not None and math.isfinite(value)
        found.append(Point(record["round"], value if is_finite else None, bytes_of(record)))
    return tuple(found)


def bytes_of(record: Record) -> float | None:
    """Return the bytes that all clients sent and received up to a record."""
    parts = [value for name in ("bytes_up", "bytes_down") if (value := value_of(record, name)) is not None]
    return sum(parts) if parts else None


def is_flat(rise: Summary | None, margin: float) -> bool | None:
    """Return whether a cell is at its plateau; None without an interval.

    It is, if the interval of its slope is within the margin per doubling of rounds, to either side.
    """
    if rise is None or rise.half_width is None:
        return None
    return abs(rise.mean) + rise.half_width <= margin


@dataclass(frozen=True)
class Level:
    """The value to which rounds are counted in a column."""

    value: float
    # The sweep gives it, or it is a share of the lowest plateau or, where no row is at one, of the lowest final value.
    of: Literal["given", "plateau", "final value"]


def level_of(column: Iterable[Cell], target: float | None, margin: float) -> Level | None:
    """Return the level of the cells of a column; None where no cell is complete and better than guessing.

    Rows that learn nothing are at a plateau, too, and every other row passes it at once: they do not count.

    Args:
        column: cells on the same data.
        target: the value that the sweep gives, if it does.
        margin: what makes a plateau (``is_flat``).
    """
    if target is not None:
        return Level(target, "given")
    known = [cell for cell in column if cell.complete and cell.summary and _learns(cell)]
    flat = [cell for cell in known if is_flat(cell.rise, margin)]
    means = [cell.summary.mean for cell in flat or known if cell.summary]
    if not means:
        return None
    lower = METRICS[known[0].metric].lower_is_better
    return Level(max(means) / SHARE if lower else SHARE * min(means), "plateau" if flat else "final value")


def _learns(cell: Cell) -> bool:
    classes = getattr(getattr(cell.experiment, "dataset", None), "classes", None)
    if not classes or not METRICS[cell.metric].is_share or cell.summary is None:
        return True
    return bool(cell.summary.mean >= CHANCE / classes)


@dataclass(frozen=True)
class Speed:
    """How fast the seeds of a cell reach a level.

    A seed that does not reach it is censored: it takes more than all rounds. ``rounds``, ``steps`` and ``bytes`` are
    medians over the seeds, None where that is a censored seed, and where the number is not recorded.
    """

    level: Level
    by_seed: Mapping[int, float]  # rounds of each finished seed; infinite for a censored one
    requested: int  # number of seeds
    last: int  # the last round
    rounds: float | None
    steps: float | None  # local steps of a client
    bytes: float | None  # sent and received by all clients
    area: Summary | None  # mean of the metric over the rounds, of the finished seeds

    @property
    def n(self) -> int:
        """The number of seeds that reach the level."""
        return sum(map(math.isfinite, self.by_seed.values()))

    def fields(self) -> dict[str, Any]:
        """Return it as plain data; censored seeds have None."""
        return {
            "level": self.level.value,
            "level_of": self.level.of,
            "n": self.n,
            "wished": self.requested,
            "rounds": self.rounds,
            "local_steps": self.steps,
            "bytes": self.bytes,
            "rounds_by_seed": {str(seed): at if math.isfinite(at) else None for seed, at in self.by_seed.items()},
            "area": self.area and {"mean": self.area.mean, "ci_half_width": self.area.half_width, "n": self.area.n},
        }


def speed_of(cell: Cell, curves: Mapping[str, Sequence[Point]], level: Level | None) -> Speed | None:
    """Return how fast a cell reaches a level; None without one, and where a finished run has no curve.

    Args:
        cell: of complete or missing seeds.
        curves: of its runs, by run id.
        level: that of its column.
    """
    ended = [run for run in cell.runs if run.result is not None and run.state in ("done", "diverged")]
    done = [run for run in ended if run.state == "done"]
    if level is None or not done or not all(run.has_curve and curves[run.run_id] for run in done):
        return None
    first = {run.experiment.seed: first_at(curves[run.run_id], cell.metric, level.value) for run in ended}
    by_seed = {seed: math.inf if point is None else float(point.round) for seed, point in first.items()}
    sent = [math.inf if point is None else point.bytes for point in first.values()]
    rounds, steps = _median([*by_seed.values()]), getattr(cell.experiment, "local_steps", None)
    areas = [area(curves[run.run_id]) for run in done]
    return Speed(
        level=level,
        by_seed=by_seed,
        requested=cell.requested,
        last=cell.rounds,
        rounds=rounds,
        steps=rounds * steps if rounds is not None and isinstance(steps, int) else None,
        bytes=_median([one for one in sent if one is not None]) if None not in sent else None,
        area=summarize([one for one in areas if one is not None]),
    )


def first_at(curve: Iterable[Point], metric: str, target: float) -> Point | None:
    """Return the first point that is at least as good as a target."""
    reaches = METRICS[metric].reaches
    return next((point for point in curve if point.value is not None and reaches(point.value, target)), None)


def _median(values: Sequence[float]) -> float | None:
    middle = statistics.median(values)
    return middle if math.isfinite(middle) else None


def area(curve: Sequence[Point]) -> float | None:
    """Return the area under a curve, divided by its rounds: the mean of the metric from the first point to the last.

    It is that of the straight lines between points; None for fewer than two, and where one has no value.

    >>> area([Point(0, 0.1, None), Point(10, 0.5, None), Point(30, 0.9, None)])
    0.5666666666666667
    """
    known = [(point.round, point.value) for point in curve if point.value is not None]
    if len(known) < max(2, len(curve)):
        return None
    parts = [(later - at) * (value + after) / 2 for (at, value), (later, after) in itertools.pairwise(known)]
    return math.fsum(parts) / (known[-1][0] - known[0][0])
