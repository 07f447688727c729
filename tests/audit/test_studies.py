"""The claims of the three pages about studies, and what leaderboard.md says of them, against their audits."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import pytest

from tests.audit import arms, deep, fisher, pages, rank, sharpness
from tests.audit.studies import Claims, results, verdict_of

pytestmark = pytest.mark.slow

#: By page: its audit, and the numbers of claims and of runs.
STUDIES: dict[str, tuple[Callable[[], Claims], int, int]] = {
    "sharpness": (sharpness.claims, 9, 7716),
    "rank": (rank.claims, 6, 366),
    "deep": (deep.claims, 10, 452),
}


@cache
def audited(name: str) -> Claims:
    return STUDIES[name][0]()


def page(name: str) -> list[list[str]]:
    """The claims of a page: text with its source, verdict, evidence."""
    ((_, *rows),) = pages.tables(pages.details(name))
    return rows


@pytest.mark.parametrize("name", STUDIES)
def test_every_claim_of_a_page(name: str) -> None:
    rows = page(name)
    assert len(rows) == len(audited(name)) == STUDIES[name][1]
    for (begin, (verdict, evidence)), (text, said, numbers) in zip(audited(name).items(), rows, strict=True):
        assert text.startswith(begin)
        assert said == f"**{verdict}**", text
        assert numbers == evidence, text


@pytest.mark.parametrize("name", STUDIES)
def test_what_the_first_page_says_of_the_studies(name: str) -> None:
    text, (_, count, runs) = pages.leaderboard(), STUDIES[name]
    verdicts = [verdict for verdict, _ in audited(name).values()]
    titles = [row[0].split("<br>")[0].rstrip(".") for row in page(name)]
    parts = [f"{verdicts.count('holds')} of {count} claims hold"]
    for verdict in dict.fromkeys(("in part", "does not hold", "inconclusive", *verdicts)):
        others = [f"“{title}”" for title, found in zip(titles, verdicts, strict=True) if found == verdict]
        parts += [f"*{verdict}*: {', '.join(others)}"] if others and verdict != "holds" else []
    assert f"](docs/results/{name}.md): {'; '.join(parts)}.\n" in text
    assert f"](docs/results/{name}.md): {count} claims, {runs:,} runs\n" in text


def test_the_numbers_of_runs() -> None:
    """A run on deep networks is one of an arm, a learning rate, a seed and a number of epochs."""
    of_arms = arms.measured()
    counts = {
        "sharpness": len(sharpness.runs()),
        "rank": len(results("rank", "rank")),
        "deep": len(of_arms.drop_duplicates([*arms.ARM, "lr", "seed"])),
    }
    assert counts == {name: count for name, (*_, count) in STUDIES.items()}
    studies = sum(counts.values())
    assert f" and {studies:,} runs of studies of networks" in pages.leaderboard()
    (trained,) = re.findall(r"^([\d,]+) training runs", pages.leaderboard(), re.MULTILINE)  # audited in test_pages.py
    sweeps = set(re.findall(r"sweeps/\w+\.yaml", pages.details("provenance").split("Regenerate with:")[1]))
    total = int(trained.replace(",", "")) + studies
    assert f"(docs/results/provenance.md): {total:,} finished runs of {len(sweeps)} sweeps:" in pages.leaderboard()


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        (["holds", "holds"], "holds"),
        (["holds", "inconclusive"], "in part"),
        (["does not hold", "in part"], "in part"),
        (["does not hold", "inconclusive"], "does not hold"),
        (["inconclusive"], "inconclusive"),
    ],
)
def test_a_verdict_over_settings(outcomes: list[str], verdict: str) -> None:
    assert verdict_of(outcomes) == verdict


@pytest.mark.parametrize(
    ("network", "kappa_1", "kappa_2"),
    [
        (("relu", 2.0, 0.0), 1.5, 0.3428543181),
        (("tanh", 3.0, 0.64), 0.9555219042, 0.1186153721),
        (("relu", 4.0, 1.0), 7.25, 2.3317587397),
    ],
)
def test_order_parameters(network: tuple[str, float, float], kappa_1: float, kappa_2: float) -> None:
    """Against arc-cosine kernels and a trapezoid rule, which Monte Carlo samples agree with."""
    assert fisher.kappas(*network) == pytest.approx((kappa_1, kappa_2), abs=1e-8)
