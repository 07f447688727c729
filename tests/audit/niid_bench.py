"""NIID-Bench's published numbers beside our runs at its settings, recomputed: the table of docs/results/README.md."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
from scipy import stats

from tests.audit.planned import LEVEL
from tests.audit.published import WIDEST
from tests.audit.runs import ROOT, exported

#: The names of the reproduction's table.
METHODS = {"fedavg": "FedAvg", "scaffold": "SCAFFOLD"}
PARTITIONS = {1: "1 class", 2: "2 classes"}

#: Partitions that differ between our seeds; the published seeds share one.
DRAWN = ("2 classes",)


def table() -> list[list[str]]:
    """Return ours, published numbers, their difference with its interval, and the verdict."""
    paper = pd.read_csv(ROOT / "flbench/papers/niid_bench/published.csv").query("dataset == 'fashion_mnist'")
    published = paper.set_index(["label", "partition"])
    rows = [["method", "partition", "ours", "published", "difference", "verdict"]]
    for (partition, method), ours in _best_rounds().groupby(["partition", "method"]):
        other = published.loc[method, partition]
        difference, half_width = _interval(ours.best, other.value, other["std"], partition in DRAWN)
        agrees = "holds" if half_width <= WIDEST else "inconclusive"
        verdict = "does not hold" if abs(difference) > half_width else agrees
        values = f"{100 * ours.best.mean():.2f} ± {100 * ours.best.std():.2f}"
        if ours.diverged.any():
            values += f", {ours.diverged.sum()} of {len(ours)} diverged"
        numbers = f"{other.value:.2f} ± {other['std']:.2f}", f"{difference:+.2f} ± {half_width:.2f}"
        rows.append([method, partition, values, *numbers, verdict])
    return rows


def _best_rounds() -> pd.DataFrame:
    """Return the accuracy of each run on the whole test set at its best round, and whether it diverged."""
    found = []
    for experiment, result, metrics in exported("niid_bench", "experiment", "result", "metrics").to_numpy():
        accuracies = [json.loads(line).get("acc_global") for line in metrics.splitlines()]
        place = {"method": METHODS[experiment["method"]["name"]], "partition": PARTITIONS[experiment["partition"]["n"]]}
        best = np.nanmax(np.array(accuracies, dtype=float))
        found.append({**place, "best": best, "diverged": result["status"] == "diverged"})
    return pd.DataFrame(found)


def _interval(ours: pd.Series[float], mean: float, sd: float, drawn: bool) -> tuple[float, float]:
    """Return ours less the published mean and the half-width of its interval (Welch), in points.

    A partition that all published seeds share moves their mean by as much as one of our seeds scatters.
    """
    variances = np.array([(100 * ours.std()) ** 2 * (1 / len(ours) + drawn), sd**2 / 3])
    freedom = variances.sum() ** 2 / (variances**2 / np.array([len(ours) - 1, 3 - 1])).sum()
    return 100 * ours.mean() - mean, float(stats.t.ppf(1 - LEVEL / 2, freedom) * np.sqrt(variances.sum()))
