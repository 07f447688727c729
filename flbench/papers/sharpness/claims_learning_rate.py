"""Figure 2 of the sharpness paper: which learning rates gradient descent survives."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from flbench.papers.evidence import Finding, claim, range_text
from flbench.papers.sharpness.training import CONVERGED, EXPLODED, GROWN, Descent, Network, networks_of, predicted_rate
from flbench.report.cells import grouped
from flbench.report.claims import Claim
from flbench.report.stats import LEVEL

#: Networks that a verdict needs.
FEWEST = 5

#: Share of the networks that must do what a claim says.
MOST = 0.9

#: Just above a line, in its units: runs far above it do not show where it is.
ABOVE = (1.25, 4.0)

#: Narrower networks than this are not wide: figure 2 shows explosions only of wide ones.
WIDE = 800


def claims(descents: Sequence[Descent]) -> tuple[Claim, ...]:
    """Return the claims of figure 2, left and right."""
    plain = [one for one in descents if one.family.normalized == "none"]
    centred = [one for one in descents if one.family.normalized == "mean-last"]
    judged: tuple[tuple[str, str, Callable[..., Finding], list[Sequence[Descent]]], ...] = (
        ("Above 2 / lambda_max of a network at initialization, losses grow.", "eq. 23", _onset, [plain]),
        ("Above 2 / lambda_max, losses of wide networks explode.", "figure 2, left", _explosion, [plain]),
        (
            "With the outputs' means subtracted, larger learning rates converge, whatever the width.",
            "figure 2, right",
            _gain,
            [plain, centred],
        ),
        (
            "With subtracted means, no training survives above the line 2 / (rho alpha (kappa_1 - kappa_2)).",
            "figure 2, right",
            _line,
            [centred],
        ),
    )
    return tuple(claim(text, source, [judge(*runs)] if all(runs) else []) for text, source, judge, runs in judged)


def _onset(plain: Sequence[Descent]) -> Finding:
    """Of every network (the unit): no run grows below its own line, every run grows just above it."""
    below, above = networks_of([one for one in plain if one.factor < 1]), _just_above(plain)
    grew_below, grew_above = _at_some_rate(below, lambda run: run.grew), _at_every_rate(above, lambda run: run.grew)
    brackets = [(one, bracket) for one in networks_of(plain) if (bracket := one.bracket(lambda run: run.grew))]
    onsets = [statistics.geometric_mean(bracket) * one.lambda_max / 2 for one, bracket in brackets]
    evidence = (
        f"Loss above {GROWN:g} of its first value at some rate below the line of their own network in {grew_below} of "
        f"{len(below)} networks, and at every rate of {ABOVE[0]:g} to {ABOVE[1]:g} times it in {grew_above} of "
        f"{len(above)}; onset over line: {_median(onsets)}."
    )
    if min(len(below), len(above)) < FEWEST:
        return None, evidence
    right = [1 - grew_below / len(below) >= MOST, grew_above / len(above) >= MOST]
    return "holds" if all(right) else "in part" if any(right) else "does not hold", evidence


def _explosion(plain: Sequence[Descent]) -> Finding:
    """Of wide networks (the unit): whether the loss just above the line explodes at some step, at every rate or any."""
    above = _just_above(plain)
    counts = [
        (_at_every_rate(same, lambda run: run.peaked), _at_some_rate(same, lambda run: run.peaked), same)
        for same in grouped(above, lambda network: network.width)
    ]
    listed = ", ".join(f"{every} ({some}) of {len(same)} at {same[0].width}" for every, some, same in counts)
    ended = _at_some_rate(above, lambda run: run.exploded)
    evidence = (
        f"Networks whose loss was above {EXPLODED:g} or not finite at some step, at every rate (at some rate) of "
        f"{ABOVE[0]:g} to {ABOVE[1]:g} times their own line, by M: {listed or 'none'}. At the end: {ended} of "
        f"{len(above)}."
    )
    wide = [network for network in above if network.width >= WIDE]
    if not wide:
        return None, f"{evidence} None has M = {WIDE} or more."
    if len(wide) < FEWEST:
        return None, evidence
    every, some = (count(wide, lambda run: run.peaked) / len(wide) for count in (_at_every_rate, _at_some_rate))
    if every >= MOST:
        return "holds", evidence
    return "in part" if some > 1 - MOST else "does not hold", evidence


def _gain(plain: Sequence[Descent], centred: Sequence[Descent]) -> Finding:
    """The highest rates that converge, by width: every network with subtracted means above every one without."""
    subtracted, without = _highest_by_width(centred), _highest_by_width(plain)
    widths = sorted(subtracted.keys() & without.keys())
    gains = {width: statistics.median(subtracted[width]) / statistics.median(without[width]) for width in widths}
    listed = ", ".join(f"{gain:.3g} at {width}" for width, gain in gains.items())
    # The exact rank test: if subtraction changed nothing, n of k + n networks would be the highest in one of
    # comb(k + n, n) cases at each width. A width whose median is not higher refutes the claim.
    chance = math.prod(1 / math.comb(len(subtracted[m]) + len(without[m]), len(without[m])) for m in widths)
    evidence = (
        f"Highest rate after which the last loss is below {100 * CONVERGED:g} % of the first: with means subtracted "
        f"{_median([rate for m in widths for rate in subtracted[m]])}, without "
        f"{_median([rate for m in widths for rate in without[m]])}. Gain (ratio of medians) by M: {listed or 'none'}."
    )
    if any(gain <= 1 for gain in gains.values()):
        return False, evidence
    are_apart = all(min(subtracted[width]) > max(without[width]) for width in widths)
    return True if widths and are_apart and chance < LEVEL else None, evidence


def _line(centred: Sequence[Descent]) -> Finding:
    """The line is of a lower bound of lambda_max: no network (the unit) should survive above, some may fail below."""
    lines = {one: line for one in networks_of(centred) if (line := predicted_rate(one.family, one.width)) is not None}
    above = networks_of([run for one, line in lines.items() for run in one.descents if run.lr > line])
    survivors = _at_some_rate(above, lambda run: not run.exploded)
    beyond = [run for one in above for run in one.descents]
    to_measured = [(one.width, line * one.lambda_max / 2) for one, line in lines.items()]
    listed = ", ".join(
        f"{statistics.median(ratio for _, ratio in same):.3g} at {same[0][0]}"
        for same in grouped(to_measured, lambda pair: pair[0])
    )
    evidence = (
        f"{sum(not run.exploded for run in beyond)} of {len(beyond)} runs above the line survived, in {survivors} of "
        f"{len(above)} networks; line over 2 / lambda_max as measured, by M: {listed}."
    )
    return None if len(above) < FEWEST else survivors / len(above) <= 1 - MOST, evidence


def _just_above(some: Sequence[Descent]) -> tuple[Network, ...]:
    """The networks that were tried just above their own line, each with its runs there."""
    return networks_of([one for one in some if ABOVE[0] <= one.factor <= ABOVE[1]])


def _at_every_rate(networks: Sequence[Network], did: Callable[[Descent], bool]) -> int:
    """The number of networks of which every run did it."""
    return sum(all(map(did, network.descents)) for network in networks)


def _at_some_rate(networks: Sequence[Network], did: Callable[[Descent], bool]) -> int:
    """The number of networks of which some run did it."""
    return sum(any(map(did, network.descents)) for network in networks)


def _highest_by_width(descents: Sequence[Descent]) -> dict[int, list[float]]:
    """The highest rate of each network that converged; networks that converged at none are left out."""
    found: dict[int, list[float]] = {}
    for network in networks_of(descents):
        if rate := network.highest_converged:
            found.setdefault(network.width, []).append(rate)
    return found


def _median(values: Sequence[float]) -> str:
    """Median and range."""
    if not values:
        return "not bracketed by the rates tried"
    return f"{statistics.median(values):.3g} ({range_text(values)}, n={len(values)})"
