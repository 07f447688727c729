"""The claims on mechanisms, judged from the cells of one sweep by rank correlations, with pandas and scipy alone.

Each function returns a verdict and its evidence as the pages print them. The rules are those of ``docs/statistics.md``
and ``docs/why.md``, written down a second time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pandas as pd
from scipy import stats

from tests.audit.correlation import FEWEST_GROUPS, Direction, Estimate, correlation, mean
from tests.audit.why_seeds import Claim

#: The order of names in lists.
NORMS = ["none", "ln", "ln-static", "ln-before", "ln-channel", "gn", "gn-static", "rms", "bn", "bn-static"]
NORMS += ["mean-last", "bn-last", "fn", "fn-layerwise", "ln-reduced", "scale"]
PARTITIONS = ["iid", "classes:1", "classes:2", "dirichlet:0.02", "dirichlet:0.1", "dirichlet:1"]

#: A correlation of at least this is strong.
STRONG = 0.6

RANK_WORDS: dict[Direction, str] = {
    "rises": "it rises with the rank",
    "falls": "it falls with the rank",
    "flat": "it hardly depends on the rank",
    "open": "the direction is open",
}
GAIN_WORDS: dict[Direction, str] = {
    "rises": "rises with it",
    "falls": "falls with it",
    "flat": "hardly depends on it",
    "open": "open",
}


def rho(found: Estimate) -> str:
    """``rho 0.59 (0.27 to 0.75; n = 2199 in 15 norms x 10 methods)``."""
    if not np.isfinite(found.value):
        return f"rho is not defined (n = {found.n})"
    (unit, count), *others = found.groups.items()
    several = "".join(f" x {number} {name}s" for name, number in others if number > 1)
    resampled = f"n = {found.n} in {'only ' if count < FEWEST_GROUPS else ''}{count} {unit}s{several}"
    interval = "{:.2f} to {:.2f}; ".format(*found.interval) if found.interval else "no interval: "
    return f"rho {found.value:.2f} ({interval}{resampled})"


def points(found: Estimate) -> str:
    """``+4.7 points (+1.7 to +9.4; n = 74)``."""
    interval = "{:+.1f} to {:+.1f}".format(*found.interval) if found.interval else "no interval"
    return f"{found.value:+.1f} points ({interval}; n = {found.n})"


def quartiles(values: pd.Series) -> str:
    """Median and middle half: ``1.2 (0.4 to 3.1)``."""
    low, middle, high = values.quantile([0.25, 0.5, 0.75])
    return f"{middle:.3g} ({low:.3g} to {high:.3g})"


def by_norm(of: pd.DataFrame, name: str) -> str:
    """``none 0.07 (0.06 to 0.2), fn 4 (3.8 to 4.3)``."""
    parts = {norm: of[of.norm == norm][name].dropna() for norm in NORMS}
    return ", ".join(f"{norm} {quartiles(own)}" for norm, own in parts.items() if len(own))


def learning_rates(cells: pd.DataFrame, shown: pd.DataFrame, *, tuned: bool) -> Claim:
    """The range of learning rates that works follows 2 / lambda_max.

    ``shown``: the cells at their best learning rates, or all of them where nothing is ``tuned``.
    """
    used, where = shown.used.dropna(), " at their best learning rates" if tuned else ""
    at_end = (
        f"At the end of training lr x lambda_max / 2 is {quartiles(used)}, below 1 in {(used < 1).sum()} of "
        f"{len(used)} cells{where} (by norm: {by_norm(shown, 'used')})."
        if len(used)
        else ""
    )
    rows, idle = working_rates(cells)
    rows = rows.dropna(subset="rate")
    if rows.empty:
        lack = "No row has three learning rates, all seeds of each, and the sharpness probe."
        return "not run", f"{lack} {at_end}".strip()
    whole, local = (correlation(rows, name, "high", ["column"], ["norm", "method"]) for name in ("rate", "local_rate"))
    verdicts = {"rises": "holds" if whole.value >= STRONG else "in part", "open": "inconclusive"}
    higher = f" In {rows.is_open.sum()} of {len(rows)} rows no higher rate was tried." if rows.is_open.any() else ""
    left = f" Left out: {idle} rows whose best rate is not 2 times better than guessing." if idle else ""
    of_clients = f"; of the sharpest client: {rho(local)}" if local.n else ""
    return verdicts.get(whole.direction, "does not hold"), (
        f"Highest learning rate that works against 2 / lambda_max of the untrained global model: {rho(whole)}"
        f"{of_clients}. That rate is {quartiles(rows.ratio)} times 2 / lambda_max (median and middle half of "
        f"{len(rows)} rows; by norm: {by_norm(rows, 'ratio')}). {at_end}{higher}{left}"
    )


def working_rates(cells: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Return the highest learning rate that works of each row and column with three or more, and how many fail.

    It is the last of the unbroken range around the best one whose means are within two points of the best mean, among
    rates of which all seeds finished. A row fails if its best mean is below twice the accuracy of guessing one class.
    """
    found, idle = [], 0
    for (column, method, norm), own in cells.groupby(["column", "method", "norm"]):
        if len(own) < 3 or not own.finished.any():
            continue
        rates = own.sort_values("lr").reset_index()
        means = rates.acc.where(rates.finished == rates.seeds, -np.inf).to_numpy()
        best = int(means.argmax())
        if means[best] < 2 / rates.classes.max():
            idle += 1
            continue
        beyond = np.flatnonzero((means[best] - means[best:]).round(9) > 0.02)
        last = best + int(beyond[0]) - 1 if len(beyond) else len(rates) - 1
        at_birth = {"rate": rates.sharpness_0, "local_rate": rates.local_0}
        place = {"column": column, "method": method, "norm": norm, "high": rates.lr[last]}
        limits = {name: 2 / (known.iloc[0] if len(known := one.dropna()) else np.nan) for name, one in at_birth.items()}
        found.append(place | limits | {"ratio": place["high"] / limits["rate"], "is_open": last == len(rates) - 1})
    return pd.DataFrame(
        found, columns=["column", "method", "norm", "high", "rate", "local_rate", "ratio", "is_open"]
    ), idle


def feature_rank(cells: pd.DataFrame, best: pd.DataFrame) -> Claim:
    """Accuracy follows the rank of the features: over all cells, above 90 %, and within norms at the best rates."""
    if cells["rank"].isna().all():
        return "not run", "No run has the features probe."
    whole = correlation(cells, "rank", "acc", ["column"], ["norm", "method"])
    good = correlation(cells[cells.acc > 0.9], "rank", "acc", ["column"], ["norm", "method"])
    within = correlation(best, "rank", "acc", ["column", "norm"], ["method", "norm"])
    all_rise = {one.direction for one in (whole, good, within)} == {"rises"}
    verdicts = {"rises": "holds" if all_rise and whole.value >= STRONG else "in part", "open": "inconclusive"}
    return verdicts.get(whole.direction, "does not hold"), (
        f"Over all cells of a column {RANK_WORDS[whole.direction]}, {rho(whole)}; among cells above 90 % accuracy "
        f"{RANK_WORDS[good.direction]}, {rho(good)}; at the best learning rates within one norm "
        f"{RANK_WORDS[within.direction]}, {rho(within)}."
    )


def gains(cells: pd.DataFrame, norm: str, keys: Sequence[str]) -> pd.DataFrame:
    """Return a row for each cell with the norm that has one without any, equal in the keys, and its gain in points."""
    known = cells.dropna(subset="acc")
    plain, other = (known[known.norm == name] for name in ("none", norm))
    pairs = plain.merge(other[[*keys, "acc", "length_0"]], on=list(keys), suffixes=("", "_other"), validate="1:1")
    return pairs.assign(gain=100 * (pairs.acc_other - pairs.acc), longer=pairs.length_0_other / pairs.length_0)


def bounded_norms(cells: pd.DataFrame, best: pd.DataFrame) -> Claim:
    """Bounded norms explain the gain of FN: it grows with the norms that FN bounds, and is gone where they do not."""
    grown, row, same = cells.dropna(subset="growth"), ["column", "partition", "method"], ["column", "lr"]
    pairs, best_pairs = gains(grown, "fn", [*row, "lr"]), gains(best, "fn", row)
    if pairs.empty:
        return "not run", "No cells with fn and with none, else alike, have the features probe (also at round 0)."
    same_rate = correlation(pairs, "growth", "gain", same, ["method"])
    at_best = correlation(best_pairs, "growth", "gain", ["column"], ["method"])
    places = {
        name: correlation(pairs[pairs.partition == name], "growth", "gain", same, ["method"]).direction
        for name in PARTITIONS
        if name in set(pairs.partition)
    }
    both = pairs.merge(gains(grown, "ln", [*row, "lr"]), on=[*row, "lr"], suffixes=("", "_of_ln"))
    plain = grown[grown.norm == "none"]
    inside = correlation(plain, "growth", "acc", same, ["method", "norm"])
    others = {
        "Gain of ln over none ~ gain of fn over none": correlation(both, "gain", "gain_of_ln", ["column"], ["method"]),
        "Accuracy ~ growth of norms (norm none)": correlation(plain, "growth", "acc", ["column"], ["method", "norm"]),
        "Accuracy ~ growth of norms (norm none, at the same lr)": inside,
    }
    overall, without = mean(best_pairs, "gain", "method"), mean(pairs[pairs.growth < 2], "gain", "method")
    ways = ", ".join(f"{name}: {GAIN_WORDS[way]}" for name, way in places.items())
    sentences = [
        f"The gain against the growth of none's norms: at the same learning rate {rho(same_rate)}"
        + (f" (by partition, {ways})" if len(places) > 1 else "")
        + f", at the best ones {rho(at_best)}.",
        f"At the best learning rates the gain of fn over none is {points(overall)}."
        if overall.n
        else "No cells of fn and none are at their best learning rates.",
        f"Where none's norms grow less than twofold the gain is {points(without)} at the same learning rate."
        if without.n
        else "Nowhere do none's norms grow less than twofold.",
        *(f"{name}: {rho(one)}." for name, one in others.items() if np.isfinite(one.value)),
        f"Before the first round fn's features are {stats.gmean(pairs.longer):.1f} times as long as none's.",
    ]
    verdict = on_gains(overall, without, (same_rate, at_best), places.values(), inside)
    return verdict, " ".join(sentences)


def on_gains(
    overall: Estimate,
    without: Estimate,
    rates: tuple[Estimate, Estimate],
    places: Collection[Direction],
    inside: Estimate,
) -> str:
    """Return the verdict on the gain of FN.

    Without an interval of the gain nothing is known, and without a gain there is nothing to explain. A gain that rises
    with the growth at equal rates holds if it is gone (half a point) where norms hardly grow, else in part, as does one
    that rises in some partitions. Otherwise an open direction, at equal or at the best rates, decides nothing, nor does
    a gain that does not rise while accuracy without normalization falls with the growth.
    """
    if overall.interval is None:
        return "inconclusive"
    if overall.interval[0] <= 0:
        return "does not hold"
    if rates[0].direction == "rises":
        return "holds" if without.interval and without.interval[0] <= 0.5 else "in part"
    if "rises" in places:
        return "in part"
    is_open = "open" in {one.direction for one in rates}
    return "inconclusive" if is_open or inside.direction == "falls" else "does not hold"
