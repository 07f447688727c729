"""How often the claims' verdicts are wrong, by simulation of data with known answers, through the rules themselves."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pandas as pd
import pytest

from flbench.papers import rules
from flbench.papers.declared import declared, judge
from flbench.papers.evidence import Outcome, combined, direction, fit_exponent
from flbench.papers.label_skew.claims_by_seed import outcome, shown, verdict_on_doses
from flbench.papers.label_skew.correlations import RankCorrelation
from flbench.papers.label_skew.mechanisms import verdict_on_bounded_norms
from flbench.report.correlation import Correlation, Mean
from flbench.report.stats import Difference, corrected, paired

TIMES = 400

#: Four standard errors above shares of 2.5 and 5 %.
ONE_SIDE, BOTH_SIDES = (share + 4 * (share * (1 - share) / TIMES) ** 0.5 for share in (0.025, 0.05))


def gap(values: Any) -> Difference:
    """The paired difference of values by seed and zero."""
    found = paired(dict(enumerate(values.tolist())), dict.fromkeys(range(len(values)), 0.0))
    assert found is not None
    return found


@pytest.mark.parametrize("power", [0.25, 0.75])
def test_exponents_at_the_edge_are_rarely_near_a_claimed_one(power: float) -> None:
    """An exponent that is just 0.25 away from 0 or 1; spreads fall with the width, as those of lambda_max."""
    draw, found, claimed = np.random.default_rng(0), Counter[bool | None](), round(power)
    for _ in range(TIMES):
        values = {m: m**power * np.exp(2 / m**0.5 * draw.standard_normal(5)) for m in (50, 100, 200, 400)}
        fit = fit_exponent(values)
        assert fit
        found[rules.inside(fit.low, fit.high, claimed - 0.25, claimed + 0.25)] += 1
    assert max(found[True], found[False]) / TIMES <= ONE_SIDE, found


def test_exponents_of_one_half_are_rarely_judged() -> None:
    """Neither growth in proportion nor none, and neither at least sqrt(d) nor less."""
    draw, growth, root = np.random.default_rng(1), Counter[Outcome](), Counter[Outcome]()
    widths = np.repeat([8, 16, 32, 64, 128], 3)
    claim = {"of": "late", "over": "width", "least": 0.5}
    for _ in range(TIMES):
        rows = pd.DataFrame({"width": widths, "late": widths**0.5 * np.exp(0.05 * draw.standard_normal(len(widths)))})
        whole = rules.exponent(rows, **claim).outcome
        growth[whole] += 1
        root[rules.worst([whole, rules.keeps_growing(rows, **claim).outcome])] += 1
    assert max(growth[True], growth[False], root[True]) / TIMES <= ONE_SIDE, (growth, root)
    assert root[False] / TIMES <= BOTH_SIDES, "two intervals can refute it"


def sharpness_verdict(words: str, **frames: pd.DataFrame) -> str:
    """The verdict on a declared claim of the sharpness paper."""
    (one,) = (claim for claim in declared("flbench.papers.sharpness") if words in claim.claim)
    (found,) = judge([one], frames, {"GROWN": 1.1, "EXPLODED": 1000.0, "percent": 1.0})
    return found.verdict


@pytest.mark.nightly
@pytest.mark.parametrize(("gain", "verdict"), [(1.0, "does not hold"), (5.5, "holds")])
def test_the_gain_of_subtracted_means_is_not_found_where_there_is_none(gain: float, verdict: str) -> None:
    """Three widths of four networks at 15 rates, which converge up to a rate that scatters by a quarter.

    No gain refutes the claim: it is about larger rates.
    """
    draw, found = np.random.default_rng(2), Counter[str]()
    rates, wrong = np.geomspace(0.001, 10, 15), {"holds": "does not hold", "does not hold": "holds"}[verdict]
    networks = pd.MultiIndex.from_product([("none", "mean-last"), (100, 200, 400), range(4)]).to_frame(index=False)
    networks.columns = pd.Index(["normalized", "width", "seed"])
    for _ in range(100):
        highest = 0.03 * np.exp(0.25 * draw.standard_normal(len(networks)))
        highest[networks.normalized == "mean-last"] *= gain
        tried = [rates[rates <= rate].max() for rate in highest]
        found[sharpness_verdict("larger learning rates", networks=networks.assign(converged=tried))] += 1
    assert found[verdict] >= 90 and found[wrong] == 0, found


@pytest.mark.parametrize("networks", [5, 6, 10, 20])
def test_shares_of_networks_are_rarely_judged_where_half_of_all_do_it(networks: int) -> None:
    """Wide networks explode with probability 1/2: nine of ten do, or do not, in at most 1/2^5 of cases, exactly."""
    frame = pd.DataFrame({"seed": range(networks), "normalized": "none", "width": 800, "factor": 2.0})
    chances: defaultdict[str, float] = defaultdict(float)
    for exploding in range(networks + 1):
        descents = frame.assign(exploded=False, peaked=frame.seed < exploding)
        verdict = sharpness_verdict("losses of wide networks", descents=descents)
        chances[verdict] += math.comb(networks, exploding) / 2**networks
    assert sum(chances.values()) == pytest.approx(1)
    assert max(chances["holds"], chances["does not hold"]) <= 1 / 32, chances


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_settings_of_the_claims_on_one_class_are_corrected(seeds: int) -> None:
    """Fourteen settings without an effect: at most 5 of 100 claims find any; one finding makes "in part"."""
    draw, wrong = np.random.default_rng(seeds), 0
    for _ in range(TIMES):
        signs = shown([gap(values) for values in draw.standard_normal((14, seeds))])
        wrong += any(signs)
        assert (combined(map(outcome, signs)) == "inconclusive") != any(signs)
    assert wrong / TIMES <= BOTH_SIDES


@pytest.mark.parametrize("seeds", [3, 5])
def test_a_direction_over_seeds_is_wrong_in_at_most_5_of_100_cases(seeds: int) -> None:
    """The paired test of arms of deep networks, also where accuracies are multiples of an image in 100."""
    draw = np.random.default_rng(seeds)
    for decimals in (6, 2):
        changes = np.round(0.02 * draw.standard_normal((TIMES, seeds)), decimals)
        assert sum(direction(gap(values)) != 0 for values in changes) / TIMES <= BOTH_SIDES


def dose_verdicts(draw: np.random.Generator, effect: float, margin: float = 0.01) -> Counter[str]:
    """Six doses with ten seeds that raise the rank by five sd; accuracies differ by ``effect``, sd half a point."""
    found = Counter[str]()
    for _ in range(TIMES):
        ranks = {at: gap(5 + draw.standard_normal(10)) for at in range(6)}
        accs = {at: gap(effect + 0.005 * draw.standard_normal(10)) for at in range(6)}
        raised, tested = corrected(ranks), corrected(accs, margin)
        found[verdict_on_doses([(raised[at], tested[at]) for at in ranks])] += 1
    return found


@pytest.mark.nightly
def test_doses_of_rank_without_an_effect_rarely_hold() -> None:
    draw = np.random.default_rng(3)
    none, at_margin, large = (dose_verdicts(draw, effect) for effect in (0.0, 0.01, 0.03))
    assert (none["holds"] + none["in part"]) / TIMES <= BOTH_SIDES, none
    assert at_margin["does not hold"] / TIMES <= BOTH_SIDES, at_margin
    assert large["holds"] / TIMES >= 0.95, large


def test_the_verdict_on_bounded_norms_needs_intervals() -> None:
    """Of intervals that cover in 95 of 100 cases, none of a zero correlation makes "holds" in more than 2.5."""
    draw, found = np.random.default_rng(4), Counter[str]()
    for _ in range(TIMES):
        gain = Mean(70, 10, 0.05, (0.02, 0.08))
        centres = 0.2 * draw.standard_normal(3)
        same_rate, best, inside = (
            RankCorrelation("", "", Correlation(70, 10, c, (c - 0.392, c + 0.392)), "methods") for c in centres
        )
        found[verdict_on_bounded_norms(gain, gain, same_rate, best, [], inside)] += 1
    assert (found["holds"] + found["in part"]) / TIMES <= ONE_SIDE, found
