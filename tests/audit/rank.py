"""Recompute the claims on ranks of random networks (Daneshmand et al. 2020) from the exported runs.

With pandas, numpy and scipy alone.

python -m tests.audit.rank
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.special import digamma

from tests.audit.studies import Claims, exponent, exponent_text, mean_text, results, span, verdict_of

#: Layers of all networks.
LAYERS = 1000

#: The first eigenvalue of a linear network must lead by this many factors of e, so that its rank is one.
FOLDS = 5.0

#: Random networks that differ by their draw alone, in the order of the page.
NET = ["activation", "gamma", "normalized", "width"]


def draws() -> pd.DataFrame:
    """Return a row a draw: its rank in the last layer (NaN if none), and mean and least rank of the later half."""
    frame = results("rank", "rank")
    late = [[one["rank"] for one in records if one["round"] > LAYERS / 2] for records in frame.records]
    frame["end"] = [one[-1]["rank"] if one[-1]["round"] == LAYERS else np.nan for one in frame.records]
    frame["late"] = [np.mean(ranks) if ranks else np.nan for ranks in late]
    frame["least"] = [min(ranks, default=np.nan) for ranks in late]
    frame["normalized"] = pd.Categorical(frame.normalized, ["none", "bn-rms", "bn"])
    frame["gamma"] = frame.gamma.fillna(0)  # no residual path
    frame["folds"] = [lead(one.width, one.gamma) for one in frame.itertuples()]
    return frame.sort_values([*NET, "seed"])


def lead(width: int, gamma: float) -> float:
    """Return by how many factors of e the first eigenvalue of M leads the second after all layers, if they are linear.

    Twice the gap of the first two Lyapunov exponents of products of Gaussian matrices a layer (Newman 1986), which
    for weak layers beside a residual path is 2 gamma^2; in between half the harmonic mean of both.
    """
    alone = digamma(width / 2) - digamma((width - 1) / 2)
    return float(LAYERS * (alone if gamma == 0 else 1 / (1 / alone + 1 / (2 * gamma**2))))


def path_text(gamma: float) -> str:
    return f"γ {gamma:g}" if gamma else "plain"


def size_text(some: pd.DataFrame) -> str:
    return f"d = {span(some.width)}, {LAYERS} layers, n={some.end.notna().sum()}"


def collapse(some: pd.DataFrame) -> tuple[str, str]:
    """Without normalization: the median over draws is below 1.05 in every network that is deep enough."""
    bare = some[(some.normalized == "none") & some.end.notna()]  # a ReLU network without living units has no rank
    deep, shallow = bare[bare.folds >= FOLDS], bare[bare.folds < FOLDS]
    parts = [
        f"{path_text(gamma)}: r = {mean_text(same.end)} at the end, at most {same.end.max():.2f} ({size_text(same)})"
        for gamma, same in deep.groupby("gamma")
    ]
    parts += [
        f"not deep enough to judge: {path_text(gamma)}, r = {mean_text(same.end)} ({size_text(same)}: the first "
        f"eigenvalue of a linear network leads by {same.folds.max():.1f} factors of e there, {FOLDS:g} are needed)"
        for gamma, same in shallow.groupby("gamma")
    ]
    medians = deep.groupby(["gamma", "width"]).end.median().dropna()
    return verdict_of("holds" if one < 1.05 else "does not hold" for one in medians), "; ".join(parts)


def kept(every: pd.DataFrame) -> tuple[str, str]:
    """Normalized: in the later half, ranks are above those of the same network without normalization, and 1.05."""
    deep = every[every.folds >= FOLDS]
    bare = deep[deep.normalized == "none"].groupby(["activation", "gamma", "width"]).end.max()
    outcomes, parts = [], []
    normalized = deep[deep.normalized != "none"]
    for (activation, norm), same in normalized.groupby(["activation", "normalized"], observed=True):
        nets = same.groupby(["gamma", "width"]).agg(least=("least", "min"), ended=("end", "count"), n=("end", "size"))
        nets["bare"] = bare[activation].reindex(nets.index).clip(lower=1.05).fillna(1.05)
        fallen = nets[(nets.least <= nets.bare) | (nets.ended < nets.n)]
        outcomes += ["does not hold"] * len(fallen) + ["holds"] * (len(nets) - len(fallen))
        named = " and ".join(f"{path_text(gamma)}, d = {width}" for gamma, width in fallen.index)
        parts.append(
            f"{activation}, {norm}: r ≥ {nets.least.min():.2f} in all layers of the second half, without normalization "
            f"≤ {nets.bare.max():.2f} at the end ({len(nets)} networks, {size_text(same)})"
            + (f"; it collapses for {named}" if named else "")
        )
    return verdict_of(outcomes), "; ".join(parts)


def root(some: pd.DataFrame) -> tuple[str, str]:
    """Theorem 2: the exponent of r over d is shown to be 1/2 or more, and not to be less over the last two widths."""
    outcomes, parts = [], []
    normalized = some[(some.normalized != "none") & (some.folds >= FOLDS)].dropna(subset="late")
    for (gamma, norm), same in normalized.groupby(["gamma", "normalized"], observed=True):
        if same.width.nunique() < 3:
            continue
        found = exponent(same.width, same.late)
        ends = sorted(same.width.unique())[-2:]
        last = exponent(*(same[same.width.isin(ends)][name] for name in ("width", "late")))
        refuted = min(found[2], last[2]) < 0.5
        outcomes.append("does not hold" if refuted else "holds" if found[1] >= 0.5 else "inconclusive")
        over = same.late / np.sqrt(same.width)
        parts.append(
            f"{path_text(gamma)}, {norm}: exponent {exponent_text(found)}, {exponent_text(last)} from {ends[0]} to "
            f"{ends[1]}, r = {over.min():.2f} to {over.max():.2f} √d "
            f"(d = {span(same.width)}, n={len(same)})"
        )
    return verdict_of(outcomes), "; ".join(parts)


def soft_ranks(every: pd.DataFrame) -> tuple[str, str]:
    """Eq. 5, a theorem on every matrix: at least (1 - tau)^2 r eigenvalues are tau times their mean or more."""
    broken = [
        value < (1 - float(name.removeprefix("soft_rank_"))) ** 2 * record["rank"] * (1 - 1e-9)
        for records in every.records
        for record in records
        for name, value in record.items()
        if name.startswith("soft_rank_") and value is not None
    ]
    verdict = "does not hold" if any(broken) else "holds"
    return verdict, f"{sum(broken)} of {len(broken)} pairs of a layer and a τ violate it"


def claims() -> Claims:
    """Return the verdict and the numbers of every claim."""
    every = draws()
    linear, relu = (every[every.activation == name] for name in ("linear", "relu"))
    return {
        "Without normalization a deep linear": collapse(linear),
        "Without normalization a deep ReLU": collapse(relu),
        "Batch normalization keeps the rank": kept(every),
        "Batch normalization keeps r ≥ c √d": root(linear[linear.gamma > 0]),
        "The soft rank of every layer": soft_ranks(every),
        "The same lower bound, r ≥ c √d, holds for ReLU": root(relu),
    }


if __name__ == "__main__":
    for name, (verdict, evidence) in claims().items():
        print(f"{name}: {verdict}\n    {evidence}")
