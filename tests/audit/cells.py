"""Values of rows and columns, gains paired by seed, and planned comparisons with what they show."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from ruamel.yaml import YAML
from scipy import stats

from tests.audit import trust
from tests.audit.measured import Column, p_of_ranks
from tests.audit.runs import ROOT, ROW, WITH_TAIL, Place, chosen, federated, label, sweep_of

#: Error rate of a family of tests; differences below the margin do not matter.
LEVEL, MARGIN = 0.05, 0.01

#: Coverage of intervals.
CONFIDENCE = 0.95

#: Fewest seeds of a test and of an interval.
FEWEST = 3

#: The verdict that a difference is below the margin.
WITHIN = f"equivalent within {100 * MARGIN:g} point"

#: Test images by data set.
IMAGES = {"digits": 355, "cifar10": 10_000, "fashion_mnist": 10_000}

#: A row: method, norm and head.
Row = tuple[str, str, str]

#: The row with which the others are compared.
BASELINE: Row = ("fedavg", "none", "linear")


class At(NamedTuple):
    """A column: a sweep, a place on its axes, and after how many rounds its runs are read; None: after the last."""

    sweep: str
    place: Place
    rounds: int | None = None

    @property
    def runs(self) -> pd.DataFrame:
        """The chosen runs."""
        runs = chosen(self.sweep, self.rounds)
        return runs[(runs[list(sweep_of(self.sweep).column)] == list(self.place)).all(axis=1)]

    def after(self, rounds: int) -> At:
        """Return the same column after some rounds."""
        return self._replace(rounds=rounds)

    def by_seed(self, of: str = "value", method: str = "fedavg") -> pd.DataFrame:
        """Return the accuracy of each seed (rows) and norm, with a linear head."""
        runs = self.runs
        return runs[(runs.method == method) & (runs["head"] == "linear")].pivot(index="seed", columns="norm", values=of)


@cache
def values(at: At) -> pd.DataFrame:
    """Return the mean, the half-width of its interval over seeds and test images, the ``last`` one, and n of each row.

    All but n are in percent.
    """
    groups, upper = at.runs.groupby(ROW), (1 + CONFIDENCE) / 2
    found = groups.value.agg(["mean", "std", "count"])
    over_seeds = stats.t.ppf(upper, found["count"] - 1) * found["std"] / np.sqrt(found["count"])
    images = IMAGES[at.runs.dataset.iloc[0]]
    over_images = stats.norm.ppf(upper) * np.sqrt(found["mean"] * (1 - found["mean"]) / images)
    half_width = np.hypot(over_seeds, over_images).where(found["count"] >= FEWEST)
    numbers = {"mean": found["mean"], "half_width": half_width, "last": groups["last"].mean()}
    return pd.DataFrame({**{name: 100 * of for name, of in numbers.items()}, "n": found["count"]})


def value(at: At, norm: str, method: str = "fedavg") -> pd.Series[float]:
    """Return the numbers of one row with a linear head."""
    return values(at).loc[(method, norm, "linear")]


def level(at: At, norm: str = "none", method: str = "fedavg") -> str:
    """Return a mean over evaluations with the last one, as pages have it: ``88.4 % (last 92.4)``."""
    of_row = value(at, norm, method)
    return f"{of_row['mean']:.1f} % (last {of_row['last']:.1f})"


@dataclass(frozen=True)
class Judged:
    """A mean gain with the half-width of its interval, in points, and what it shows."""

    mean: float = 0.0
    half_width: float = 0.0
    p: float = 1.0  # of the test of a difference, corrected
    verdict: str = ""
    p_within: float = 1.0  # of the tests of equivalence, corrected

    @property
    def text(self) -> str:
        """``3.8 ± 2.3``."""
        return f"{self.mean:.1f} ± {self.half_width:.1f}"

    @property
    def is_shown(self) -> bool:
        """Whether a difference is."""
        return self.verdict.startswith(("more", "less"))


def judge(gains: Sequence[pd.Series[float] | np.ndarray], beside: Sequence[float] = ()) -> list[Judged]:
    """Return what gains show, one array of seeds a comparison, corrected for their number.

    ``beside`` has the p-values of the tests of ranks in the same family.
    """
    tests = [stats.ttest_1samp(gain, 0) for gain in gains]
    # Two one-sided tests (Schuirmann 1987): both must show that the mean is within the margin.
    above = [stats.ttest_1samp(gain, -MARGIN, alternative="greater").pvalue for gain in gains]
    below = [stats.ttest_1samp(gain, MARGIN, alternative="less").pvalue for gain in gains]
    different = holm(pd.Series([*(test.pvalue for test in tests), *beside], dtype=float))[: len(gains)]
    equivalent = holm(pd.Series(np.maximum(above, below), dtype=float))
    found = []
    for gain, test, p, p_within in zip(gains, tests, different, equivalent, strict=True):
        words = ["more" if gain.mean() > 0 else "less"] if p < LEVEL else []
        verdict = ", ".join([*words, *([WITHIN] if p_within < LEVEL else [])]) or "open"
        half_width = 50 * float(np.ptp(test.confidence_interval(1 - LEVEL)))
        found.append(Judged(100 * gain.mean(), half_width, p, verdict, p_within))
    return found


def holm(p: pd.Series[float]) -> pd.Series[float]:
    """Return p-values corrected for their number (Holm 1979)."""
    ordered = p.sort_values()
    return (ordered * np.arange(len(p), 0, -1)).cummax().clip(upper=1).reindex(p.index)


def gain(at: At, norm: str, against: str = "none", of: str = "value") -> Judged:
    """Return what a norm gains over another one, paired by seed; no other comparison corrects it."""
    seeds = at.by_seed(of)
    return judge([(seeds[norm] - seeds[against]).dropna()])[0]


@dataclass(frozen=True)
class Plan:
    """A planned comparison, as the sweep file has it: of the rows of one method, or the mean over all methods."""

    title: str = ""
    field: str = ""
    value: str = ""
    against: str = ""
    where: tuple[tuple[str, tuple[str | int | float, ...]], ...] = ()  # the values of fields that it is restricted to
    between: tuple[str, str] | None = None  # the gain with one partition minus that with the other
    among: str = ""  # ``with fedavg``: the same in words
    measure: str = "far"

    @property
    def method(self) -> str:
        """The method that it is restricted to, if it is one."""
        methods = dict(self.where).get("method", ())
        return str(methods[0]) if len(methods) == 1 else ""

    def among_runs(self, runs: pd.DataFrame) -> pd.DataFrame:
        """Return the runs, or cells, that it is restricted to."""
        for field, values in self.where:
            runs = runs[runs[field].isin(values)] if field in runs else runs
        return runs

    @property
    def interaction(self) -> str:
        """``, classes:1 minus iid``; empty where it is none."""
        return f", {self.between[0]} minus {self.between[1]}" if self.between else ""

    @property
    def name(self) -> str:
        """``fn against none with fedavg, classes:1 minus iid``."""
        return " ".join(filter(None, [self.title, self.among])) + self.interaction


@dataclass(frozen=True)
class Planned(Plan):
    """What a planned comparison shows in a column; an interaction's column has no partition."""

    verdict: str = ""
    doubts: tuple[str, ...] = ()  # the checks that it does not pass; none where it is open
    column: Place = ()
    head: str = ""  # of the column

    @property
    def checked(self) -> str:
        """``more, but rising, within the grid``."""
        return f"{self.verdict}, but {', '.join(self.doubts)}" if self.doubts else self.verdict


@dataclass(frozen=True)
class Comparison(Judged, Planned):
    """A planned comparison of accuracies."""

    last: tuple[float, float] | None = None  # gain and half-width in the last evaluation, where values are means


@dataclass(frozen=True)
class Ranked(Planned):
    """A planned comparison of how fast or how easily rows train, by a test of ranks."""

    effect: float = 1.0  # the median ratio of rounds, or the mean difference of widths in decades
    p: float = 1.0


def plans(sweep: str) -> Iterator[Plan]:
    """Yield the comparisons that the sweep file plans; those of one sweep or section are one family of tests."""
    path = ROOT / "sweeps" / f"{sweep_of(sweep).file}.yaml"
    for one in YAML(typ="safe", pure=True).load(path.read_text())["report"].get("contrasts", []):
        named = ("against", "if", "between", "measure")
        ((name, several),) = ((name, of) for name, of in one.items() if name not in named)
        field, _, part = name.partition(".")
        among, between = one.get("if", {}), one.get("between", {}).get("partition")
        where = tuple((at, tuple(of) if isinstance(of, list) else (of,)) for at, of in among.items())
        cells = ", ".join(_condition(at, of) for at, of in where)
        for value in several if isinstance(several, list) else [several]:
            texts = [label(of if isinstance(of, dict) else {"name": of}) for of in (value, one["against"])]
            if part:  # a setting of FedDecorr
                title = f"{part} {value:g} against {one['against']:g}"
                texts = [f"feddecorr({part}={of:g})" for of in (value, one["against"])]
            else:
                title = f"{texts[0]} against {texts[1]}"
                texts = [of.replace("(learned=false)", "") for of in texts]  # the default
            with_cells = f"with {cells}" if among else ""
            pair = tuple(map(str, between)) if between else None
            yield Plan(title, field, *texts, where, pair, with_cells, one.get("measure", "far"))


def _condition(field: str, values: Sequence[str | int | float]) -> str:
    """Return ``fedavg``, ``lr 0.01``, or ``partition [classes:1, iid]``."""
    if len(values) > 1:
        return f"{field} [{', '.join(map(str, values))}]"
    return str(values[0]) if isinstance(values[0], str) else f"{field} {values[0]:g}"


@cache
def comparisons(sweep: str, without: Place | None = None) -> tuple[Comparison, ...]:
    """Return the planned comparisons of a sweep in each column, or each but one, corrected for all that have a test."""
    planned = [
        (plan, column, gain)
        for plan in plans(sweep)
        if plan.measure == "far"
        for column, gain in _gains(sweep, plan).items()
        if column != without
    ]
    beside = [one.p for one in ranks(sweep)]
    results = iter(judge([gain for _, _, gain in planned if len(gain) >= FEWEST], beside))
    windows = [_verdicts(sweep, planned, trust.over(window)) for window in trust.WINDOWS] if without is None else []
    found = []
    for number, (plan, column, gain) in enumerate(planned):
        one = next(results) if len(gain) >= FEWEST else Judged(100 * gain.mean(), np.nan, np.nan, "open")
        axes = [name for name in sweep_of(sweep).column if not (plan.between and name == "partition")]
        last = _last(_gains(sweep, plan, "last")[column]) if sweep_of(sweep).file in WITH_TAIL else None
        head = _head(axes, column) or "accuracy"
        verdicts = {verdict[number] for verdict in windows}
        doubts = _doubts(sweep, plan, column, one, verdicts) if windows and one.verdict != "open" else ()
        found.append(Comparison(**vars(one), **vars(plan), column=column, head=head, last=last, doubts=doubts))
    return tuple(found)


def _head(axes: Sequence[str], column: Place) -> str:
    """Return ``classes:1, E 10``."""
    return ", ".join(at if isinstance(at, str) else f"{axis} {at:g}" for axis, at in zip(axes, column, strict=True))


def _verdicts(sweep: str, planned: Sequence[tuple[Plan, Place, Any]], window: str) -> list[str | None]:
    """Return the verdicts on planned comparisons in a window; None where it is not known."""
    gains = [_gains(sweep, plan, window).get(column, pd.Series(dtype=float)) for plan, column, _ in planned]
    beside = [one.p for one in ranks(sweep)]
    results = iter(judge([gain.round(12) for gain in gains if len(gain) >= FEWEST], beside))
    return [next(results).verdict if len(gain) >= FEWEST else "open" if len(gain) else None for gain in gains]


def _doubts(sweep: str, plan: Plan, column: Place, one: Judged, verdicts: set[str | None]) -> tuple[str, ...]:
    """Return the checks that a comparison does not pass, in the order of the page."""
    cells, axes = trust.cells(sweep), list(sweep_of(sweep).column)
    axes = [name for name in axes if not (plan.between and name == "partition")]
    here = cells[(cells[axes] == list(column)).all(axis=1)] if axes else cells
    here = plan.among_runs(here)
    places = plan.between or ("", "")
    others = [name for name in ROW if name != plan.field]

    def cells_with(value: str, place: str) -> pd.DataFrame:
        same = here[here.partition == place] if place else here
        both = [set(same[same[plan.field] == of][others].itertuples(index=False)) for of in (plan.value, plan.against)]
        mine = same[same[plan.field] == value]
        return mine[[row in set.intersection(*both) for row in mine[others].itertuples(index=False)]]

    plus = [cells_with(plan.value, places[0]), *([cells_with(plan.against, places[1])] if plan.between else [])]
    minus = [cells_with(plan.against, places[0]), *([cells_with(plan.value, places[1])] if plan.between else [])]
    sides = pd.concat(plus), pd.concat(minus)
    of_cells = trust.doubts(sides, len(plus[0]), one.mean / 100, one.half_width / 100, one.verdict, MARGIN)
    rises = [text for text in of_cells if text == "rising"]
    slope = _gains(sweep, plan, "slope").get(column)
    if slope is None or not len(slope):
        moved = [] if rises else ["slope not known"]
    else:
        width = stats.t.ppf(1 - LEVEL / 2, len(slope) - 1) * slope.sem()
        moved = [f"difference {'rising' if slope.mean() > 0 else 'falling'}"] if abs(slope.mean()) > width else []
    known = verdicts - {None}
    window = ["depends on the window"] if len(known) > 1 else ["window not known"] if None in verdicts else []
    collapsed = ["seeds collapsed"] if pd.concat(sides).collapsed.sum() else []
    return (*rises, *moved, *(text for text in of_cells if text != "rising"), *window, *collapsed)


def _last(gain: pd.Series[float]) -> tuple[float, float]:
    # Means of multiples of 0.01 % may lie between two rounded numbers: the report rounds gains to 12 decimals.
    gains = gain.round(12)
    several = len(gains) >= FEWEST
    half_width = 100 * stats.t.ppf(1 - LEVEL / 2, len(gains) - 1) * gains.sem() if several else np.nan
    return 100 * math.fsum(gains) / len(gains), half_width


@cache
def ranks(sweep: str) -> tuple[Ranked, ...]:
    """Return the planned comparisons of rounds and of widths, without verdicts, which need the whole family."""
    found = []
    for plan in plans(sweep):
        if plan.measure == "far":
            continue
        assert plan.field == "norm", "rows of FedAvg with a linear head"
        runs = plan.among_runs(federated(sweep).query("head == 'linear'"))
        for place, own in runs.groupby(list(sweep_of(sweep).column), sort=False):
            if {plan.value, plan.against} <= set(own.norm):
                found.append(_ranked(sweep, plan, place))
    return tuple(found)


def _ranked(sweep: str, plan: Plan, place: Place) -> Ranked:
    axes = sweep_of(sweep).column
    column = Column(sweep, **dict(zip(axes, place, strict=True)))
    one, other = (f"fedavg {norm}" for norm in (plan.value, plan.against))
    is_fast = plan.measure == "fast"
    values = (column.rounds_to_level() if is_fast else column.decades())[[one, other]].dropna()
    effect = (values[one] / values[other]).median() if is_fast else (values[one] - values[other]).mean()
    edges = column.is_at_edge() if is_fast else column.is_open()
    doubts = ("no plateau",) if is_fast and column.plateaus().empty else ()
    doubts += ("edge of the grid",) if edges[[one, other]].any() else ()
    p = p_of_ranks(values[one], values[other])
    return Ranked(**vars(plan), doubts=doubts, column=place, head=_head(axes, place), effect=float(effect), p=p)


@cache
def ranked(sweep: str) -> tuple[Ranked, ...]:
    """Return the planned comparisons of rounds and of widths with their verdicts, corrected with the others."""
    found, far = ranks(sweep), [plan for plan in plans(sweep) if plan.measure == "far"]
    gains = [gain for plan in far for gain in _gains(sweep, plan).values() if len(gain) >= FEWEST]
    others = [stats.ttest_1samp(gain, 0).pvalue for gain in gains]
    p = holm(pd.Series([*(one.p for one in found), *others], dtype=float))
    words = {"fast": ("slower", "faster"), "easy": ("easier", "harder")}
    return tuple(
        replace(
            one,
            p=corrected,
            verdict=words[one.measure][one.effect < (one.measure == "fast")] if corrected < LEVEL else "open",
            doubts=one.doubts if corrected < LEVEL else (),
        )
        for one, corrected in zip(found, p, strict=False)
    )


@cache
def _gains(sweep: str, plan: Plan, of: str = "value") -> dict[Place, pd.Series[float]]:
    """Return the gain of each seed by column: its mean over the pairs of rows that differ in the field alone.

    Pairs without a value for some seed of the column are left out, as are values without a row.
    """
    runs, columns = trust.ends(sweep), list(sweep_of(sweep).column)
    runs = plan.among_runs(runs)
    others = [name for name in ROW if name != plan.field]
    of_row = runs.set_index([*others, *columns, "seed", plan.field])[of].unstack(plan.field)
    if not {plan.value, plan.against} <= {*of_row}:
        return {}
    pairs = (of_row[plan.value] - of_row[plan.against]).unstack("seed")
    of_column = pairs.groupby(level=columns)
    gains = pd.DataFrame({at: some.dropna(axis=1, how="all").dropna().mean() for at, some in of_column}).T
    gains = gains[gains.notna().any(axis=1)].rename_axis(columns)
    if plan.between:
        of_first, of_second = (gains.index.get_level_values("partition") == one for one in plan.between)
        if not (of_first.any() and of_second.any()):
            return {}
        if columns == ["partition"]:
            return {(): (gains[of_first].iloc[0] - gains[of_second].iloc[0]).dropna()}
        gains = gains[of_first].droplevel("partition") - gains[of_second].droplevel("partition")
    assert of != "value" or (gains.std(axis=1).dropna() > 0).all(), "a t-test of equal differences is undefined"
    return {at if isinstance(at, tuple) else (at,): gain.dropna() for at, gain in gains.iterrows()}


def gains(sweep: str, against: str, method: str = "", column: Place | None = None) -> list[Comparison]:
    """Return the planned comparisons with one value, without interactions, of one column or of all."""
    some = [one for one in comparisons(sweep) if (one.against, one.method, one.between) == (against, method, None)]
    return [one for one in some if column in (None, one.column)]


def planned_rows(at: At) -> dict[Row, Comparison]:
    """Return the planned comparison of each row with the baseline."""
    baseline = dict(zip(ROW, BASELINE, strict=True))
    return {
        (row["method"], row["norm"], row["head"]): one
        for one in comparisons(at.sweep)
        if one.column == at.place and one.against == baseline[one.field]
        for row in [baseline | {one.field: one.value}]
    }


def better(at: At) -> set[Row]:
    """Return the rows that a planned comparison with the baseline of a column shows to be better, with its checks."""
    found = planned_rows(at)
    return {row for row, one in found.items() if one.verdict.startswith("more") and not one.doubts}


def in_order(columns: list[At]) -> list[Row]:
    """Return all rows of some columns in the order of the page.

    First the baseline, then the rows of planned comparisons with it, then the others: those with values in most
    columns, and of these the best by mean rank, as a share of the column's rows.
    """
    ranks = pd.concat([values(at)["mean"].rank(ascending=False, pct=True) for at in columns], axis=1)
    named = {row for at in columns for row in planned_rows(at)}
    gaps, mean = ranks.isna().sum(axis=1), ranks.mean(axis=1)
    return sorted(ranks.index, key=lambda row: (row != BASELINE, row not in named, gaps[row], mean[row]))
