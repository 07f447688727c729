"""The ``report`` section of a sweep, typed: conditions and planned comparisons are parsed once, with their lines."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from flbench.choices import Measure, SelectBy
from flbench.config import ALIASES, Experiment
from flbench.halving import Halving
from flbench.metric_specs import METRICS
from flbench.sweeps.match import Condition, all_of
from flbench.sweeps.options import read_only

#: The margin of a tie between shares, where the sweep names none.
POINT = 0.01


def conditions(only: Iterable[str], prefix: str = "--only ") -> tuple[Condition, ...]:
    """Return the conditions of ``FIELD=VALUE`` texts; raises SpecError as ``read_only`` does."""
    return tuple(one for source, layer in read_only(only, prefix) for one in Condition.each_of(source, layer))


def condition(only: Iterable[str], prefix: str = "--only ") -> Callable[[Experiment], bool]:
    """Return a test whether an experiment meets every ``FIELD=VALUE``; raises SpecError as ``read_only`` does."""
    return all_of(conditions(only, prefix))


@dataclass(frozen=True)
class Pair:
    """A planned comparison of a field's value with another one.

    Attributes:
        value: the value that is compared.
        against: the value of the same field that it is compared with.
        among: conditions of the cells that are compared (``if``).
        between: two columns: a difference in the first is compared with that in the second. Or none.
        measure: what is compared.
    """

    value: Condition
    against: Condition
    among: tuple[Condition, ...] = ()
    between: tuple[Condition, ...] = ()
    measure: Measure = "far"

    @property
    def field(self) -> str:
        """The field whose values are compared."""
        return self.value.field


@dataclass(frozen=True)
class Layout:
    """How a leaderboard is laid out.

    Attributes:
        metric: what is shown and ranked.
        rows: fields that make the rows.
        cols: fields that make the columns.
        select_by: the rule that chooses a run's round and a row's settings.
        baseline: conditions of the row that the others are compared with.
        tune: hyperparameters to choose where they vary.
        contrasts: planned comparisons.
        margin: a cell at most this much worse than the best ties; None: ``tie_margin`` chooses.
        target: value to which rounds and bytes are counted; None: ``report/measures.py`` chooses one for each column.
        search: how settings were dropped before the last round.
        headline: columns on the first page, each by its conditions; None: the first ones.
    """

    metric: str = "acc"
    rows: tuple[str, ...] = ("method", "norm")
    cols: tuple[str, ...] = ("partition",)
    select_by: SelectBy = "last"
    baseline: tuple[Condition, ...] = field(default_factory=lambda: conditions(["method=fedavg", "norm=none"]))
    tune: tuple[str, ...] = ("lr",)
    contrasts: tuple[Pair, ...] = ()
    margin: float | None = None
    target: float | None = None
    search: Halving | None = None
    headline: tuple[tuple[Condition, ...], ...] | None = None

    @property
    def tie_margin(self) -> float:
        """The margin of a tie: that of the sweep, else the default."""
        return self.default_margin if self.margin is None else self.margin

    @property
    def default_margin(self) -> float:
        """A point for shares, and 0, without ties, for other metrics."""
        return POINT if METRICS[self.metric].percent else 0.0

    def is_baseline_but_for(self, field: str = "") -> Callable[[Experiment], bool]:
        """Return a test whether an experiment is the baseline, whatever its value of a field."""
        return all_of(one for one in self.baseline if one.field != field)

    def spelled_out(self) -> Layout:
        """Return the same layout with the full names of fields."""
        rows, cols, tune = (
            tuple(ALIASES.get(axis, axis) for axis in axes) for axes in (self.rows, self.cols, self.tune)
        )
        return dataclasses.replace(self, rows=rows, cols=cols, tune=tune)
