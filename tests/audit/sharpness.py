"""The runs on Karakida et al. 2019 as frames, from the exported results, with pandas and numpy alone.

The mean-field value beside theorem 4.1 depends on all outputs of a network, which no run records: it is read from the
runs. All other values and bounds are those of ``fisher.py``.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from tests.audit.declared import judged
from tests.audit.fisher import ALPHA, bounds, kappas, theorem_2_2
from tests.audit.studies import Claims, results

#: The networks of figure 1, and that of figure 2: activation, sigma_w^2, sigma_b^2.
NETWORKS = {"ReLU (2, 0)": ("relu", 2.0, 0.0), "tanh (3, 0.64)": ("tanh", 3.0, 0.64)}
TRAINED = ("relu", 4.0, 1.0)

#: Samples of figure 2; in figure 1 there are as many as units.
SAMPLES = 1000


def draws(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row a draw of figure 1 (T = M), with the value or the bounds of theory."""
    frame = frame[frame.lr.isna() & frame.samples.isna()]
    frame = frame.drop_duplicates(["activation", "outputs", "normalized", "width", "seed"])
    found = []
    for one in frame.itertuples():
        (record,) = one.records
        network = (one.activation, one.sigma_w2, one.sigma_b2)
        lower, upper = bounds(one.normalized, network, one.width, record)
        value = theorem_2_2(network, one.width) if one.normalized == "none" else record.get("lambda_mean_field")
        place = {name: getattr(one, name) for name in ("outputs", "normalized", "width")}
        place["network"] = next(name for name, known in NETWORKS.items() if known[0] == one.activation)
        found.append({**place, "lambda_max": record["lambda_max"], "value": value, "lower": lower, "upper": upper})
    return pd.DataFrame(found).assign(family="", square=True)


def descents(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row a run of figure 2: its losses (inf where it diverged), and its rate over 2 / lambda_max."""
    found = []
    for one in frame[frame.lr.notna()].itertuples():
        first, last = one.records[0], one.records[-1]
        peak, final = (last["peak_loss"], last["loss"]) if one.status == "done" else (math.inf, math.inf)
        place = {name: getattr(one, name) for name in ("normalized", "width", "seed", "lr")}
        found.append({**place, "lambda_max": first["lambda_max"], "first": first["loss"], "peak": peak, "final": final})
    trained = pd.DataFrame(found).sort_values("lr")
    kappa_1, kappa_2 = kappas(*TRAINED)
    return trained.assign(
        factor=trained.lr * trained.lambda_max / 2,
        line=2 / (trained.width / SAMPLES * ALPHA * (kappa_1 - kappa_2)),
        grew=trained.peak > 1.1 * trained["first"],
        peaked=trained.peak > 1000,
        exploded=trained.final > 1000,
    )


def networks(trained: pd.DataFrame) -> pd.DataFrame:
    """Return a row a network: the onset of growth between two rates, and the highest rate that converged."""
    found = []
    for (normalized, width, seed), own in trained.groupby(["normalized", "width", "seed"]):
        first = int(own.grew.to_numpy().argmax())
        onset = math.sqrt(own.factor.iloc[first - 1] * own.factor.iloc[first]) if first else np.nan
        highest = own.lr[own.final < 0.01 * own["first"]].max()
        place = {"normalized": normalized, "width": width, "seed": seed, "lambda_max": own.lambda_max.iloc[0]}
        found.append({**place, "line": own.line.iloc[0], "onset": onset, "converged": highest})
    return pd.DataFrame(found)


def runs() -> pd.DataFrame:
    """Return the runs of figure 1, of figure 2 and of its wide networks."""
    return pd.concat([results(file, "sharpness") for file in ("sharpness", "sharpness_wide")], ignore_index=True)


def claims() -> Claims:
    """Return the verdict and the numbers of every claim."""
    trained = descents(runs())
    frames = {"draws": draws(runs()), "descents": trained, "networks": networks(trained)}
    return judged("sharpness", frames, {"GROWN": 1.1, "EXPLODED": 1000, "percent": 1}, separator=" ")
