"""Arms of the exported runs on deep networks (Daneshmand et al. 2020): ways to initialize and normalize one depth.

Every number after an epoch is that at the arm's best learning rate then: among those with most seeds left, the one of
the highest mean accuracy on the training set.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from tests.audit.studies import results

#: Learning rates and number of seeds by epochs: figures 1 and 4 (dashed), and pre-training.
SWEEPS = {15: ([0.01, 0.03, 0.1], 3), 30: ([0.003, 0.01, 0.03, 0.1], 5)}

#: Arms without normalization, and the one with it, as drawn.
PLAIN, NORMALIZED = ["torch's init", "He's init"], "BN"

#: Arms in the order of the page.
ORDER = [*PLAIN, "rescaled only", *(f"{steps} steps on the rank" for steps in (3, 25, 75)), NORMALIZED]
ORDER += [f"BN, shift {shift:g}" for shift in (0.05, 0.1, 0.2, 0.5, 1)]

ARM = ["epochs", "depth", "arm"]


def arm_of(one: Any) -> str:
    """Return the name of a network's arm."""
    if one.pretrain_steps:
        return f"{one.pretrain_steps} steps on the rank"
    if one.rescale:
        return "rescaled only"
    if one.normalized == "bn":
        return f"BN, shift {one.shift:g}" if one.shift else NORMALIZED
    return "He's init" if one.init == "he" else "torch's init"


def measured() -> pd.DataFrame:
    """Return a row a sweep, run and recorded epoch; a run of both sweeps is in both, up to the epochs of each."""
    found = []
    for one in results("rank", "deep").sort_values("length").drop_duplicates("run_id", keep="last").itertuples():
        arm = arm_of(one)
        in_first = one.seed < 3 and one.lr in SWEEPS[15][0] and not (one.rescale or one.pretrain_steps)
        in_second = one.depth == 32 and arm not in (PLAIN[0], *ORDER[-5:])
        for epochs, is_in in ((15, in_first), (30, in_second)):
            place = {"epochs": epochs, "depth": one.depth, "arm": arm, "lr": one.lr, "seed": one.seed}
            for record in one.records if is_in else []:
                if record["round"] <= epochs:
                    values = {name: record[name] for name in ("rank", "ranks", "train_acc")}
                    found.append({**place, "epoch": record["round"], **values})
    return pd.DataFrame(found).assign(arm=lambda of: pd.Categorical(of.arm, ORDER)).sort_values([*ARM, "seed"])


class Trained:
    """The measurements: of all runs, at the best rates by epoch, and before training."""

    def __init__(self, every: pd.DataFrame) -> None:
        self.every = every
        rates = every.groupby([*ARM, "epoch", "lr"], observed=True).train_acc.agg(["count", "mean"]).reset_index()
        best = rates.sort_values(["count", "mean"]).drop_duplicates([*ARM, "epoch"], keep="last")
        self.best = every.merge(best[[*ARM, "epoch", "lr"]])
        self.start = every[every.epoch == 0].drop_duplicates([*ARM, "seed"])

    def accuracy(self, epochs: int, depth: int, arm: str, epoch: int | None = None) -> pd.Series:
        """Return accuracies by seed after an epoch, by default the last one; empty where all runs diverged."""
        return self._of(self.best[self.best.epoch == (epoch or epochs)], epochs, depth, arm).train_acc

    def final_rank(self, epochs: int, depth: int, arm: str) -> pd.Series:
        """Return the ranks of the last hidden layer by seed after the last epoch."""
        return self._of(self.best[self.best.epoch == epochs], epochs, depth, arm)["rank"]

    def rank(self, epochs: int, depth: int, arm: str) -> pd.Series:
        """Return the ranks of the last hidden layer by seed before training."""
        return self._of(self.start, epochs, depth, arm)["rank"]

    def ranks(self, epochs: int, depth: int, arm: str) -> pd.Series:
        """Return the ranks of all layers by seed before training."""
        return self._of(self.start, epochs, depth, arm)["ranks"]

    def arms(self, epochs: int) -> list[tuple[int, str]]:
        """Return depth and name of a sweep's arms."""
        rows = self.every[self.every.epochs == epochs].drop_duplicates(ARM)
        return list(zip(rows.depth, rows.arm, strict=True))

    def rises(self, epochs: int, depth: int, arm: str) -> bool:
        """Whether accuracy gains over a point in the last third: training is shorter than the paper's 75 epochs."""
        ends = [self.accuracy(epochs, depth, arm, epoch).mean() for epoch in (epochs * 2 // 3, epochs)]
        return bool(ends[1] - ends[0] > 0.01)

    def diverged(self, arm: str) -> str:
        """Return how many runs of pre-training have no accuracy after the last epoch."""
        some = self.every[(self.every.epochs == 30) & (self.every.arm == arm)]
        count, of = 20 - int((some.epoch == 30).sum()), 20
        return f"{count} of {of} runs diverged" + (" at rates from 0.003" if count == of else "")

    @staticmethod
    def _of(some: pd.DataFrame, epochs: int, depth: int, arm: str) -> pd.DataFrame:
        is_there = (some.epochs == epochs) & (some.depth == depth) & (some.arm == arm)
        return some[is_there].set_index("seed")
