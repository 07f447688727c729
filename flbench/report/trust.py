"""What a report checks before it calls a planned comparison shown: rising curves, coarse grids, windows, collapses.

Each check has three answers: it passes, it fails, or the runs cannot tell. Only the first one is a pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flbench.choices import TAIL
from flbench.metric_specs import METRICS, Record, value_of
from flbench.report.cells import Cell
from flbench.report.stats import DECIMALS, Contrast, Difference, Summary, Verdict, summarize
from flbench.report.ticks import axis_value

#: The last evaluations of a run after round 0: rounds, ascending, and values.
Curve = tuple[tuple[int, float], ...]

#: The windows in which a verdict is computed: how many of the last evaluations are averaged.
WINDOWS = (1, TAIL, 2 * TAIL)


def end_of(records: Iterable[Record], metric: str) -> Curve:
    """Return the last evaluations of a run after round 0, from the last one without a finite value on.

    They are those of the second half of the rounds, and at least ``2 * TAIL``.
    """
    found: list[tuple[int, float]] = []
    for record in records:
        value = value_of(record, metric)
        if value is None or not math.isfinite(value):
            found.clear()
        elif record["round"] > 0:
            found.append((record["round"], value))
    return _second_half(found, 2 * TAIL)


def _second_half(curve: Sequence[tuple[int, float]], fewest: int) -> Curve:
    """Return the evaluations after half of the rounds, or the last ``fewest`` if these are more."""
    later = sum(2 * at > curve[-1][0] for at, _ in curve)
    return tuple(curve[-max(later, fewest) :])


def over_last(ends: Mapping[int, Curve], window: int) -> dict[int, float]:
    """Return the mean of the last evaluations of each seed; empty where a seed has fewer."""
    if any(len(curve) < window for curve in ends.values()):
        return {}
    return {seed: math.fsum(value for _, value in curve[-window:]) / window for seed, curve in ends.items()}


def slopes(ends: Mapping[int, Curve]) -> dict[int, float]:
    """Return the slope of each seed's curve per doubling of rounds; empty where one has fewer than ``TAIL`` points.

    It is the least-squares slope of the metric against log2 of the round, over the second half of the rounds: one
    doubling. Of five evaluations that are close together the slope per doubling would be noise.
    """
    if any(len(curve) < TAIL for curve in ends.values()):
        return {}
    return {seed: round(_slope(_second_half(curve, TAIL)), DECIMALS) for seed, curve in ends.items()}


def _slope(curve: Curve) -> float:
    at = [math.log2(place) for place, _ in curve]
    middle = math.fsum(at) / len(at)
    spread = math.fsum((one - middle) ** 2 for one in at)
    return math.fsum((one - middle) * value for one, (_, value) in zip(at, curve, strict=True)) / spread


def improves(found: Summary | None, metric: str) -> bool | None:
    """Return whether a cell still improves: the interval of its slope is beyond 0; None without an interval."""
    if found is None or found.half_width is None:
        return None
    return (-found.mean if METRICS[metric].lower_is_better else found.mean) > found.half_width


@dataclass(frozen=True)
class Grid:
    """The settings among which one was chosen."""

    settings: int
    at_edge: bool = False  # whether a side of the chosen one, on some axis, has no setting
    cost: float | None = None  # how much the grid may cost, in units of the metric; None where it is not known

    @property
    def is_tuned(self) -> bool:
        """Whether there was a choice."""
        return self.settings > 1

    def is_coarse(self, margin: float) -> bool | None:
        """Return whether a setting that was not tried may be better by more than the margin; None where not known."""
        if not self.is_tuned or self.at_edge:
            return True
        return None if self.cost is None else self.cost > margin

    def fields(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"settings": self.settings, "at_edge": self.at_edge, "cost": self.cost}


def grid_of(tried: Sequence[Cell], axes: Sequence[str]) -> Grid:
    """Return what is known of the grid of a cell: the first of ``tried``, which were chosen among on ``axes``.

    On several axes the costs are added. Axes that are no numbers are no grids.
    """
    best, costs, at_edge = tried[0], [], False
    sign = -1 if METRICS[best.metric].lower_is_better else 1
    for axis in axes:
        others = [one for one in axes if one != axis]
        line = [cell for cell in tried if all(_at(cell, one) == _at(best, one) for one in others)]
        if len(line) < 2 or not all(isinstance(_at(cell, axis), int | float) for cell in line):
            continue
        line.sort(key=lambda cell: float(_at(cell, axis)))
        means = [sign * cell.summary.mean if cell.complete and cell.summary else None for cell in line]
        places = [float(_at(cell, axis)) for cell in line]
        here = line.index(best)
        at_edge |= here in (0, len(line) - 1)
        costs.append(grid_cost([math.log(at) for at in places] if places[0] > 0 else places, means, here))
    known = [cost for cost in costs if cost is not None]
    return Grid(len(tried), at_edge, math.fsum(known) if known and len(known) == len(costs) else None)


def _at(cell: Cell, axis: str) -> float:
    value: float = axis_value(cell.experiment, axis)
    return value


def grid_cost(places: Sequence[float], means: Sequence[float | None], chosen: int) -> float | None:
    """Return by how much a peak between the places of a grid may exceed the mean at the chosen one.

    The curve of the means is assumed to rise concavely up to its peak, and may fall in any way beyond it, as accuracy
    does over the logarithm of the learning rate. If the peak is above the chosen place, the last step before it bounds
    the rise: it is at most as steep as the step to the chosen place. If it is below, the step before that one bounds
    the rise to the peak. A neighbour with a higher mean costs at least the difference.

    Args:
        places: of the settings, ascending.
        means: their means, larger is better; None for a setting without one.
        chosen: which one was chosen.

    Returns:
        None at an edge of the grid, and where the chosen place or the one below has no mean.

    >>> grid_cost([0, 1, 2, 3], [0.6, 0.8, 0.9, 0.1], 2)
    0.1
    """
    here = means[chosen]
    if here is None or chosen in (0, len(places) - 1):
        return None
    below, above = means[chosen - 1], means[chosen + 1]
    if below is None:
        return None
    step = places[chosen] - places[chosen - 1]
    bounds = [0.0, below - here, (here - below) * (places[chosen + 1] - places[chosen]) / step]
    if above is not None:
        bounds.append(above - here)
    if chosen > 1 and (lowest := means[chosen - 2]) is not None:
        rise = (below - lowest) * step / (places[chosen - 1] - places[chosen - 2])
        bounds.append(below + rise - here)
    return round(max(bounds), DECIMALS)


@dataclass(frozen=True)
class Doubt:
    """A check that a comparison does not pass."""

    check: str  # its name: rising, coarse, window or collapse
    why: str
    known: bool = True  # whether the runs decide it

    @property
    def brief(self) -> str:
        """``coarse``, or ``coarse unknown``."""
        return self.check if self.known else f"{self.check} unknown"


@dataclass(frozen=True)
class Checks:
    """What may refute a planned comparison.

    Attributes:
        rising: whether a cell still improves; None where that is not known of some, and of no other.
        change: of the difference, per doubling of rounds; None where it is not known.
        grids: those of the cells on each side, the compared value first.
        windows: the verdict by each of ``WINDOWS``; None where it is not known.
        collapsed: seeds far below their cell on each side.
        varied: whether seeds vary the partition; None where there is none.
    """

    rising: bool | None
    change: Difference | None
    grids: tuple[tuple[Grid, ...], tuple[Grid, ...]]
    windows: tuple[Verdict | None, ...]
    collapsed: tuple[int, int]
    varied: bool | None
    pairs: int  # differences that are averaged

    @property
    def moves(self) -> int | None:
        """1 where the difference rises, -1 where it falls, 0 where neither is shown; None where it is not known."""
        if self.change is None or self.change.half_width is None:
            return None
        if abs(self.change.mean) <= self.change.half_width:
            return 0
        return 1 if self.change.mean > 0 else -1

    def costs(self) -> tuple[float | None, float | None]:
        """Return what the grid may cost the mean of each side; None where that is not known of a cell."""
        return _total(self.grids[0], self.pairs), _total(self.grids[1], self.pairs)

    def fields(self) -> dict[str, Any]:
        """Return them as plain data."""
        change = self.change
        return {
            "rising": self.rising,
            "difference_per_doubling": change
            and {"mean": change.mean, "ci_half_width": change.half_width, "n": change.n},
            "grid_costs": list(self.costs()),
            "tuned": all(grid.is_tuned for side in self.grids for grid in side),
            "at_edge": any(grid.at_edge for side in self.grids for grid in side),
            "windows": {str(window): verdict for window, verdict in zip(WINDOWS, self.windows, strict=True)},
            "collapsed": list(self.collapsed),
            "seeds_vary_partition": self.varied,
        }

    def doubts(self, contrast: Contrast, metric: str, margin: float) -> tuple[Doubt, ...]:
        """Return the checks that a comparison does not pass; empty for one that passes all."""
        found = [
            *self._slope_doubts(metric),
            self._tuning_doubt() or self._grid_doubt(contrast, metric, margin),
            self._window_doubt(),
            self._collapse_doubt(),
        ]
        return tuple(filter(None, found))

    def doubts_of_speed(self, *, has_plateau: bool) -> tuple[Doubt, ...]:
        """Return the checks that a comparison of rounds to a level does not pass.

        Args:
            has_plateau: whether a row of the column is at a plateau: else the level is that of a rising curve.
        """
        found = [
            None if has_plateau else Doubt("rising", "no plateau"),
            self._tuning_doubt(),
            self._collapse_doubt(),
        ]
        return tuple(filter(None, found))

    def _collapse_doubt(self) -> Doubt | None:
        return Doubt("collapse", "seeds collapsed") if any(self.collapsed) else None

    def _tuning_doubt(self) -> Doubt | None:
        every = [grid for side in self.grids for grid in side]
        if not all(grid.is_tuned for grid in every):
            return Doubt("coarse", "not tuned")
        return Doubt("coarse", "edge of the grid") if any(grid.at_edge for grid in every) else None

    def _slope_doubts(self, metric: str) -> Iterator[Doubt]:
        if self.rising:
            yield Doubt("rising", "falling" if METRICS[metric].lower_is_better else "rising")
        if self.moves:
            yield Doubt("rising", "difference rising" if self.moves > 0 else "difference falling")
        if not self.rising and None in (self.rising, self.moves):
            yield Doubt("rising", "slope not known", known=False)

    def _grid_doubt(self, contrast: Contrast, metric: str, margin: float) -> Doubt | None:
        first, second = self.costs()
        if first is None or second is None:
            return Doubt("coarse", "grid not known", known=False)
        gain, width = contrast.difference.mean, contrast.difference.half_width or 0.0
        # The side that is behind may have a better setting between those that were tried.
        behind = second if (gain > 0) != METRICS[metric].lower_is_better else first
        is_hidden = contrast.is_different and abs(gain) - width <= behind
        is_beyond = contrast.is_equivalent and abs(gain) + max(first, second) >= margin
        return Doubt("coarse", "within the grid") if is_hidden or is_beyond else None

    def _window_doubt(self) -> Doubt | None:
        known = {verdict for verdict in self.windows if verdict is not None}
        if len(known) > 1:
            return Doubt("window", "depends on the window")
        return Doubt("window", "window not known", known=False) if None in self.windows else None


def _total(grids: Sequence[Grid], pairs: int) -> float | None:
    known = [grid.cost for grid in grids if grid.cost is not None]
    return math.fsum(known) / pairs if known and len(known) == len(grids) else None


def any_rises(cells: Iterable[Cell]) -> bool | None:
    """Return whether a cell still improves; None where that is not known of some, and of no other."""
    found = {improves(cell.rise, cell.metric) for cell in cells}
    return True if True in found else None if None in found else False


def rise_of(ends: Mapping[int, Curve]) -> Summary | None:
    """Return the slopes of a cell per doubling of rounds, with their interval over seeds; None where not known."""
    return summarize(list(slopes(ends).values()))


def varies_partition(cells: Iterable[Cell]) -> bool | None:
    """Return whether seeds vary the partition of all cells, beyond the names of clients; None where cells have none."""
    found = set()
    for cell in cells:
        one = cell.experiment
        if (partition := getattr(one, "partition", None)) is not None:
            found.add(partition.is_drawn(one.dataset.classes, one.clients))
    return all(found) if found else None
