"""The claims that tests over seeds judge: training on one class, doses of rank, and sharpness along training."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from flbench.choices import TAIL
from flbench.metric_specs import METRICS
from flbench.papers.evidence import Outcome, combined, points_text, range_text, three_digits
from flbench.papers.label_skew.frames import number, probes_of
from flbench.papers.label_skew.mechanisms import OVER_CHANCE, chance
from flbench.report.cells import Cell, tick_of
from flbench.report.claims import Claim, Verdict
from flbench.report.runs import Collection
from flbench.report.stats import Contrast, Difference, corrected, paired
from flbench.report.wording import margin_text

if TYPE_CHECKING:
    import pandas as pd

PAPER = "Zhang et al. 2024"

#: Claims, and after whom.
RANK_DOSES = "A higher rank of the features raises accuracy", "after Shi et al. 2023, by doses of its penalty"
SHARPENING = (
    "Along training lr x lambda_max / 2 of the global model moves to 1 and stays there",
    "after Cohen et al. 2021",
)

#: Features are collapsed if the first singular value has a larger share than this.
COLLAPSED = 0.99

#: Norms that grow by less than this factor are bounded.
BOUNDED = 1.05

#: A ratio is at 1 if it is shown to be between 1 / 2 and 2.
NEAR = 2.0

#: The order of cells along training in tables.
AXES = ("partition", "local_steps", "norm", "lr")

#: A number of each seed.
BySeed = Mapping[int, float]

#: What a dose does to the rank and to accuracy: cells with and without the penalty, alike in all else, by seed.
Dose = tuple[Contrast, Contrast]

#: How a claim's settings are tested.
TESTS = "t-tests over seeds, Holm's correction"


def one_class(cells: pd.DataFrame) -> Iterator[Claim]:
    """Yield the claims about training on one class that the runs are about.

    Theorem 1 and figures 2 and 3 of the label-skew paper. Local training is the method ``local-only`` with one class a
    client: client 0's model stands for the global one, and the features are those of samples of all classes. Figure 3,
    right, and figure 2 are FedAvg.
    """
    one_class = cells[cells.partition == "classes:1"]
    alone = one_class[(one_class.method == "local-only") & one_class.growth.notna()]
    averaged = one_class[one_class.method == "fedavg"]
    if (alone.norm == "none").any():
        yield _norms_grow(*_by_norm(alone))
        yield _features_collapse(*_by_norm(alone.dropna(subset="share")))
    plain, normalized = _by_norm(averaged)
    if plain.share.notna().any() and normalized.share.notna().any():
        yield _fn_reduces(
            "FedAvg on one class a client: with FN the global model's features are spread over more directions",
            "figure 3, right",
            averaged,
            "shares",
            f"share of the first singular value, none {_shares(plain)}, fn {_shares(normalized)}",
        )
    lost = [[value for seeds in some.lost for value in seeds.values()] for some in (plain, normalized)]
    if lost[0]:
        yield _fn_reduces(
            "A few local steps on one class make the global model forget the others; with FN it forgets less",
            "figure 2",
            averaged,
            "lost",
            "mean class accuracy lost: none {}, fn {}".format(
                *(f"{100 * statistics.fmean(values):.1f} points" if values else "not run" for values in lost)
            ),
        )


def _by_norm(cells: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The cells without normalization, and those with FN."""
    return cells[cells.norm == "none"], cells[cells.norm == "fn"]


def _norms_grow(plain: pd.DataFrame, bounded: pd.DataFrame) -> Claim:
    logs = [{seed: math.log(value) for seed, value in seeds.items()} for seeds in plain.growths]
    grown = shown([_over(values, 0.0) for values in logs])
    # FN sets the norm itself, so a single seed outside refutes the claim.
    kept = [all(1 / BOUNDED < value < BOUNDED for value in seeds.values()) for seeds in bounded.growths]
    heads = plain.head_growth.dropna()
    evidence = (
        f"none: factor {range_text(plain.growth.tolist())}, shown to be above 1 in {_counts(grown)} "
        f"(its logarithm; {TESTS})"
    )
    evidence += f"; fn: {range_text(bounded.growth.tolist())}" if len(bounded) else "; fn was not run"
    evidence += f"; longest class embedding of none: factor {range_text(heads.tolist())}" if len(heads) else ""
    return Claim(
        "Local training on one class without normalization makes the norms of features grow; FN bounds them",
        f"{PAPER}, theorem 1 and figure 3, left",
        combined([*map(outcome, grown), *kept]),
        evidence + ".",
    )


def _features_collapse(plain: pd.DataFrame, normalized: pd.DataFrame) -> Claim:
    signs = shown([_over(seeds, COLLAPSED) for seeds in (*plain.shares, *normalized.shares)])
    collapsed, kept = signs[: len(plain)], signs[len(plain) :]
    above = f"shown to be above {100 * COLLAPSED:g} % in"
    evidence = (
        f"share of the first singular value, none: {_shares(plain)}, {above} {_counts(collapsed)}, "
        f"effective rank {range_text(plain['rank'].dropna().tolist())}"
    )
    if len(normalized):
        evidence += f"; fn: {_shares(normalized)}, {above} {_counts(kept)}"
    return Claim(
        "Local training on one class makes features collapse onto one direction without normalization, not with FN",
        f"{PAPER}, figure 3, middle right",
        combined([*map(outcome, collapsed), *(outcome(-sign) for sign in kept)]),
        f"{evidence} ({TESTS}).",
    )


def _fn_reduces(text: str, source: str, cells: pd.DataFrame, name: str, numbers: str) -> Claim:
    """A claim that a value is smaller with FN than without, paired by seed among cells that differ by nothing else."""
    plain, normalized = (own[["column", "lr", name]] for own in _by_norm(cells))
    pairs = plain.merge(normalized, on=["column", "lr"], suffixes=("_plain", "_fn"))
    found = [paired(fn, none) for none, fn in zip(pairs[f"{name}_plain"], pairs[f"{name}_fn"], strict=True)]
    gaps = [gap for gap in found if gap is not None]
    signs = shown(gaps)
    if not gaps:
        comparison = "fn was not run."
    elif len(gaps) == 1:
        comparison = f"fn less none: {points_text(gaps[0], 2)} points (paired by seed, n = {gaps[0].n})."
    else:
        comparison = (
            f"fn less none: {range_text([100 * gap.mean for gap in gaps])} points, shown to be below 0 in "
            f"{signs.count(-1)} of {len(gaps)} settings, above in {signs.count(1)} ({TESTS})."
        )
    verdict = combined(outcome(-sign) for sign in signs) if gaps else "inconclusive"
    return Claim(text, f"{PAPER}, {source}", verdict, f"{numbers}; {comparison}")


def shown(gaps: Sequence[Difference | None]) -> list[int]:
    """Return 1 where a difference is shown to be above 0, -1 where below, else 0, corrected for their number."""
    found = corrected({at: gap for at, gap in enumerate(gaps) if gap is not None})
    signs = {"more": 1, "less": -1}
    return [signs.get(found[at].verdict, 0) if at in found else 0 for at in range(len(gaps))]


def outcome(sign: int) -> Outcome:
    """Return what the sign of a number says of a claim that it is positive."""
    return sign > 0 if sign else None


def _over(values: Mapping[int, float], bound: float) -> Difference | None:
    """Return the values of seeds minus a bound."""
    return paired(values, dict.fromkeys(values, bound))


def _shares(cells: pd.DataFrame) -> str:
    """``99.8 % (before training 76.9 %)``."""
    last, first = (range_text((100 * cells[name].dropna()).tolist()) for name in ("share", "first_share"))
    return f"{last} % (before training {first} %)"


def _counts(signs: Sequence[int]) -> str:
    """``13 of 14 settings, below in 0``."""
    return f"{signs.count(1)} of {len(signs)} setting{'' if len(signs) == 1 else 's'}, below in {signs.count(-1)}"


def rank_doses(cells: pd.DataFrame, margin: float) -> Iterator[Claim]:
    """Yield the claim that the rank of the features is a cause of accuracy, by doses of a penalty that raises it.

    A correlation over methods and normalizations cannot tell whether rank raises accuracy: both follow from what was
    changed. Here one number changes, the coefficient of FedDecorr (Shi et al. 2023), at the same normalization and
    learning rate. The penalty changes more than the rank, so gains would not show that the rank gave them; a higher
    rank without a gain shows that it does not suffice. ``margin``: of equal accuracies.
    """
    methods = [one.experiment.method for one in cells.cell]
    doses = [method.coefficient if method.name == "feddecorr" else math.nan for method in methods]
    penalized = cells.assign(dose=doses, accs=[one.by_seed for one in cells.cell])
    penalized = penalized[["column", "norm", "lr", "dose", "ranks", "accs"]]
    plain, others = penalized[penalized.dose == 0], penalized[penalized.dose.fillna(0) != 0]
    pairs = others.merge(plain, on=["column", "norm", "lr"], suffixes=("", "_plain"))
    ranks, accs = (
        {at: gap for at, one, other in pairs[[name, f"{name}_plain"]].itertuples() if (gap := paired(one, other))}
        for name in ("ranks", "accs")
    )
    shown, found = corrected(ranks), corrected(accs, margin)
    if known := [(shown[at], found[at]) for at in shown if at in found]:
        yield Claim(*RANK_DOSES, verdict_on_doses(known), _of_doses(known, margin))


def verdict_on_doses(doses: Sequence[Dose]) -> Verdict:
    """Return whether accuracy rises with the rank, among the doses that are shown to raise the rank."""
    raised = [acc for rank, acc in doses if rank.verdict == "more"]
    more = sum(one.verdict == "more" for one in raised)
    if more:
        return "holds" if more == len(raised) else "in part"
    return "does not hold" if raised and all(one.verdict != "open" for one in raised) else "inconclusive"


def _of_doses(doses: Sequence[Dose], margin: float) -> str:
    raised, lowered = ([dose for dose in doses if dose[0].verdict == way] for way in ("more", "less"))
    text = f"{len(doses)} doses, each at a fixed normalization and learning rate, paired by seed. "
    if not raised:
        return text + "None is shown to raise the rank."
    return (
        f"{text}{_dose_text(raised, 'raise', margin)} {_dose_text(lowered, 'lower', margin) if lowered else ''}"
        " (t-tests at 5 %, Holm's correction over the doses.)"
    ).replace("  ", " ")


def _dose_text(doses: Sequence[Dose], what: str, margin: float) -> str:
    """``3 raise the rank, by 0.2 to 1.1: accuracy is shown to be more in 1, ...``."""
    verdicts = [acc.verdict for _, acc in doses]
    ranks = range_text([abs(rank.difference.mean) for rank, _ in doses])
    gains = range_text([100 * acc.difference.mean for _, acc in doses])
    less, more = (sum(word in one for one in verdicts) for word in ("less", "more"))
    equal = sum("equivalent" in one for one in verdicts)
    return (
        f"{len(doses)} {what} the rank, by {ranks}: accuracy changes by {gains} points; shown to be more in {more}, "
        f"less in {less}, equivalent within {margin_text(margin, METRICS['acc'])} in {equal}."
    )


def sharpening(cells: pd.DataFrame, collection: Collection) -> Iterator[Claim]:
    """Yield the claim that lr x lambda_max / 2 of the global model moves to 1 along training: the edge of stability.

    Gradient descent is stable below 1. Cohen et al. 2021 (arXiv 2103.00065) find that the sharpness of networks rises
    in training until this ratio is about 1, whatever the learning rate, and stays there: descent makes it grow,
    instability makes it shrink. They train on the whole data set; here clients take local steps on their own data,
    which are averaged.

    The unit is a run. The claim is judged in each cell that works, from the logarithm of the ratio before training and
    its mean over the last five evaluations. Ratios that stay away from 1, leave it, or follow the rate refute it.
    """
    followed = [one for one in cells.cell if is_followed(one)]
    if not followed:
        return
    working = [one for one in followed if one.complete and min(one.values) >= OVER_CHANCE * chance(one)]
    working.sort(key=lambda one: [tick_of(one, axis) for axis in AXES])
    settings = _settings(working, collection)
    evidence = _evidence(settings) if len(settings) else "No cell works in every seed."
    yield Claim(*SHARPENING, combined(settings.outcome.tolist()), evidence)


def _settings(working: list[Cell], collection: Collection) -> pd.DataFrame:
    """Return a row a cell that works: its column (``classes:1, E 10``) and norm, how many seeds, and what tests show.

    ``start`` and ``end`` are means over seeds of the logarithm of the ratio.
    """
    ends = [_ends(ratios(cell, collection)) for cell in working]
    found = paths(ends)
    places = [[tick_of(working[at], axis).label for axis in AXES] for at in found.index]
    return found.assign(
        column=[f"{partition}, E {steps}" for partition, steps, *_ in places],
        norm=[norm for *_, norm, _ in places],
        seeds=[len(ends[at][1]) for at in found.index],
        start=[statistics.fmean(ends[at][0].values()) for at in found.index],
        end=[statistics.fmean(ends[at][1].values()) for at in found.index],
    )


def is_followed(cell: Cell) -> bool:
    """Return whether the runs of a cell measure the sharpness often enough for a mean over the last evaluations."""
    probes = getattr(cell.experiment, "probes", ())
    return any(probe.name == "sharpness" and TAIL * probe.every <= cell.rounds for probe in probes)


def ratios(cell: Cell, collection: Collection) -> dict[int, dict[int, float]]:
    """Return lr x lambda_max / 2 of each finished seed by round; without rounds where it is zero or not finite."""
    found: dict[int, dict[int, float]] = {}
    for run in cell.runs:
        if run.state != "done":
            continue
        seen = {record["round"]: probes_of(record) for record in collection.records(run)}
        values = {
            at: (number(one, "sharpness", "lr") or 0) * (number(one, "sharpness", "lambda_max") or 0) / 2
            for at, one in seen.items()
        }
        found[run.experiment.seed] = {at: value for at, value in sorted(values.items()) if value > 0}
    return found


def paths(ends: Sequence[tuple[BySeed, BySeed]]) -> pd.DataFrame:
    """Return what tests over seeds show of cells, from the logarithms of their ratios before training and at the end.

    A row has the place of the cell; ``at_one``: its ratio is shown to end within the factor ``NEAR`` of 1; ``nearer``
    and ``farther``: it is shown to end nearer to 1, or farther from it, than it began; ``outcome``: what this says of
    the claim, in part where a ratio comes nearer without being there. Of 100 sets of cells at most 5 have a wrong
    ``at_one``, and at most 5 a wrong ``nearer`` or ``farther`` (Holm's correction).
    """
    import pandas as pd

    last: dict[int, Difference] = {}
    moved: dict[int, Difference] = {}
    for at, (start, end) in enumerate(ends):
        away, before = ({seed: abs(value) for seed, value in some.items()} for some in (end, start))
        one, other = paired(end, dict.fromkeys(end, 0.0)), paired(away, before)
        if one is not None and other is not None:
            last[at], moved[at] = one, other
    shown, moves = corrected(last, math.log(NEAR)), corrected(moved)
    rows = []
    for at, contrast in shown.items():
        move, found = moves[at].verdict, contrast.difference
        is_outside = found.half_width is not None and abs(found.mean) - found.half_width > math.log(NEAR)
        outcome: Outcome = False if is_outside or move == "more" else None
        outcome = True if contrast.is_equivalent else "in part" if move == "less" else outcome
        rows.append((at, outcome, contrast.is_equivalent, move == "less", move == "more"))
    return pd.DataFrame(rows, columns=["at", "outcome", "at_one", "nearer", "farther"]).set_index("at")


def _ends(seeds: Mapping[int, Mapping[int, float]]) -> tuple[BySeed, BySeed]:
    """The logarithms before training and, as means, over the last evaluations, of the seeds that have both."""
    known = {seed: values for seed, values in seeds.items() if 0 in values and len(values) > TAIL}
    start = {seed: math.log(values[0]) for seed, values in known.items()}
    end = {seed: statistics.fmean(map(math.log, list(values.values())[-TAIL:])) for seed, values in known.items()}
    return start, end


def _evidence(settings: pd.DataFrame) -> str:
    """How many cells end at 1, come nearer and go farther, by column and by norm, and typical ratios."""

    def counts(of: str, by: str) -> str:
        """``iid, E 1: 3 of 14; iid, E 10: 0 of 12``."""
        return "; ".join(f"{name}: {own.sum()} of {len(own)}" for name, own in settings.groupby(by, sort=False)[of])

    # Geometric means over seeds, medians over cells.
    medians = settings.groupby("column", sort=False)[["start", "end"]].median()
    typical = "; ".join(
        f"{column}: {' and '.join(three_digits(math.exp(one)) for one in both)}"
        for column, both in zip(medians.index, medians.to_numpy(), strict=True)
    )
    return (
        f"It ends within a factor of {NEAR:g} of 1 in {settings.at_one.sum()} of {len(settings)} cells "
        f"({counts('at_one', 'column')}). By norm: {counts('at_one', 'norm')}. "
        f"Nearer to 1 than before training: {counts('nearer', 'column')}. Farther: {counts('farther', 'column')}. "
        f"Before training and at the end, medians of cells: {typical}. "
        f"(Cells with twice the accuracy of guessing in every seed. Logarithms; the end is "
        f"the mean of the last {TAIL} evaluations; n = {', '.join(map(str, sorted({*settings.seeds})))} runs a cell, "
        "paired by seed; t-tests at 5 %, Holm's correction over the cells.)"
    )
