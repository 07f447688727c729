"""What a learning rate is worth in the label-skew paper's headline: FedAvg on CIFAR-10, one class, ten local steps."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from tests.audit.measured import Column, gain
from tests.audit.runs import recorded

#: Rows of the table: a normalization by its name on the page, and a rate. The paper has 0.01.
RATES = [("none", 0.01), ("none", 0.1), ("fn", 0.003), ("fn", 0.01), ("fn", 0.03)]


def accuracies(norm: str, rate: float, rounds: int, evaluations: int = 5) -> np.ndarray:
    """Return the mean of each seed's evaluations, 200 rounds apart, up to a round, in percent."""
    of = recorded("cifar10_full_length" if rate == 0.01 else "cifar10_rates")
    of = of[(of.norm == norm) & (of.lr == rate)].sort_values("seed")
    known = [{one["round"]: one["acc"] for one in run} for run in of.records]
    return np.array([100 * np.mean([run[rounds - 200 * back] for back in range(evaluations)]) for run in known])


def best(norm: str, rounds: int, evaluations: int = 5) -> float:
    """Return the best accuracy of seed 0 among the rates."""
    return float(max(accuracies(one, rate, rounds, evaluations)[0] for one, rate in RATES if one == norm))


def one_step(evaluations: int = 5) -> pd.DataFrame:
    """Return the accuracies of seed 0 with one local step after 10,000 rounds, in percent, by rate and row."""
    of = Column("cifar10_one_step", E=1).runs(tail=evaluations).query("seed == 0")
    return of.pivot(index="lr", columns="row", values="value")[["fedavg none", "fedavg fn"]]


def one_step_leads(evaluations: int = 5) -> tuple[float, float]:
    """Return the lead of feature norm in ``one_step`` at the paper's rate, and where each row has its best one."""
    of = one_step(evaluations)
    gaps = [some["fedavg fn"] - some["fedavg none"] for some in (of.loc[0.01], of.max())]
    return float(gaps[0]), float(gaps[1])


class Lead(NamedTuple):
    """The lead of feature norm at the paper's rate, for each seed, with the half-width of its 95 % interval."""

    seeds: np.ndarray
    mean: float
    half_width: float

    @property
    def text(self) -> str:
        return f"{self.mean:.1f} ± {self.half_width:.1f}"


def leads(rounds: int, evaluations: int = 5) -> tuple[Lead, float]:
    """Return the lead of feature norm at the paper's rate, and of seed 0 where each row has its best rate tried."""
    ours, plain = (pd.Series(accuracies(norm, 0.01, rounds, evaluations)) for norm in ("fn", "none"))
    mean, half_width, _ = gain(ours, plain)
    tuned = best("fn", rounds, evaluations) - best("none", rounds, evaluations)
    return Lead((ours - plain).to_numpy(), mean, half_width), tuned
