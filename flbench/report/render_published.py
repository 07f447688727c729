"""Published numbers beside ours, as Markdown, as one line for a terminal, and as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flbench.registry import format_scalar
from flbench.report.cells import METRICS, Cell
from flbench.report.published import Configuration, remarks
from flbench.report.verdicts import Comparison, Order, Published

#: Settings that head a column where they differ between the rows of a section.
_SETTINGS: Mapping[str, str] = {
    "partition": "partition",
    "clients": "clients",
    "local_steps": "E",
    "bias": "bias",
    "lr": "lr",
    "batch_size": "batch_size",
}


def markdown(published: Published) -> list[str]:
    """The section as blocks of Markdown."""
    blocks = ["## Published numbers", _introduction(published)]
    places = dict.fromkeys(one.row.configuration.place for one in published.comparisons)
    for place in places:
        blocks += _place(published, place)
    return blocks


def summary(published: Published) -> str:
    """How many numbers have which verdict: ``reproduced 3, differs 1``."""
    return ", ".join(f"{verdict} {count}" for verdict, count in published.counts.items())


def plain(published: Published) -> dict[str, Any]:
    """The section as data: one object a published number and cell of ours, values in percent."""
    return {
        "tolerance": published.tolerance,
        "counts": dict(published.counts),
        "rows": [_plain_row(one) for one in published.comparisons],
        "orders": [
            {"table": one.table, **_plain_column(one.column), "rounds": one.rounds, "n": one.n, "tau": one.tau}
            for one in published.orders
        ],
    }


def _introduction(published: Published) -> str:
    points = f"{published.tolerance:g} {'point' if published.tolerance == 1 else 'points'}"
    return (
        "Accuracy in percent as published by Zhang et al. 2024 (arXiv 2308.09565v2) and ours: the mean over seeds of "
        "the simple mean over clients on their own test shards. Published numbers are single runs unless they have a "
        "standard deviation.\n"
        f"*reproduced*: the difference (ours less published) and the half-width of our 95 % interval are both at most "
        f"{points}; *differs*: the difference exceeds that by more than the half-width; else *inconclusive* (one seed "
        "has no interval); *shorter*: ours ran fewer rounds; *not comparable*: on other data.\n"
        f"{sum(published.counts.values())} published numbers: {summary(published)}."
    )


def _place(published: Published, place: tuple[str, str]) -> list[str]:
    """One data set and model: the numbers, what to know of them, and the order of the methods."""
    everything = [one for one in published.comparisons if one.row.configuration.place == place]
    shown = [one for one in everything if published.everything or one.cell is not None]
    blocks = [f"### {', '.join(place)}: published"]
    if hidden := len({id(one.row) for one in everything}) - len({id(one.row) for one in shown}):
        blocks.append(
            f"{hidden} of {len({id(one.row) for one in everything})} published numbers were not asked for; "
            "`flbench report --published` lists them."
        )
    if not shown:
        return blocks
    settings = [name for name in _SETTINGS if len({getattr(one.row.configuration, name) for one in shown}) > 1]
    same = [name for name in _SETTINGS if name not in settings]
    blocks.append(f"Everywhere: {', '.join(_setting(shown[0].row.configuration, name) for name in same)}.")
    blocks.append(_table(shown, settings))
    if notes := _remarks(shown):
        blocks.append("\n".join(f"- {note}" for note in notes))
    if orders := [one for one in published.orders if one.column.place == place]:
        blocks.append(
            "Whether the order of the methods is the paper's, column by column: Kendall's tau-b over n methods "
            "(1: the same order, -1: the opposite one)."
        )
        blocks.append(_order_table(orders, settings))
    return blocks


def _table(comparisons: Sequence[Comparison], settings: Sequence[str]) -> str:
    head = ["published as", "table", "ours", *(_SETTINGS[name] for name in settings)]
    numbers = ["published", "mean", "rounds", "difference", "verdict"]
    lines = [[*head, *numbers], [*("---" for _ in head), "---:", "---:", "---:", "---:", "---"]]
    lines += [_row(same, settings) for same in _merged(comparisons)]
    return "\n".join(_line(line) for line in lines)


def _line(words: Sequence[str]) -> str:
    return "| " + " | ".join(word.replace("|", "\\|") for word in words) + " |"


def _merged(comparisons: Sequence[Comparison]) -> list[list[Comparison]]:
    """Comparisons that say the same of one cell together: a number may be published in several tables.

    Configurations come in the order of the paper, the numbers of one configuration together.
    """
    first: dict[Configuration, int] = {}
    for one in comparisons:
        first.setdefault(one.row.configuration, len(first))
    merged: dict[tuple[Any, ...], list[Comparison]] = {}
    for one in comparisons:
        row = one.row
        merged.setdefault((first[row.configuration], row.text, row.sd, row.seeds, id(one.cell)), []).append(one)
    return sorted(merged.values(), key=lambda same: first[same[0].row.configuration])


def _row(same: Sequence[Comparison], settings: Sequence[str]) -> list[str]:
    one = same[0]
    row, configuration = one.row, one.row.configuration
    difference = one.difference
    return [
        " / ".join(dict.fromkeys(other.row.label for other in same)),
        ", ".join(dict.fromkeys(other.row.table for other in same)),
        _ours(one.cell, configuration),
        *(format_scalar(getattr(configuration, name)) for name in settings),
        f"{row.text} ± {row.sd}" if row.sd else row.text,
        _mean(one.cell),
        f"{one.cell.runs[0].rounds:,}" if one.cell else "–",
        "–" if difference is None else f"{difference:+.2f}",
        f"{one.verdict} ({one.why})" if one.why else one.verdict,
    ]


def _ours(cell: Cell | None, configuration: Configuration) -> str:
    """Method and norm as they stand in the leaderboard."""
    if cell is None:
        return _named(configuration)
    return ", ".join(cell.tick(axis).label for axis in ("method", "norm"))


def _mean(cell: Cell | None) -> str:
    if cell is None or cell.summary is None:
        return "–"
    text, summary = METRICS["acc"].text, cell.summary
    if summary.half_width is None:
        return f"{text(summary.mean)}<br><sub>n=1, no interval</sub>"
    return f"{text(summary.mean)}<br><sub>CI ±{text(summary.half_width)}, n={summary.n}</sub>"


def _setting(configuration: Configuration, name: str) -> str:
    value = getattr(configuration, name)
    return str(value) if name == "partition" else f"{_SETTINGS[name]} {format_scalar(value)}"


def _remarks(comparisons: Sequence[Comparison]) -> list[str]:
    """Each remark once, after the configurations that it concerns; not where it concerns all of them."""
    concerned: dict[str, dict[str, None]] = {}
    for one in comparisons:
        for remark in remarks(one.row):
            concerned.setdefault(remark, {})[_named(one.row.configuration)] = None
    named = {_named(one.row.configuration) for one in comparisons}
    return [remark if len(of) == len(named) > 1 else f"{'; '.join(of)}: {remark}" for remark, of in concerned.items()]


def _named(configuration: Configuration) -> str:
    return f"{configuration.method}, {configuration.norm}"


def _order_table(orders: Sequence[Order], settings: Sequence[str]) -> str:
    head = ["table", *(_SETTINGS[name] for name in settings)]
    lines = [[*head, "rounds", "n", "tau"], [*("---" for _ in head), "---:", "---:", "---:"]]
    lines += [
        [
            one.table,
            *(format_scalar(getattr(one.column, name)) for name in settings),
            f"{one.rounds:,}",
            str(one.n),
            "undefined" if one.tau is None else f"{one.tau:.2f}",
        ]
        for one in orders
    ]
    return "\n".join(_line(line) for line in lines)


def _plain_row(one: Comparison) -> dict[str, Any]:
    row, cell = one.row, one.cell
    return {
        "table": row.table,
        "label": row.label,
        **row.configuration._asdict(),
        "published": row.value,
        "published_sd": float(row.sd) if row.sd else None,
        "published_seeds": row.seeds,
        "published_rounds": row.rounds,
        "cell_id": cell.experiment.cell_id if cell else None,
        "rounds": cell.runs[0].rounds if cell else None,
        "ours": 100 * cell.summary.mean if cell and cell.summary else None,
        "ci_half_width": (
            100 * cell.summary.half_width if cell and cell.summary and cell.summary.half_width is not None else None
        ),
        "n": len(cell.values) if cell else 0,
        "difference": one.difference,
        "verdict": one.verdict,
        "why": one.why,
        "remarks": remarks(row),
    }


def _plain_column(column: Configuration) -> dict[str, Any]:
    return {name: value for name, value in column._asdict().items() if name not in ("method", "norm", "groups")}
