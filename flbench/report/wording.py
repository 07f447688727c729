"""Cells, numbers and gaps as text, the same in every format."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from flbench.choices import Measure
from flbench.metric_specs import METRICS, Metric
from flbench.report.cells import Cell
from flbench.report.measures import Speed
from flbench.report.planned import Planned
from flbench.report.stats import Contrast, Difference, Summary, summarize
from flbench.report.tables import Table
from flbench.report.ticks import Tick, axis_label, place_label
from flbench.report.trust import improves
from flbench.sweeps.layout import POINT, Layout

#: Mark of the best cell where it is not bold.
BEST = "*"

#: Mark of a cell that is not significantly worse than the best.
TIED = "≈"

#: Data sets, models and partitions in words, where sweep files name them otherwise.
IN_WORDS = {
    **{"cifar10": "CIFAR-10", "fashion_mnist": "Fashion-MNIST", "mnist": "MNIST"},
    **{"mlp": "MLP", "cnn": "CNN", "lenet": "LeNet"},
    **{f"classes:{n}": f"{word} classes" for n, word in ((2, "two"), (3, "three"), (5, "five"), (10, "ten"))},
    **{"classes:1": "one class", "iid": "no skew"},
}

#: What is shown where there is no value.
NONE = "–"


def in_words(label: str) -> str:
    """Return the places that a label names in words.

    >>> in_words("classes:1, E 10"), in_words("classes:1 minus iid"), in_words("dirichlet:0.1")
    ('one class, E 10', 'one class minus no skew', 'Dirichlet(0.1)')
    """
    parts = [IN_WORDS.get(part, part) for part in re.split("(, | minus )", label)]
    return re.sub(r"\bdirichlet:([\d.]+)", r"Dirichlet(\1)", "".join(parts))


def column_head(table: Table, col: Sequence[Tick]) -> str:
    """Return the lines above a column: its position on every axis, or the metric where it is the only column."""
    labels = [axis_label(axis, at) for axis, at in zip(table.col_axes, col, strict=True)]
    return "\n".join(labels or [METRICS[table.metric].title])


def column_name(table: Table, col: Sequence[Tick]) -> str:
    """Return the position of a column on every axis, on one line; a part of it is the title where a table is split."""
    return ", ".join(filter(None, [table.short_title, place_label(table.col_axes, col)]))


def row_labels(table: Table, r: int) -> list[str]:
    """Return the labels of a row; the first has the mark of methods without a shared model."""
    personal = any(cell.personal for (row, _), cell in table.cells.items() if row == r)
    return marked([at.label for at in table.rows[r]], personal=personal and table.ranked)


def marked(labels: Sequence[str], *, personal: bool) -> list[str]:
    """Return the labels of a row, the first one with a footnote mark where there is no shared model."""
    return [f"{label} ¹" if personal and i == 0 else label for i, label in enumerate(labels)]


def row_name(row: Sequence[Tick]) -> str:
    """Return the labels of a row as one name: ``fedavg none``."""
    return " ".join(at.label for at in row)


def contrast_text(contrast: Contrast, metric: str) -> tuple[str, str]:
    """Return ``+20.66 ± 3.10``, and the line below it, ``p 0.012, n=3``."""
    text, n = difference_text(contrast.difference, metric), contrast.difference.n
    if contrast.p is None:
        return text, f"n={n}, no test"
    return text, f"p {'<0.001' if contrast.p < 0.001 else f'{contrast.p:.2g}'}, n={n}"


def planned_text(one: Planned, metric: str) -> tuple[str, str]:
    """Return the effect of a planned comparison, as in ``+20.66 ± 3.10`` or ``0.40 × the rounds``, and its p and n."""
    text, below = contrast_text(one.contrast, metric)
    if one.pair.measure == "easy":
        return f"{one.effect:+z.2f} decades", below
    if one.pair.measure == "far":
        return text, below
    if one.effect == 0 or math.isinf(one.effect):
        return f"{'only' if one.effect == 0 else 'not'} {one.value} gets there", below
    return f"{one.effect:.2g} × the rounds", below


#: What more and less of a measure are called.
WORDS: Mapping[Measure, Mapping[str, str]] = {
    "far": {},
    "fast": {"more": "slower", "less": "faster"},
    "easy": {"more": "easier", "less": "harder"},
}


def difference_text(found: Difference, metric: str) -> str:
    """Return ``+20.66 ± 3.10``."""
    return METRICS[metric].change(found.mean) + width_text(found.half_width, metric)


def width_text(half_width: float | None, metric: str) -> str:
    """Return `` ± 1.05``, what follows a mean; empty where it has no interval."""
    return "" if half_width is None else f" ± {METRICS[metric].text(half_width)}"


def last_text(last: Difference | None, metric: str) -> list[str]:
    """Return ``last +15.20 ± 2.90`` beside a difference of means over several evaluations."""
    return [] if last is None else [f"last {difference_text(last, metric)}"]


def margin_text(margin: float, metric: Metric) -> str:
    """Return ``1 point``, ``0.5 points``, or the number alone for a metric that is no percentage."""
    if not metric.percent:
        return f"{margin:g}"
    return f"{100 * margin:g} {'point' if margin == POINT else 'points'}"


def tied_text(margin: float, metric: Metric) -> str:
    """Return what the mark of a tied cell means."""
    return f"shown to be less than {margin_text(margin, metric)} worse than the best of its column"


def margins_text(layouts: Iterable[Layout]) -> str:
    """Return ``1 point``, or the margins of several layouts."""
    return " or ".join(dict.fromkeys(margin_text(one.tie_margin, METRICS[one.metric]) for one in layouts))


def checked_text(verdict: str, but: Sequence[str]) -> str:
    """Return a verdict with the checks that it does not pass: ``more, but rising, within the grid``."""
    return f"{verdict}, but {', '.join(but)}" if but else verdict


def slope_text(rise: Summary | None, metric: str) -> str:
    """Return ``+1.20 ± 0.40``, a slope per doubling of rounds; empty where it has no interval."""
    if rise is None or rise.half_width is None:
        return ""
    return METRICS[metric].change(rise.mean) + width_text(rise.half_width, metric)


def verdict_text(one: Planned, layout: Layout) -> str:
    """Return ``more``, ``less``, ``equivalent within 1 point``, both, or ``open``; of rounds ``slower``, ``faster``."""
    verdict = one.contrast.verdict
    within = f"equivalent within {margin_text(layout.tie_margin, METRICS[layout.metric])}"
    return WORDS[one.pair.measure].get(verdict, verdict.replace("equivalent", within))


def reached_text(speed: Speed) -> str:
    """Return ``2/3 seeds``: how many reach the level."""
    return f"{speed.n}/{speed.requested} seeds"


def bytes_text(count: float) -> str:
    """Return ``141.3 MB``, in powers of 1000, with a no-break space."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:.{0 if unit == 'B' else 1}f}\N{NO-BREAK SPACE}{unit}"
        count /= 1000
    raise AssertionError


def lines_below(cell: Cell) -> list[str]:
    """Return the lines below a cell's mean: spread and number of seeds, gaps, how its settings were chosen."""
    metric, summary, below = METRICS[cell.metric], cell.summary, []
    if summary:
        spread = "" if summary.sd is None else f"sd {metric.text(summary.sd)}, "
        below.append(f"{spread}n={summary.n}{', no interval' if summary.half_width is None else ''}")
    if not cell.complete:
        below.append(gap_text(cell))
    below += [*code_text(cell), *tail_text(cell), *rising_text(cell)]
    if cell.collapsed:
        worst = metric.text(min(cell.values))
        below.append(f"{len(cell.collapsed)}/{len(cell.values)} collapsed, worst {worst}")
    return [*below, *filter(None, [cell.chosen])]


def code_text(cell: Cell) -> list[str]:
    """Return ``1/3 with other code of a plug-in``: how many results were computed before a plug-in changed."""
    changed = sum(bool(run.changed_plugins) for run in cell.runs)
    return [f"{changed}/{cell.requested} with other code of a plug-in"] if changed else []


def tail_text(cell: Cell) -> list[str]:
    """Return ``last 97.10`` beside a mean over the last evaluations, and how many seeds have too few of them."""
    last = summarize(list(cell.last_by_seed.values()))
    if last is None:
        return []
    short = sum(run.record is not None and run.last is None for run in cell.runs)
    return [f"last {METRICS[cell.metric].text(last.mean)}", *([f"{short} with the last alone"] if short else [])]


def rising_text(cell: Cell) -> list[str]:
    """Return ``rising, after 100 rounds`` for a cell that still improves."""
    if not improves(cell.rise, cell.metric):
        return []
    how = "falling" if METRICS[cell.metric].lower_is_better else "rising"
    return [f"{how}, after {cell.rounds:,} rounds"]


def mean_text(cell: Cell) -> str:
    """Return ``97.26 ± 1.05``, mean and half-width of its interval; empty where there is no value."""
    if cell.summary is None:
        return ""
    return METRICS[cell.metric].text(cell.summary.mean) + width_text(cell.half_width, cell.metric)


def gap_text(cell: Cell) -> str:
    """Return ``not run``, ``2/3 diverged``, ``dropped at round 10`` or ``2/3: 1 failed (oom)``."""
    if cell.gaps == {"pending": cell.requested}:
        return "not run"
    if cell.gaps.keys() == {"diverged"}:
        return f"{cell.gaps['diverged']}/{cell.requested} diverged"
    if len(cell.gaps) == 1 and cell.dropped is not None:
        return next(iter(cell.gaps))
    return f"{len(cell.values)}/{cell.requested}: {listing(cell.gaps)}"


def listing(counts: Mapping[str, int]) -> str:
    """Return ``1 diverged, 2 pending``."""
    return ", ".join(f"{count} {what}" for what, count in counts.items())
