"""A leaderboard as Markdown, as terminal tables and as plain data. Same runs, same bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from flbench.report import render_published
from flbench.report.cells import METRICS, Cell, Tick, axis_label
from flbench.report.frames import flatten
from flbench.report.leaderboard import Leaderboard, Section, Table
from flbench.report.provenance import Provenance
from flbench.store import files

#: Version of the plain-data form; raised when a reader of the old one would misread the new one.
JSON_SCHEMA = 1

NO_SHARED_MODEL = (
    "¹ Parts of the model stay on the clients, so there is no shared model: ranked by the mean over clients of the "
    "client's own model on the *whole* test set."
)
OWN_SHARD = (
    "Score of each client's own model on the client's own test shard. It ranks nothing: with one class per client a "
    "constant answer would score 100 %."
)
MIXED_NUMERICS = "² The seeds of this cell were computed with different numerics:"


def markdown(board: Leaderboard) -> str:
    """The whole text of ``leaderboard.md``."""
    blocks = [f"# {board.options.title}", _introduction(board)]
    if board.unfinished:
        total = sum(board.unfinished.values())
        blocks.append(
            f"> **Incomplete:** {total} of {board.provenance.wished} runs have no value: {_list(board.unfinished)}."
        )
    blocks += [f"> Left out: {note}." for note in board.left_out]
    for section in board.sections:
        blocks += _section(section)
    if board.published is not None:
        blocks += render_published.markdown(board.published)
    blocks += _provenance(board)
    return "\n\n".join(blocks) + "\n"


def _introduction(board: Leaderboard) -> str:
    metric = board.metric
    unit = ", in percent" if metric.percent else ""
    when = (
        "at the round with the best validation accuracy" if board.options.select_by == "val" else "after the last round"
    )
    better = "lower is better" if metric.lower_is_better else "higher is better"
    return (
        f"`{board.options.metric}`: {metric.what}, {when}{unit}; {better}.\n"
        "Each cell: mean ± sample standard deviation over seeds; below it the half-width of the 95 % Student-t\n"
        "interval of the mean (one seed has none) and the number of seeds n. "
        "**Bold**: the best mean of its column among complete cells.\n"
        "`2/3`: how many of the seeds asked for have a value, and why not all; `1/3 diverged`: how many of them "
        "stopped at a number that was not finite. `–`: not asked for."
    )


def _section(section: Section) -> list[str]:
    blocks = [f"## {section.title}", f"Everywhere: {section.constants}."]
    if len(section.fingerprints) > 1:
        names = ", ".join(f"`{name}`" for name in section.fingerprints)
        blocks.append(
            f"> **{len(section.fingerprints)} versions of the data** ({names}). "
            "Runs on different data are never averaged: they stand in rows of their own."
        )
    blocks += _tables(section.tables, "###")
    if section.own_shard:
        blocks += ["### Own shard", OWN_SHARD, *_tables(section.own_shard, "####")]
    return blocks


def _tables(tables: Sequence[Table], heading: str) -> list[str]:
    blocks = []
    previous = ""
    for table in tables:
        if table.title != previous:
            blocks.append(f"{heading} {table.title}")
        previous = table.title
        blocks.append(_table(table))
        blocks += _footnotes(table)
    return blocks


def _table(table: Table) -> str:
    head = [*table.row_axes, *("<br>".join(_head(table, col)) for col in table.cols)]
    lines = [_line(head), _line([*("---" for _ in table.row_axes), *("---:" for _ in table.cols)])]
    lines += [
        _line([*_row_labels(table, r), *(_cell(table, r, c) for c in range(len(table.cols)))])
        for r in range(len(table.rows))
    ]
    return "\n".join(lines)


def _line(words: Iterable[str]) -> str:
    return "| " + " | ".join(word.replace("|", "\\|") for word in words) + " |"


def _head(table: Table, col: Sequence[Tick]) -> list[str]:
    """The lines above a column: its place on every axis, or the metric where there is only one column."""
    return [axis_label(axis, at) for axis, at in zip(table.col_axes, col, strict=True)] or [METRICS[table.metric].title]


def _row_labels(table: Table, r: int) -> list[str]:
    """The row's names; the first carries the mark of methods without a shared model."""
    labels = [at.label for at in table.rows[r]]
    personal = any(cell.personal for (row, _), cell in table.cells.items() if row == r)
    return [f"{label} ¹" if personal and i == 0 and table.ranked else label for i, label in enumerate(labels)]


def _cell(table: Table, r: int, c: int) -> str:
    cell = table.cells.get((r, c))
    if cell is None:
        return "–"
    value, below = parts(cell)
    if (r, c) in table.best:
        value = f"**{value}**"
    if len(cell.numerics) > 1:
        value += " ²"
    return "<br>".join([*([value] if value else []), *(f"<sub>{line}</sub>" if value else line for line in below)])


def parts(cell: Cell) -> tuple[str, list[str]]:
    """A cell's value (empty if it has none) and the lines below it."""
    metric = METRICS[cell.metric]
    summary = cell.summary
    below = []
    value = ""
    if summary:
        value = metric.text(summary.mean)
        if summary.sd is not None and summary.half_width is not None:
            value += f" ± {metric.text(summary.sd)}"
            below.append(f"CI ±{metric.text(summary.half_width)}, n={summary.n}")
        else:
            below.append("n=1, no interval")
    if not cell.complete:
        below.append(gap_text(cell))
    return value, below


def gap_text(cell: Cell) -> str:
    """``not run``, ``2/3 diverged`` or ``2/3: 1 failed (oom)``."""
    if cell.gaps == {"pending": cell.wished}:
        return "not run"
    if cell.gaps.keys() == {"diverged"}:
        return f"{cell.gaps['diverged']}/{cell.wished} diverged"
    return f"{len(cell.values)}/{cell.wished}: {_list(cell.gaps)}"


def _list(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counts.items())


def _footnotes(table: Table) -> list[str]:
    notes = []
    cells = list(table.cells.values())
    if table.ranked and any(cell.personal for cell in cells):
        notes.append(NO_SHARED_MODEL)
    mixtures = sorted({cell.numerics for cell in cells if len(cell.numerics) > 1})
    notes += [f"{MIXED_NUMERICS} {'; '.join(mixture)}." for mixture in mixtures]
    ways = sorted({way for cell in cells for way in cell.numerics})
    if len(ways) > 1 and not mixtures:
        notes.append(f"The cells of this table were computed with different numerics: {'; '.join(ways)}.")
    return notes


def _provenance(board: Leaderboard) -> list[str]:
    made = board.provenance
    lines = [
        f"- Runs: {made.wished}, {made.finished} finished",
        f"- Seeds: {_numbers(made.seeds)}",
        f"- Rounds: {_numbers(made.rounds)}",
        *(f"- {title}: {_facts(made, title)}" for title, counts in made.facts.items() if counts),
        *(f"- Spec: {name} `{spec_hash}`" for name, spec_hash in board.options.specs),
    ]
    command = f"Regenerate with:\n\n```sh\n{board.options.command}\n```"
    return ["## Provenance", "\n".join(lines), command]


def _numbers(numbers: Sequence[int]) -> str:
    """``0, 1, 2`` or, for many in a row, ``0 to 19``."""
    if len(numbers) > 3 and list(numbers) == list(range(numbers[0], numbers[0] + len(numbers))):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))


def _facts(made: Provenance, title: str) -> str:
    counts = made.facts[title]
    if list(counts.values()) == [made.finished]:
        return next(iter(counts))
    return "; ".join(f"{text} ({count} {'run' if count == 1 else 'runs'})" for text, count in counts.items())


def terminal(board: Leaderboard, width: int) -> list[RenderableType]:
    """The tables for a terminal of ``width`` columns: as many columns side by side as fit."""
    shown: list[RenderableType] = []
    for section in board.sections:
        for table in (*section.tables, *section.own_shard):
            shown.append(Text(_terminal_title(section, table), style="bold"))
            shown += _terminal_tables(table, width)
            if table.ranked and any(cell.personal for cell in table.cells.values()):
                shown.append(
                    Text("¹ no shared model: mean over the clients' models on the whole test set", style="dim")
                )
    if board.published is not None:
        shown.append(Text(f"published numbers: {render_published.summary(board.published)}"))
    return shown


def _terminal_tables(table: Table, width: int) -> list[RichTable]:
    labels = [_row_labels(table, r) for r in range(len(table.rows))]
    heads = ["\n".join(_head(table, col)) for col in table.cols]
    texts = [[_terminal_cell(table, r, c) for c in range(len(table.cols))] for r in range(len(table.rows))]
    sizes = [max(_width(head), *(_width(row[c].plain) for row in texts)) + 3 for c, head in enumerate(heads)]
    names = [max(len(axis), *(len(row[i]) for row in labels)) + 3 for i, axis in enumerate(table.row_axes)]
    parts = []
    for some in _fitting(sizes, width - sum(names) - 1):
        part = RichTable()
        for axis in table.row_axes:
            part.add_column(Text(axis), no_wrap=True)
        for c in some:
            part.add_column(Text(heads[c]), justify="right")
        for r, row in enumerate(texts):
            if any((r, c) in table.cells for c in some):
                part.add_row(*map(Text, labels[r]), *(row[c] for c in some))
        parts.append(part)
    return parts


def _terminal_title(section: Section, table: Table) -> str:
    metric = METRICS[table.metric]
    where = ", ".join(part for part in (section.title, table.title) if part)
    return f"{where}: {metric.title}{' in %' if metric.percent else ''}, mean ± sd over seeds"


def _terminal_cell(table: Table, r: int, c: int) -> Text:
    cell = table.cells.get((r, c))
    if cell is None:
        return Text("–", style="dim")
    value, below = parts(cell)
    text = Text(value, style="bold green" if (r, c) in table.best else "")
    if not cell.complete:
        text.append(("\n" if value else "") + below[-1], style="yellow")
    return text


def _width(text: str) -> int:
    return max(map(len, text.split("\n")))


def _fitting(sizes: Sequence[int], room: int) -> list[list[int]]:
    """Column numbers in groups whose sizes fit into ``room``; at least one column a group."""
    groups: list[list[int]] = [[]]
    for c, size in enumerate(sizes):
        if groups[-1] and sum(sizes[other] for other in groups[-1]) + size > room:
            groups.append([])
        groups[-1].append(c)
    return groups


def plain(board: Leaderboard) -> dict[str, Any]:
    """The stable machine-readable form: one object a cell, values as recorded (accuracies as fractions)."""
    made = board.provenance
    return {
        "schema": JSON_SCHEMA,
        "title": board.options.title,
        "metric": board.options.metric,
        "cells": [_plain_cell(table, at) for table in board.all_tables() for at in sorted(table.cells)],
        "unfinished": dict(board.unfinished),
        "left_out": list(board.left_out),
        "published": render_published.plain(board.published) if board.published else None,
        "provenance": {
            "runs": made.wished,
            "finished": made.finished,
            "seeds": list(made.seeds),
            "rounds": list(made.rounds),
            **{title.lower(): dict(counts) for title, counts in made.facts.items()},
            "specs": [{"name": name, "hash": spec_hash} for name, spec_hash in board.options.specs],
            "command": board.options.command,
        },
    }


def _plain_cell(table: Table, at: tuple[int, int]) -> dict[str, Any]:
    cell = table.cells[at]
    summary = cell.summary
    fields = flatten(cell.experiment)
    for name in ("seed", "eval_every", "probes", "rounds"):
        fields.pop(name, None)
    return {
        "cell_id": cell.experiment.cell_id,
        "experiment": fields,
        "rounds": cell.runs[0].rounds,
        "metric": cell.metric,
        "mean": summary.mean if summary else None,
        "sd": summary.sd if summary else None,
        "ci_half_width": summary.half_width if summary else None,
        "n": len(cell.values),
        "wished": cell.wished,
        "gaps": dict(cell.gaps),
        "best": at in table.best,
        "client_local": cell.personal,
        "fingerprint": cell.fingerprint,
        "numerics": list(cell.numerics),
        "seeds": [run.experiment.seed for run in cell.runs],
        "run_ids": [run.run_id for run in cell.runs],
        "values": list(cell.values),
    }


def write_text(path: Path, text: str) -> None:
    """Put ``text`` at ``path`` in one step, so that a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files.replace(path, text.encode(), sync=False)
