"""Planned comparisons: gains of one value of a field over another one, paired by seed, and what they show."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
from scipy import stats

from tests.audit.runs import COLUMNS, ROW, Place, chosen

#: Error rate of a family of tests; differences below the margin do not matter.
LEVEL, MARGIN = 0.05, 0.01

#: The verdict that a difference is below the margin.
WITHIN = f"equivalent within {100 * MARGIN:g} point"


@dataclass(frozen=True)
class Plan:
    """A planned comparison, as the sweep file has it: of the rows of one method, or the mean over all methods."""

    name: str
    field: str
    value: str
    against: str
    method: str = ""
    between: tuple[str, str] | None = None  # the gain with one partition minus that with the other


@dataclass(frozen=True)
class Comparison(Plan):
    """What a planned comparison shows in a column, in points; an interaction's column has no partition."""

    column: Place = ()
    head: str = ""  # of the column
    mean: float = 0.0
    half_width: float = 0.0
    p: float = 1.0  # of the test of a difference, corrected
    verdict: str = ""


def _with_fedavg(field: str, values: list[str], against: str, between: tuple[str, str] | None = None) -> list[Plan]:
    interaction = f", {between[0]} minus {between[1]}" if between else ""
    names = {value: "cosine(learned=false)" if value == "cosine" else value for value in values}
    return [
        Plan(f"{names[value]} against {against} with fedavg{interaction}", field, value, against, "fedavg", between)
        for value in values
    ]


#: What ``sweeps/*.yaml`` planned. Those of one sweep are one family of tests.
PLANNED = {
    "skew": [
        *_with_fedavg("norm", ["scale", "fn", "ln", "gn"], "none"),
        *_with_fedavg("norm", ["fn", "ln", "gn"], "scale"),
        *_with_fedavg("head", ["cosine", "cosine(learned=true)", "etf"], "linear"),
        *_with_fedavg("norm", ["scale", "fn", "ln", "gn"], "none", ("classes:1", "iid")),
        *_with_fedavg("norm", ["fn", "ln", "gn"], "scale", ("classes:1", "iid")),
    ],
    "rank_dose": [
        Plan(
            f"coefficient {dose:g} against 0", "method", f"feddecorr(coefficient={dose})", "feddecorr(coefficient=0.0)"
        )
        for dose in (0.3, 1.0, 3.0)
    ],
    "skew_fashion_mnist": [
        *(Plan(f"{norm} against none", "norm", norm, "none") for norm in ("scale", "fn", "ln", "gn")),
        *(Plan(f"{norm} against scale", "norm", norm, "scale") for norm in ("fn", "ln", "gn")),
        *(Plan(f"{head} against linear", "head", head, "linear") for head in ("cosine", "etf")),
        *(
            Plan(f"{norm} against none, classes:1 minus iid", "norm", norm, "none", between=("classes:1", "iid"))
            for norm in ("scale", "fn", "ln", "gn")
        ),
    ],
    "phase_diagram": [
        *(Plan(f"{norm} against none", "norm", norm, "none") for norm in ("scale", "fn", "ln")),
        *(Plan(f"{norm} against scale", "norm", norm, "scale") for norm in ("fn", "ln")),
        *(
            Plan(
                f"{norm} against none, classes:1 minus classes:10",
                "norm",
                norm,
                "none",
                between=("classes:1", "classes:10"),
            )
            for norm in ("scale", "fn", "ln")
        ),
    ],
    "fashion_mnist": [],
    "cifar10_one_step": [],
}


@cache
def comparisons(sweep: str) -> tuple[Comparison, ...]:
    """Return the planned comparisons of a sweep in each column, corrected for all of them."""
    tested = [(plan, column, gain) for plan in PLANNED[sweep] for column, gain in _gains(sweep, plan).items()]
    if not tested:
        return ()
    gains = np.array([gain for _, _, gain in tested])  # comparisons x seeds
    test = stats.ttest_1samp(gains, 0, axis=1)
    low, high = test.confidence_interval(1 - LEVEL)
    # Two one-sided tests (Schuirmann 1987): both must show that the mean is within the margin.
    above = stats.ttest_1samp(gains, -MARGIN, axis=1, alternative="greater").pvalue
    below = stats.ttest_1samp(gains, MARGIN, axis=1, alternative="less").pvalue
    different, equivalent = (holm(pd.Series(p)) for p in (test.pvalue, np.maximum(above, below)))
    return tuple(
        Comparison(
            **vars(plan),
            column=column,
            head=_head(column, [name for name in COLUMNS[sweep] if not (plan.between and name == "partition")]),
            mean=100 * gain.mean(),
            half_width=50 * (high - low)[i],
            p=different[i],
            verdict=_verdict(gain.mean(), different[i] < LEVEL, equivalent[i] < LEVEL),
        )
        for i, (plan, column, gain) in enumerate(tested)
    )


def _head(column: Place, axes: list[str]) -> str:
    """Return ``classes:1, E 10``; without axes the name of the metric."""
    parts = zip(axes, column, strict=True)
    texts = [value if isinstance(value, str) else f"{axis} {value:g}" for axis, value in parts]
    return ", ".join(texts) or "accuracy"


def _verdict(mean: float, is_different: bool, is_equivalent: bool) -> str:
    words = ["more" if mean > 0 else "less"] if is_different else []
    return ", ".join([*words, *([WITHIN] if is_equivalent else [])]) or "open"


def _gains(sweep: str, plan: Plan) -> dict[Place, pd.Series[float]]:
    """Return the gain of each seed by column: its mean over the pairs of rows that differ in the field alone."""
    runs, columns = chosen(sweep), COLUMNS[sweep]
    runs = runs[runs.method == plan.method] if plan.method else runs
    others = [name for name in ROW if name != plan.field]
    of_row = runs.set_index([*others, *columns, "seed", plan.field]).value.unstack(plan.field)
    pairs = (of_row[plan.value] - of_row[plan.against]).unstack("seed").dropna()
    gains: pd.DataFrame = pairs.groupby(level=columns).mean()
    if plan.between:
        of_first, of_second = (gains.index.get_level_values("partition") == one for one in plan.between)
        if columns == ["partition"]:
            return {(): gains[of_first].iloc[0] - gains[of_second].iloc[0]}
        gains = gains[of_first].droplevel("partition") - gains[of_second].droplevel("partition")
    assert (gains.std(axis=1) > 0).all(), "a t-test of equal differences is undefined"
    return {at if isinstance(at, tuple) else (at,): gain for at, gain in gains.iterrows()}


def holm(p: pd.Series[float]) -> pd.Series[float]:
    """Return p-values corrected for their number (Holm 1979)."""
    ordered = p.sort_values()
    return (ordered * np.arange(len(p), 0, -1)).cummax().clip(upper=1).reindex(p.index)
