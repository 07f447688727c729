"""The claims about mechanisms: rank correlations of accuracies and learning rates with what probes measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from flbench.papers.label_skew.correlations import (
    NORMS,
    WITHIN_NORMS,
    Direction,
    Means,
    MeansRow,
    Mechanism,
    RankCorrelation,
    by_partition,
    correlate,
    mean_points_text,
    quartiles_text,
    verdict_on,
)
from flbench.papers.label_skew.frames import rows_of
from flbench.report.cells import Cell, tick_of
from flbench.report.claims import Claim, Verdict
from flbench.report.correlation import Mean, mean
from flbench.report.tuning import Range, Rows

if TYPE_CHECKING:
    import pandas as pd

#: The claims, and after whom.
RATES = "The range of learning rates that works follows 2 / lambda_max", "after Karakida et al. 2019"
RANK = "Accuracy follows the rank of the features", "after Daneshmand et al. 2020"
BOUNDED = "Bounded norms explain the gain of FN", "after Zhang et al. 2024, theorem 1"

#: Directions as verbs.
DIRECTIONS: Mapping[Direction, str] = {"rises": "rises with", "falls": "falls with", "flat": "hardly depends on"}

#: A row works somewhere if its best mean is at least this many times what guessing one class gets.
OVER_CHANCE = 2.0

#: Cells above this accuracy work: a correlation among them is not that of working and failing cells.
WORKING = 0.9

#: Growth of the features' norm without normalization, in classes: hardly, some, a lot.
GROWTHS: tuple[tuple[float, float, str], ...] = (
    (0.0, 2.0, "below 2"),
    (2.0, 10.0, "2 to 10"),
    (10.0, math.inf, "10 and more"),
)

#: A gain below this, half a point, leaves nothing to explain.
NOTABLE = 0.005

#: Lengths of features that differ by less than this factor are equal.
EQUAL = 1.05

#: What cells that are compared share: at the same learning rate, and at the best one of each.
_AT_LR, _AT_BEST = ["column", "method", "lr"], ["column", "method"]

#: What rows of the frame below share with their cells.
_ROW = ["column", "partition", "method", "norm", "first_lambda", "first_local_lambda"]


def learning_rates(ranges: Sequence[Rows[Range]], cells: pd.DataFrame, tuned: pd.DataFrame) -> Mechanism:
    """Correlate the highest learning rate that works with 2 / lambda_max, over rows."""
    rows, idle, unsettled = _working_rows(ranges, cells)
    at_end, measured = _at_end(tuned), rows.dropna(subset="first_lambda")
    if measured.empty:
        lack = "No row has three learning rates, all seeds of each, and the sharpness probe."
        return Mechanism("rates", Claim(*RATES, "not run", " ".join(filter(None, [lack, at_end]))))
    correlations = []
    # Norms are resampled, whose rows begin with the same lambda_max, and independently methods.
    for name, model in (("first_lambda", "global model"), ("first_local_lambda", "sharpest client")):
        what = f"highest working lr ~ 2 / lambda_max at the start, {model}"
        rates = measured.assign(rate=2 / measured[name])
        for where, some in by_partition(rates):
            correlations.append(correlate(some, "rate", "high", what=what, where=where, strata=["column"], units=NORMS))
    known = [found for found in correlations if found.correlation.n]
    whole, *local = [found for found in known if found.where == "everywhere"]
    measured, is_open = measured.assign(ratio=measured.high / (2 / measured.first_lambda)), measured.is_open.sum()
    sentences = [
        f"Highest learning rate that works against 2 / lambda_max of the untrained global model: {whole.text}"
        + "".join(f"; of the sharpest client: {one.text}" for one in local)
        + f". That rate is {quartiles_text(measured.ratio)} times 2 / lambda_max (median and middle half of "
        f"{len(measured)} rows; by norm: {_quartiles_by_norm(measured, 'ratio')}).",
        at_end,
        f"In {is_open} of {len(measured)} rows no higher rate was tried." if is_open else "",
        f"Left out: {idle} rows whose best rate is not {OVER_CHANCE:g} times better than guessing." if idle else "",
        f"Left out: {unsettled} rows whose runs are not all finished." if unsettled else "",
    ]
    claim = Claim(*RATES, verdict_on(whole), " ".join(filter(None, sentences)))
    return Mechanism("rates", claim, tuple(known))


def _working_rows(ranges: Sequence[Rows[Range]], cells: pd.DataFrame) -> tuple[pd.DataFrame, int, int]:
    """Return the rows that work somewhere, the number that works nowhere, and the number that is not finished.

    A row is a method and norm in a column over its learning rates: the highest that works, whether no higher one was
    tried, and the lambda_max of a cell that was probed before the first round, when all are alike.
    """
    import pandas as pd

    known = {one["cell"].key: one for one in rows_of(cells)}
    rows, idle, unsettled = [], 0, 0
    for one in (one for some in ranges for one in some.rows):
        members = [known[cell.key] for cell in one.cells if cell.key in known]
        if not members:
            continue
        if any(run.result is None for cell in one.cells for run in cell.runs):
            unsettled += 1
        elif one.best is None or one.best < OVER_CHANCE * chance(members[0]["cell"]):
            idle += 1
        else:
            at_birth = next((cell for cell in members if cell["first_lambda"]), members[0])
            rows.append({**{name: at_birth[name] for name in _ROW}, "high": one.high, "is_open": one.open_high})
    frame = pd.DataFrame(rows, columns=[*_ROW, "high", "is_open"])
    return frame.astype({"first_lambda": float, "first_local_lambda": float}), idle, unsettled


def chance(cell: Cell) -> float:
    """Return the accuracy of guessing one class; 0 where records do not have the number of classes."""
    classes = max((len(run.record.get("recall") or ()) for run in cell.runs if run.record), default=0)
    return 1 / classes if classes else 0.0


def _at_end(tuned: pd.DataFrame) -> str:
    """The learning rates in units of 2 / lambda_max of the trained network."""
    known = tuned.dropna(subset="used")
    if known.empty:
        return ""
    is_chosen = any("lr" in cell.chosen for cell in known.cell)
    return (
        f"At the end of training lr x lambda_max / 2 is {quartiles_text(known.used)}, below 1 in "
        f"{(known.used < 1).sum()} of {len(known)} cells{' at their best learning rates' if is_chosen else ''} "
        f"(by norm: {_quartiles_by_norm(known, 'used')})."
    )


def _quartiles_by_norm(rows: pd.DataFrame, name: str) -> str:
    """``none 0.07 (0.06 to 0.2), fn 4 (3.8 to 4.3)``."""
    return ", ".join(f"{norm} {quartiles_text(own)}" for norm, own in rows.groupby("norm", sort=False)[name])


def feature_rank(cells: pd.DataFrame, tuned: pd.DataFrame) -> Mechanism:
    """Return the verdict on three correlations: over all cells, those that work, and within norms at the best rates.

    A rank that only tells working cells from failing ones rises with accuracy over all cells, and not among those that
    work (``tests/papers/label_skew/test_feature_rank.py`` has the rule's error rates).
    """
    known = cells.dropna(subset=["rank", "acc"])
    if known.empty:
        return Mechanism("rank", Claim(*RANK, "not run", "No run has the features probe."))

    def of(
        some: pd.DataFrame, where: str, *strata: str, x: str = "rank", name: str = "effective rank"
    ) -> RankCorrelation:
        # Where the strata differ by norm, enough methods make an interval, and not enough norms.
        units = WITHIN_NORMS if "norm" in strata else NORMS
        what = f"accuracy ~ {name}"
        return correlate(some, x, "acc", what=what, where=where, strata=["column", *strata], units=units)

    *parts, whole = [of(some, where) for where, some in by_partition(known)]
    good = of(known[known.acc > WORKING], f"accuracy above {100 * WORKING:g} %")
    best = of(tuned, "at the best lr of each row, at the same norm", "norm")
    others = (
        good,
        best,
        of(known, "everywhere, at the same norm", "norm"),
        of(known, "everywhere, at the same lr", "lr"),
        of(known, "everywhere, at the same norm and lr", "norm", "lr"),
        of(tuned, "everywhere, at the best lr of each row"),
        of(known, "everywhere", x="share", name="share of the first singular value"),
    )
    whole_way, good_way, best_way = (
        "the direction is open" if one.direction == "open" else f"it {DIRECTIONS[one.direction]} the rank"
        for one in (whole, good, best)
    )
    evidence = (
        f"Over all cells of a column {whole_way}, {whole.text}; among cells above {100 * WORKING:g} % accuracy "
        f"{good_way}, {good.text}; at the best learning rates within one norm {best_way}, {best.text}."
    )
    shown = (*parts, whole, *(one for one in others if one.correlation.rho is not None))
    return Mechanism("rank", Claim(*RANK, verdict_on(whole, (good, best)), evidence), shown)


def bounded_norms(cells: pd.DataFrame, tuned: pd.DataFrame) -> Mechanism:
    """Compare the gains of FN with the growth of norms without it, and with what other normalizations gain."""
    grown = cells.dropna(subset="growth")
    pairs, best_pairs = _pairs(grown, _AT_LR, "fn"), _pairs(tuned, _AT_BEST, "fn")
    if pairs.empty:
        lack = "No cells with fn and with none, else alike, have the features probe (also at round 0)."
        return Mechanism("norms", Claim(*BOUNDED, "not run", lack))
    plain = [_gain(some, where, ["column"]) for where, some in by_partition(pairs)]
    *places, same_rate = (
        _gain(some, f"{where}, at the same lr", ["column", "lr"]) for where, some in by_partition(pairs)
    )
    best = _gain(best_pairs, "everywhere, at the best lr of each row", ["column"])
    bare = grown[grown.norm == "none"]
    inside = _within(bare, "norm none, at the same lr", ["column", "lr"])
    of_ln = pairs.merge(_pairs(grown, _AT_LR, "ln")[[*_AT_LR, "gain"]], on=_AT_LR, suffixes=("", "_of_ln"))
    like_ln = "gain of ln over none ~ gain of fn over none"
    others = [
        correlate(of_ln, "gain", "gain_of_ln", what=like_ln, where="everywhere", strata=["column"], units=["method"]),
        _within(bare, "norm none", ["column"]),
        inside,
        _within(tuned[tuned.norm == "none"], "norm none, methods at their best lr", ["column"]),
    ]
    overall, without = _mean(best_pairs), _mean(pairs[pairs.growth < GROWTHS[0][1]])
    ways = ", ".join(
        f"{one.where.split(', ')[0]}: {'open' if one.direction == 'open' else f'{DIRECTIONS[one.direction]} it'}"
        for one in places
    )
    sentences = [
        f"The gain against the growth of none's norms: at the same learning rate {same_rate.text}"
        + (f" (by partition, {ways})" if ways else "")
        + f", at the best ones {best.text}.",
        f"At the best learning rates the gain of fn over none is {mean_points_text(overall)}."
        if overall
        else "No cells of fn and none are at their best learning rates.",
        f"Where none's norms grow less than twofold the gain is {mean_points_text(without)} at the same learning rate."
        if without
        else "Nowhere do none's norms grow less than twofold.",
        *(
            f"{one.what[0].upper()}{one.what[1:]}{'' if one.where == 'everywhere' else f' ({one.where})'}: {one.text}."
            for one in others[:3]
            if one.correlation.rho is not None
        ),
        _lengths(pairs),
    ]
    found = verdict_on_bounded_norms(overall, without, same_rate, best, places, inside)
    return Mechanism(
        "norms",
        Claim(*BOUNDED, found, " ".join(filter(None, sentences))),
        (*plain, *places, same_rate, best, *(one for one in others if one.correlation.rho is not None)),
        tuple(filter(None, [_by_growth(pairs), _by_norm(tuned)])),
    )


def verdict_on_bounded_norms(
    overall: Mean | None,
    without: Mean | None,
    same_rate: RankCorrelation,
    best: RankCorrelation,
    places: Sequence[RankCorrelation],
    inside: RankCorrelation,
) -> Verdict:
    """Return ``holds`` if the gain grows with the norms that FN bounds, and is gone where they do not grow.

    It holds in part if the gain grows with them in some partitions alone. It is inconclusive if its direction is open
    at equal or at the best learning rates, or if it does not grow with them although accuracy without normalization
    falls with their growth. The arguments are the gain at the best learning rates and where the norms of none hardly
    grow; the correlation of gain and growth at equal learning rates, at the best ones, and at equal ones in each of
    several partitions; and that of accuracy and growth within none.
    """
    if overall is None or overall.interval is None:
        return "inconclusive"
    if overall.interval[0] <= 0:
        return "does not hold"
    if same_rate.direction == "rises":
        left = without.interval if without else None
        return "holds" if left is not None and left[0] <= NOTABLE else "in part"
    if any(one.direction == "rises" for one in places):
        return "in part"
    is_open = "open" in (same_rate.direction, best.direction)
    return "inconclusive" if is_open or inside.direction == "falls" else "does not hold"


def _pairs(cells: pd.DataFrame, same: Sequence[str], norm: str) -> pd.DataFrame:
    """Return the cells without normalization beside those with a norm, alike in what is the ``same``; ``gain``."""
    known = cells.dropna(subset="acc")
    plain = known[known.norm == "none"].drop_duplicates([*same], keep="last")
    others = known[known.norm == norm][[*same, "acc", "first_length"]]
    pairs = others.merge(plain, on=[*same], suffixes=("_other", ""))
    return pairs.assign(gain=pairs.acc_other - pairs.acc)


def _gain(pairs: pd.DataFrame, where: str, strata: Sequence[str]) -> RankCorrelation:
    """All pairs of one method vary together."""
    what = "gain of fn over none ~ growth of none's norms"
    return correlate(pairs, "growth", "gain", what=what, where=where, strata=strata, units=["method"])


def _within(cells: pd.DataFrame, where: str, strata: Sequence[str]) -> RankCorrelation:
    what = "accuracy ~ growth of norms"
    return correlate(cells, "growth", "acc", what=what, where=where, strata=strata, units=WITHIN_NORMS)


def _mean(pairs: pd.DataFrame) -> Mean | None:
    return mean(pairs.gain.tolist(), pairs.method.tolist())


def _lengths(pairs: pd.DataFrame) -> str:
    """How much longer normalized features are before the first round: a difference that growth does not have."""
    ratios = (pairs.first_length_other / pairs.first_length).dropna()
    factor = statistics.geometric_mean(ratios) if len(ratios) else 1.0
    if 1 / EQUAL < factor < EQUAL:
        return ""
    return f"Before the first round fn's features are {factor:.1f} times as long as none's."


def _by_growth(pairs: pd.DataFrame) -> Means:
    rows = [
        MeansRow((name,), _column_means(pairs, pairs[(low <= pairs.growth) & (pairs.growth < high)]))
        for low, high, name in GROWTHS
    ]
    title = "Gain of fn over none at the same learning rate, by the growth of none's norms"
    return Means(title, ("growth", *_columns(pairs)), tuple(rows))


def _by_norm(tuned: pd.DataFrame) -> Means | None:
    """Every normalization against none, beside the growth of its norms."""
    import pandas as pd

    ordered = sorted(tuned.itertuples(), key=lambda one: tick_of(one.cell, "norm"))  # type: ignore[arg-type]
    pairs = {label: _pairs(tuned, _AT_BEST, label) for label in dict.fromkeys(str(one.norm) for one in ordered)}
    everything = pd.concat([own for label, own in pairs.items() if label != "none"] or [tuned.head(0)])
    if everything.empty:
        return None
    rows = []
    for label, own in pairs.items():
        growths = sorted(tuned.growth[tuned.norm == label].dropna())
        middle = f"{growths[len(growths) // 2]:.3g} ({growths[0]:.3g} to {growths[-1]:.3g})" if growths else "–"
        means = (None,) * len(_columns(everything)) if label == "none" else _column_means(everything, own)
        rows.append(MeansRow((label, middle), means))
    title = (
        "Gain of every normalization over none at the best learning rates, beside the growth of its norms (median, "
        "smallest to largest)"
    )
    return Means(title, ("norm", "growth", *_columns(everything)), tuple(rows))


def _columns(pairs: pd.DataFrame) -> list[str]:
    """The partitions if there are several, and ``everywhere``."""
    return [name for name, _ in by_partition(pairs)]


def _column_means(everything: pd.DataFrame, some: pd.DataFrame) -> tuple[Mean | None, ...]:
    """The mean gain of some pairs in each column of all pairs."""
    *partitions, _ = _columns(everything)
    return tuple(_mean(part) for part in [*(some[some.partition == name] for name in partitions), some])
