"""Planned comparisons: few, named in the sweep file before its runs, so that their tests keep their power.

A comparison of two values of a field, such as ``norm: fn`` against ``none``, is made in each column: the difference of
the two cells with the same method, paired by seed, and then its mean over the methods that have both; with ``if`` over
those that meet its conditions. With ``between`` it is an interaction: the difference in a column with the first value
minus that in the column with the second, of the same method and seed. Seeds are the unit: the t-test and its interval
(``stats.paired``) are those of one mean difference a seed. Methods are not drawn from a population, so the conclusion
is about their mean. A method that computes the same as another one counts once. With ``measure`` the comparison is of
rounds to the level of the column (``fast``) or of the decades of rates that work (``easy``), by the exact test of ranks
(``stats.paired_ranks``), since seeds may not get there. Holm's correction is over the planned
comparisons of the section alone, once for the tests of differences and once for those of equivalence
(``stats.corrected``).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from operator import attrgetter
from typing import NamedTuple, get_args

from flbench.choices import Measure
from flbench.config import Experiment
from flbench.errors import UserError
from flbench.registry import Component
from flbench.report.cells import Cell, Unit, grouped, rows_of, tick_of
from flbench.report.stats import Contrast, Difference, corrected, paired, paired_ranks
from flbench.report.tables import Axes, kind_name
from flbench.report.ticks import Tick, place_label
from flbench.report.trust import WINDOWS, Checks, Curve, Doubt, any_rises, over_last, slopes, varies_partition
from flbench.report.tuning import OfKind, Range
from flbench.sweeps.layout import Layout, Pair
from flbench.sweeps.match import Condition, all_of


@dataclass(frozen=True)
class Place:
    """A column of one kind of experiment."""

    kind: str
    axes: tuple[str, ...]
    ticks: tuple[Tick, ...]

    @property
    def label(self) -> str:
        """The name of the column, with the kind where it is not federated."""
        return ", ".join(filter(None, [kind_name(self.kind), place_label(self.axes, self.ticks)]))

    def without(self, axis: str) -> Place:
        """Return the place on the other axes."""
        kept = [(name, tick) for name, tick in zip(self.axes, self.ticks, strict=True) if name != axis]
        return Place(self.kind, tuple(name for name, _ in kept), tuple(tick for _, tick in kept))


@dataclass(frozen=True)
class Planned:
    """A planned comparison in one column; an interaction has the column's place on the other axes."""

    pair: Pair
    place: Place
    contrast: Contrast  # the difference, with its corrected p-values; of ranks where it is not of the metric
    effect: float  # difference of the metric or decades, or ratio of rounds: 0 or infinite if one side gets there
    last: Difference | None  # by the last evaluations, where the values are means of several
    cells: int  # differences of cells that are averaged
    missing: int  # those left out, because a cell has no value for some seed
    checks: Checks  # what may refute it
    doubts: tuple[Doubt, ...]  # the checks that it does not pass

    @property
    def is_different(self) -> bool:
        """Whether a difference is shown: by the test, and it passes the checks."""
        return self.contrast.is_different and not self.doubts

    @property
    def is_equivalent(self) -> bool:
        """Whether it is shown that the difference is within the margin."""
        return self.contrast.is_equivalent and not self.doubts

    @property
    def but(self) -> tuple[str, ...]:
        """What keeps its verdict from being shown, as in ``within the grid``; empty where there is nothing to show."""
        return () if self.contrast.verdict == "open" else tuple(doubt.why for doubt in self.doubts)

    @property
    def but_briefly(self) -> tuple[str, ...]:
        """The same by the names of the checks, as in ``coarse``."""
        return () if self.contrast.verdict == "open" else tuple(dict.fromkeys(doubt.brief for doubt in self.doubts))

    @property
    def column(self) -> str:
        """The label of the column."""
        return self.place.label

    @property
    def value(self) -> str:
        """``fn``; with the name of its field where it is a number, ``coefficient 0.3``."""
        return self.pair.value.name

    @property
    def against(self) -> str:
        """``none``."""
        return self.pair.against.label

    @property
    def among(self) -> str:
        """``with fedavg, lr 0.01`` where the comparison is among these cells alone; else empty."""
        return f"with {', '.join(one.name for one in self.pair.among)}" if self.pair.among else ""

    @property
    def reference(self) -> str:
        """``none``, or ``none with fedavg``; with the name of its field where it is a number, ``coefficient 0``."""
        return f"{self.pair.against.name} {self.among}".rstrip()

    @property
    def name(self) -> str:
        """``fn against none``, ``fn against none with fedavg``, or ``fn against none, classes:1 minus iid``."""
        return full_name(self.short_name, self.among, self.between)

    @property
    def short_name(self) -> str:
        """``fn against none``."""
        return f"{self.value} against {self.against}"

    @property
    def between(self) -> str:
        """``classes:1 minus iid``; empty where it is no interaction."""
        return " minus ".join(one.label for one in self.pair.between)


def in_groups(some: Iterable[Planned]) -> list[list[Planned]]:
    """Return differences of the metric, interactions, and comparisons of how fast and how easy; none is empty."""
    measures = get_args(Measure)
    return grouped(some, lambda one: (measures.index(one.pair.measure), bool(one.between)))


def full_name(name: str, among: str, between: str) -> str:
    """Return a name such as ``fn against none``, with the cells and the columns to which it is restricted."""
    return ", ".join(filter(None, [f"{name} {among}".rstrip(), between]))


class Gain(NamedTuple):
    """Cells of one method whose values are added and subtracted, seed by seed."""

    plus: tuple[Cell, ...]
    minus: tuple[Cell, ...]


#: The two sides of a gain.
_SIDES = attrgetter("plus"), attrgetter("minus")

#: What tells gains of a column apart: the row on the other axes, the version of the data, and the compared value.
_Key = tuple[tuple[Hashable, ...], Tick]
Gains = Mapping[Place, Mapping[_Key, Gain]]

#: The values of the two sides of a comparison by seed, for each pair of cells.
_Sides = Sequence[tuple[Mapping[int, float], Mapping[int, float]]]


def planned(
    kinds: Sequence[OfKind],
    layout: Layout,
    details: Mapping[Unit, Cell],
    ends: Mapping[Unit, Mapping[int, Curve]],
    ranges: Iterable[Range],
) -> tuple[Planned, ...]:
    """Return the planned comparisons among the shown cells of each kind, in the columns that have both values.

    Args:
        kinds: the cells.
        layout: names the comparisons.
        details: the shown cells with their slopes and grids, by key.
        ends: the last evaluations of the seeds of each of them.
        ranges: the rates with which rows work, one a row and column.
    """
    known = {cell.key: one for one in ranges for cell in one.cells}

    def values(pair: Pair, cell: Cell) -> Mapping[int, float]:
        """Return what is compared by seed; empty where a seed has no value."""
        speed, rates = details[cell.key].speed, known.get(cell.key)
        if not cell.complete:
            return {}
        if pair.measure == "fast":
            return speed.by_seed if speed else {}
        if pair.measure == "easy":
            return rates.decades_by_seed if rates else {}
        return cell.by_seed

    places = {
        (pair, place): list(gains.values())
        for pair in layout.contrasts
        for kind in kinds
        for place, gains in gains_of(kind, pair).items()
    }
    complete = {
        at: [gain for gain in gains if all(values(at[0], cell) for side in gain for cell in side)]
        for at, gains in places.items()
    }
    ranked: Mapping[tuple[Pair, Place], _Sides] = {
        at: [(values(at[0], gain.plus[0]), values(at[0], gain.minus[0])) for gain in gains]
        for at, gains in complete.items()
        if at[0].measure != "far"
    }

    def differences(of: Callable[[Cell], Mapping[int, float]]) -> dict[tuple[Pair, Place], Difference]:
        found = {at: _difference(gains, of) for at, gains in complete.items() if at not in ranked}
        return {at: gap for at, gap in found.items() if gap}

    def over_ends(of: Callable[[Mapping[int, Curve]], Mapping[int, float]]) -> dict[tuple[Pair, Place], Difference]:
        of_cell = cache(lambda key: of(ends[key]))  # a cell is in several comparisons
        return differences(lambda cell: of_cell(cell.key))

    def tested(gaps: Mapping[tuple[Pair, Place], Difference]) -> dict[tuple[Pair, Place], Contrast]:
        return corrected({**gaps, **ranks}, layout.tie_margin)

    ranks = {at: gap for at, pairs in ranked.items() if (gap := paired_ranks(pairs))}
    lasts, changes = differences(lambda cell: cell.last_by_seed), over_ends(slopes)
    by_window = [tested(over_ends(partial(over_last, window=one))) for one in WINDOWS]
    found = []
    for at, one in tested(differences(lambda cell: cell.by_seed)).items():
        sides = [[details[cell.key] for gain in complete[at] for cell in side(gain)] for side in _SIDES]
        checks = Checks(
            rising=any_rises(cell for side in sides for cell in side),
            change=changes.get(at),
            grids=(tuple(cell.grid for cell in sides[0]), tuple(cell.grid for cell in sides[1])),
            windows=tuple(verdicts[at].verdict if at in verdicts else None for verdicts in by_window),
            collapsed=(_collapsed(sides[0]), _collapsed(sides[1])),
            varied=varies_partition(cell for side in sides for cell in side),
            pairs=len(complete[at]),
        )
        effect, doubts = one.difference.mean, checks.doubts(one, layout.metric, layout.tie_margin)
        if at[0].measure == "fast":
            has_plateau = all(cell.speed.level.of != "final value" for side in sides for cell in side)
            effect, doubts = _median_ratio(ranked[at]), checks.doubts_of_speed(has_plateau=has_plateau)
        elif at[0].measure == "easy":
            is_open = any(known[cell.key].is_open for side in sides for cell in side)
            effect, doubts = _mean_gap(ranked[at]), (Doubt("coarse", "edge of the grid"),) if is_open else ()
        missing = len(places[at]) - len(complete[at])
        found.append(Planned(*at, one, effect, lasts.get(at), len(complete[at]), missing, checks, doubts))
    return tuple(found)


def _median_ratio(pairs: _Sides) -> float:
    """Return the median over pairs and seeds of the first rounds over the second; 1 where neither side gets there."""
    ratios = []
    for first, second in pairs:
        for seed in first.keys() & second.keys():
            a, b = max(first[seed], 1), max(second[seed], 1)  # the level may be reached before training
            ratios.append(1.0 if math.isinf(a) and math.isinf(b) else a / b)
    return statistics.median(ratios)


def _mean_gap(pairs: _Sides) -> float:
    """Return the mean difference over pairs and seeds."""
    gaps = [first[seed] - second[seed] for first, second in pairs for seed in first.keys() & second.keys()]
    return math.fsum(gaps) / len(gaps)


def _collapsed(cells: Sequence[Cell]) -> int:
    return sum(len(cell.collapsed) for cell in cells)


def is_named(cells: Iterable[Cell], layout: Layout) -> Callable[[Cell], bool]:
    """Return a test whether a cell is in a planned comparison, and differs from the baseline in its field alone."""
    cells = list(cells)
    tests = [
        (layout.is_baseline_but_for(pair.field), meant_by(value, cells))
        for pair in layout.contrasts
        for value in (pair.value, pair.against)
    ]
    return lambda cell: any(is_baseline(cell.experiment) and has(cell.experiment) for is_baseline, has in tests)


def gains_of(kind: OfKind, pair: Pair) -> Gains:
    """Return what a planned comparison compares among the shown cells of one kind, by column.

    Raises:
        UserError: two values of its field match the one to compare with.
    """
    is_meant = all_of(pair.among)
    cells = [cell for cell in rows_of(kind.shown) if is_meant(cell.experiment)]
    if not pair.between:
        return _differences(cells, kind.axes, pair)
    field = pair.between[0].field
    firsts, seconds = (
        _differences([cell for cell in cells if one.holds_for(cell.experiment)], kind.axes, pair)
        for one in pair.between
    )
    others = {place.without(field): gains for place, gains in seconds.items()}
    return {
        place.without(field): {
            key: Gain((*gain.plus, *other.minus), (*gain.minus, *other.plus))
            for key, gain in gains.items()
            if (other := others.get(place.without(field), {}).get(key)) is not None
        }
        for place, gains in firsts.items()
    }


def _differences(cells: Sequence[Cell], axes: Axes, pair: Pair) -> Gains:
    """Return the cells that differ in the field alone, by column, each computation once.

    Raises:
        UserError: two values of the field match the one to compare with.
    """
    is_first, is_reference = meant_by(pair.value, cells), meant_by(pair.against, cells)
    references: dict[Hashable, Cell] = {}
    firsts: dict[Place, dict[_Key, Cell]] = {}
    seen: set[Hashable] = set()
    for cell in sorted(cells, key=lambda cell: (axes.row(cell), axes.col(cell))):
        place = Place(cell.kind, axes.cols, axes.col(cell)).without(pair.field)
        others = [tick for axis, tick in zip(axes.rows, axes.row(cell), strict=True) if axis != pair.field]
        row, this = (*others, cell.fingerprint), tick_of(cell, pair.field)
        if is_reference(cell.experiment):
            other = tick_of(references.setdefault((place, row), cell), pair.field)
            if other != this:
                raise UserError(
                    f"planned comparison against {pair.field}: {pair.against.label}: {other.label} and {this.label} "
                    "both match; give the settings that tell them apart"
                )
        elif is_first(cell.experiment) and (place, cell.unit) not in seen:
            firsts.setdefault(place, {})[row, this] = cell
        seen.add((place, cell.unit))
    return {
        place: {
            key: Gain((cell,), (references[place, key[0]],))
            for key, cell in found.items()
            if (place, key[0]) in references
        }
        for place, found in firsts.items()
    }


def meant_by(condition: Condition, cells: Iterable[Cell]) -> Callable[[Experiment], bool]:
    """Return a test whether an experiment has a value: the component of this label if a cell has it, else any match."""

    def has_label(experiment: Experiment) -> bool:
        component = getattr(experiment, condition.field, None)
        return isinstance(component, Component) and component.label() == condition.label

    return has_label if any(has_label(cell.experiment) for cell in cells) else condition.holds_for


def _difference(gains: Sequence[Gain], values: Callable[[Cell], Mapping[int, float]]) -> Difference | None:
    """Return the mean of some gains, paired by seed; None without gains, and where no seed has all values."""
    if not gains:
        return None
    sides = []
    for parts in ([gain.plus for gain in gains], [gain.minus for gain in gains]):
        by_cell = [values(cell) for part in parts for cell in part]
        seeds = sorted(set.intersection(*map(set, by_cell)))
        sides.append({seed: math.fsum(of_cell[seed] for of_cell in by_cell) / len(gains) for seed in seeds})
    return paired(*sides)
