"""What a constant behind the features does on digits with one class a client: ``results/head_scale.parquet``."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd
from scipy import stats

from tests.audit.planned import LEVEL
from tests.audit.runs import TAIL, recorded

#: The rounds after which runs are read, since some are shared with a longer sweep.
ROUNDS = 100

#: Rows: the method and the norm of each, under the name that pages give it.
ROWS = {
    "none": ("fedavg", "none"),
    "constant": ("fedavg", "scale(factor=16)"),
    "larger initial head": ("head-lr(factor=0.00390625)", "scale(factor=16)"),
    "higher rate of the head": ("head-lr(factor=256)", "none"),
    "larger head, frozen": ("head-lr(factor=0)", "scale(factor=16)"),
    "head frozen": ("head-lr(factor=0)", "none"),
}


@cache
def chosen() -> pd.DataFrame:
    """Return the runs of each row, by local SGD without clipping, at its learning rate with the best mean score."""
    found = []
    for run in recorded("head_scale").itertuples():
        tail = [one for one in run.records if 0 < one["round"] <= ROUNDS][-TAIL["head_scale"] :]
        if run.optimizer == "sgd" and pd.isna(run.clip_norm) and tail and tail[-1]["round"] == ROUNDS:
            value, score = (np.mean([one[name] for one in tail]) for name in ("acc", "val_acc"))
            found.append((run.method, run.norm, run.lr, run.seed, value, tail[-1]["acc"], score))
    runs = pd.DataFrame(found, columns=["method", "norm", "lr", "seed", "value", "last", "score"])
    rates = runs.groupby(["method", "norm", "lr"]).agg(score=("score", "mean"), kept=("value", "count"))
    whole = rates[rates.kept == runs.seed.nunique()].reset_index()
    return runs.merge(whole.loc[whole.groupby(["method", "norm"]).score.idxmax(), ["method", "norm", "lr"]])


def of_seed(row: str, of: str = "value") -> pd.Series[float]:
    """Return the accuracy of a row in percent by seed: the mean of the last five evaluations, or the ``last``."""
    method, norm = ROWS[row]
    runs = chosen()
    return 100 * runs[(runs.method == method) & (runs.norm == norm)].set_index("seed")[of]


def gain(row: str, against: str = "none", of: str = "value") -> tuple[float, float]:
    """Return the mean gain of a row over another one in points, paired by seed, and the half-width of its interval."""
    gains = of_seed(row, of) - of_seed(against, of)
    interval = stats.ttest_1samp(gains, 0).confidence_interval(1 - LEVEL)
    return float(gains.mean()), float(np.ptp(interval)) / 2


def table() -> list[list[str]]:
    """Return accuracies and gains over no normalization."""
    rows = [["row", "accuracy", "gain over none", "gain over the constant"]]
    for row in ROWS:
        level = f"{of_seed(row).mean():.1f} % (last {of_seed(row, 'last').mean():.1f})"
        rows.append(
            [row, level, *(_entry(row, against) if row != against else "–" for against in ("none", "constant"))]
        )
    return rows


def _entry(row: str, against: str) -> str:
    (mean, half), (last, half_of_last) = (gain(row, against, of) for of in ("value", "last"))
    return f"{mean:+.1f} ± {half:.1f} (last {last:+.1f} ± {half_of_last:.1f})"
