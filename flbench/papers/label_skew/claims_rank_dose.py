"""The claim that the rank of the features is a cause of accuracy, by doses of a penalty that raises it (FedDecorr).

A correlation over methods and normalizations cannot tell whether rank raises accuracy: both follow from what was
changed. Here one number changes, the coefficient of FedDecorr (Shi et al. 2023), at the same normalization and learning
rate. The penalty changes more than the rank, so gains would not show that the rank gave them; a higher rank without a
gain shows that it does not suffice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from flbench.metric_specs import METRICS
from flbench.papers.evidence import range_text
from flbench.report.claims import Claim, Verdict
from flbench.report.stats import Contrast, corrected, paired
from flbench.report.wording import margin_text

if TYPE_CHECKING:
    import pandas as pd

TEXT = "A higher rank of the features raises accuracy"
SOURCE = "after Shi et al. 2023, by doses of its penalty"


#: What a dose does to the rank and to accuracy: cells with and without the penalty, alike in all else, by seed.
Dose = tuple[Contrast, Contrast]


def claims(cells: pd.DataFrame, margin: float) -> Iterator[Claim]:
    """Yield the claim where cells with the penalty stand beside those without; ``margin``: of equal accuracies."""
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
        yield Claim(TEXT, SOURCE, verdict(known), _evidence(known, margin))


def verdict(doses: Sequence[Dose]) -> Verdict:
    """Return whether accuracy rises with the rank, among the doses that are shown to raise the rank."""
    raised = [acc for rank, acc in doses if rank.verdict == "more"]
    more = sum(one.verdict == "more" for one in raised)
    if more:
        return "holds" if more == len(raised) else "in part"
    return "does not hold" if raised and all(one.verdict != "open" for one in raised) else "inconclusive"


def _evidence(doses: Sequence[Dose], margin: float) -> str:
    raised, lowered = ([dose for dose in doses if dose[0].verdict == way] for way in ("more", "less"))
    text = f"{len(doses)} doses, each at a fixed normalization and learning rate, paired by seed. "
    if not raised:
        return text + "None is shown to raise the rank."
    return (
        f"{text}{_count(raised, 'raise', margin)} {_count(lowered, 'lower', margin) if lowered else ''}"
        " (t-tests at 5 %, Holm's correction over the doses.)"
    ).replace("  ", " ")


def _count(doses: Sequence[Dose], what: str, margin: float) -> str:
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
