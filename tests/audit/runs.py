"""Runs of ``results/*.parquet`` as frames of one row a run, read with pandas alone, each file once.

Nothing of ``flbench`` is imported in this folder: what the audit and the report agree on does not follow from shared
code. The rules are those of ``docs/statistics.md``, written down a second time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

ROOT = Path(__file__).parents[2]

#: The fields that make a row of a table.
ROW = ["method", "norm", "head"]

#: A place on the axes of a column.
Place = tuple[str | int | float, ...]


class Sweep(NamedTuple):
    """A sweep, or a section of one with several: its file, the fields that make a column, and which runs it has."""

    file: str
    column: tuple[str, ...] = ()
    where: str = ""


SWEEPS = {
    "quickstart": Sweep("quickstart", ("partition",)),
    "plateau": Sweep("plateau", ("partition",)),
    "plateau_skew": Sweep("plateau_skew", ("partition", "E")),
    "plateau_methods": Sweep("plateau_methods", ("partition",)),
    "fashion_mnist_long": Sweep("fashion_mnist_long", ("partition",)),
    "fedyogi_steps": Sweep("fedyogi_steps", ("dataset", "E")),
    "rank_dose": Sweep("rank_dose", ("partition", "lr")),
    "fashion_mnist": Sweep("fashion_mnist", ("partition",)),
    "skew_fashion_mnist": Sweep("skew_fashion_mnist", ("partition",)),
    "fashion_mnist_lenet": Sweep("fashion_mnist_lenet", ("partition",)),
    "phase_digits": Sweep("phase_diagram", ("partition", "E"), "dataset == 'digits'"),
    "phase_fashion_mnist": Sweep("phase_diagram", ("partition", "E"), "dataset == 'fashion_mnist'"),
    "constants": Sweep("scale_or_geometry", ("partition",), "model == 'mlp(widths=[64, 64])'"),
    "constants_of_a_deeper_network": Sweep(
        "scale_or_geometry", ("partition",), "model == 'mlp(widths=[64, 64, 64, 64])'"
    ),
    "cifar10_one_step": Sweep("cifar10_one_step", ("partition",)),
    "cifar10_ten_steps": Sweep("cifar10_ten_steps", ("partition",)),
    "cifar10_tuned": Sweep("cifar10_tuned", ("partition",)),
    "cifar10_full_length": Sweep("cifar10_full_length", ("partition",)),
}

#: Evaluations whose mean is the value of a run, in these files; in the others it is the last accuracy on the test data.
#: Learning rates are chosen on held-out data where there are any.
TAIL = 5
WITH_TAIL = {
    *("plateau", "plateau_skew", "plateau_methods", "fashion_mnist_long", "head_scale"),
    *("skew_fashion_mnist", "fashion_mnist_lenet", "phase_diagram"),
    *("scale_or_geometry", "fedyogi_steps", "sharpening", "cifar10_tuned", "cifar10_one_step", "cifar10_full_length"),
}

#: Files whose search tries rates between the best one and its neighbours, so that rows have rates of their own, with
#: their rounds: another sweep may have trained a run longer.
REFINED = {"plateau": 1000, "plateau_skew": 1000, "plateau_methods": 300, "fashion_mnist_long": 800, "head_scale": 1000}


class Search(NamedTuple):
    """Successive halving: the local steps of whole runs, and the share of learning rates that goes on after a share."""

    steps: int
    rung: float = 0.4
    kept: Fraction = Fraction(4, 25)


#: The searches of sweep files with their last rungs.
SEARCHED = {
    "skew_fashion_mnist": Search(2000),
    "fashion_mnist_lenet": Search(10000, 0.1, Fraction(2, 7)),
    "phase_diagram": Search(1000),
    "scale_or_geometry": Search(1000),
    "cifar10_tuned": Search(1000, 0.2, Fraction(1, 4)),
}

#: Fields of an experiment that are copied as they are.
SETTINGS = [
    *("kind", "lr", "seed", "rounds", "clients", "batch_size", "val_fraction", "bias", "augment"),
    *("optimizer", "clip_norm"),
]

#: Components; exports from before heads could be chosen have none.
COMPONENTS = ["dataset", "model", "method", "norm", "head", "partition"]


def sweep_of(name: str) -> Sweep:
    return SWEEPS.get(name, Sweep(name))


@cache
def exported(file: str) -> pd.DataFrame:
    """Return a file of ``results/`` with its JSON parsed; ``metrics`` are lines, one an evaluation."""
    frame = pd.read_parquet(ROOT / "results" / f"{file}.parquet")
    parsed = {name: frame[name].map(json.loads) for name in ("experiment", "result")}
    return frame.assign(**parsed, metrics=frame.metrics.map(str.splitlines))


@cache
def runs(sweep: str) -> pd.DataFrame:
    """Return each run's settings, how it ended, after how many rounds, and its ``lines``, one an evaluation.

    Of a run that a search extended, the longest one.
    """
    file = sweep_of(sweep).file
    frame = exported(file)
    found = pd.DataFrame([_place(experiment) for experiment in frame.experiment])
    names = {name: [one[name] for one in frame.result] for name in ("run_id", "status")}
    found = found.assign(**names, trained=[one["rounds"] for one in frame.result], lines=frame.metrics.to_numpy())
    longest = found.sort_values("trained", kind="stable").groupby("run_id").tail(1).sort_index()
    if file in REFINED:
        longest = _cut(longest, REFINED[file])
        longest["kept"] = longest.trained == REFINED[file]  # the others were dropped at a rung
        found = longest
    else:
        found = longest.assign(kept=_kept(found, longest, SEARCHED[file]) if file in SEARCHED else True)
    where = sweep_of(sweep).where
    return (found.query(where) if where else found).reset_index(drop=True)


def _cut(runs: pd.DataFrame, last: int) -> pd.DataFrame:
    """Return runs as if none had been trained beyond a round."""
    lines = [[line for line in of if json.loads(line)["round"] <= last] for of in runs.lines]
    status = runs.status.mask(runs.trained > last, "done")
    return runs.assign(lines=lines, status=status, trained=runs.trained.clip(upper=last), rounds=last)


def _kept(found: pd.DataFrame, longest: pd.DataFrame, search: Search) -> pd.Series[bool]:
    """Return whether a search trained each run to the end; a few that it dropped are whole by another sweep."""
    found = found.assign(
        race=found[[*COMPONENTS, "E"]].astype(str).agg(" ".join, axis=1), steps=found.trained * found.E
    )
    whole = found[(found.steps >= search.steps) & (found.status == "done")].run_id
    rung = found[found.run_id.isin(whole) & (found.steps == search.rung * search.steps)]
    held_out = rung.assign(held_out=[json.loads(lines[-1])["val_acc"] for lines in rung.lines])
    of_rate = held_out.groupby(["race", "lr"]).held_out.agg(["count", "mean"]).round(9)
    # Rates that lost fewer seeds are better; an accuracy is less than a seed.
    ranks = of_rate.sum(axis=1).groupby("race").rank(method="min", ascending=False)
    most = np.ceil(found.groupby("race").lr.nunique() * float(search.kept)).rename("most")
    kept = ranks.rename("rank").reset_index().merge(most.reset_index()).query("rank <= most")
    return longest.run_id.isin(held_out.merge(kept[["race", "lr"]]).run_id)


def _place(experiment: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run."""
    place = {name: experiment.get(name) for name in SETTINGS} | {"E": experiment.get("local_steps")}
    return place | {name: label(experiment.get(name)) for name in COMPONENTS}


@cache
def recorded(sweep: str) -> pd.DataFrame:
    """Return the runs with their ``records``, one of each evaluation."""
    return runs(sweep).assign(records=lambda of: [list(map(json.loads, lines)) for lines in of.lines])


@cache
def federated(sweep: str, rounds: int | None = None) -> pd.DataFrame:
    """Return the runs with clients: their ``value``, ``last`` accuracy and ``score``, at the end or after some rounds.

    NaN for a run that diverged before, or that a search dropped. The score ranks learning rates.
    """
    file = sweep_of(sweep).file
    of = (recorded(sweep) if rounds else runs(sweep)).query("kind == 'federated'").reset_index(drop=True)
    numbers = []
    for run in of.itertuples():
        is_whole = run.status == "done" and run.kept
        end, tail = rounds or (run.trained if is_whole else 0), TAIL if file in WITH_TAIL else 1
        records = run.records if rounds else map(json.loads, run.lines[-tail:])
        known = [one for one in records if 0 < one["round"] <= end][-tail:]
        if not known or known[-1]["round"] != end:
            numbers.append((np.nan, np.nan, np.nan))
            continue
        value = np.mean([accuracy(one) for one in known])
        is_held_out = file in WITH_TAIL and run.val_fraction
        score = np.mean([one["val_acc"] for one in known]) if is_held_out else value
        numbers.append((value, accuracy(known[-1]), score))
    return of.assign(**pd.DataFrame(numbers, of.index, ["value", "last", "score"]))


def accuracy(record: dict[str, Any]) -> float:
    """Return the mean over clients; that on the whole test set where clients keep parts of the model."""
    return float(record["acc_global" if "acc_personal" in record else "acc"])


def slope(records: Sequence[dict[str, Any]]) -> float:
    """Return the slope over the second half of the rounds per doubling of rounds; NaN for too few evaluations."""
    known = pd.Series([accuracy(one) for one in records], [one["round"] for one in records], dtype=float)
    known = known[known.index > 0]
    half = known[-max(TAIL, (2 * known.index > known.index.max()).sum()) :]
    return float(np.polyfit(np.log2(half.index.to_numpy()), half, 1)[0]) if len(half) >= TAIL else np.nan


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
    texts = [f"{key}={f'{one:g}' if isinstance(one, float) else json.dumps(one)}" for key, one in settings]
    return f"{name}({', '.join(texts)})" if texts else name


@cache
def chosen(sweep: str, rounds: int | None = None) -> pd.DataFrame:
    """Return the runs of each row and column at the learning rate with the best mean score, if all its seeds finished.

    Rows choose among the rates that all rows of their column have, but where a search refined those of each.
    """
    frame, column = federated(sweep, rounds), list(sweep_of(sweep).column)
    place = list(dict.fromkeys([*column, "lr"]))
    names = frame.assign(row=frame[ROW].agg(" ".join, axis=1))
    rows = names.groupby(place).row.nunique().rename("with_rate").reset_index()
    rows = rows.merge(names.groupby(column).row.nunique().rename("all_rows").reset_index())
    is_shared = sweep_of(sweep).file not in REFINED
    common = frame.merge(rows[rows.with_rate == rows.all_rows][place]) if is_shared else frame
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
