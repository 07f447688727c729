"""Published numbers of two papers, the label-skew paper and NIID-Bench, beside those of the exported runs."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pandas as pd
from scipy import special, stats

from tests.audit.cells import LEVEL, At, Row, holm
from tests.audit.correlation import student
from tests.audit.runs import ROOT, exported, federated, only

#: The settings that a published number and a run share; ``lr`` and the like are the paper's.
SHARED = ["dataset", "model", "clients", "partition", "E", "method", "norm", "bias", "lr", "batch_size"]

#: What cells whose seeds scatter alike have in common.
LEVELS = ["dataset", "model", "partition", "clients", "rounds"]

#: Groups of group normalization in our runs.
GROUPS = 2

#: Classes of CIFAR-10; a cell below 1.5 times the accuracy of guessing is at chance.
CLASSES, CHANCE = 10, 1.5

#: Percentage points that an interval which shows agreement reaches at most to either side.
WIDEST = 5.0

#: The sweeps of the leaderboard whose settings are the paper's.
SWEEPS = ("cifar10", "cifar10_one_step")


@cache
def paper() -> pd.DataFrame:
    """Return the numbers of the label-skew paper, in percent."""
    return pd.read_csv(ROOT / "flbench/papers/label_skew/published.csv").rename(columns={"local_steps": "E"})


def gain_of_fn(table: int) -> pd.Series[float]:
    """Return what FedAvg gains by feature normalization in a table of the paper, CIFAR-10 and E = 10, by partition."""
    of_cnn = paper().query("table == @table and dataset == 'cifar10' and model == 'cnn' and E == 10 and not bias")
    rows = of_cnn.query("method == 'fedavg'").drop_duplicates(["partition", "norm"])
    value = rows.pivot(index="partition", columns="norm", values="value")
    return value["fn"] - value["none"]


@cache
def cells(sweeps: tuple[str, ...] = SWEEPS) -> pd.DataFrame:
    """Return our cells with the paper's settings: mean, standard deviation and number of seeds; NaN if one diverged.

    The paper's accuracies are those after the last round.
    """
    runs = pd.concat([federated(sweep) for sweep in sweeps]).assign(method=lambda of: of.method.str.split("(").str[0])
    cells = runs.groupby([*SHARED, "rounds"])["last"]
    found = pd.DataFrame({"mean": cells.mean(), "std": cells.std(), "count": cells.size()})
    return found.where(cells.count() == cells.size()).reset_index()


@cache
def published(sweeps: tuple[str, ...] = SWEEPS) -> pd.DataFrame:
    """Return the paper's numbers for the data sets and models of our runs, with ours, verdict, p-value and interval."""
    ours = cells(sweeps).rename(columns={"mean": "ours", "count": "our_seeds"})
    places = set(zip(ours.dataset, ours.model, strict=True))
    numbers = paper()[[place in places for place in zip(paper().dataset, paper().model, strict=True)]]
    other_groups = numbers.groups.notna() & (numbers.groups != GROUPS)
    numbers = numbers.assign(norm=numbers.norm.where(~other_groups, numbers.norm + " of other groups"))
    longest = ours.sort_values("rounds").drop_duplicates(SHARED, keep="last")
    of_ours = longest[[*SHARED, "rounds", "ours", "our_seeds"]]
    beside = numbers.merge(of_ours, how="left", on=SHARED, suffixes=("", "_ours"))
    return beside.join(beside.apply(_verdict, axis=1, result_type="expand", sweeps=sweeps))


def _verdict(row: pd.Series[float], sweeps: tuple[str, ...]) -> dict[str, object]:
    """Return whether a published number lies in the interval that our runs of full length predict for it."""
    if np.isnan(row.ours):
        return {"verdict": "not run", "p": np.nan}
    if row.rounds_ours < row.rounds:
        return {"verdict": "shorter", "p": np.nan}
    pool = repeated(row, sweeps)
    if pool.empty:
        return {"verdict": "no spread", "p": np.nan}
    p, interval = predict(row, pool)
    is_narrow = 100 * abs(interval - row.ours).max() <= WIDEST
    verdict = "does not hold" if p < LEVEL else "holds" if is_narrow else "too wide"
    return {"verdict": verdict, "p": p, "low": interval[0], "high": interval[1]}


def predict(row: pd.Series[float], pool: pd.DataFrame) -> tuple[float, np.ndarray]:
    """Return the p-value of a published number, and the interval that our runs and the spread of a pool predict."""
    sd, freedom = spread(pool)
    error = sd * np.sqrt(1 / row.our_seeds + 1 / row.seeds)
    centre, other = special.logit(row.ours), special.logit(row.value / 100)
    p = 2 * stats.t.sf(abs(other - centre) / error, freedom)
    return p, special.expit(np.array(stats.t.interval(1 - LEVEL, freedom, centre, error)))


def repeated(row: pd.Series[float], sweeps: tuple[str, ...] = SWEEPS) -> pd.DataFrame:
    """Return the cells of several seeds, published and ours, whose seeds scatter as those of a number."""
    of_paper = paper().assign(mean=paper().value / 100, std=paper()["std"] / 100, count=paper().seeds)
    pool = pd.concat([of_paper, cells(sweeps)]).dropna(subset="std")
    return pool[(pool[LEVELS] == row[LEVELS]).all(axis=1) & (pool["mean"] >= CHANCE / CLASSES)]


def spread(pool: pd.DataFrame) -> tuple[float, int]:
    """Return the pooled standard deviation of single runs' logits, and its degrees of freedom.

    The standard deviation of an accuracy becomes that of its logit by the derivative, 1 / (p (1 - p)).
    """
    freedom = pool["count"] - 1
    sd = pool["std"] / (pool["mean"] * (1 - pool["mean"]))
    return float(np.sqrt((freedom * sd**2).sum() / freedom.sum())), int(freedom.sum())


def tested(sweeps: tuple[str, ...] = SWEEPS) -> pd.DataFrame:
    """Return the numbers that have a test, each once."""
    return published(sweeps).dropna(subset="p").drop_duplicates([*SHARED, "value", "std"])


def summary() -> str:
    """Return the sentence on all published numbers."""
    numbers, p = published(), tested().p
    counts = numbers.verdict.value_counts()
    undecided = sum(counts.get(one, 0) for one in ("shorter", "too wide", "no spread"))
    return (
        f"{len(numbers)} published numbers: holds {counts['holds']}, does not hold {counts['does not hold']}, "
        f"inconclusive {undecided} (shorter {counts['shorter']}), not run {counts['not run']}. Outside "
        f"the {1 - LEVEL:.0%} interval that runs of full length predict: {(p < LEVEL).sum()} of {len(p)} numbers "
        f"({LEVEL * len(p):.1f} expected by chance); after Holm's correction {(holm(p) < LEVEL).sum()} of them."
    ).replace("95%", "95 %")


def beside(row: Row, at: At) -> tuple[float, float, str] | None:
    """Return our number of the last round, the published one and its interval, for a row of a column; None without."""
    if at.sweep not in SWEEPS:
        return None
    place = {"method": row[0], "norm": row[1], "partition": at.place[0]}
    place |= {name: only(at.sweep, name) for name in ("dataset", "E")}
    compared = published().dropna(subset="p")
    found = compared[(compared[list(place)] == list(place.values())).all(axis=1)]
    if found.empty:
        return None
    one = found.iloc[0]
    where = "outside" if one.p < LEVEL else "inside"
    return 100 * one.ours, float(one.value), f"{where} {100 * one.low:.2f} to {100 * one.high:.2f}"


def niid_bench() -> list[list[str]]:
    """Return the table of NIID-Bench: ours, published numbers, their difference with its interval, and the verdict.

    Ours are accuracies on the whole test set at the best round of each run. The interval is Welch's; a partition that
    all published seeds share moves their mean by as much as one of our seeds scatters.
    """
    found = []
    for run in exported("niid_bench").itertuples():
        best = np.nanmax(np.array([json.loads(line).get("acc_global") for line in run.metrics], dtype=float))
        method, classes = run.experiment["method"]["name"], run.experiment["partition"]["n"]
        found.append((classes, method, best, run.result["status"] == "diverged"))
    runs = pd.DataFrame(found, columns=["classes", "method", "best", "diverged"])
    paper = pd.read_csv(ROOT / "flbench/papers/niid_bench/published.csv").query("dataset == 'fashion_mnist'")
    rows = [["method", "partition", "ours", "published", "difference", "verdict"]]
    for (classes, method), ours in runs.groupby(["classes", "method"]):
        name, partition = {"fedavg": "FedAvg", "scaffold": "SCAFFOLD"}[method], f"{classes} class{'es' * (classes > 1)}"
        other = paper.set_index(["label", "partition"]).loc[name, partition]
        mean, sd, n = 100 * ours.best.mean(), 100 * ours.best.std(), len(ours)
        difference = mean - other.value
        reach = student([sd**2 * (1 / n + (classes == 2)), other["std"] ** 2 / 3], [n - 1, 3 - 1])
        verdict = "does not hold" if abs(difference) > reach else "holds" if reach <= WIDEST else "inconclusive"
        lost = f", {ours.diverged.sum()} of {n} diverged" if ours.diverged.any() else ""
        numbers = (f"{other.value:.2f} ± {other['std']:.2f}", f"{difference:+.2f} ± {reach:.2f}")
        rows.append([name, partition, f"{mean:.2f} ± {sd:.2f}{lost}", *numbers, verdict])
    return rows
