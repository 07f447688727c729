"""docs/answers/learning-rate.md against recomputed numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.audit import pages
from tests.audit.learning_rate import RATES, accuracies, leads, one_step, one_step_leads
from tests.audit.runs import ROOT, recorded

PAGE = (ROOT / "docs/answers/learning-rate.md").read_text()

NAMES = {"none": "none", "fn": "feature norm"}
ROUNDS = (1000, 2000)


def table() -> list[list[str]]:
    rows = [["normalization, rate", "seeds", *(f"{rounds:,} rounds" for rounds in ROUNDS)]]
    for norm, rate in RATES:
        entries = []
        for rounds in ROUNDS:
            of, last = accuracies(norm, rate, rounds), accuracies(norm, rate, rounds, 1)
            entries.append(f"{of.mean():.1f} (last {last.mean():.1f})")
        rows.append([f"{NAMES[norm]}, {rate:g}", str(len(of)), *entries])
    return rows


def sentences() -> Iterator[str]:
    (same, tuned), (_, last), (_, early) = leads(2000), leads(2000, 1), leads(1000)
    yield (
        f"After 2,000 rounds feature norm leads by {same.text} points where both have 0.01 (three seeds), and by "
        f"{tuned:.1f} (last evaluation {last:.1f}) where each has the best rate tried (seed 0)"
    )
    yield f"the rate is {100 * (1 - tuned / same.seeds[0]):.0f} % of that seed's lead"
    both = accuracies("fn", 0.01, 2000)[:2] - accuracies("none", 0.1, 2000)
    yield "feature norm at 0.01 leads none at 0.1 by {:.1f} points with seed 0 and by {:.1f} with seed 1.".format(*both)
    yield f"After 1,000 rounds the second lead is {early:.1f} points"
    (failed,) = recorded("cifar10_rates").query("status == 'diverged'").itertuples()
    assert (failed.norm, failed.lr) == ("none", 0.3)
    yield f"Without a normalization 0.3 diverges in round {failed.trained}"
    of = one_step()
    assert (*of.index,) == (0.01, 0.1)
    (gap, tuned), (_, last) = one_step_leads(), one_step_leads(1)
    yield (
        f"feature norm leads by {gap:.1f} points where both have 0.01, and by {tuned:.1f} (last evaluation "
        f"{last:.1f}) where each has the better of 0.01 and 0.1, which is 0.1 for both: none is then at "
        f"{of['fedavg none'][0.1]:.1f} %."
    )
    yield f"The rate's part is {100 * (1 - tuned / gap):.0f} % of the lead."


@pytest.mark.slow
def test_the_sentences() -> None:
    text = pages.plain(PAGE)
    assert [sentence for sentence in sentences() if sentence not in text] == []


@pytest.mark.slow
def test_the_table() -> None:
    (found,) = pages.tables(PAGE)
    assert found == table()
