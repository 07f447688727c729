"""The claims on label skew of the chapter against ``why_claims.py`` and ``why_seeds.py``."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.audit import why_claims, why_seeds
from tests.audit.runs import ROOT
from tests.audit.why import UNTUNED, at_best_rate, cells, probed
from tests.audit.why_seeds import Claim

#: The sections of the chapter by their sweep.
SECTIONS = {
    "digits": "digits, mlp(widths=[64, 64]) (digits)",
    "rank_dose": "digits, mlp(widths=[64, 64]) (rank_dose)",
    "sharpening": "digits, mlp(widths=[64, 64]) (sharpening)",
    "cifar10": "cifar10, cnn (cifar10)",
    "cifar10_one_step": "cifar10, cnn (cifar10_one_step)",
    "fashion_mnist": "fashion_mnist, cnn",
}

#: The claims.
RATES = "The range of learning rates that works follows 2 / lambda_max"
RANK = "Accuracy follows the rank of the features"
BOUNDED = "Bounded norms explain the gain of FN"
GROW = "Local training on one class without normalization makes the norms of features grow; FN bounds them"
COLLAPSE = "Local training on one class makes features collapse onto one direction without normalization, not with FN"
SPREAD = "FedAvg on one class a client: with FN the global model's features are spread over more directions"
DOSES = "A higher rank of the features raises accuracy"
SHARPENS = "Along training lr x lambda_max / 2 of the global model moves to 1 and stays there"
FORGET = "A few local steps on one class make the global model forget the others; with FN it forgets less"


def section_of(sweep: str) -> dict[str, Claim]:
    """Return verdict and evidence of each claim in a section of the chapter, from paragraphs and rows of its table."""
    page = (ROOT / "docs/results/why.md").read_text()
    text = page.split(f"## Why: {SECTIONS[sweep]}\n")[1].split("\n## ")[0]
    paragraphs = re.findall(r"^\*\*(.+): ([a-z ]+)\.\*\* (.+)$", text, re.MULTILINE)
    rows = re.findall(r"^\| (.+)<br>.+ \| \*\*(.+)\*\* \| (.+) \|$", text, re.MULTILINE)
    return {claim: (verdict, evidence) for claim, verdict, evidence in paragraphs + rows}


def claims_of(sweep: str) -> Iterator[tuple[str, Claim]]:
    """Yield the claims that a sweep is about, recomputed."""
    of = probed(sweep)
    everything, shared = cells(of), cells(of[of.shared])
    best, is_tuned = at_best_rate(shared, sweep), sweep not in UNTUNED
    shown, is_tuned = (best if is_tuned else shared), is_tuned and shared.lr.nunique() > 1
    yield RATES, why_claims.learning_rates(shared, shown, tuned=is_tuned)
    yield RANK, why_claims.feature_rank(shared, best)
    yield BOUNDED, why_claims.bounded_norms(shared, best)
    if (of.method == "local-only").any():
        yield GROW, why_seeds.norms_grow(of, everything)
        yield COLLAPSE, why_seeds.features_collapse(of, everything)
    if (of.method == "fedavg").any() and of.share.notna().any():
        yield SPREAD, why_seeds.features_spread(of, everything)
    if of.coefficient.nunique() > 1:
        yield DOSES, why_seeds.rank_doses(of)
    if sweep == "sharpening":
        yield SHARPENS, why_seeds.sharpening()
    if of.forgotten.notna().any():
        yield FORGET, why_seeds.less_forgotten(of)


@pytest.mark.slow
@pytest.mark.parametrize("sweep", SECTIONS)
def test_every_verdict_and_number_of_the_chapter(sweep: str) -> None:
    assert section_of(sweep) == dict(claims_of(sweep))


def test_what_the_chapter_says_of_one_class() -> None:
    assert {section_of("digits")[claim][0] for claim in (GROW, COLLAPSE, SPREAD)} == {"in part"}
