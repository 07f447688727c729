"""Random networks at initialization as pandas frames: the effective rank r over depth, and over the width d."""

from __future__ import annotations

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

#: How the names of recorded soft ranks begin; tau follows.
_SOFT = "soft_rank_"

#: The soft rank of tables.
_SHOWN = f"{_SOFT}0.5"

#: The columns that the draws of one network share, and of which the first three name networks of all sizes.
NET = ("activation", "gamma", "normalized", "width", "samples", "layers")


def path_name(gamma: float | None) -> str:
    """``plain`` without a residual path, else ``γ 0.1``."""
    return f"γ {format_scalar(gamma)}" if gamma else "plain"


def layers(runs: Sequence[Run], collection: Collection) -> pd.DataFrame:
    """Return a row a recorded layer of a finished run, in the order of tables and layers.

    Columns: those of ``NET``, ``run_id``, ``seed``, ``layer``, its ``rank`` (missing where it has none), and its soft
    ranks as they are recorded (``soft_rank_0.5``).
    """
    rows = [
        _place(run)
        | {"layer": record["round"], "rank": record["rank"]}
        | {name: value for name, value in record.items() if name.startswith(_SOFT)}
        for run in runs
        if run.result is not None
        for record in collection.records(run)
    ]
    return _ordered(rows, "layer", "rank", _SHOWN).astype({"rank": float, _SHOWN: float})


def draws(runs: Sequence[Run], recorded: pd.DataFrame) -> pd.DataFrame:
    """Return a row a run, in the order of tables, from the runs and their ``layers``.

    Columns: those of ``NET``, ``run_id``, ``seed``, ``path``, and

    - ``finished``: whether it has a result;
    - ``end``, ``late``, ``least`` and ``soft``: its rank in the last layer, over the recorded layers of the second half
      the mean and the least rank and the mean soft rank (tau 0.5); missing where it has none;
    - ``folds``: factors of e by which the first eigenvalue of M leads after all layers, without normalization, and
      ``deep``, whether these are enough to judge the network;
    - ``middle``: the median of its network's ranks in the last layer;
    - ``bare``: the largest such rank of deep networks that differ by having no normalization, and at least
      ``RANK_ONE``;
    - ``widths``: the number of widths of networks that are deep enough and alike but for their size.
    """
    import pandas as pd

    from flbench.theory.rank import collapse_rate

    frame = _ordered([_place(run) | {"finished": run.result is not None} for run in runs], "finished")
    frame["path"] = frame.gamma.map(path_name)
    later = recorded[recorded.layer > recorded.layers / 2].groupby("run_id")
    last = recorded[recorded.layer == recorded.layers].set_index("run_id")
    ranks = {"end": last["rank"], "late": later["rank"].mean(), "least": later["rank"].min()}
    frame = frame.join(pd.DataFrame({**ranks, "soft": later[_SHOWN].mean()}), on="run_id")
    frame["folds"] = [
        depth * collapse_rate(width, gamma or None) if depth else 0.0
        for depth, width, gamma in zip(frame.layers, frame.width, frame.gamma, strict=True)
    ]
    frame["deep"] = frame.folds >= DEEP_ENOUGH
    frame["middle"] = frame.groupby(list(NET), observed=True).end.transform("median")
    like = ["activation", "gamma", "width", "layers"]
    without = frame[(frame.normalized == "none") & frame.finished & frame.deep].groupby(like).end.max()
    frame = frame.join(without.fillna(RANK_ONE).clip(lower=RANK_ONE).rename("bare"), on=like)
    judged = frame[frame.deep & frame.late.notna()]
    frame["widths"] = judged.groupby(list(NET[:3]), observed=True).width.transform("nunique")
    return frame


def soft_ranks(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each layer of ``layers`` and tau: ``tau``, ``soft`` (the soft rank) and ``rank``."""
    names = [name for name in recorded if str(name).startswith(_SOFT)]
    long = recorded.melt(id_vars="rank", value_vars=names, var_name="tau", value_name="soft").dropna(subset="soft")
    return long.assign(tau=long.tau.str.removeprefix(_SOFT).astype(float))


def _place(run: Run) -> dict[str, Any]:
    one = run.experiment
    assert isinstance(one, Rank)
    place = (one.activation, one.gamma or 0.0, one.normalized, one.width, one.samples or 0, run.rounds)
    return dict(zip(NET, place, strict=True)) | {"run_id": run.run_id, "seed": one.seed}


def _ordered(rows: Sequence[Mapping[str, Any]], *columns: str) -> pd.DataFrame:
    """Return a frame with these columns and others of the rows, in the order of tables, then of the first of them."""
    import pandas as pd

    names = dict.fromkeys([*NET, "run_id", "seed", *columns, *(name for row in rows for name in row)])
    frame = pd.DataFrame(list(rows), columns=list(names))
    frame["normalized"] = pd.Categorical(frame.normalized, NORMS, ordered=True)
    return frame.sort_values([*NET, "seed", columns[0]], kind="stable").reset_index(drop=True)
