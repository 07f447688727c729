"""The runs on ranks of random networks (Daneshmand et al. 2020) as frames, with pandas, numpy and scipy alone."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.special import digamma

from tests.audit.declared import judged
from tests.audit.studies import Claims, results

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
    frame["path"] = [f"γ {gamma:g}" if gamma else "plain" for gamma in frame.gamma]
    frame["deep"], frame["finished"], frame["layers"] = frame.folds >= FOLDS, True, LAYERS
    frame["middle"] = frame.groupby(NET, observed=True).end.transform("median")
    like = ["activation", "gamma", "width"]
    bare = frame[(frame.normalized == "none") & frame.deep].groupby(like).end.max().fillna(0).clip(lower=1.05)
    frame = frame.join(bare.rename("bare"), on=like)
    known = frame[frame.deep & frame.late.notna()]
    frame["widths"] = known.groupby(NET[:3], observed=True).width.transform("nunique")
    return frame.sort_values([*NET, "seed"])


def lead(width: int, gamma: float) -> float:
    """Return by how many factors of e the first eigenvalue of M leads the second after all layers, if they are linear.

    Twice the gap of the first two Lyapunov exponents of products of Gaussian matrices a layer (Newman 1986), which
    for weak layers beside a residual path is 2 gamma^2; in between half the harmonic mean of both.
    """
    alone = digamma(width / 2) - digamma((width - 1) / 2)
    return float(LAYERS * (alone if gamma == 0 else 1 / (1 / alone + 1 / (2 * gamma**2))))


def soft(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each layer and tau."""
    rows = [
        (float(name.removeprefix("soft_rank_")), value, record["rank"])
        for records in frame.records
        for record in records
        for name, value in record.items()
        if name.startswith("soft_rank_") and value is not None
    ]
    return pd.DataFrame(rows, columns=["tau", "soft", "rank"])


def claims() -> Claims:
    """Return the verdict and the numbers of every claim."""
    of = draws()
    return judged("rank_collapse", {"draws": of, "soft": soft(of)}, {"DEEP_ENOUGH": FOLDS}, separator="; ")
