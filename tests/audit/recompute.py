"""Recompute the leaderboard's numbers from exported runs with pandas and scipy alone.

Nothing of ``flbench`` is imported: what this script and the report agree on does not follow from shared code. The rules
are those of ``docs/statistics.md``, written down a second time.

    python tests/audit/recompute.py results/digits.parquet last
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

#: The fields that make a row and a column, and those of one run in them.
ROW, COLUMN, RUN = ["method", "norm", "head"], ["partition", "E"], ["lr", "seed"]

#: Test images by data set.
IMAGES = {"digits": 355}


def runs(path: Path, rule: str) -> pd.DataFrame:
    """Return a row a federated run: its place, its value (NaN if it diverged), and what chooses its settings."""
    found = []
    for row in pd.read_parquet(path).itertuples():
        experiment, result = json.loads(row.experiment), json.loads(row.result)
        if experiment["kind"] != "federated":
            continue
        records = [record for line in row.metrics.splitlines() if (record := json.loads(line))["round"] > 0]
        finished = result["status"] == "done" and bool(records)
        some = records[-5:] if rule == "val-tail" else records[-1:]
        value = np.mean([_accuracy(record) for record in some]) if finished else np.nan
        score = np.mean([record["val_acc"] for record in some]) if finished and rule == "val-tail" else value
        place = {"method": _name(experiment["method"]), "norm": _name(experiment["norm"])}
        place |= {"head": _name(experiment.get("head", {"name": "linear"}))}
        place |= {"partition": _name(experiment["partition"]), "E": experiment["local_steps"]}
        place |= {name: experiment[name] for name in RUN}
        found.append({**place, "value": value, "score": score})
    return pd.DataFrame(found)


def _name(component: dict[str, Any]) -> str:
    """Return ``classes:1``, ``dirichlet:0.1``, or the name with its settings."""
    settings = [str(value) for name, value in component.items() if name != "name"]
    return ":".join([component["name"], *settings])


def _accuracy(record: dict[str, Any]) -> float:
    return float(record["acc_global" if "acc_personal" in record else "acc"])


def chosen(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of the learning rate with the best mean score of each row and column, if all seeds finished."""
    cells = frame.groupby([*ROW, *COLUMN, "lr"]).agg(score=("score", "mean"), finished=("value", "count"))
    complete = cells[cells.finished == frame.seed.nunique()].reset_index()
    best = complete.sort_values("lr").loc[lambda of: of.groupby([*ROW, *COLUMN]).score.idxmax()]
    return frame.merge(best[[*ROW, *COLUMN, "lr"]])


def table(frame: pd.DataFrame, images: int) -> pd.DataFrame:
    """Return mean and half-width of the interval, in percent, of each row and column: seeds and test images."""
    found = chosen(frame).groupby([*ROW, *COLUMN]).value.agg(["mean", "std", "count"])
    over_seeds = stats.t.ppf(0.975, found["count"] - 1) * found["std"] / np.sqrt(found["count"])
    over_images = stats.norm.ppf(0.975) * np.sqrt(found["mean"] * (1 - found["mean"]) / images)
    return pd.DataFrame({"mean": 100 * found["mean"], "half_width": 100 * np.hypot(over_seeds, over_images)})


def is_copy(frame: pd.DataFrame) -> pd.Series:
    """Return which runs compute what FedAvg computes, without batch normalization and with equal steps."""
    method = frame.method.str.split(":").str[0]
    one_step = (method == "fedprox") & (frame.E == 1)
    every_class = (method == "fedrs") & (frame.partition == "iid")
    return method.isin(["fedbn", "fednova"]) | one_step | every_class


def planned(frame: pd.DataFrame, values: list[str], against: str) -> pd.DataFrame:
    """Return the gain of some norms over another one in each column: its mean over methods a seed, and its test."""
    best = chosen(frame[~is_copy(frame)]).set_index([*COLUMN, "method", "head", "seed", "norm"]).value.unstack("norm")
    found = []
    for norm in values:
        for column, gain in (best[norm] - best[against]).dropna().groupby(level=COLUMN):
            by_seed = gain.groupby(level="seed").mean()
            test = stats.ttest_1samp(by_seed, 0)
            low, high = test.confidence_interval(0.95)
            found.append(
                {"norm": norm, "column": column, "mean": 100 * by_seed.mean(), "half_width": 50 * (high - low)}
                | {"p": test.pvalue, "pairs": len(gain) // len(by_seed)}
            )
    return pd.DataFrame(found)


if __name__ == "__main__":
    of_runs = runs(Path(sys.argv[1]), sys.argv[2])
    print(table(of_runs, IMAGES["digits"]).round(2).to_string())
    print(planned(of_runs, ["fn", "ln", "gn"], "none").round(4).to_string())
