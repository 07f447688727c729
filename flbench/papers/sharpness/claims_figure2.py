"""What gradient descent says of figure 2 of the sharpness paper: which learning rates a network survives."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from flbench.papers.sharpness.claims_figure1 import exponent_text, near, spread
from flbench.papers.sharpness.descents import EXPLODED, GROWN, Descent, Network, line_of_theory, networks_of
from flbench.report.cells import grouped
from flbench.report.claims import Claim, Holding

#: Runs on each side of a line that a verdict on it needs; and networks.
FEWEST_RUNS = 5

#: Share of the runs on one side of a line that must do what it says.
MOST = 0.9

#: Just above a line, in its units: what happens far above says nothing of where it runs.
ABOVE = (1.25, 4.0)

#: How far a line may lie above the rates that were survived and still be called right.
FAIR = 2.0


def claims(descents: Sequence[Descent]) -> tuple[Claim, ...]:
    """Figure 2, left and right."""
    plain = [one for one in descents if one.family.normalized == "none"]
    centred = [one for one in descents if one.family.normalized == "mean-last"]
    return (
        _claim("Above 2 / lambda_max of a network as drawn, losses grow.", "eq. 23", _onset, plain),
        _claim("Above 2 / lambda_max, wide networks explode.", "figure 2, left", _explosion, plain),
        _claim(
            "With the outputs' means subtracted, larger learning rates converge, whatever the width.",
            "figure 2, right",
            _gain,
            plain,
            centred,
        ),
        _claim(
            "With subtracted means, the line 2 / (rho alpha (kappa_1 - kappa_2)) marks where training fails.",
            "figure 2, right",
            _line,
            centred,
        ),
    )


@dataclass(frozen=True)
class _Found:
    """A verdict and what it rests on."""

    holding: Holding
    evidence: str


def _claim(text: str, source: str, judge: Callable[..., _Found], *needed: Sequence[Descent]) -> Claim:
    if not all(needed):
        return Claim(text, source, "not run", "")
    found = judge(*needed)
    return Claim(text, source, found.holding, found.evidence)


def _onset(plain: Sequence[Descent]) -> _Found:
    """No growth below the line of a run's own network, growth just above it."""
    below, above = [one for one in plain if one.factor < 1], _just_above(plain)
    onsets = [rate * one.lambda_max / 2 for one in networks_of(plain) if (rate := one.onset(_grew))]
    grew = [sum(one.grew for one in some) for some in (below, above)]
    evidence = (
        f"Loss above {GROWN:g} of its first value in {grew[0]} of {len(below)} runs below the line of their own "
        f"network and in {grew[1]} of {len(above)} at {ABOVE[0]:g} to {ABOVE[1]:g} times it; onset over "
        f"line: {_spread(onsets)}."
    )
    if min(len(below), len(above)) < FEWEST_RUNS:
        return _Found("inconclusive", evidence)
    right = [1 - grew[0] / len(below) >= MOST, grew[1] / len(above) >= MOST]
    return _Found("holds" if all(right) else "in part" if any(right) else "does not hold", evidence)


def _explosion(plain: Sequence[Descent]) -> _Found:
    """Just above the line at the widest: exploded at the end decides, at some step makes it hold in part."""
    widest = max(one.width for one in plain)
    above, there = _just_above(plain), _just_above([one for one in plain if one.width == widest])
    evidence = (
        f"At {ABOVE[0]:g} to {ABOVE[1]:g} times the line of their own network, {_exploded(there)} with M = {widest}, "
        f"{_exploded(above)} over all widths."
    )
    if len(there) < FEWEST_RUNS:
        return _Found("inconclusive", evidence)
    if sum(one.exploded for one in there) / len(there) >= MOST:
        return _Found("holds", evidence)
    peaked = sum(one.peaked for one in there) / len(there)
    return _Found("in part" if peaked >= MOST else "does not hold", evidence)


def _exploded(some: Sequence[Descent]) -> str:
    ended, peaked = sum(one.exploded for one in some), sum(one.peaked for one in some)
    return f"{ended} of {len(some)} runs ended above {EXPLODED:g} or not finite and {peaked} were there at some step"


def _gain(plain: Sequence[Descent], centred: Sequence[Descent]) -> _Found:
    """The highest rates without growth: independent of the width with means subtracted, and higher than without."""
    with_, without = (_by_width(networks_of(some), _grew) for some in (centred, plain))
    gains = {
        width: statistics.median(with_[width]) / statistics.median(without[width])
        for width in sorted(with_.keys() & without.keys())
    }
    slopes = [_slope(some) for some in (with_, without)]
    listed = ", ".join(f"{gain:.3g} at {width}" for width, gain in gains.items())
    rates = [rate for some in with_.values() for rate in some]
    evidence = (
        f"Highest rate without growth of the loss: with means subtracted {_spread(rates)}, over M {slopes[0][1]}; "
        f"without, over M {slopes[1][1]}. Gain (ratio of medians): {listed or 'not bracketed'}."
    )
    holding = slopes[0][0] if gains else "inconclusive"
    if holding == "holds" and min(gains.values()) <= 1:
        return _Found("does not hold", evidence)
    return _Found(holding, evidence)


def _slope(by_width: Mapping[int, Sequence[float]]) -> tuple[Holding, str]:
    """Whether rates are nearer to independent of the width than to inversely proportional, and the exponent."""
    from flbench.theory.fits import exponent

    pairs = [(width, rate) for width, rates in by_width.items() for rate in rates]
    if len(by_width) < 2:
        return "inconclusive", "no exponent"
    found = exponent([width for width, _ in pairs], [rate for _, rate in pairs])
    return near(found, 0, slack=0.5), exponent_text(found, len(pairs))


def _line(centred: Sequence[Descent]) -> _Found:
    """Theory's line against what networks survived: the highest rate before any explosion."""
    ratios, to_measured = [], []
    for network in networks_of(centred):
        line, survived = line_of_theory(network.family, network.width), network.last_before(_ended_exploded)
        if line is not None:
            to_measured.append((network.width, line * network.lambda_max / 2))
            ratios += [line / survived] if survived else []
    listed = ", ".join(
        f"{statistics.median(ratio for _, ratio in same):.3g} at {same[0][0]}"
        for same in grouped(to_measured, lambda pair: pair[0])
    )
    evidence = (
        f"Line over the highest rate before an explosion: {_spread(ratios)}; line over 2 / lambda_max as measured, "
        f"by M: {listed}."
    )
    if len(ratios) < FEWEST_RUNS:
        return _Found("inconclusive", evidence)
    return _Found("holds" if 1 / FAIR <= statistics.median(ratios) <= FAIR else "does not hold", evidence)


def _just_above(some: Sequence[Descent]) -> list[Descent]:
    return [one for one in some if ABOVE[0] <= one.factor <= ABOVE[1]]


def _by_width(networks: Sequence[Network], lost: Callable[[Descent], bool]) -> dict[int, list[float]]:
    """The highest rate before the first that is lost, of each network where the rates tried bracket it."""
    found: dict[int, list[float]] = {}
    for network in networks:
        if rate := network.last_before(lost):
            found.setdefault(network.width, []).append(rate)
    return found


def _grew(one: Descent) -> bool:
    return one.grew


def _ended_exploded(one: Descent) -> bool:
    return one.exploded


def _spread(values: Sequence[float]) -> str:
    """Median and range."""
    if not values:
        return "not bracketed by the rates tried"
    return f"{statistics.median(values):.3g} ({spread(values)}, n={len(values)})"
