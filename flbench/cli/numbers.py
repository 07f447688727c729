"""Numbers as people read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flbench.metric_specs import METRICS

if TYPE_CHECKING:
    from flbench.bench.timing import Spread


def percent(accuracy: float | None) -> str:
    """Return an accuracy as ``91.2 %``; a dash if there is none yet."""
    return "–" if accuracy is None else f"{100 * accuracy:.1f} %"


def value(metric: str, number: float | None) -> str:
    """Return a recorded number as ``91.2 %`` or ``36.62``; a dash if there is none yet."""
    if number is None or METRICS[metric].percent:
        return percent(number)
    return METRICS[metric].text(number)


def measured(name: str, number: float) -> str:
    """Return a recorded number with its unit: ``91.23 %``, ``3.4 MB``, ``4.2 s``; a plain number has none."""
    if name.startswith("bytes_"):
        return file_size(number)
    if name == "seconds":
        return duration(number)
    known = METRICS.get(name)
    if known is not None and known.percent:
        return f"{known.text(number)} %"
    return f"{number:.4g}" if isinstance(number, float) else str(number)


def named(metric: str, number: float | None) -> str:
    """Return a recorded number with its name, which accuracy does without: ``91.2 %``, ``lambda_max 36.62``."""
    return value(metric, number) if metric == "acc" else f"{metric} {value(metric, number)}"


def duration(seconds: float) -> str:
    """Return seconds as ``4.2 s``, ``3:07``, ``2:15:00`` or ``3 d 2:15:00``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    clock = f"{hours}:{minutes:02d}:{rest:02d}" if hours or days else f"{minutes}:{rest:02d}"
    return f"{days} d {clock}" if days else clock


def pace(rounds_per_second: float) -> str:
    """Return a speed in the unit that makes it a handy number: ``20 rounds/s``, ``3.5 rounds/min``, ``12 rounds/h``."""
    units = (("s", 1), ("min", 60), ("h", 3600))
    unit, seconds = next((unit for unit in units if rounds_per_second * unit[1] >= 1), units[-1])
    return f"{handy(rounds_per_second * seconds)} rounds/{unit}"


def handy(number: float) -> str:
    """Return about three digits: ``0.0123``, ``3.14``, ``1,235``, ``1.2e+12``."""
    return f"{number:,.0f}" if 100 <= number < 1e9 else f"{number:.3g}"


def file_size(size: float) -> str:
    """Return bytes as ``512 B`` or ``3.4 MB``, in powers of 1000, as reports do."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def spread_text(spread: Spread) -> str:
    """Return a measurement as ``2.5 (1 to 4)``: the median, with minimum and maximum."""
    median, low, high = map(handy, (spread.median, spread.min, spread.max))
    return f"{median} ({low} to {high})"
