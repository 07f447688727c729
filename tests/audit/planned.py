"""Planned comparisons: gains of one value of a field over another one, paired by seed, and what they show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
from scipy import stats

from tests.audit.runs import COLUMNS, ROW, Place, chosen, is_mean

#: Error rate of a family of tests; differences below the margin do not matter.
LEVEL, MARGIN = 0.05, 0.01

#: Fewest seeds of a test and of an interval.
FEWEST = 3

#: The verdict that a difference is below the margin.
WITHIN = f"equivalent within {100 * MARGIN:g} point"


@dataclass(frozen=True)
class Plan:
    """A planned comparison, as the sweep file has it: of the rows of one method, or the mean over all methods."""

    title: str
    field: str
    value: str
    against: str
    method: str = ""
    between: tuple[str, str] | None = None  # the gain with one partition minus that with the other
    among: str = ""  # ``with fedavg``: the cells that it is restricted to

    @property
    def name(self) -> str:
        """``fn against none with fedavg, classes:1 minus iid``."""
        return " ".join(filter(None, [self.title, self.among])) + self.interaction

    @property
    def interaction(self) -> str:
        """``, classes:1 minus iid``; empty where it is none."""
        return f", {self.between[0]} minus {self.between[1]}" if self.between else ""


@dataclass(frozen=True)
class Judged:
    """A mean gain with the half-width of its interval, in points, and what it shows."""

    mean: float = 0.0
    half_width: float = 0.0
    p: float = 1.0  # of the test of a difference, corrected
    verdict: str = ""
    p_within: float = 1.0  # of the tests of equivalence, corrected


@dataclass(frozen=True)
class Last:
    """A mean gain in the last evaluation, with the half-width of its interval, in points; NaN without several seeds."""

    mean: float
    half_width: float

    @property
    def text(self) -> str:
        """``last +3.75 ± 1.26``."""
        return f"last {self.mean:+.2f}" + ("" if np.isnan(self.half_width) else f" ± {self.half_width:.2f}")


@dataclass(frozen=True)
class Comparison(Judged, Plan):
    """What a planned comparison shows in a column; an interaction's column has no partition."""

    column: Place = ()
    head: str = ""  # of the column
    last: Last | None = None  # where the gain is one of means over evaluations

    @property
    def text(self) -> str:
        """The difference as pages have it in sentences: ``3.8 ± 2.3``."""
        return f"{self.mean:.1f} ± {self.half_width:.1f}"


def _plans(
    field: str,
    values: list[str],
    against: str,
    method: str = "",
    between: tuple[str, str] | None = None,
    rate: str = "",
) -> list[Plan]:
    among = "with " + ", ".join(filter(None, [method, rate])) if method else ""
    return [Plan(f"{value} against {against}", field, value, against, method, between, among) for value in values]


#: What ``sweeps/phase_diagram.yaml`` planned.
_PHASES = [
    *_plans("norm", ["scale", "fn", "ln"], "none"),
    *_plans("norm", ["fn", "ln"], "scale"),
    *_plans("norm", ["scale", "fn", "ln"], "none", between=("classes:1", "classes:10")),
]

#: The constants of ``sweeps/scale_or_geometry.yaml``; the deeper network has the first alone.
CONSTANTS = ("scale", "scale(factor=3)", "scale(factor=30)", "scale(factor=100)", "scale-layerwise")

#: What ``sweeps/*.yaml`` planned. Those of one sweep or section are one family of tests.
PLANNED = {
    "one_class_digits": [
        *_plans("norm", ["scale", "fn", "ln", "gn"], "none"),
        *_plans("norm", ["fn", "ln", "gn"], "scale"),
    ],
    "one_class_fashion_mnist": [
        *_plans("norm", ["scale", "fn", "ln"], "none"),
        *_plans("norm", ["fn", "ln"], "scale"),
    ],
    "skew": [
        *_plans("norm", ["scale", "fn", "ln", "gn"], "none", "fedavg"),
        *_plans("norm", ["fn", "ln", "gn"], "scale", "fedavg"),
        Plan("cosine(learned=false) against linear", "head", "cosine", "linear", "fedavg", among="with fedavg"),
        *_plans("head", ["cosine(learned=true)", "etf"], "linear", "fedavg"),
        *_plans("norm", ["scale", "fn", "ln", "gn"], "none", "fedavg", ("classes:1", "iid")),
        *_plans("norm", ["fn", "ln", "gn"], "scale", "fedavg", ("classes:1", "iid")),
    ],
    "rank_dose": [
        Plan(f"coefficient {dose} against 0", "method", f"feddecorr(coefficient={dose})", "feddecorr(coefficient=0)")
        for dose in ("0.3", "1", "3")
    ],
    "skew_fashion_mnist": [
        *_plans("norm", ["scale", "fn", "ln", "gn"], "none"),
        *_plans("norm", ["fn", "ln", "gn"], "scale"),
        *_plans("head", ["cosine", "etf"], "linear"),
        *_plans("norm", ["scale", "fn", "ln", "gn"], "none", between=("classes:1", "iid")),
    ],
    "fashion_mnist_lenet": [
        *_plans("norm", ["scale", "fn", "ln", "gn"], "none"),
        *_plans("norm", ["fn", "ln", "gn"], "scale"),
        *_plans("norm", ["scale", "fn", "ln", "gn"], "none", between=("classes:1", "iid")),
    ],
    "cifar10_ten_steps": [*_plans("norm", ["fn", "ln-static"], "none"), *_plans("norm", ["ln-static"], "fn")],
    "cifar10_tuned": [*_plans("norm", ["scale", "fn", "ln"], "none"), *_plans("norm", ["fn", "ln"], "scale")],
    "cifar10_full_length": _plans("norm", ["fn"], "none"),
    "phase_digits": _PHASES,
    "phase_fashion_mnist": _PHASES,
    "constants": [
        *_plans("norm", ["scale", "fn", "ln"], "none", "fedavg"),
        *(plan for constant in CONSTANTS for plan in _plans("norm", ["fn", "ln"], constant, "fedavg")),
        *_plans("norm", ["scale", "fn", "ln"], "none", "fedyogi"),
        *_plans("norm", ["fn", "ln"], "scale", "fedyogi"),
    ],
    "constants_of_a_deeper_network": [
        *_plans("norm", ["scale", "fn", "ln"], "none", "fedavg"),
        *_plans("norm", ["fn", "ln"], "scale", "fedavg"),
    ],
    "fashion_mnist": [],
    "cifar10_one_step": [
        *_plans("norm", ["scale", "fn", "ln"], "none", "fedavg", rate="lr 0.01"),
        *_plans("norm", ["fn", "ln"], "scale", "fedavg", rate="lr 0.01"),
    ],
}


@cache
def comparisons(sweep: str, without: Place | None = None) -> tuple[Comparison, ...]:
    """Return the planned comparisons of a sweep in each column, or each but one, corrected for all that have a test."""
    planned = [
        (plan, column, gain)
        for plan in PLANNED[sweep]
        for column, gain in _gains(sweep, plan).items()
        if column != without
    ]
    tested = [gain for _, _, gain in planned if len(gain) >= FEWEST]
    results = iter(judge(tested))
    found = [
        next(results) if len(gain) >= FEWEST else Judged(100 * gain.mean(), np.nan, np.nan, "open")
        for _, _, gain in planned
    ]
    last = {plan: _gains(sweep, plan, "last") for plan in PLANNED[sweep]} if is_mean(sweep) else {}
    return tuple(
        Comparison(
            **vars(plan),
            column=column,
            head=_head(column, [name for name in COLUMNS[sweep] if not (plan.between and name == "partition")]),
            last=_last(last[plan][column]) if last else None,
            **vars(one),
        )
        for (plan, column, _), one in zip(planned, found, strict=True)
    )


def _last(gain: pd.Series[float]) -> Last:
    # Means of multiples of 0.01 % may lie between two rounded numbers: the report rounds gains to 12 decimals.
    gains = gain.round(12)
    several = len(gains) >= FEWEST
    half_width = 100 * stats.t.ppf(1 - LEVEL / 2, len(gains) - 1) * gains.sem() if several else np.nan
    return Last(100 * math.fsum(gains) / len(gains), half_width)


def judge(gains: Sequence[np.ndarray]) -> list[Judged]:
    """Return what gains show, one array of seeds a comparison, corrected for their number."""
    tests = [stats.ttest_1samp(gain, 0) for gain in gains]
    # Two one-sided tests (Schuirmann 1987): both must show that the mean is within the margin.
    above = [stats.ttest_1samp(gain, -MARGIN, alternative="greater").pvalue for gain in gains]
    below = [stats.ttest_1samp(gain, MARGIN, alternative="less").pvalue for gain in gains]
    different = holm(pd.Series([test.pvalue for test in tests], dtype=float))
    equivalent = holm(pd.Series(np.maximum(above, below), dtype=float))
    return [
        Judged(
            100 * gain.mean(),
            50 * np.ptp(test.confidence_interval(1 - LEVEL)),
            different[i],
            _verdict(gain.mean(), different[i] < LEVEL, equivalent[i] < LEVEL),
            equivalent[i],
        )
        for i, (gain, test) in enumerate(zip(gains, tests, strict=True))
    ]


def gains(sweep: str, against: str, method: str = "", column: Place | None = None) -> list[Comparison]:
    """Return the planned comparisons with one value, without interactions, of one column or of all."""
    some = [one for one in comparisons(sweep) if (one.against, one.method, one.between) == (against, method, None)]
    return [one for one in some if column in (None, one.column)]


def added_by_skew(sweep: str) -> dict[tuple[str, str | int | float], Comparison]:
    """Return the interactions of a sweep over partitions and local steps, by value and steps."""
    return {(one.value, one.column[0]): one for one in comparisons(sweep) if one.between}


def _head(column: Place, axes: list[str]) -> str:
    """Return ``classes:1, E 10``; without axes the name of the metric."""
    parts = zip(axes, column, strict=True)
    texts = [value if isinstance(value, str) else f"{axis} {value:g}" for axis, value in parts]
    return ", ".join(texts) or "accuracy"


def _verdict(mean: float, is_different: bool, is_equivalent: bool) -> str:
    words = ["more" if mean > 0 else "less"] if is_different else []
    return ", ".join([*words, *([WITHIN] if is_equivalent else [])]) or "open"


def _gains(sweep: str, plan: Plan, of: str = "value") -> dict[Place, pd.Series[float]]:
    """Return the gain of each seed by column: its mean over the pairs of rows that differ in the field alone.

    Pairs without a value for some seed of the column are left out.
    """
    runs, columns = chosen(sweep), COLUMNS[sweep]
    runs = runs[runs.method == plan.method] if plan.method else runs
    others = [name for name in ROW if name != plan.field]
    of_row = runs.set_index([*others, *columns, "seed", plan.field])[of].unstack(plan.field)
    pairs = (of_row[plan.value] - of_row[plan.against]).unstack("seed")
    of_column = pairs.groupby(level=columns)
    gains = pd.DataFrame({at: some.dropna(axis=1, how="all").dropna().mean() for at, some in of_column}).T
    gains = gains[gains.notna().any(axis=1)].rename_axis(columns)
    if plan.between:
        of_first, of_second = (gains.index.get_level_values("partition") == one for one in plan.between)
        if columns == ["partition"]:
            return {(): (gains[of_first].iloc[0] - gains[of_second].iloc[0]).dropna()}
        gains = gains[of_first].droplevel("partition") - gains[of_second].droplevel("partition")
    assert of == "last" or (gains.std(axis=1).dropna() > 0).all(), "a t-test of equal differences is undefined"
    return {at if isinstance(at, tuple) else (at,): gain.dropna() for at, gain in gains.iterrows()}


def holm(p: pd.Series[float]) -> pd.Series[float]:
    """Return p-values corrected for their number (Holm 1979)."""
    ordered = p.sort_values()
    return (ordered * np.arange(len(p), 0, -1)).cummax().clip(upper=1).reindex(p.index)
