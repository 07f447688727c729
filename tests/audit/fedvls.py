"""FedVLS's numbers on MNIST beside those of the exported runs, on the test set and on the training set."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from tests.audit.correlation import student
from tests.audit.published import WIDEST
from tests.audit.runs import ROOT, exported

#: Fewer seeds than these have no spread of their own.
FEWEST = 3

#: How many seeds the paper has.
PUBLISHED = 3


class Judged(NamedTuple):
    """A row of the page's table: ours in percent, seeds, ours less published with half-width or None, verdict."""

    label: str
    partition: str
    on: str
    mean: float
    n: int
    difference: float
    half_width: float | None
    verdict: str


def best_rounds() -> pd.DataFrame:
    """Return each run's method, partition, and accuracies in percent on both sets, each at its own best round."""
    rows = []
    for run in exported("fedvls_mnist").itertuples():
        lines = [json.loads(line) for line in run.metrics]
        assert [line["round"] for line in lines] == list(range(51)), "a best round may be missed"
        accuracies = {
            "the test set": [line["acc_global"] for line in lines],
            "the training set": [line["probes"]["training_set"]["acc"] for line in lines],
        }
        beta = run.experiment["partition"]["beta"]
        where = {"method": run.experiment["method"]["name"], "partition": f"Dir({beta:g})"}
        rows += [{**where, "on": on, "best": 100 * np.nanmax(values)} for on, values in accuracies.items()]
    return pd.DataFrame(rows)


def judged() -> Iterator[Judged]:
    """Judge every published number in both readings: the unit is a seed, the interval Welch's.

    A number without a published spread takes ours, and of fewer than three of our seeds it is the other way round.
    """
    ours = best_rounds().groupby(["method", "partition", "on"]).best.agg(["mean", "std", "size"])
    for one in pd.read_csv(ROOT / "flbench/papers/fedvls/published.csv").itertuples():
        for on in ("the test set", "the training set"):
            if (one.method, one.partition, on) not in ours.index:
                continue  # not run
            mean, own, n = ours.loc[one.method, one.partition, on]
            spreads = [(own**2 / n, n - 1) if n >= FEWEST else None, (one.std**2 / PUBLISHED, PUBLISHED - 1)]
            known = [spread for spread in spreads if spread and np.isfinite(spread[0])]
            difference, half_width, verdict = mean - one.value, None, "inconclusive"
            if known:
                variances, freedoms = map(list, zip(*known, strict=True))
                if len(known) == 1:  # of the other mean, too, by its number of seeds
                    sd2 = own**2 if n >= FEWEST else one.std**2
                    variances = [sd2 * (1 / n + 1 / PUBLISHED)]
                half_width = float(student(variances, freedoms))
                agrees = abs(round(difference, 2)) <= round(half_width, 2)
                verdict = ("holds" if half_width <= WIDEST else verdict) if agrees else "does not hold"
            yield Judged(one.label, one.partition, on, mean, int(n), difference, half_width, verdict)
