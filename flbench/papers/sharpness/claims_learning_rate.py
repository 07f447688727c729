"""Figure 2 of the sharpness paper: which learning rates gradient descent survives."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from flbench.papers.evidence import Finding, claim, fit_exponent, fit_text, range_text
from flbench.papers.sharpness.claims_width import near
from flbench.papers.sharpness.training import EXPLODED, GROWN, Descent, networks_of, predicted_rate
from flbench.report.cells import grouped
from flbench.report.claims import Claim

#: Runs on each side of a line, and networks, that a verdict needs.
FEWEST_RUNS = 5

#: Share of the runs on one side of a line that must do what the claim says.
MOST = 0.9

#: Just above a line, in its units: runs far above it do not show where it is.
ABOVE = (1.25, 4.0)

#: Largest factor between a line and the rates that networks survive.
FAIR = 2.0


def claims(descents: Sequence[Descent]) -> tuple[Claim, ...]:
    """Return the claims of figure 2, left and right."""
    plain = [one for one in descents if one.family.normalized == "none"]
    centred = [one for one in descents if one.family.normalized == "mean-last"]
    judged: tuple[tuple[str, str, Callable[..., Finding], list[Sequence[Descent]]], ...] = (
        ("Above 2 / lambda_max of a network at initialization, losses grow.", "eq. 23", _onset, [plain]),
        ("Above 2 / lambda_max, wide networks explode.", "figure 2, left", _explosion, [plain]),
        (
            "With the outputs' means subtracted, larger learning rates converge, whatever the width.",
            "figure 2, right",
            _gain,
            [plain, centred],
        ),
        (
            "With subtracted means, the line 2 / (rho alpha (kappa_1 - kappa_2)) marks where training fails.",
            "figure 2, right",
            _line,
            [centred],
        ),
    )
    return tuple(claim(text, source, [judge(*runs)] if all(runs) else []) for text, source, judge, runs in judged)


def _onset(plain: Sequence[Descent]) -> Finding:
    """No growth below the line of a run's own network, growth just above it."""
    below, above = [one for one in plain if one.factor < 1], _just_above(plain)
    brackets = [(one, bracket) for one in networks_of(plain) if (bracket := one.bracket(lambda run: run.grew))]
    onsets = [statistics.geometric_mean(bracket) * one.lambda_max / 2 for one, bracket in brackets]
    grew = [sum(one.grew for one in some) for some in (below, above)]
    evidence = (
        f"Loss above {GROWN:g} of its first value in {grew[0]} of {len(below)} runs below the line of their own "
        f"network and in {grew[1]} of {len(above)} at {ABOVE[0]:g} to {ABOVE[1]:g} times it; onset over "
        f"line: {_median(onsets)}."
    )
    if min(len(below), len(above)) < FEWEST_RUNS:
        return None, evidence
    right = [1 - grew[0] / len(below) >= MOST, grew[1] / len(above) >= MOST]
    return "holds" if all(right) else "in part" if any(right) else "does not hold", evidence


def _explosion(plain: Sequence[Descent]) -> Finding:
    """Just above the line at the largest width: exploded at the end decides, at some step makes it hold in part."""
    widest = max(one.width for one in plain)
    above, there = _just_above(plain), _just_above([one for one in plain if one.width == widest])
    evidence = (
        f"At {ABOVE[0]:g} to {ABOVE[1]:g} times the line of their own network, {_exploded(there)} with M = {widest}, "
        f"{_exploded(above)} over all widths."
    )
    if len(there) < FEWEST_RUNS:
        return None, evidence
    if sum(one.exploded for one in there) / len(there) >= MOST:
        return "holds", evidence
    return "in part" if sum(one.peaked for one in there) / len(there) >= MOST else "does not hold", evidence


def _exploded(some: Sequence[Descent]) -> str:
    ended, peaked = sum(one.exploded for one in some), sum(one.peaked for one in some)
    return f"{ended} of {len(some)} runs ended above {EXPLODED:g} or not finite and {peaked} were there at some step"


def _gain(plain: Sequence[Descent], centred: Sequence[Descent]) -> Finding:
    """The highest rates without growth: nearer to independent of the width than to 1/M, and higher than without."""
    subtracted, without = _highest_by_width(centred), _highest_by_width(plain)
    gains = {
        width: statistics.median(subtracted[width]) / statistics.median(without[width])
        for width in sorted(subtracted.keys() & without.keys())
    }
    listed = ", ".join(f"{gain:.3g} at {width}" for width, gain in gains.items())
    over_width = [fit_text(fit_exponent(rates), sum(map(len, rates.values()))) for rates in (subtracted, without)]
    evidence = (
        f"Highest rate without growth of the loss: with means subtracted "
        f"{_median([rate for rates in subtracted.values() for rate in rates])}, over M {over_width[0]}; "
        f"without, over M {over_width[1]}. Gain (ratio of medians): {listed or 'not bracketed'}."
    )
    verdict = near(fit_exponent(subtracted), 0, slack=0.5) if gains else "inconclusive"
    if verdict == "holds" and min(gains.values()) <= 1:
        return "does not hold", evidence
    return verdict, evidence


def _line(centred: Sequence[Descent]) -> Finding:
    """Theory's line against the highest rate before any explosion."""
    to_survived, to_measured = [], []
    for network in networks_of(centred):
        line, survived = predicted_rate(network.family, network.width), network.highest(lambda run: run.exploded)
        if line is not None:
            to_measured.append((network.width, line * network.lambda_max / 2))
            to_survived += [line / survived] if survived else []
    listed = ", ".join(
        f"{statistics.median(ratio for _, ratio in same):.3g} at {same[0][0]}"
        for same in grouped(to_measured, lambda pair: pair[0])
    )
    evidence = (
        f"Line over the highest rate before an explosion: {_median(to_survived)}; line over 2 / lambda_max as "
        f"measured, by M: {listed}."
    )
    if len(to_survived) < FEWEST_RUNS:
        return None, evidence
    return 1 / FAIR <= statistics.median(to_survived) <= FAIR, evidence


def _just_above(some: Sequence[Descent]) -> list[Descent]:
    return [one for one in some if ABOVE[0] <= one.factor <= ABOVE[1]]


def _highest_by_width(descents: Sequence[Descent]) -> dict[int, list[float]]:
    """The highest rate of each network below the first that grew the loss, where the rates tried bracket it."""
    found: dict[int, list[float]] = {}
    for network in networks_of(descents):
        if rate := network.highest(lambda run: run.grew):
            found.setdefault(network.width, []).append(rate)
    return found


def _median(values: Sequence[float]) -> str:
    """Median and range."""
    if not values:
        return "not bracketed by the rates tried"
    return f"{statistics.median(values):.3g} ({range_text(values)}, n={len(values)})"
