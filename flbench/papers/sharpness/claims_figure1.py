"""What draws of random networks say of the sharpness paper's theorems."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from flbench.papers.sharpness.draws import Line, Point
from flbench.report.claims import Claim, Holding

if TYPE_CHECKING:
    from flbench.theory.fits import Exponent

#: Widths and draws of each that a verdict needs.
FEWEST_WIDTHS, FEWEST_DRAWS = 3, 3

#: An exponent whose whole interval is this close to 0 is flat, to 1 linear; corrections of order 1/M bend both. One
#: whose interval is nearer to 1 than to 0 grows.
SLACK = 0.25
HALFWAY = 0.5

#: How far a mean at the widest may lie from the value of theory.
TOLERANCE = 0.1

#: Share of the draws that must lie within bounds that hold for wide networks.
MOST = 0.9

#: Theorem 4.1's constants have heavy tails below this number of outputs.
ENOUGH_OUTPUTS = 8

Part = tuple[Holding, str]


def claims(lines: Sequence[Line]) -> tuple[Claim, ...]:
    """The theorems, in the paper's order."""
    single = [line for line in lines if line.family.samples is None and line.family.outputs == 1]
    many = [line for line in lines if line.family.samples is None and line.family.outputs >= ENOUGH_OUTPUTS]
    non_negative = [line for line in _of(single, "bn-middle") if line.points[0].predicted]
    controls = [line for line in _of(single, "bn-middle") if not line.points[0].predicted]
    return (
        _claim(
            "Without normalization lambda_max grows in proportion to the width, as alpha kappa_2 M.",
            "theorem 2.2",
            _of(single, "none"),
            _follows,
        ),
        _claim(
            "Subtracting the outputs' means makes lambda_max independent of the width (T = M).",
            "theorem 3.3",
            _of(single, "mean-last"),
            _is_flat,
        ),
        _claim(
            "Batch normalization of the outputs makes it independent of the width, too.",
            "eq. 19",
            _of(single, "bn-last"),
            _is_flat,
        ),
        _claim(
            "Batch normalization in the middle layers does not: it stays of the order of the width where activations "
            "are not negative.",
            "theorem 3.4",
            non_negative,
            _grows_above,
            "".join(f" Outside the theorem: {_trend(line)}." for line in controls),
        ),
        _claim(
            "Layer normalization in all layers does not: it stays of the order of the width.",
            "theorem 4.1",
            _of(many, "ln-all"),
            _grows_between,
        ),
    )


def _of(lines: Sequence[Line], normalized: str) -> list[Line]:
    return [line for line in lines if line.family.normalized == normalized]


def _claim(text: str, source: str, lines: Sequence[Line], judge: Callable[[Line], Part], more: str = "") -> Claim:
    parts = [_judged(line, judge) for line in lines]
    evidence = " ".join(f"{line.family.label}: {said}." for line, (_, said) in zip(lines, parts, strict=True))
    return Claim(text, source, together([holding for holding, _ in parts]), evidence + more)


def _judged(line: Line, judge: Callable[[Line], Part]) -> Part:
    """A verdict from the widths with draws enough, where they are enough."""
    full = tuple(point for point in line.points if len(point.values) >= FEWEST_DRAWS)
    if len(full) >= FEWEST_WIDTHS:
        return judge(Line(line.family, full))
    said = f"{len(full)} widths with {FEWEST_DRAWS} draws or more; a verdict needs {FEWEST_WIDTHS} of them"
    return "inconclusive", said


def together(parts: Sequence[Holding]) -> Holding:
    """A verdict on several settings from one on each."""
    if not parts:
        return "not run"
    if len(set(parts)) == 1:
        return parts[0]
    if "holds" in parts or "in part" in parts:
        return "in part"
    return "inconclusive"


def _follows(line: Line) -> Part:
    """Theorem 2.2: a value at every width, and a slope."""
    widest = line.points[-1]
    ratios = [(point.width, point.ratio or 0.0) for point in line.points]
    half = (widest.summary.half_width or 0.0) / _value(widest)
    # Within the tolerance, or not told apart from theory by these draws.
    close = abs(ratios[-1][1] - 1) <= max(TOLERANCE, half)
    listed = ", ".join(f"{ratio:.2f} at {width}" for width, ratio in ratios)
    said = f"measured/theory {listed}; {_mean(widest)} against {short(_value(widest))}; {_exponent(line)}"
    return ("does not hold" if not close else near(line.exponent, 1)), said


def _is_flat(line: Line) -> Part:
    """Theorem 3.3 and eq. 19: no slope, between bounds."""
    widest = line.points[-1]
    over = f", {widest.ratio:.1f} times the lower bound" if widest.ratio else ""
    said = f"{_exponent(line)}; {_median(widest)}{over}; {_admitted(line)}"
    return _within_bounds(line, near(line.exponent, 0)), said


def _grows_above(line: Line) -> Part:
    """Theorem 3.4: linear, above a bound."""
    excess = [
        value - (point.predicted.lower or 0) for point in line.points if point.predicted for value in point.values
    ]
    said = f"{_exponent(line)}; {_median(line.points[-1])}; {_admitted(line)} (by {spread(excess)})"
    return _within_bounds(line, grows(line.exponent)), said


def _grows_between(line: Line) -> Part:
    """Theorem 4.1: linear, between bounds; beside it the mean-field value, which is not the paper's."""
    known = [point for point in line.points if point.predicted and point.predicted.value]
    ratios = ", ".join(f"{point.ratio:.2f} at {point.width}" for point in known)
    field = f"; measured/mean field {ratios}" if ratios else ""
    said = f"C = {line.family.outputs}, {_exponent(line)}; {_median(line.points[-1])}; {_admitted(line)}{field}"
    return _within_bounds(line, grows(line.exponent)), said


def _within_bounds(line: Line, slope: Holding) -> Holding:
    """A verdict on a slope as one on slope and bounds: nearly all draws must lie within those."""
    if any(not point.predictions for point in line.points):
        return "does not hold" if slope == "does not hold" else "inconclusive"
    return slope if sum(point.admitted for point in line.points) / line.draws >= MOST else "does not hold"


def near(found: Exponent | None, wanted: float, slack: float = SLACK) -> Holding:
    """Whether an exponent is what was claimed: its interval within the slack, across its edge, or outside."""
    if found is None or found.low is None or found.high is None:
        return "inconclusive"
    if wanted - slack <= found.low and found.high <= wanted + slack:
        return "holds"
    outside = found.high < wanted - slack or wanted + slack < found.low
    return "does not hold" if outside else "inconclusive"


def grows(found: Exponent | None) -> Holding:
    """Whether an exponent is nearer to 1 than to 0, with its whole interval."""
    if found is None or found.low is None or found.high is None:
        return "inconclusive"
    return "holds" if found.low > HALFWAY else "does not hold" if found.high < HALFWAY else "inconclusive"


def _value(point: Point) -> float:
    assert point.predicted is not None
    assert point.predicted.value is not None
    return point.predicted.value


def exponent_text(found: Exponent | None, n: int) -> str:
    """``exponent 0.97 [0.95, 0.99], n=80``."""
    if found is None:
        return "no exponent"
    known = found.low is not None and found.high is not None
    interval = f" [{two(found.low or 0.0)}, {two(found.high or 0.0)}]" if known else ""
    return f"exponent {two(found.value)}{interval}, n={n}"


def two(value: float) -> str:
    """Two decimals, and no minus before nothing."""
    return f"{round(value, 2) + 0.0:.2f}"


def _exponent(line: Line) -> str:
    return exponent_text(line.exponent, line.draws)


def _mean(point: Point) -> str:
    sd = "" if point.summary.sd is None else f"sd {short(point.summary.sd)}, "
    return f"mean {short(point.summary.mean)} ({sd}n={point.summary.n}) at M = {point.width}"


def _median(point: Point) -> str:
    return f"median {short(point.median)} ({spread(point.values)}, n={len(point.values)}) at M = {point.width}"


def _admitted(line: Line) -> str:
    return f"within bounds in {sum(point.admitted for point in line.points)} of {line.draws} draws"


def _trend(line: Line) -> str:
    return f"{line.family.label}, {_exponent(line)}, {_median(line.points[-1])}"


def spread(values: Sequence[float]) -> str:
    """``8.1 to 9.4``."""
    return f"{short(min(values))} to {short(max(values))}"


def short(value: float) -> str:
    """Three digits, or all of them before the point."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
