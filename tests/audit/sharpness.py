"""Recompute the claims on Karakida et al. 2019 from the exported results, with pandas, numpy and scipy alone.

The mean-field value beside theorem 4.1 depends on all outputs of a network, which no run records: it is read from the
runs. All other values and bounds are those of ``fisher.py``.

    python -m tests.audit.sharpness
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pandas as pd
from pandas.api.typing import SeriesGroupBy

from tests.audit.fisher import ALPHA, bounds, kappas, theorem_2_2
from tests.audit.studies import (
    Claims,
    exponent,
    exponent_text,
    half_width,
    median_text,
    results,
    short,
    span,
    verdict_of,
)

#: The networks of figure 1, and that of figure 2: activation, sigma_w^2, sigma_b^2.
NETWORKS = {"ReLU (2, 0)": ("relu", 2.0, 0.0), "tanh (3, 0.64)": ("tanh", 3.0, 0.64)}
TRAINED = ("relu", 4.0, 1.0)

#: Samples of figure 2; in figure 1 there are as many as units.
SAMPLES = 1000


def networks(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row a draw of figure 1 (T = M), with the value or the bounds of theory; inf for no upper bound."""
    frame = frame[frame.lr.isna() & frame.samples.isna()]
    frame = frame.drop_duplicates(["activation", "outputs", "normalized", "width", "seed"])
    found = []
    for one in frame.itertuples():
        (record,) = one.records
        lower, upper = bounds(one.normalized, (one.activation, one.sigma_w2, one.sigma_b2), one.width, record)
        value = theorem_2_2((one.activation, one.sigma_w2, one.sigma_b2), one.width)
        value = record.get("lambda_mean_field", value)
        place = {name: getattr(one, name) for name in ("activation", "outputs", "normalized", "width")}
        place["network"] = next(name for name, network in NETWORKS.items() if network[0] == one.activation)
        found.append({**place, "lambda_max": record["lambda_max"], "value": value, "lower": lower, "upper": upper})
    return pd.DataFrame(found)


def figure_1(draws: pd.DataFrame) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the claims on lambda_max over the width, each judged in both networks."""
    one_output = draws[draws.outputs == 1].groupby("normalized")
    yield "Without normalization", judged(one_output.get_group("none"), plain)
    yield "Subtracting the outputs' means", judged(one_output.get_group("mean-last"), flat)
    yield "Batch normalization of the outputs", judged(one_output.get_group("bn-last"), flat)
    middle = one_output.get_group("bn-middle")
    verdict, evidence = judged(middle[middle.activation == "relu"], growing)
    tanh = middle[middle.activation == "tanh"]
    control = f"Outside the theorem: tanh (3, 0.64), {slope_text(tanh)}, {widest_text(tanh)}."
    yield "Batch normalization in the middle", (verdict, f"{evidence} {control}")
    yield "Layer normalization in all", judged(draws[draws.normalized == "ln-all"], growing)


def judged(draws: pd.DataFrame, judge: Callable[[pd.DataFrame], tuple[str, str]]) -> tuple[str, str]:
    """Return the verdict over networks, and the numbers of each."""
    found = {name: judge(same) for name, same in draws.groupby("network")}
    return verdict_of(verdict for verdict, _ in found.values()), " ".join(
        f"{name}: {evidence}." for name, (_, evidence) in found.items()
    )


def plain(draws: pd.DataFrame) -> tuple[str, str]:
    """Theorem 2.2: the whole interval of the widest networks' mean within 10 % of theory, and an exponent near 1."""
    last = draws[draws.width == draws.width.max()]
    theory = last.value.iloc[0]
    mean, reach = last.lambda_max.mean(), half_width(last.lambda_max)
    off = abs(mean / theory - 1)
    value = (
        "holds" if off + reach / theory <= 0.1 else "does not hold" if off - reach / theory > 0.1 else "inconclusive"
    )
    ratios = (draws.lambda_max / draws.value).groupby(draws.width).mean()
    slope = near(exponent(draws.width, draws.lambda_max), 1)
    evidence = (
        f"measured/theory {by_width(ratios)}; mean {short(mean)} (sd {short(last.lambda_max.std())}, n={len(last)}) at "
        f"M = {last.width.iloc[0]} against {short(theory)}; {slope_text(draws)}"
    )
    return max(value, slope, key=["holds", "inconclusive", "does not hold"].index), evidence


def flat(draws: pd.DataFrame) -> tuple[str, str]:
    """Theorem 3.3 and eq. 19: an exponent near 0, and nine of ten draws within their bounds."""
    last = draws[draws.width == draws.width.max()]
    times = (last.lambda_max / last.lower).median()
    evidence = f"{slope_text(draws)}; {widest_text(draws)}, {times:.1f} times the lower bound; {admitted_text(draws)}"
    return bounded(draws, near(exponent(draws.width, draws.lambda_max), 0)), evidence


def growing(draws: pd.DataFrame) -> tuple[str, str]:
    """Theorems 3.4 and 4.1: an exponent above 1/2, and nine of ten draws within their bounds."""
    _, low, high = exponent(draws.width, draws.lambda_max)
    slope = "holds" if low > 0.5 else "does not hold" if high < 0.5 else "inconclusive"
    evidence = f"{slope_text(draws)}; {widest_text(draws)}; {admitted_text(draws)}"
    if draws.outputs.iloc[0] == 1:
        return bounded(draws, slope), f"{evidence} (by {span(draws.lambda_max - draws.lower)})"
    ratios = (draws.lambda_max / draws.value).groupby(draws.width).median()
    return bounded(draws, slope), f"C = 10, {evidence}; measured/mean field {by_width(ratios)}"


def near(found: tuple[float, float, float], claimed: float) -> str:
    """Judge an exponent: its whole interval is at most 0.25 from the claimed one, or farther, or neither."""
    low, high = found[1] - claimed, found[2] - claimed
    if low >= -0.25 and high <= 0.25:
        return "holds"
    return "does not hold" if high < -0.25 or low > 0.25 else "inconclusive"


def bounded(draws: pd.DataFrame, slope: str) -> str:
    return slope if draws.lambda_max.between(draws.lower, draws.upper).mean() >= 0.9 else "does not hold"


def slope_text(draws: pd.DataFrame) -> str:
    return f"exponent {exponent_text(exponent(draws.width, draws.lambda_max))}, n={len(draws)}"


def widest_text(draws: pd.DataFrame) -> str:
    last = draws[draws.width == draws.width.max()]
    return f"median {median_text(last.lambda_max)} at M = {last.width.iloc[0]}"


def admitted_text(draws: pd.DataFrame) -> str:
    within = draws.lambda_max.between(draws.lower, draws.upper).sum()
    return f"within bounds in {within} of {len(draws)} draws"


def by_width(values: pd.Series, form: Callable[[float], str] = "{:.2f}".format) -> str:
    """``1.13 at 50, 1.06 at 100``."""
    return ", ".join(f"{form(value)} at {width}" for width, value in values.items())


def descents(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row a run of figure 2: its losses (inf where it diverged), and its rate over 2 / lambda_max."""
    found = []
    for one in frame[frame.lr.notna()].itertuples():
        first, last = one.records[0], one.records[-1]
        peak, final = (last["peak_loss"], last["loss"]) if one.status == "done" else (math.inf, math.inf)
        place = {name: getattr(one, name) for name in ("normalized", "width", "seed", "lr")}
        found.append({**place, "lambda_max": first["lambda_max"], "first": first["loss"], "peak": peak, "final": final})
    trained = pd.DataFrame(found).sort_values("lr")
    return trained.assign(factor=trained.lr * trained.lambda_max / 2)


def figure_2(trained: pd.DataFrame) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the claims on learning rates; networks are those of one width and seed."""
    without, centred = (trained[trained.normalized == name] for name in ("none", "mean-last"))
    yield "Above 2 / lambda_max of a network", onset(without)
    yield "Above 2 / lambda_max, losses of wide", explosion(without)
    yield "With the outputs' means subtracted", gain(without, centred)
    yield "With subtracted means", line(centred)


def onset(without: pd.DataFrame) -> tuple[str, str]:
    """Eq. 23: nine of ten networks grow at no rate below 2 / lambda_max and at every rate of 1.25 to 4 times it."""
    grew = without.peak > 1.1 * without["first"]
    below = grew[without.factor < 1].groupby([without.width, without.seed]).any()
    above = just_above(without, grew).all()
    onsets = []
    for _, same in without.groupby(["width", "seed"]):
        first = int(grew[same.index].argmax())
        onsets.append(math.sqrt(same.factor.iloc[first - 1] * same.factor.iloc[first]))
    right = [1 - below.mean() >= 0.9, above.mean() >= 0.9]
    evidence = (
        f"Loss above 1.1 of its first value at some rate below the line of their own network in {below.sum()} of "
        f"{len(below)} networks, and at every rate of 1.25 to 4 times it in {above.sum()} of {len(above)}; onset over "
        f"line: {median_text(onsets)}."
    )
    return "holds" if all(right) else "in part" if any(right) else "does not hold", evidence


def just_above(trained: pd.DataFrame, did: pd.Series) -> SeriesGroupBy:
    """Group by width and seed what the runs at 1.25 to 4 times their network's line did."""
    return did[trained.factor.between(1.25, 4)].groupby([trained.width, trained.seed])


def explosion(without: pd.DataFrame) -> tuple[str, str]:
    """Figure 2, left: of networks of width 800 or more, nine of ten explode at every rate just above their line."""
    peaked = just_above(without, without.peak > 1000)
    throughout, once = peaked.all(), peaked.any()
    ended = just_above(without, without.final > 1000).any()
    shares = [
        f"{same.sum()} ({once[width].sum()}) of {len(same)} at {width}" for width, same in throughout.groupby("width")
    ]
    evidence = (
        f"Networks whose loss was above 1000 or not finite at some step, at every rate (at some rate) of 1.25 to 4 "
        f"times their own line, by M: {', '.join(shares)}. At the end: {ended.sum()} of {len(ended)}."
    )
    wide = throughout.index.get_level_values("width") >= 800
    if not wide.any():
        return "inconclusive", f"{evidence} None has M = 800 or more."
    if wide.sum() < 5:
        return "inconclusive", evidence
    if throughout[wide].mean() >= 0.9:
        return "holds", evidence
    return "in part" if once[wide].mean() > 0.1 else "does not hold", evidence


def gain(without: pd.DataFrame, centred: pd.DataFrame) -> tuple[str, str]:
    """Figure 2, right: at every width all networks with subtracted means converge at higher rates than any without."""
    highest = [
        some[some.final < 0.01 * some["first"]].groupby(["width", "seed"]).lr.max() for some in (centred, without)
    ]
    medians = [rates.groupby("width").median() for rates in highest]
    lowest, most = highest[0].groupby("width").min(), highest[1].groupby("width").max()
    # If subtraction changed nothing, 4 given networks of 8 would be the highest in one of 70 cases at each width.
    sizes = [rates.groupby("width").size() for rates in highest]
    chance = math.prod(1 / math.comb(a + b, a) for a, b in zip(*sizes, strict=True))
    evidence = (
        f"Highest rate after which the last loss is below 1 % of the first: with means subtracted "
        f"{median_text(highest[0])}, without {median_text(highest[1])}. Gain (ratio of medians) by M: "
        f"{by_width(medians[0] / medians[1], short)}."
    )
    if (medians[0] <= medians[1]).any():
        return "does not hold", evidence
    return "holds" if (lowest > most).all() and chance < 0.05 else "inconclusive", evidence


def line(centred: pd.DataFrame) -> tuple[str, str]:
    """Figure 2, right: the line comes from a lower bound of lambda_max, so no network survives above it."""
    kappa_1, kappa_2 = kappas(*TRAINED)
    rates = 2 / (centred.width / SAMPLES * ALPHA * (kappa_1 - kappa_2))
    beyond = centred[centred.lr > rates]
    survived = beyond.final <= 1000
    survivors = survived.groupby([beyond.width, beyond.seed]).any()
    ratios = (rates * centred.lambda_max / 2).groupby([centred.width, centred.seed]).first().groupby("width").median()
    evidence = (
        f"{survived.sum()} of {len(beyond)} runs above the line survived, in {survivors.sum()} of {len(survivors)} "
        f"networks; line over 2 / lambda_max as measured, by M: {by_width(ratios, short)}."
    )
    return "holds" if survivors.mean() <= 0.1 else "does not hold", evidence


def runs() -> pd.DataFrame:
    """Return the runs of figure 1, of figure 2 and of its wide networks."""
    return pd.concat([results(file, "sharpness") for file in ("sharpness", "sharpness_wide")], ignore_index=True)


def claims() -> Claims:
    """Return the verdict and the numbers of every claim."""
    frame = runs()
    return dict([*figure_1(networks(frame)), *figure_2(descents(frame))])


if __name__ == "__main__":
    for name, (verdict, evidence) in claims().items():
        print(f"{name}: {verdict}\n    {evidence}")
