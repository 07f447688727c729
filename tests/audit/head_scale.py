"""What a constant behind the features does on digits with one class a client: ``results/head_scale.parquet``."""

from __future__ import annotations

from functools import cache

import pandas as pd

from tests.audit import after

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
    runs = after.read("head_scale", ROUNDS)[lambda runs: (runs.optimizer == "sgd") & runs.clip_norm.isna()]
    return after.best(runs, ["method", "norm"])


def of_seed(row: str, of: str = "value") -> pd.Series[float]:
    """Return the accuracy of a row in percent by seed: the mean of the last five evaluations, or the ``last``."""
    method, norm = ROWS[row]
    runs = chosen()
    return 100 * runs[(runs.method == method) & (runs.norm == norm)].set_index("seed")[of]


def gain(row: str, against: str = "none", of: str = "value") -> tuple[float, float]:
    """Return the mean gain of a row over another one in points, paired by seed, and the half-width of its interval."""
    return after.mean_gain(of_seed(row, of) - of_seed(against, of))


def table() -> list[list[str]]:
    """Return accuracies and gains over no normalization."""
    rows = [["row", "accuracy", "gain over none", "gain over the constant"]]
    for row in ROWS:
        level = f"{of_seed(row).mean():.1f} % (last {of_seed(row, 'last').mean():.1f})"
        rows.append([row, level, *(_entry(row, against) for against in ("none", "constant"))])
    return rows


def _entry(row: str, against: str) -> str:
    return "–" if row == against else after.entry(gain(row, against), gain(row, against, "last"))
