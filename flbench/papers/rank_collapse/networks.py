"""Random networks at initialization as pandas frames: the effective rank r over depth, and over the width d."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flbench.messages import format_scalar
from flbench.report.runs import Collection, Run
from flbench.studies.rank import Rank

if TYPE_CHECKING:
    import pandas as pd

#: A network without normalization is deep enough to be judged where the second eigenvalue of M has fallen by this many
#: factors of e against the first (``flbench.theory.rank.collapse_rate``); its rank is then below 1.02.
DEEP_ENOUGH = 5.0

#: A median over draws below this counts as rank one: single draws come back from it now and then.
RANK_ONE = 1.05

#: Widths that an exponent needs.
FEWEST_WIDTHS = 3

#: Normalizations in the order of tables.
NORMS = ("none", "bn-rms", "bn")

#: The columns that the draws of one network share, and of which the first three name networks of all sizes.
NET = ("activation", "gamma", "normalized", "width", "samples", "layers")

#: Columns of ``draws`` beside those of ``NET`` and ``path``. Of ranks: that in the last layer, mean and least over the
#: recorded layers of the second half, the mean of soft ranks there; missing where a draw has none. ``folds``: factors
#: of e by which the first eigenvalue of M leads after all layers, without normalization.
DRAW = ("seed", "finished", "end", "late", "least", "soft", "folds")


def path_name(gamma: float | None) -> str:
    """``plain`` without a residual path, else ``γ 0.1``."""
    return f"γ {format_scalar(gamma)}" if gamma else "plain"


def draws(runs: Sequence[Run], collection: Collection) -> pd.DataFrame:
    """Return a row a run, in the order of tables.

    Beside the columns above: ``deep``, whether the network is deep enough to be judged; ``middle``, the median of its
    ranks in the last layer; ``bare``, the largest such rank of deep networks that differ by having no normalization,
    and at least ``RANK_ONE``; ``widths``, the number of widths of networks that are deep enough and alike but for
    their size.
    """
    import pandas as pd

    rows = []
    for run in runs:
        place, records = _place(run), collection.records(run) if run.result is not None else []
        last = records[-1] if records else {}
        later = [record for record in records if record["round"] > run.rounds / 2]
        ranks, soft = (_known(later, name) for name in ("rank", "soft_rank_0.5"))
        rows.append(
            (
                *(*place, path_name(place[1]), run.experiment.seed, run.result is not None),
                last.get("rank") if last.get("round") == run.rounds else None,
                statistics.fmean(ranks) if ranks else None,
                min(ranks, default=None),
                statistics.fmean(soft) if soft else None,
                _folds(run),
            )
        )
    frame = pd.DataFrame(rows, columns=[*NET, "path", *DRAW])
    frame = frame.astype(dict.fromkeys(("end", "late", "least", "soft", "folds"), float))
    frame["normalized"] = pd.Categorical(frame.normalized, NORMS, ordered=True)
    frame = frame.sort_values([*NET, "seed"], kind="stable").reset_index(drop=True)
    frame["deep"] = frame.folds >= DEEP_ENOUGH
    frame["middle"] = frame.groupby(list(NET), observed=True).end.transform("median")
    like = ["activation", "gamma", "width", "layers"]
    without = frame[(frame.normalized == "none") & frame.finished & frame.deep].groupby(like).end.max()
    frame = frame.join(without.fillna(RANK_ONE).clip(lower=RANK_ONE).rename("bare"), on=like)
    kind = [*NET[:3]]
    frame["widths"] = frame[frame.deep & frame.late.notna()].groupby(kind, observed=True).width.transform("nunique")
    return frame


def layers(runs: Sequence[Run], collection: Collection) -> pd.DataFrame:
    """Return a row a recorded layer of a finished draw: the columns of ``NET``, its seed, the layer and its rank."""
    import pandas as pd

    rows = [
        (*_place(run), run.experiment.seed, record["round"], record["rank"])
        for run in runs
        if run.result is not None
        for record in collection.records(run)
    ]
    frame = pd.DataFrame(rows, columns=[*NET, "seed", "layer", "rank"])
    frame["normalized"] = pd.Categorical(frame.normalized, NORMS, ordered=True)
    return frame.astype({"rank": float}).sort_values([*NET, "seed", "layer"], kind="stable")


def soft_ranks(runs: Sequence[Run], collection: Collection) -> pd.DataFrame:
    """Return a row for each recorded layer and tau: ``tau``, ``soft`` (the soft rank) and ``rank``."""
    import pandas as pd

    rows = [
        (float(name.removeprefix("soft_rank_")), value, record["rank"])
        for run in runs
        if run.result is not None
        for record in collection.records(run)
        for name, value in record.items()
        if name.startswith("soft_rank_") and value is not None
    ]
    return pd.DataFrame(rows, columns=["tau", "soft", "rank"])


def _place(run: Run) -> tuple[Any, ...]:
    one = run.experiment
    assert isinstance(one, Rank)
    return one.activation, one.gamma or 0.0, one.normalized, one.width, one.samples or 0, run.rounds


def _folds(run: Run) -> float:
    from flbench.theory.rank import collapse_rate

    one = run.experiment
    assert isinstance(one, Rank)
    return run.rounds * collapse_rate(one.width, one.gamma) if run.rounds else 0.0


def _known(records: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [value for record in records if (value := record.get(name)) is not None]
