"""The claim on sharpness along training, recomputed from the exported runs with pandas and scipy alone."""

from __future__ import annotations

import json
import re

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tests.audit.planned import holm
from tests.audit.runs import ROOT, exported, label

CLAIM = "Along training lr x lambda_max / 2 of the global model moves to 1 and stays there"
COLUMNS = [("iid", 1), ("iid", 10), ("classes:1", 1), ("classes:1", 10)]
CELL = ["partition", "E", "norm", "lr"]


def runs() -> pd.DataFrame:
    """Return a row a run: its place, accuracy, and logarithms of the ratio along training."""
    found = []
    for experiment, result, metrics in exported("sharpening", "experiment", "result", "metrics").to_numpy():
        place = {"partition": label(experiment["partition"]), "E": experiment["local_steps"]}
        place |= {"norm": label(experiment["norm"]), "lr": experiment["lr"], "acc": np.nan}
        if result["status"] == "done":
            records = [json.loads(line) for line in metrics.splitlines()]
            largest = np.array([record["probes"]["sharpness"]["lambda_max"] for record in records], dtype=float)
            with np.errstate(divide="ignore"):
                ratio = np.log(experiment["lr"] * largest / 2)
            place |= {"acc": np.mean([record["acc"] for record in records[-5:]])}
            (halfway,) = (i for i, record in enumerate(records) if 2 * record["round"] == records[-1]["round"])
            place |= {"start": ratio[0], "halfway": ratio[halfway], "last": ratio[-1], "end": ratio[-5:].mean()}
        found.append(place)
    return pd.DataFrame(found)


def judged(of: pd.DataFrame) -> pd.DataFrame:
    """Return the cells in which every seed has twice the accuracy of guessing, and what tests over seeds show."""
    works = of.fillna({"acc": 0}).groupby(CELL).acc.min() >= 0.2
    cells = of.set_index(CELL).loc[works[works].index].groupby(level=CELL)
    found = cells[["start", "halfway", "last", "end"]].mean()
    for name, sign in (("below", 1), ("above", -1)):
        found[name] = (
            (sign * of.set_index(CELL).end)
            .loc[found.index]
            .groupby(level=CELL)
            .apply(lambda end: stats.ttest_1samp(end, np.log(2), alternative="less").pvalue)
        )
    found["at_one"] = holm(found[["below", "above"]].max(axis=1)) < 0.05
    moved = cells[["start", "end"]].apply(lambda seeds: stats.ttest_1samp(seeds.end.abs() - seeds.start.abs(), 0))
    is_moved = holm(moved.map(lambda test: test.pvalue)) < 0.05
    found["nearer"] = is_moved & (moved.map(lambda test: test.statistic) < 0)
    found["farther"] = is_moved & (moved.map(lambda test: test.statistic) > 0)
    return found


def counted(cells: pd.Series) -> str:
    return f"{cells.sum()} of {len(cells)}"


def by_column(cells: pd.Series) -> str:
    return "; ".join(f"{partition}, E {steps}: {counted(cells.loc[partition, steps])}" for partition, steps in COLUMNS)


@pytest.fixture(scope="module")
def of() -> pd.DataFrame:
    return runs()


@pytest.mark.slow
def test_the_claim_of_the_chapter(of: pd.DataFrame) -> None:
    (line,) = (one for one in (ROOT / "docs/results/why.md").read_text().splitlines() if one.startswith(f"| {CLAIM}"))
    cells = judged(of)
    norms = {norm: counted(some) for norm, some in cells.at_one.groupby(level="norm")}
    assert f"within a factor of 2 of 1 in {counted(cells.at_one)} cells ({by_column(cells.at_one)})." in line
    said = dict(re.findall(r"(\w+): (\d+ of \d+)", line.partition("By norm: ")[2].partition(". ")[0]))
    assert said == norms
    assert f"Nearer to 1 than before training: {by_column(cells.nearer)}." in line
    assert f"Farther: {by_column(cells.farther)}." in line
    medians = np.exp(cells[["start", "end"]].groupby(level=["partition", "E"]).median())
    for column in COLUMNS:
        start, end = medians.loc[column]
        assert f"{column[0]}, E {column[1]}: {start:.3g} and {end:.3g}" in line.partition("medians of cells: ")[2]
    assert "n = 5 runs a cell" in line
    assert "**in part**" in line and cells.at_one.any() and not cells.at_one.all()
    assert CLAIM in (page := (ROOT / "leaderboard.md").read_text())
    assert f"in {counted(cells.at_one)} cells ({by_column(cells.at_one)})." in page


@pytest.mark.slow
def test_the_sentences_of_why(of: pd.DataFrame) -> None:
    text, cells = " ".join((ROOT / "docs/why.md").read_text().split()), judged(of)
    ratio = np.exp(cells[["start", "halfway", "last", "end"]]).assign(at_one=cells.at_one).reset_index()
    is_fitted = (ratio.partition == "iid") & (ratio.E == 10)
    fast, fitted = ratio[(ratio.lr >= 0.1) & ~is_fitted], ratio[is_fitted]
    others = ratio.at_one[~is_fitted]
    assert f"{others.sum()} of {len(others)} are shown to end within a factor of 2 of 1" in text
    began = ratio.start.between(0.5, 2) & ratio.at_one & ~is_fitted
    nearer = cells.nearer.reset_index(drop=True)[~is_fitted]
    assert (
        f"within a factor of 2 of 1 ({began.sum()} of these began there), at rates of 0.1 and more "
        f"{fast.at_one.sum()} of {len(fast)}; {counted(nearer)} are shown to come nearer to 1."
    ) in text
    tried = of.drop_duplicates(CELL)
    missing, large = len(tried) - len(ratio), (tried.lr >= 1).sum()
    failing = large - (ratio.lr >= 1).sum()
    assert (
        f"{failing} of {large} cells do not work and are not judged; of all {len(tried)} cells {missing} are not"
        in text
    )
    falls = fast["last"] < 0.8 * fast.halfway
    assert (
        f"from round 50 to 100 the mean falls by more than a fifth in {falls.sum()} of these {len(fast)} cells" in text
    )
    slow = (fast.norm == "none") & (fast.lr == 0.1) & (fast.E == 1)
    low, high = fast.end[~slow].agg(["min", "max"])
    assert f"Means are between {low:.2f} and {high:.2f} in {sum(~slow)} of these {len(fast)}" in text
    assert slow.sum() == 2 and {f"{end:.2f}" for end in fast.end[slow]} == {"0.06"}
    ends = [
        f"{value:.2g}"
        for norms in (fast[fast.norm == "none"], fast[fast.norm != "none"])
        for value in norms.start.agg(["min", "max"])
    ]
    assert "ratio is {} to {} without normalization and {} to {} with the others".format(*ends) in text
    low, high = fitted.end.agg(["min", "max"])
    assert f"it ends between {low:.2f} and {high:.2f} in all {len(fitted)} cells" in text
    one_step = ratio[(ratio.partition == "classes:1") & (ratio.E == 1)].set_index("norm")[["lr", "start", "end"]]
    of_rate = {lr: one_step[one_step.lr == lr].drop(columns="lr") for lr in (0.03, 0.1, 0.3)}
    times = {lr: own.loc[["fn", "ln", "gn"]] / own.loc["none"] for lr, own in of_rate.items()}
    assert "gn start at {:.0f}, {:.0f} and {:.0f} times".format(*times[0.3].start) in text
    assert "end at {:.2f}, {:.2f} and {:.2f} times".format(*times[0.3].end) in text
    low, high = times[0.1].end.agg(["min", "max"])
    lowest, highest = times[0.03].end.agg(["min", "max"])
    assert (
        f"At 0.1 they still end at {low:.0f} to {high:.0f} times, at 0.03 at {lowest:.0f} to {highest:.0f} times"
        in text
    )
