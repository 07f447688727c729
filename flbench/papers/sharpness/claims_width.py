"""The sharpness paper's theorems: lambda_max of random networks over their width (figure 1)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

from flbench.papers.evidence import Exponent, Finding, claim, fit_text, range_text, three_digits
from flbench.papers.sharpness.networks import Curve, Family, Point
from flbench.report.claims import Claim, Verdict

#: Widths, and draws at each, that a verdict needs.
FEWEST_WIDTHS, FEWEST_DRAWS = 3, 3

#: An exponent whose whole interval is this close to 0 is flat, to 1 linear; corrections of order 1/M bend both. An
#: exponent whose whole interval is above ``HALFWAY`` grows.
SLACK, HALFWAY = 0.25, 0.5

#: Largest relative difference between the mean at the largest width, with its interval, and the value of theory.
TOLERANCE = 0.1

#: Share of the draws that must be within bounds that hold for wide networks.
MOST = 0.9

#: Theorem 4.1's constants have heavy tails below this number of outputs.
ENOUGH_OUTPUTS = 8


def claims(curves: Sequence[Curve]) -> tuple[Claim, ...]:
    """Return the theorems, in the paper's order."""
    found = []
    for text, source, normalized, judge in _THEOREMS:
        findings: list[Finding] = []
        outside = ""
        for curve in (one for one in curves if _is_about(one.family, normalized)):
            full = tuple(point for point in curve.points if len(point.values) >= FEWEST_DRAWS)
            if normalized == "bn-middle" and not curve.points[0].predicted:
                # Theorem 3.4 is about activations that are not negative: the others are controls without a bound.
                slope = fit_text(curve.exponent, curve.draws)
                outside += f" Outside the theorem: {curve.family.label}, {slope}, {_median(curve.points[-1])}."
            elif len(full) >= FEWEST_WIDTHS:
                verdict, evidence = judge(Curve(curve.family, full))
                findings.append((verdict, f"{curve.family.label}: {evidence}."))
            else:
                lack = f"{len(full)} widths with {FEWEST_DRAWS} draws or more; a verdict needs {FEWEST_WIDTHS} of them"
                findings.append(("inconclusive", f"{curve.family.label}: {lack}."))
        one = claim(text, source, findings, separator=" ")
        found.append(replace(one, evidence=one.evidence + outside))
    return tuple(found)


def _is_about(family: Family, normalized: str) -> bool:
    """Whether a theorem on a normalization is about a family: T = M, one output, many for theorem 4.1."""
    is_enough = family.outputs >= ENOUGH_OUTPUTS if normalized == "ln-all" else family.outputs == 1
    return family.normalized == normalized and family.samples is None and is_enough


def _follows_theory(curve: Curve) -> tuple[Verdict, str]:
    """Theorem 2.2: the value at the largest width, and a slope of 1."""
    widest = curve.points[-1]
    assert widest.predicted is not None and widest.predicted.value is not None
    theory = widest.predicted.value
    ratios = [(point.width, point.ratio or 0.0) for point in curve.points]
    value = _within(widest.summary.mean / theory - 1, (widest.summary.half_width or 0.0) / theory, TOLERANCE)
    listed = ", ".join(f"{ratio:.2f} at {width}" for width, ratio in ratios)
    sd = "" if widest.summary.sd is None else f"sd {three_digits(widest.summary.sd)}, "
    mean = f"mean {three_digits(widest.summary.mean)} ({sd}n={widest.summary.n}) at M = {widest.width}"
    slope = fit_text(curve.exponent, curve.draws)
    evidence = f"measured/theory {listed}; {mean} against {three_digits(theory)}; {slope}"
    return max(value, near(curve.exponent, 1), key=("holds", "inconclusive", "does not hold").index), evidence


def _is_flat(curve: Curve) -> tuple[Verdict, str]:
    """Theorem 3.3 and eq. 19: no slope, within bounds."""
    ratio = curve.points[-1].ratio
    return _bounded(curve, near(curve.exponent, 0), f", {ratio:.1f} times the lower bound" if ratio else "")


def _grows_above_bound(curve: Curve) -> tuple[Verdict, str]:
    """Theorem 3.4: linear, above a bound."""
    excess = [
        value - (point.predicted.lower or 0) for point in curve.points if point.predicted for value in point.values
    ]
    return _bounded(curve, grows(curve.exponent), more=f" (by {range_text(excess)})")


def _grows_between_bounds(curve: Curve) -> tuple[Verdict, str]:
    """Theorem 4.1: linear, between bounds; beside it the mean-field value, which is not the paper's."""
    known = [point for point in curve.points if point.predicted and point.predicted.value]
    ratios = ", ".join(f"{point.ratio:.2f} at {point.width}" for point in known)
    field = f"; measured/mean field {ratios}" if ratios else ""
    verdict, evidence = _bounded(curve, grows(curve.exponent), more=field)
    return verdict, f"C = {curve.family.outputs}, {evidence}"


def _bounded(curve: Curve, slope: Verdict, of_widest: str = "", more: str = "") -> tuple[Verdict, str]:
    """Return the verdict on slope and bounds, and the evidence: nearly all draws must be within the bounds."""
    admitted = sum(point.admitted for point in curve.points)
    evidence = (
        f"{fit_text(curve.exponent, curve.draws)}; {_median(curve.points[-1])}{of_widest}; "
        f"within bounds in {admitted} of {curve.draws} draws{more}"
    )
    if any(not point.predictions for point in curve.points):
        return "does not hold" if slope == "does not hold" else "inconclusive", evidence
    return slope if admitted / curve.draws >= MOST else "does not hold", evidence


def near(found: Exponent | None, claimed: float, slack: float = SLACK) -> Verdict:
    """Judge an exponent: its whole interval is within the slack of the claimed one, across its edge, or outside."""
    if found is None or found.low is None or found.high is None:
        return "inconclusive"
    return _within((found.low + found.high) / 2 - claimed, (found.high - found.low) / 2, slack)


def _within(deviation: float, half_width: float, slack: float) -> Verdict:
    """Judge a deviation from theory: its whole interval is within the slack of 0, across its edge, or outside."""
    if abs(deviation) + half_width <= slack:
        return "holds"
    return "does not hold" if abs(deviation) - half_width > slack else "inconclusive"


def grows(found: Exponent | None) -> Verdict:
    """Judge whether an exponent is nearer to 1 than to 0, with its whole interval."""
    if found is None or found.low is None or found.high is None:
        return "inconclusive"
    return "holds" if found.low > HALFWAY else "does not hold" if found.high < HALFWAY else "inconclusive"


def _median(point: Point) -> str:
    median, draws = three_digits(statistics.median(point.values)), len(point.values)
    return f"median {median} ({range_text(point.values)}, n={draws}) at M = {point.width}"


#: The theorems, each with its source, the normalization that it is about and what judges a family of networks.
_THEOREMS: tuple[tuple[str, str, str, Callable[[Curve], tuple[Verdict, str]]], ...] = (
    (
        "Without normalization lambda_max grows in proportion to the width, as alpha kappa_2 M.",
        "theorem 2.2",
        "none",
        _follows_theory,
    ),
    (
        "Subtracting the outputs' means makes lambda_max independent of the width (T = M).",
        "theorem 3.3",
        "mean-last",
        _is_flat,
    ),
    ("Batch normalization of the outputs makes it independent of the width, too.", "eq. 19", "bn-last", _is_flat),
    (
        "Batch normalization in the middle layers does not: it stays of the order of the width where activations "
        "are not negative.",
        "theorem 3.4",
        "bn-middle",
        _grows_above_bound,
    ),
    (
        "Layer normalization in all layers does not: it stays of the order of the width.",
        "theorem 4.1",
        "ln-all",
        _grows_between_bounds,
    ),
)
