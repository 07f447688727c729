"""Runs with probes, and cells over their seeds; the rules are those of ``docs/statistics.md``, a second time."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from tests.audit.runs import TAIL, WITH_TAIL, exported, is_copy, label

#: Sweeps whose files say ``tune: []``: nothing is chosen there.
UNTUNED = {"cifar10", "rank_dose"}

#: What makes a cell, a column apart from it: all other fields of the experiment.
CELL = ["column", "partition", "method", "norm", "lr"]

#: Numbers of the features as they are recorded.
FEATURES = {"length": "norm", "rank": "rank", "share": "first_share"}

#: Numbers of a run with plain means over seeds, and lengths, whose means are geometric.
PLAIN = ["acc", "score", "rank", "share", "share_0"]
LENGTHS = ["length", "length_0", "growth", "head_growth", "sharpness", "sharpness_0", "local_0"]


@cache
def probed(sweep: str) -> pd.DataFrame:
    """Return a row a federated run: its cell, its seed, and its accuracy and probes (NaN if it did not finish).

    ``shared`` runs have one model for all clients, and each computation once.
    """
    of = exported(sweep)[lambda frame: [one["kind"] == "federated" for one in frame.experiment]]
    found, known = [], _known_to_all(of.experiment)
    for run in of.itertuples():
        experiment = run.experiment
        others = {name: experiment[name] for name in known if name not in ("method", "norm", "lr", "seed")}
        place = {name: label(experiment[name]) for name in ("method", "norm", "partition")}
        place |= {"column": json.dumps(others, sort_keys=True), "E": experiment["local_steps"]}
        place |= {name: experiment[name] for name in ("lr", "seed")}
        place |= {"coefficient": experiment["method"].get("coefficient"), "run_id": run.run_id}
        if run.result["status"] == "done":
            tail = TAIL if sweep in WITH_TAIL else 1
            place |= _numbers([json.loads(line) for line in (run.metrics[0], *run.metrics[-tail:])])
            if tail > 1 and experiment["val_fraction"]:
                place["score"] = np.mean([json.loads(line)["val_acc"] for line in run.metrics[-tail:]])
        found.append(place)
    frame = pd.DataFrame(found).infer_objects()
    frame["growth"] = frame.length / frame.length_0
    frame["head_growth"] = frame["head"] / frame.head_0
    keeps_parts = frame.groupby(["method", "norm"]).personal.transform(lambda of: of.eq(True).any())
    return frame.assign(shared=~keeps_parts & ~is_copy(frame))


def _known_to_all(experiments: pd.Series) -> list[str]:
    """Return the fields of all runs; one that came after some of them has its default in the others."""
    values = {name: {json.dumps(one[name]) for one in experiments if name in one} for name in set().union(*experiments)}
    known = [name for name in values if all(name in one for one in experiments)]
    assert all(len(values[name]) == 1 for name in values if name not in known)
    return sorted(known)


def _numbers(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the mean accuracy of the last records, and what the last one and the one before the first round have."""
    first, *tail = records
    assert first["round"] == 0 < tail[-1]["round"]
    accuracy = np.mean([record["acc"] for record in tail])
    numbers = {"acc": accuracy, "score": accuracy, "personal": "acc_personal" in tail[-1]}
    for record, suffix in ((tail[-1], ""), (first, "_0")):
        features, sharpness = (record["probes"].get(name, {}) for name in ("features", "sharpness"))
        numbers |= {name + suffix: features.get(as_recorded, np.nan) for name, as_recorded in FEATURES.items()}
        numbers["sharpness" + suffix] = sharpness.get("lambda_max", np.nan)
        for name, several in (("head", features.get("head_norms")), ("local", sharpness.get("local"))):
            numbers[name + suffix] = max((value for value in several or () if value is not None), default=np.nan)
    overfit = tail[-1]["probes"].get("overfit") or {}
    lost = overfit.get("mean_before", np.nan) - overfit.get("mean_after", np.nan)
    return numbers | {"forgotten": lost, "classes": len(tail[-1]["recall"])}


def cells(of: pd.DataFrame) -> pd.DataFrame:
    """Return a row a cell: means over its finished seeds, how many there are, and of how many."""
    lengths = np.log(of[LENGTHS].where(of[LENGTHS] > 0))
    by_cell = of.assign(**lengths).groupby(CELL)
    means = by_cell[PLAIN].mean().join(np.exp(by_cell[LENGTHS].mean()))
    counts = by_cell.agg(finished=("acc", "count"), seeds=("seed", "count"), classes=("classes", "max"))
    found = means.join(counts).reset_index()
    return found.assign(used=found.lr * found.sharpness / 2)


def at_best_rate(of: pd.DataFrame, sweep: str) -> pd.DataFrame:
    """Return the cells of the best learning rate of each row and column, among the rates that all rows have.

    All seeds of the best rate have finished; the lowest of equal ones is chosen. Nothing is chosen in a sweep that
    tunes nothing: its rows with several rates have no best one.
    """
    row = ["column", "method", "norm"]
    if sweep in UNTUNED:
        return of[of.groupby(row).lr.transform("count") == 1]
    rows = of[row].drop_duplicates().column.value_counts()
    common = of.groupby(["column", "lr"]).lr.transform("count") == of.column.map(rows)
    complete = of[common & (of.finished == of.seeds)]
    ordered = complete.assign(score=complete.score.round(12)).sort_values(["score", "lr"], ascending=[False, True])
    return of.loc[sorted(ordered.groupby(row).head(1).index)]


@cache
def along_training() -> pd.DataFrame:
    """Return a row a run of ``sharpening``: its place, accuracy, and logarithms of lr x lambda_max / 2 over rounds."""
    found = []
    for run in exported("sharpening").itertuples():
        one = run.experiment
        place = {"partition": label(one["partition"]), "E": one["local_steps"], "norm": label(one["norm"])}
        place |= {"lr": one["lr"], "seed": one["seed"], "acc": np.nan}
        if run.result["status"] == "done":
            records = [json.loads(line) for line in run.metrics]
            largest = np.array([record["probes"]["sharpness"]["lambda_max"] for record in records], dtype=float)
            with np.errstate(divide="ignore"):
                ratio = np.log(one["lr"] * largest / 2)
            (halfway,) = (i for i, record in enumerate(records) if 2 * record["round"] == records[-1]["round"])
            place |= {"acc": np.mean([record["acc"] for record in records[-TAIL:]]), "start": ratio[0]}
            place |= {"halfway": ratio[halfway], "last": ratio[-1], "end": ratio[-TAIL:].mean()}
        found.append(place)
    return pd.DataFrame(found)
