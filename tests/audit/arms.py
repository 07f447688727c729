"""Arms of the exported runs on deep networks (Daneshmand et al. 2020): ways to initialize and normalize one depth.

Every number after an epoch is that at the arm's best learning rate then: among those with most seeds left, the one of
the highest mean accuracy on the training set.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pandas as pd

from tests.audit.studies import results

#: Learning rates and number of seeds by epochs: figures 1 and 4 (dashed), pre-training, and that of the authors' code.
SWEEPS = {
    15: ([0.01, 0.03, 0.1], 3),
    30: ([0.003, 0.01, 0.03, 0.1], 5),
    75: ([0.001, 0.003, 0.01, 0.03, 0.1], 5),
}

#: Samples in a batch of the last of them, and the titles of sweeps of five arms or more in the order of the page.
CODE_BATCH = 32
TITLES = {
    75: f"fashion_mnist, 4096 samples, batches of {CODE_BATCH}, width 128, 75 epochs",
    15: "fashion_mnist, 4096 samples, width 128, 15 epochs",
}

#: Initializations of arms without normalization, and the arm with it, as drawn.
INITS = {"torch": "torch's init", "he": "He's init", "glorot": "Glorot's init"}
PLAIN, NORMALIZED = [INITS["torch"], INITS["he"]], "BN"

#: Pre-trained arms by epochs, the arm whose ranks they raise, and the control that is scaled alone.
PRETRAINED = {
    75: [f"{steps} steps on the rank, as in the code" for steps in (25, 75)],
    30: [f"{steps} steps on the rank" for steps in (3, 25, 75)],
}
DRAWN = {30: INITS["he"], 75: INITS["glorot"]}
CONTROL = {30: "rescaled only", 75: f"rescaled only, {INITS['glorot']}"}

#: Arms in the order of the page.
SHIFTED = [f"BN, shift {shift:g}" for shift in (0.05, 0.1, 0.2, 0.5, 1)]
ORDER = [*INITS.values(), *PRETRAINED[75], CONTROL[30], *PRETRAINED[30], CONTROL[75], NORMALIZED, *SHIFTED]

ARM = ["epochs", "depth", "arm"]


def arm_of(one: Any) -> str:
    """Return the name of a network's arm."""
    if one.pretrain_steps:
        as_the_code = ", as in the code" if one.batch_size == CODE_BATCH else ""
        return f"{one.pretrain_steps} steps on the rank{as_the_code}"
    if one.rescale:
        return CONTROL[75] if one.init == "glorot" else CONTROL[30]
    if one.normalized == "bn":
        return f"BN, shift {one.shift:g}" if one.shift else NORMALIZED
    return INITS[one.init]


@cache
def measured() -> pd.DataFrame:
    """Return a row a sweep, run and recorded epoch; a run of two sweeps is in both, up to the epochs of each."""
    found = []
    for one in results("rank", "deep").sort_values("length").drop_duplicates("run_id", keep="last").itertuples():
        arm, in_third = arm_of(one), one.batch_size == CODE_BATCH
        in_first = one.seed < 3 and one.lr in SWEEPS[15][0] and not (one.rescale or one.pretrain_steps)
        in_second = one.depth == 32 and arm not in (PLAIN[0], *SHIFTED)
        for epochs, is_in in ((15, in_first and not in_third), (30, in_second and not in_third), (75, in_third)):
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

    def diverged(self, epochs: int, arm: str) -> str:
        """Return how many runs of an arm of 32 layers have no accuracy after the last epoch."""
        rates, seeds = SWEEPS[epochs]
        some = self._of(self.every[self.every.epoch == epochs], epochs, 32, arm)
        of = len(rates) * seeds
        count = of - len(some)
        return f"{count} of {of} runs diverged" + (f" at rates from {min(rates):g}" if count == of else "")

    @staticmethod
    def _of(some: pd.DataFrame, epochs: int, depth: int, arm: str) -> pd.DataFrame:
        is_there = (some.epochs == epochs) & (some.depth == depth) & (some.arm == arm)
        return some[is_there].set_index("seed")
