"""Which checks a planned comparison does not pass: rising curves, coarse grids, evaluations, collapsed seeds."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from tests.audit.runs import REFINED, ROW, TAIL, Place, accuracy, chosen, federated, runs, slope, sweep_of

#: The windows whose verdicts are compared.
WINDOWS = (1, TAIL, 2 * TAIL)

#: A seed has collapsed if it is this far below the median of its cell, and by this many usual deviations.
COLLAPSE, FAR = 0.1, 5.0


@cache
def ends(sweep: str) -> pd.DataFrame:
    """Return the chosen runs with their ``slope`` per doubling of rounds and the mean of each window.

    NaN where a run has too few evaluations after round 0.
    """
    lines = runs(sweep).set_index("run_id").lines
    found = []
    for run in chosen(sweep).itertuples():
        records = [one for one in map(json.loads, lines[run.run_id]) if one["round"] > 0]
        known = pd.Series([accuracy(one) for one in records], dtype=float)
        numbers = [known[-window:].mean() if len(known) >= window else np.nan for window in WINDOWS]
        found.append((round(slope(records), 12), *numbers))
    names = ["slope", *(over(window) for window in WINDOWS)]
    return chosen(sweep).reset_index(drop=True).assign(**pd.DataFrame(found, columns=names))


def over(window: int) -> str:
    """Return the name of the mean of a window."""
    return f"over {window}"


@cache
def cells(sweep: str) -> pd.DataFrame:
    """Return what the checks say of each cell: whether it rises (None: not known), its collapsed seeds, its grid."""
    names = [*ROW, *sweep_of(sweep).column]
    groups = ends(sweep).groupby(names)
    return pd.DataFrame(
        [{**dict(zip(names, at, strict=True)), **_cell(sweep, own)} for at, own in groups], dtype=object
    )


def _cell(sweep: str, own: pd.DataFrame) -> dict[str, Any]:
    values, rises = own.value, own.slope
    far = max(COLLAPSE, FAR * 1.4826 * (values - values.median()).abs().median())
    is_known = len(own) >= 3 and rises.notna().all()
    width = stats.t.ppf(0.975, len(own) - 1) * rises.sem() if is_known else np.nan
    return {
        "rising": bool(rises.mean() > width) if is_known else None,
        "collapsed": int((values < values.median() - far).sum()) if len(own) >= 3 else 0,
        **_grid(sweep, own.iloc[0]),
    }


def _grid(sweep: str, run: pd.Series[Any]) -> dict[str, Any]:
    """Return how many rates were tried, whether the chosen one is at an edge, and by how much another may be better."""
    column = list(sweep_of(sweep).column)
    same = federated(sweep)
    same = same[(same[[*ROW, *column]] == run[[*ROW, *column]]).all(axis=1)]
    rates = set(same.lr) if sweep_of(sweep).file in REFINED else _shared_rates(sweep, tuple(run[column]))
    own = same[same.lr.isin(rates)].groupby("lr").value
    means = own.mean().where(own.count() == own.size()).sort_index()
    at = means.index.get_loc(run.lr)
    if len(means) < 2 or at in (0, len(means) - 1):
        return {"settings": len(means), "edge": len(means) > 1, "cost": np.nan}
    logs, here = np.log(means.index.to_numpy()), means.iloc[at]
    step = logs[at] - logs[at - 1]
    bounds = [0.0, means.iloc[at + 1] - here, means.iloc[at - 1] - here]
    above = (here - means.iloc[at - 1]) / step * (logs[at + 1] - logs[at])
    if at > 1:
        steepness = (means.iloc[at - 1] - means.iloc[at - 2]) / (logs[at - 1] - logs[at - 2])
        bounds.append(means.iloc[at - 1] + steepness * step - here)
    cost = np.nan if np.isnan(means.iloc[at - 1]) else np.nanmax([*bounds, above])
    return {"settings": len(means), "edge": False, "cost": cost}


@cache
def _shared_rates(sweep: str, column: Place) -> tuple[float, ...]:
    """Return the rates that all rows of a column have."""
    names = list(sweep_of(sweep).column)
    if "lr" in names:
        return (float(column[names.index("lr")]),)
    frame = federated(sweep)
    frame = frame[(frame[names] == list(column)).all(axis=1)] if names else frame
    return tuple(set.intersection(*(set(of.lr) for _, of in frame.groupby(ROW))))


def doubts(
    sides: tuple[pd.DataFrame, pd.DataFrame], pairs: int, mean: float, half_width: float, verdict: str, margin: float
) -> list[str]:
    """Return the checks of cells that a comparison with a verdict does not pass; mean and half-width are fractions."""
    both = pd.concat(sides)
    found = ["rising"] if (both.rising == True).any() else []  # noqa: E712
    if (both.settings < 2).any():
        return [*found, "not tuned"]
    if both.edge.any():
        return [*found, "edge of the grid"]
    costs = [side.cost.astype(float).sum(skipna=False) / pairs for side in sides]
    if np.isnan(costs).any():
        return [*found, "grid not known"]
    behind = costs[1] if mean > 0 else costs[0]
    hidden = verdict.startswith(("more", "less")) and abs(mean) - half_width <= behind
    beyond = "equivalent" in verdict and abs(mean) + max(costs) >= margin
    return [*found, *(["within the grid"] if hidden or beyond else [])]
