"""The tables of speeds in docs/engine.md and the ratios in README, from what ``benchmarks/speedups.py`` stores."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import Any

from flbench.bench.timing import Spread
from flbench.errors import UserError

#: The comments around what is written into a page.
BEGIN, END = "<!-- begin: benchmarks/speedups.py -->", "<!-- end: benchmarks/speedups.py -->"

#: Most characters of a line of text, as in the rest of the pages.
WIDTH = 132


def speed_tables(measured: Mapping[str, Any]) -> str:
    """Return a measurement as Markdown: how it was made, then a table for each task.

    Args:
        measured: ``machine`` and ``tasks``, the results of ``speedups.measure``.
    """
    machine = measured["machine"]
    where = f"{machine['cpu']}, load {machine['load_before']}, Python {machine['python']}, torch {machine['torch']}"
    how = (
        f"Measured on {machine['date']} by `benchmarks/speedups.py` on one core with one thread ({where}). "
        "All rows of a table train the same rounds, in turns. The tables have medians with minimum and maximum; ratios "
        "are taken within a turn."
    )
    return "\n\n".join([textwrap.fill(how, WIDTH), *map(_section, measured["tasks"])])


def speed_ratios(measured: Mapping[str, Any]) -> str:
    """Return how many times as fast as the reference flbench trains each task, as one sentence."""
    machine, tasks = measured["machine"], measured["tasks"]
    timed = [{row["name"]: row["seconds"] for row in task["rows"] if "seconds" in row} for task in tasks]
    ratios = [
        f"{task['what']} {_shown(Spread.of_ratios(seconds[task['reference']], seconds['flbench']))}"
        for task, seconds in zip(tasks, timed, strict=True)
    ]
    where = f"{machine['cpu']}, {machine['date']}; median, minimum and maximum"
    text = f'Speed of training on one core, in multiples of "{tasks[0]["reference"]}" ({where}): {"; ".join(ratios)}.'
    return textwrap.fill(text, WIDTH)


def replaced(page: str, written: str, name: str) -> str:
    """Return a page with other text between the two marks.

    Raises:
        UserError: a mark is missing; the message has the page's name.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise UserError(f"{name} has no lines {BEGIN} and {END}, between which the speeds belong")
    return f"{before}{begin}\n{written}\n{end}{after}"


def _section(task: Mapping[str, Any]) -> str:
    measured = [row for row in task["rows"] if "seconds" in row]
    columns = ["trained by", "ms a round", f"times as fast as {task['reference']}"]
    if "accuracies" in measured[0]:
        columns.append(f"accuracy in % after {task['all_rounds']} rounds")
    (reference,) = (row["seconds"] for row in measured if row["name"] == task["reference"])
    rows = [_cells(row, reference) for row in sorted(measured, key=lambda row: Spread.of(row["seconds"]).median)]
    rows += [[row["name"], f"not measured: {row['missing']}", "–", "–"] for row in task["rows"] if "missing" in row]
    lines = [columns, ["---", *(len(columns) - 1) * ["---:"]], *rows]
    turn = f"{task['rounds']} round{'s' * (task['rounds'] > 1)}"
    title = (
        f"**{task['what']}**, {task['clients']} clients, E={task['local_steps']}, batch {task['batch_size']} "
        f"(n={len(reference)} turns of {turn}):"
    )
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return "\n\n".join([title, table, *_same_work(task, measured)])


def _cells(row: Mapping[str, Any], reference: Sequence[float]) -> list[str]:
    is_reference = row["seconds"] == reference
    speedup = "1" if is_reference else _shown(Spread.of_ratios(reference, row["seconds"]))
    cells = [row["name"], _shown(Spread.of(row["seconds"]).times(1000)), speedup]
    if accuracies := [100 * accuracy for accuracy in row.get("accuracies", ())]:
        spread = f" ({min(accuracies):.1f} to {max(accuracies):.1f})" * (len(accuracies) > 1)
        cells.append(f"{mean(accuracies):.1f}{spread}")
    return cells


def _shown(spread: Spread) -> str:
    median, low, high = (
        f"{value:#.3g}" if value < 100 else f"{value:.0f}" for value in (spread.median, spread.min, spread.max)
    )
    return f"{median} ({low} to {high})"


def _same_work(task: Mapping[str, Any], measured: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A sentence on how far the weights of other frameworks are from flbench's, if there are any."""
    differences = [f"{row['difference']:.0e} ({row['name']})" for row in measured if "difference" in row]
    if differences:
        yield textwrap.fill(
            "The other frameworks train on flbench's batches from the same initial weights. After "
            f"{task['all_rounds']} rounds their weights differed in this measurement from flbench's by up to "
            f"{', '.join(differences)}: rounding errors, which grow where a ReLU switches. Flower adds the clients in "
            "an order that changes from run to run, so another measurement finds another difference. The plain loops "
            "draw batches of their own.",
            WIDTH,
        )
