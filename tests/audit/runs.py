"""Runs as tables: one row a run of ``results/*.parquet``, read with pandas alone.

Nothing of ``flbench`` is imported in this folder: what the audit and the report agree on does not follow from shared
code. The rules are those of ``docs/statistics.md``, written down a second time.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

ROOT = Path(__file__).parents[2]

#: The fields that make a row of a table.
ROW = ["method", "norm", "head"]

#: Sections of the reports on a sweep with several: the sweep, and the field and value that tell them apart.
SECTIONS = {
    "one_class_digits": ("one_class", "dataset", "digits"),
    "one_class_fashion_mnist": ("one_class", "dataset", "fashion_mnist"),
    "phase_digits": ("phase_diagram", "dataset", "digits"),
    "phase_fashion_mnist": ("phase_diagram", "dataset", "fashion_mnist"),
    "constants": ("scale_or_geometry", "model", "mlp(widths=[64, 64])"),
    "constants_of_a_deeper_network": ("scale_or_geometry", "model", "mlp(widths=[64, 64, 64, 64])"),
}

#: The fields that make a column, by sweep or section.
COLUMNS = {
    "one_class_digits": ["E"],
    "one_class_fashion_mnist": ["E"],
    "skew": ["partition", "E"],
    "rank_dose": ["partition", "lr"],
    "fashion_mnist": ["partition"],
    "skew_fashion_mnist": ["partition"],
    "fashion_mnist_lenet": ["partition"],
    "phase_digits": ["partition", "E"],
    "phase_fashion_mnist": ["partition", "E"],
    "constants": ["partition"],
    "constants_of_a_deeper_network": ["partition"],
    "cifar10_one_step": ["partition"],
    "cifar10_ten_steps": ["partition"],
    "cifar10_tuned": ["partition"],
    "cifar10_full_length": ["partition"],
}

#: Sweeps whose values are means of the last evaluations; those of the others are the last accuracy on the test data.
#: Learning rates are chosen on held-out data where there are any.
TAIL = {
    "one_class": 5,
    "head_scale": 5,
    "skew": 5,
    "skew_fashion_mnist": 5,
    "fashion_mnist_lenet": 5,
    "phase_diagram": 5,
    "scale_or_geometry": 5,
    "fedyogi_steps": 5,
    "cifar10_tuned": 5,
    "cifar10_one_step": 5,
    "cifar10_full_length": 5,
}


def is_mean(sweep: str) -> bool:
    """Return whether the values of a sweep or section are means over evaluations."""
    return SECTIONS.get(sweep, (sweep,))[0] in TAIL


#: Sweeps with successive halving, and the local steps of whole runs; runs of fewer steps were dropped.
SEARCHED = {
    "skew_fashion_mnist": 2000,
    "fashion_mnist_lenet": 10000,
    "phase_diagram": 1000,
    "scale_or_geometry": 1000,
    "cifar10_tuned": 1000,
}

#: A place on the axes of a column.
Place = tuple[str | int | float, ...]

#: Test images by data set.
IMAGES = {"digits": 355, "cifar10": 10_000, "fashion_mnist": 10_000}

#: Fields of an experiment that are copied as they are.
SETTINGS = [
    *("kind", "lr", "seed", "rounds", "clients", "batch_size", "val_fraction", "bias", "augment"),
    *("optimizer", "clip_norm"),
]

#: Components; exports from before heads could be chosen have none.
COMPONENTS = ["dataset", "model", "method", "norm", "head", "partition"]


def exported(sweep: str, *columns: str) -> pd.DataFrame:
    """Return a file of ``results/`` with its JSON parsed, or some of its columns."""
    frame = pd.read_parquet(ROOT / "results" / f"{sweep}.parquet", columns=list(columns) or None)
    return frame.assign(**{name: frame[name].map(json.loads) for name in ("experiment", "result") if name in frame})


@cache
def runs(sweep: str) -> pd.DataFrame:
    """Return each run's settings, its ``value`` (NaN if it diverged), the ``last`` accuracy, and the ``score``.

    The score ranks learning rates.
    """
    if sweep in SECTIONS:
        whole, field, value = SECTIONS[sweep]
        return runs(whole)[lambda frame: frame[field] == value].reset_index(drop=True)
    found = []
    for experiment, result, metrics in longest(exported(sweep, "experiment", "result", "metrics")).to_numpy():
        records = [json.loads(line) for line in metrics.splitlines()[-TAIL.get(sweep, 1) :]]
        steps = result["rounds"] * (experiment["local_steps"] or 0)
        known = result["status"] == "done" and steps >= SEARCHED.get(sweep, 0)
        value = np.mean([_accuracy(record) for record in records]) if known else np.nan
        has_held_out = known and sweep in TAIL and experiment["val_fraction"]
        score = np.mean([record["val_acc"] for record in records]) if has_held_out else value
        last = _accuracy(records[-1]) if known else np.nan
        found.append({**_place(experiment), "value": value, "last": last, "score": score})
    return pd.DataFrame(found)


def _place(experiment: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run."""
    place = {name: experiment.get(name) for name in SETTINGS} | {"E": experiment["local_steps"]}
    return place | {name: label(experiment.get(name)) for name in COMPONENTS}


def recorded(sweep: str) -> pd.DataFrame:
    """Return the settings of each run with its ``records``, one of each evaluation."""
    found = longest(exported(sweep, "experiment", "result", "metrics"))
    records = [[json.loads(line) for line in metrics.splitlines()] for metrics in found.metrics]
    return pd.DataFrame([_place(experiment) for experiment in found.experiment]).assign(records=records)


def longest(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the row with the most rounds of each run, which a search extends."""
    names, rounds = (frame.result.map(lambda one, name=name: one[name]) for name in ("run_id", "rounds"))
    return frame.loc[rounds.sort_values(kind="stable").groupby(names).tail(1).sort_index().index]


def federated(sweep: str) -> pd.DataFrame:
    """Return the runs with clients."""
    frame = runs(sweep)
    return frame[frame.kind == "federated"].reset_index(drop=True)


def only(sweep: str, name: str) -> Any:
    """Return the value of a field that all runs with clients share."""
    (value,) = federated(sweep)[name].unique()
    return value


def label(component: dict[str, Any] | None) -> str:
    """Return ``classes:1``, ``dirichlet:0.1``, ``cosine(learned=true)``, or the name alone."""
    if component is None:
        return "linear"
    name, *settings = component["name"], *(item for item in component.items() if item[0] != "name")
    if name in ("classes", "dirichlet"):
        return f"{name}:{settings[0][1]:g}"
    return f"{name}({', '.join(f'{key}={_text(value)}' for key, value in settings)})" if settings else name


def _text(value: Any) -> str:
    """Return ``[64, 64]``, ``true``, or a number of six digits."""
    is_number = isinstance(value, float)
    return f"{value:g}" if is_number else json.dumps(value)


def _accuracy(record: dict[str, Any]) -> float:
    """Return the mean over clients; that on the whole test set where clients keep parts of the model."""
    return float(record["acc_global" if "acc_personal" in record else "acc"])


@cache
def chosen(sweep: str) -> pd.DataFrame:
    """Return the runs of each row and column at the learning rate with the best mean score, if all its seeds finished.

    Rows choose among the rates that all rows of their column have.
    """
    frame, column = federated(sweep), COLUMNS[sweep]
    place = list(dict.fromkeys([*column, "lr"]))
    names = frame.assign(row=frame[ROW].agg(" ".join, axis=1))
    rows = names.groupby(place).row.nunique().rename("with_rate").reset_index()
    rows = rows.merge(names.groupby(column).row.nunique().rename("all_rows").reset_index())
    common = frame.merge(rows[rows.with_rate == rows.all_rows][place])
    numbers = {"score": ("score", "mean"), "finished": ("value", "count"), "seeds": ("seed", "nunique")}
    rates = common.groupby([*ROW, *place]).agg(**numbers).reset_index()
    complete = rates[rates.finished == rates.seeds]
    best = complete.loc[complete.groupby([*ROW, *column]).score.idxmax()]
    return common.merge(best[[*ROW, *place]])


def is_copy(frame: pd.DataFrame) -> pd.Series[bool]:
    """Return which runs compute what FedAvg computes, without batch normalization and with equal steps."""
    method = frame.method.str.extract(r"^([\w-]+)", expand=False)
    one_step = (method == "fedprox") & (frame.E == 1)
    every_class = (method == "fedrs") & (frame.partition == "iid")
    return method.isin(["fedbn", "fednova"]) | one_step | every_class
