"""The claim that the rank of the features is a cause of accuracy, by doses of a penalty that raises it (FedDecorr).

A correlation over methods and normalizations cannot tell whether rank raises accuracy: both follow from what was
changed. Here one number changes, the coefficient of FedDecorr (Shi et al. 2023), at the same normalization and learning
rate. The penalty changes more than the rank, so gains would not show that the rank gave them; a higher rank without a
gain shows that it does not suffice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from flbench.config import Federated
from flbench.metric_specs import METRICS
from flbench.papers.evidence import range_text
from flbench.papers.label_skew.probe_cells import Probed, by_seed, number, probes_of
from flbench.report.cells import grouped
from flbench.report.claims import Claim, Verdict
from flbench.report.runs import Run
from flbench.report.stats import Contrast, Difference, corrected, paired
from flbench.report.wording import margin_text

TEXT = "A higher rank of the features raises accuracy"
SOURCE = "after Shi et al. 2023, by doses of its penalty"


@dataclass(frozen=True)
class Dose:
    """Cells with and without the penalty, alike in all else: what it does to the rank and to accuracy, by seed."""

    rank: Contrast
    acc: Contrast


def claims(cells: Sequence[Probed], margin: float) -> Iterator[Claim]:
    """Yield the claim where cells with the penalty stand beside those without; ``margin``: of equal accuracies."""
    pairs = [
        (by_seed(one, _rank), by_seed(plain, _rank), one.cell.by_seed, plain.cell.by_seed)
        for members in grouped(cells, lambda one: (repr(one.column), one.norm_label, one.lr))
        for plain in members
        if _coefficient(plain) == 0
        for one in members
        if _coefficient(one)
    ]
    ranks = _differences([(one, plain) for one, plain, _, _ in pairs])
    accs = _differences([(one, plain) for _, _, one, plain in pairs])
    shown, found = corrected(ranks), corrected(accs, margin)
    if doses := [Dose(shown[at], found[at]) for at in shown if at in found]:
        yield Claim(TEXT, SOURCE, verdict(doses), _evidence(doses, margin))


def verdict(doses: Sequence[Dose]) -> Verdict:
    """Return whether accuracy rises with the rank, among the doses that are shown to raise the rank."""
    raised = [one.acc for one in doses if one.rank.verdict == "more"]
    more = sum(one.verdict == "more" for one in raised)
    if more:
        return "holds" if more == len(raised) else "in part"
    return "does not hold" if raised and all(one.verdict != "open" for one in raised) else "inconclusive"


def _evidence(doses: Sequence[Dose], margin: float) -> str:
    raised = [one for one in doses if one.rank.verdict == "more"]
    lowered = [one for one in doses if one.rank.verdict == "less"]
    text = f"{len(doses)} doses, each at a fixed normalization and learning rate, paired by seed. "
    if not raised:
        return text + "None is shown to raise the rank."
    return (
        f"{text}{_count(raised, 'raise', margin)} {_count(lowered, 'lower', margin) if lowered else ''}"
        " (t-tests at 5 %, Holm's correction over the doses.)"
    ).replace("  ", " ")


def _count(doses: Sequence[Dose], what: str, margin: float) -> str:
    """``3 raise the rank, by 0.2 to 1.1: accuracy is shown to be more in 1, ...``."""
    verdicts = [one.acc.verdict for one in doses]
    ranks = range_text([abs(one.rank.difference.mean) for one in doses])
    gains = range_text([100 * one.acc.difference.mean for one in doses])
    less, more = (sum(word in one for one in verdicts) for word in ("less", "more"))
    equal = sum("equivalent" in one for one in verdicts)
    return (
        f"{len(doses)} {what} the rank, by {ranks}: accuracy changes by {gains} points; shown to be more in {more}, "
        f"less in {less}, equivalent within {margin_text(margin, METRICS['acc'])} in {equal}."
    )


def _coefficient(one: Probed) -> float | None:
    """The penalty's weight; None for other methods."""
    experiment = one.cell.experiment
    method = experiment.method if isinstance(experiment, Federated) else None
    return getattr(method, "coefficient", None) if method is not None and method.name == "feddecorr" else None


def _differences(pairs: Sequence[tuple[Mapping[int, float], Mapping[int, float]]]) -> dict[int, Difference]:
    return {at: gap for at, (one, plain) in enumerate(pairs) if (gap := paired(one, plain)) is not None}


def _rank(run: Run) -> float | None:
    """The effective rank of the features at the end."""
    return number(probes_of(run.record), "features", "rank")
