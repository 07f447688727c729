"""The claims on label skew on the pages against ``why_claims.py`` and ``why_seeds.py``, which import no ``flbench``."""

from __future__ import annotations

import re

import pytest

from tests.audit import pages, why_claims, why_seeds
from tests.audit.runs import ROOT
from tests.audit.why import UNTUNED, at_best_rate, cells, probed
from tests.audit.why_claims import Claim

#: The sections of the chapter by their sweep, and their names on the first page.
SECTIONS = {
    "digits": ("digits, mlp(widths=[64, 64]) (digits)", "digits (digits)"),
    "rank_dose": ("digits, mlp(widths=[64, 64]) (rank_dose)", "digits (rank_dose)"),
    "sharpening": ("digits, mlp(widths=[64, 64]) (sharpening)", "digits (sharpening)"),
    "cifar10": ("cifar10, cnn (cifar10)", "cifar10 (cifar10)"),
    "cifar10_one_step": ("cifar10, cnn (cifar10_one_step)", "cifar10 (cifar10_one_step)"),
    "fashion_mnist": ("fashion_mnist, cnn", "fashion_mnist, cnn"),
}

#: Sections whose claims are recomputed here.
RECOMPUTED = ["digits", "rank_dose", "cifar10", "cifar10_one_step", "fashion_mnist"]

#: The claims in the order of the first page, without that of ``test_sharpening.py``.
RATES = "The range of learning rates that works follows 2 / lambda_max"
RANK = "Accuracy follows the rank of the features"
BOUNDED = "Bounded norms explain the gain of FN"
GROW = "Local training on one class without normalization makes the norms of features grow; FN bounds them"
COLLAPSE = "Local training on one class makes features collapse onto one direction without normalization, not with FN"
SPREAD = "FedAvg on one class a client: with FN the global model's features are spread over more directions"
DOSES = "A higher rank of the features raises accuracy"
FORGET = "A few local steps on one class make the global model forget the others; with FN it forgets less"
CLAIMS = [RATES, RANK, BOUNDED, GROW, COLLAPSE, SPREAD, DOSES, FORGET]


def section_of(sweep: str) -> dict[str, tuple[str, str]]:
    """Verdict and evidence of each claim in a section of the chapter, from paragraphs and the rows of its table."""
    page = (ROOT / "docs/results/why.md").read_text()
    text = page.split(f"## Why: {SECTIONS[sweep][0]}\n")[1].split("\n## ")[0]
    paragraphs = re.findall(r"^\*\*(.+): ([a-z ]+)\.\*\* (.+)$", text, re.MULTILINE)
    rows = re.findall(r"^\| (.+)<br>.+ \| \*\*(.+)\*\* \| (.+) \|$", text, re.MULTILINE)
    return {claim: (verdict, evidence) for claim, verdict, evidence in paragraphs + rows}


def claims_of(sweep: str) -> dict[str, Claim]:
    """The claims that a sweep is about, recomputed."""
    of = probed(sweep)
    everything, shared = cells(of), cells(of[of.shared])
    best, is_tuned = at_best_rate(shared, sweep), sweep not in UNTUNED
    found = {
        RATES: why_claims.learning_rates(
            shared, best if is_tuned else shared, tuned=is_tuned and shared.lr.nunique() > 1
        ),
        RANK: why_claims.feature_rank(shared, best),
        BOUNDED: why_claims.bounded_norms(shared, best),
    }
    if (of.method == "local-only").any():
        found |= {GROW: why_seeds.norms_grow(of, everything), COLLAPSE: why_seeds.features_collapse(of, everything)}
    if (of.method == "fedavg").any():
        found[SPREAD] = why_seeds.features_spread(of, everything)
    if of.coefficient.nunique() > 1:
        found[DOSES] = why_seeds.rank_doses(of)
    if of.forgotten.notna().any():
        found[FORGET] = why_seeds.less_forgotten(of)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("sweep", RECOMPUTED)
def test_every_verdict_and_number_of_the_chapter(sweep: str) -> None:
    ours = {name: (claim.verdict, claim.evidence) for name, claim in claims_of(sweep).items()}
    assert section_of(sweep) == ours


def test_the_first_page_repeats_the_chapter() -> None:
    """Claims that runs decide have their evidence, then the sections that decide nothing; the others are named."""
    page = (ROOT / "leaderboard.md").read_text()
    sections = {SECTIONS[sweep][1]: section_of(sweep) for sweep in SECTIONS}
    bullets = dict(re.findall(r"^- \*\*((?!Along).+?)\.\*\* (.+)$", page, re.MULTILINE))
    not_decided = []
    for claim in CLAIMS:
        known = {name: found[claim] for name, found in sections.items() if claim in found}
        parts = [
            f"{verdict.capitalize()} on {name}: {evidence}"
            for name, (verdict, evidence) in known.items()
            if verdict not in ("inconclusive", "not run")
        ]
        if not parts:
            not_decided.append(claim)
            continue
        if undecided := [name for name, (verdict, _) in known.items() if verdict == "inconclusive"]:
            parts.append(f"Inconclusive on {', '.join(undecided)}.")
        assert bullets.pop(claim) == " ".join(parts)
    assert not bullets
    assert f"\n- **Inconclusive:** {', '.join(f'“{claim}”' for claim in not_decided)}.\n" in page


def test_the_numbers_of_one_class_training_in_the_documentation() -> None:
    text = " ".join((ROOT / "docs/why.md").read_text().split())
    of = probed("feature_collapse")
    alone, averaged = why_seeds.alone_on_one_class(cells(of)), why_seeds.fedavg_on_one_class(cells(of))
    growth, head = (alone[0][name].item() for name in ("growth", "head_growth"))
    assert f"features become {growth:.1f} times as long and the class's own embedding {head:.1f} times" in text
    shares, before = ([100 * own[name].item() for own in alone] for name in ("share", "share_0"))
    assert "has {:.1f} % of all squares without normalization and {:.1f} % with FN".format(*shares) in text
    assert "with FN ({:.0f} and {:.0f} % before)".format(*before) in text
    verdict, gap = why_seeds.reduced_by_fn(of, "share")
    less_by = [float(number) for number in re.findall(r"[\d.]+\d", gap)[:2]]
    shares = [100 * own.share.item() for own in averaged]
    assert "the share is {:.1f} % without normalization and {:.0f} % with FN".format(*shares) in text
    assert "with FN (less by {:.1f} ± {:.1f} points".format(*less_by) in text and verdict == "holds"
    assert {section_of("digits")[claim][0] for claim in (GROW, COLLAPSE, SPREAD)} == {"in part"}
    shown = re.search(r"below 0 in (\d+) of (\d+) settings, above in (\d+)", section_of("digits")[SPREAD][1])
    assert (
        shown
        and f"over the {shown[2]} settings the share is shown to be lower with FN in {shown[1]} and higher" in text
    )
    assert f"and higher in {shown[3]}." in text
    lost = [100 * own.forgotten.mean() for own in why_seeds.fedavg_on_one_class(of)]
    assert "FedAvg {:.1f} points of mean class accuracy without normalization, {:.1f} with FN".format(*lost) in text


def test_what_doses_of_a_penalty_show() -> None:
    text = pages.plain(pages.section(pages.details("README"), "Digits: rank as a cause"))
    doses = why_seeds.doses_of(probed("rank_dose"))
    raised, lowered = doses[doses.changes > 0], doses[doses.changes < 0]
    assert (len(raised), len(lowered), raised.is_equal.sum()) == (7, 6, 3) and not raised.way.any()
    assert (
        f"Seven of {len(doses)} doses are shown to raise the rank, by up to {raised['rank'].max():.1f}, and six" in text
    )
    assert f"changes by {raised.acc.min():.1f} to {raised.acc.max():.1f} points" in text
    costs = -doses.acc[doses.way < 0]
    assert (
        len(costs) == 3 and not (doses.way > 0).any() and not costs.index.isin(raised.index.union(lowered.index)).any()
    )
    assert costs.index.get_level_values(1).unique() == ["none"]
    assert (
        f"Three other doses, with one class and without a normalization, are shown to cost {costs.min():.1f} to" in text
    )
    assert f"to {costs.max():.1f} points." in text
    one_class = raised["rank"][raised.index.get_level_values(0).str.contains('"classes"')]
    assert f"by at most {one_class.max():.2f}: there" in text
