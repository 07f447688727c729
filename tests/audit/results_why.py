"""Sentences of docs/why.md on mechanisms, and of docs/answers on doses of rank, recomputed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from tests.audit import arms, deep, pages, why_seeds
from tests.audit.cells import judge
from tests.audit.pages import WORDS, listed, span
from tests.audit.runs import recorded
from tests.audit.studies import mean_text
from tests.audit.why import along_training, cells, probed
from tests.audit.why_seeds import SETTING, counted, on_one_class, sharpened


def doses_of_a_penalty() -> Iterator[str]:
    doses = why_seeds.doses_of(probed("rank_dose"))
    raised, lowered = doses[doses.changes > 0], doses[doses.changes < 0]
    costs = -doses.acc[doses.way < 0]
    assert (len(raised), len(lowered), raised.is_equal.sum()) == (7, 6, 3) and not raised.way.any()
    assert (
        len(costs) == 3 and not (doses.way > 0).any() and not costs.index.isin(raised.index.union(lowered.index)).any()
    )
    assert costs.index.get_level_values(1).unique() == ["none"]
    yield (
        f"{WORDS[len(raised)].capitalize()} of {len(doses)} doses are shown to raise the rank, by up to "
        f"{raised['rank'].max():.1f}, and {WORDS[len(lowered)]} to lower it. In the seven, accuracy changes by "
        f"{span(raised.acc)} points: it is shown to change in none, to stay within a point in "
        f"{WORDS[raised.is_equal.sum()]}, and four are open"
    )
    lost = over_all_evaluations().loc[raised.index]
    fell = lost[lost.way != 0]
    assert (fell.way < 0).all() and {*fell.index.get_level_values(1)} == {"none"}
    assert fell.index.get_level_values(0).str.contains('"classes"').all()
    yield (
        "as a mean over the five evaluations accuracy is shown to fall in "
        f"{WORDS[len(fell)]} of the seven, by {listed(sorted(-fell.mean_acc), 1)} points"
    )
    yield (
        "Three other doses, with one class and without a normalization, are shown to cost "
        f"{costs.min():.1f} to {costs.max():.1f} points."
    )
    one_class = raised["rank"][raised.index.get_level_values(0).str.contains('"classes"')]
    yield f"by at most {one_class.max():.2f}: there"


def over_all_evaluations() -> pd.DataFrame:
    """Return the differences of the mean accuracy over all evaluations after round 0 by dose, and their signs."""
    of = probed("rank_dose")
    curves = recorded("rank_dose").set_index("run_id").records
    whole = curves.map(lambda run: float(np.mean([one["acc"] for one in run if one["round"] > 0])))
    gaps = why_seeds.differences(of.assign(mean_acc=of.run_id.map(whole)), "mean_acc")
    return pd.DataFrame({"mean_acc": 100 * gaps.map(np.mean), "way": why_seeds.shown([*gaps])})


def training_on_one_class() -> Iterator[str]:
    of = probed("feature_collapse")
    (alone, alone_fn), averaged = on_one_class(cells(of), "local-only"), on_one_class(cells(of), "fedavg")
    yield (
        f"features become {alone.growth.item():.1f} times as long and the class's own embedding "
        f"{alone.head_growth.item():.1f} times"
    )
    share, before, of_fedavg = ([100 * own[name].item() for own in two] for two, name in (
        ((alone, alone_fn), "share"), ((alone, alone_fn), "share_0"), (averaged, "share")
    ))  # fmt: skip
    yield f"has {share[0]:.1f} % of all squares without normalization and {share[1]:.1f} % with FN"
    yield f"with FN ({before[0]:.0f} and {before[1]:.0f} % before)"
    plain, normalized = (own.set_index("seed") for own in on_one_class(of, "fedavg"))
    (less,) = judge([plain.share - normalized.share])
    assert less.verdict == "more"
    yield (
        f"the share is {of_fedavg[0]:.1f} % without normalization and {of_fedavg[1]:.0f} % with FN (less by "
        f"{less.text} points"
    )
    signs = why_seeds.shown(why_seeds.gaps_by_fn(probed("digits"), "share"))
    yield (
        f"over the {len(signs)} settings the share is shown to be lower with FN in {(signs < 0).sum()} and higher in "
        f"{(signs > 0).sum()}."
    )
    lost = [100 * own.forgotten.mean() for own in (plain, normalized)]
    yield (f"FedAvg {lost[0]:.1f} points of mean class accuracy without normalization, {lost[1]:.1f} with FN")


def sharpness_along_training() -> Iterator[str]:
    tests, tried = sharpened(), along_training().drop_duplicates(SETTING)
    cell = np.exp(tests[["start", "halfway", "last", "end"]]).join(tests[["at_one", "nearer"]]).reset_index()
    is_fitted = (cell.partition == "iid") & (cell.E == 10)
    fast, fitted, others = cell[(cell.lr >= 0.1) & ~is_fitted], cell[is_fitted], cell[~is_fitted]
    began = others.start.between(0.5, 2) & others.at_one
    yield f"{others.at_one.sum()} of {len(others)} are shown to end within a factor of 2 of 1"
    yield (
        f"within a factor of 2 of 1 ({began.sum()} of these began there), at rates of 0.1 and more "
        f"{fast.at_one.sum()} of {len(fast)}; {counted(others.nearer)} are shown to come nearer to 1."
    )
    large = (tried.lr >= 1).sum()
    yield (
        f"{large - (cell.lr >= 1).sum()} of {large} cells do not work and are not judged; of all {len(tried)} cells "
        f"{len(tried) - len(cell)} are not"
    )
    falls = fast["last"] < 0.8 * fast.halfway
    yield f"from round 50 to 100 the mean falls by more than a fifth in {falls.sum()} of these {len(fast)} cells"
    slow = (fast.norm == "none") & (fast.lr == 0.1) & (fast.E == 1)
    assert slow.sum() == 2 and {f"{end:.2f}" for end in fast.end[slow]} == {"0.06"}
    low, high = fast.end[~slow].agg(["min", "max"])
    yield f"Means are between {low:.2f} and {high:.2f} in {sum(~slow)} of these {len(fast)}"
    plain, normalized = (
        [f"{value:.2g}" for value in own.start.agg(["min", "max"])]
        for own in (fast[fast.norm == "none"], fast[fast.norm != "none"])
    )
    yield f"ratio is {' to '.join(plain)} without normalization and {' to '.join(normalized)} with the others"
    low, high = fitted.end.agg(["min", "max"])
    yield f"it ends between {low:.2f} and {high:.2f} in all {len(fitted)} cells"
    one_step = cell[(cell.partition == "classes:1") & (cell.E == 1)].set_index("norm")
    of_rate = {lr: one_step[one_step.lr == lr][["start", "end"]] for lr in (0.03, 0.1, 0.3)}
    times = {lr: own.loc[["fn", "ln", "gn"]] / own.loc["none"] for lr, own in of_rate.items()}
    yield f"gn start at {listed(times[0.3].start)} times"
    yield f"end at {listed(times[0.3].end, 2)} times"
    yield f"At 0.1 they still end at {span(times[0.1].end, 0)} times, at 0.03 at {span(times[0.03].end, 0)} times"


def pretraining_of_the_authors_code() -> Iterator[str]:
    of, pretrained, rates = arms.Trained(arms.measured()), arms.PRETRAINED[75], arms.SWEEPS[75][0]
    drawn, control = arms.DRAWN[75], arms.CONTROL[75]
    finals = {arm: of.accuracy(75, 32, arm) for arm in (drawn, *pretrained, control, arms.NORMALIZED)}
    assert len(rates) == 5 and of.rises(75, 32, arms.NORMALIZED)

    def less(other: str) -> str:
        return listed([deep.points(finals[arm] - finals[other]) for arm in pretrained])

    layers = [pd.DataFrame([*of.ranks(75, 32, arm)]).mean() for arm in pretrained]
    raised, end = ([f"{ranks[layer - 1]:.1f}" for ranks in layers] for layer in (29, 32))
    assert end[0] == end[1]
    yield (
        f"From Glorot's weights 32 layers stay at {100 * finals[drawn].mean():.1f} % for 75 epochs. After 25 and 75 "
        f"steps they reach {listed([deep.percent(finals[arm]) for arm in pretrained])} %, which is "
        f"{less(arms.NORMALIZED).replace('+', '')} points above batch normalization; that still rises. Layer 29, the "
        f"last one whose rank the steps raise, has a rank of {listed(raised)}, layer 32 of {end[0]}. Weights that are "
        f"only scaled have a rank of {mean_text(of.rank(75, 32, control))} and reach {deep.percent(finals[control])} "
        f"%: pre-training minus this control is {less(control)} points ({len(finals[control])} seeds)."
    )


SECTIONS = {
    "Digits: rank as a cause": [doses_of_a_penalty],
    pages.WHY: [training_on_one_class, sharpness_along_training, pretraining_of_the_authors_code],
}
