"""The speeds in docs/engine.md and README, from what ``settings.py`` and ``speedups.py`` store beside themselves."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from flbench.bench.timing import CHANNELS_LAST, FLBENCH, PLAIN, Spread
from flbench.errors import UserError

#: A checkout of the repository.
ROOT = Path(__file__).parents[1]

#: Most characters of a line of text, as in the rest of the pages.
WIDTH = 132

#: The settings that README names, in words.
NAMED = {
    "epoch-fmnist-mlp128-partial-dir0.1": "Fashion-MNIST, MLP [128], 100 clients of which 10 take part, one epoch, "
    "Dirichlet 0.1 (the field's standard setting)",
    "digits-mlp128": "digits, MLP [128]",
    "fmnist-lenet": "Fashion-MNIST, LeNet",
    "cifar-cnn-E2": "CIFAR-10, CNN",
    "cifar-resnet18-bn": "CIFAR-10, ResNet-18",
}


def settings_table(measured: Mapping[str, Any]) -> str:
    """Return the measurement of ``settings.py`` as Markdown, the slowest setting first.

    Args:
        measured: ``machine``, ``options`` and ``settings``, as ``settings.py --json`` prints them.
    """
    how = (
        f"Measured on {measured['machine']['date']} by `python -m benchmarks.settings --write` on one core with one "
        f"thread, in CPU time ({_where(measured)}; n={measured['options']['repeats']} turns). Each cell has the median "
        "with minimum and maximum. A ratio is the time of the faster one of two careful plain loops over flbench's in "
        "the same turn. An executor is the one that `auto` selects; runs together are as many as fill a stack."
    )
    columns = ["setting", "executor", "ms a round", "the faster plain loop, ms", "times as fast", "runs together"]
    rows = [_setting(one) for one in sorted(measured["settings"], key=lambda one: _slowest(one).median)]
    return f"{textwrap.fill(how, WIDTH)}\n\n{_markdown([columns, ['---', '---', *4 * ['---:']], *rows])}"


def settings_sentence(measured: Mapping[str, Any]) -> str:
    """Return the settings that README names and the slowest of all, as one sentence."""
    by_name = {one["name"]: one for one in measured["settings"]}
    named = [f"{words} {_shown(Spread(**by_name[name]['speed'][FLBENCH]))}" for name, words in NAMED.items()]
    slowest = min(measured["settings"], key=lambda one: _slowest(one).median)
    text = (
        "Speed of training on one core, in multiples of the faster one of two careful plain PyTorch loops (CPU time, "
        f"{_where(measured)}, {measured['machine']['date']}; median of {measured['options']['repeats']} turns, minimum "
        f"and maximum): {'; '.join(named)}. The slowest of {len(by_name)} settings, `{slowest['name']}`, has "
        f"{_shown(_slowest(slowest))}."
    )
    return textwrap.fill(text, WIDTH, break_on_hyphens=False, break_long_words=False)


def write_pages(
    script: str, measured: Mapping[str, Any], pages: Mapping[str, Callable[[Mapping[str, Any]], str]], root: Path
) -> None:
    """Write a script's measurement beside it, as JSON, and its text into pages of a checkout.

    Raises:
        UserError: a page has no place for the script's text.
    """
    written = {root / page: replaced(root / page, script, write(measured)) for page, write in pages.items()}
    (root / "benchmarks" / f"{script}.json").write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    for path, text in written.items():
        path.write_text(text, encoding="utf-8")


def peers_table(measured: Mapping[str, Any]) -> str:
    """Return the measurement of ``speedups.py`` as Markdown: how it was made, and a row for each contestant."""
    how = (
        f"Measured on {measured['machine']['date']} by `python -m benchmarks.speedups` on one core with one thread "
        f"({_where(measured)}). All rows train the same rounds, in turns. The table has medians with minimum and "
        "maximum; ratios are taken within a turn."
    )
    return "\n\n".join([textwrap.fill(how, WIDTH), *_section(measured["task"])])


def replaced(page: Path, script: str, written: str) -> str:
    """Return a page with other text between the two marks of a script.

    Raises:
        UserError: a mark is missing.
    """
    marks = [f"<!-- {end}: benchmarks/{script}.py -->" for end in ("begin", "end")]
    before, begin, rest = page.read_text(encoding="utf-8").partition(marks[0])
    _, end, after = rest.partition(marks[1])
    if not end:
        raise UserError(f"{page.name} has no lines {marks[0]} and {marks[1]}, between which the speeds belong")
    return f"{before}{begin}\n{written}\n{end}{after}"


def _where(measured: Mapping[str, Any]) -> str:
    machine = measured["machine"]
    loads = f"load {machine['load_before']} to {machine['load_after']}"
    return f"{machine['cpu']}, {loads}, Python {machine['python']}, torch {machine['torch']}"


def _slowest(setting: Mapping[str, Any]) -> Spread:
    """The speed of the slower one of flbench's ways."""
    return min((Spread(**spread) for spread in setting["speed"].values()), key=lambda one: one.median)


def _setting(one: Mapping[str, Any]) -> list[str]:
    seconds, speed = one["seconds"], {way: _shown(Spread(**spread)) for way, spread in one["speed"].items()}
    plain = list(map(min, seconds[PLAIN], seconds[CHANNELS_LAST]))
    ms = [_shown(Spread.of(own).times(1000)) for own in (seconds[FLBENCH], plain)]
    return [f"`{one['name']}`", one["executor"], *ms, speed.pop(FLBENCH), *(speed.values() or ["–"])]


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _section(task: Mapping[str, Any]) -> Iterator[str]:
    measured = [row for row in task["rows"] if "seconds" in row]
    (reference,) = (row["seconds"] for row in measured if row["name"] == task["reference"])
    rows = [_cells(row, reference) for row in sorted(measured, key=lambda row: Spread.of(row["seconds"]).median)]
    rows += [[row["name"], f"not measured: {row['missing']}", "–", "–"] for row in task["rows"] if "missing" in row]
    times, accuracy = f"times as fast as {task['reference']}", f"accuracy in % after {task['all_rounds']} rounds"
    turn = f"{task['rounds']} round{'s' * (task['rounds'] > 1)}"
    yield (
        f"**{task['what']}**, {task['clients']} clients, E={task['local_steps']}, batch {task['batch_size']} "
        f"(n={len(reference)} turns of {turn}):"
    )
    yield _markdown([["trained by", "ms a round", times, accuracy], ["---", *3 * ["---:"]], *rows])
    differences = [f"{row['difference']:.0e} ({row['name']})" for row in measured if "difference" in row]
    yield textwrap.fill(
        "The other frameworks train on flbench's batches from the same initial weights. After "
        f"{task['all_rounds']} rounds their weights differed in this measurement from flbench's by up to "
        f"{', '.join(differences)}: rounding errors, which grow where a ReLU switches. Flower adds the clients in "
        "an order that changes from run to run, so another measurement finds another difference. The plain loops "
        "draw batches of their own.",
        WIDTH,
    )


def _cells(row: Mapping[str, Any], reference: Sequence[float]) -> list[str]:
    is_reference = row["seconds"] == reference
    speedup = "1" if is_reference else _shown(Spread.of_ratios(reference, row["seconds"]))
    accuracies = [100 * accuracy for accuracy in row["accuracies"]]
    spread = f" ({min(accuracies):.1f} to {max(accuracies):.1f})" * (len(accuracies) > 1)
    return [row["name"], _shown(Spread.of(row["seconds"]).times(1000)), speedup, f"{mean(accuracies):.1f}{spread}"]


def _shown(spread: Spread) -> str:
    median, low, high = (
        f"{value:#.3g}" if value < 100 else f"{value:.0f}" for value in (spread.median, spread.min, spread.max)
    )
    return f"{median} ({low} to {high})"
