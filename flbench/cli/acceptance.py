"""The report of ``flbench bench --acceptance`` as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from flbench.cli.numbers import duration, file_size, handy, spread_text
from flbench.cli.screen import plain_table, say
from flbench.messages import counted

if TYPE_CHECKING:
    from flbench.bench.acceptance import Part, Profile, TestRun, WayTime
    from flbench.bench.projection import Projection


def print_acceptance(console: Console, parts: Sequence[Part]) -> None:
    """Print what every part found, and how many failed."""
    from flbench.bench.acceptance import Profile, TestRun
    from flbench.bench.projection import Projection

    for part in parts:
        why = f": {part.problem}" if part.problem else ""
        say(console, f"\n{part.name}: {part.status} in {duration(part.seconds)}{why}")
        match part.found:
            case None:
                pass
            case TestRun():
                say(console, "\n".join(_tests(part.found)))
            case Profile():
                _print_profile(console, part.found)
            case Projection():
                say(console, _projection(part.found))
            case ways:
                _print_ways(console, ways)
    failed = [part.name for part in parts if part.status == "failed"]
    skipped = sum(part.status == "skipped" for part in parts)
    say(
        console,
        f"\n{len(parts)} parts, {skipped} skipped, {len(failed)} failed" + f": {'; '.join(failed)}" * bool(failed),
    )


def _tests(found: TestRun) -> Iterator[str]:
    yield f"{found.passed} passed, {found.failed} failed, {found.skipped} skipped"
    yield from (f"  failed: {name}" for name in found.failures)


def _print_ways(console: Console, ways: Sequence[WayTime]) -> None:
    table = plain_table(["way"], ["ms a round (min to max)"])
    for each in ways:
        table.add_row(each.way, spread_text(each.round_s.times(1000)))
    console.print(table)


def _print_profile(console: Console, found: Profile) -> None:
    chosen = f", {found.convolutions} convolutions" if found.convolutions else ""
    wall, busy = (handy(1000 * seconds) for seconds in (found.wall_s, found.busy_s))
    say(console, f"a round of {wall} ms{chosen}: {found.calls:,} kernels, busy for {busy} ms")
    table = plain_table(["kernel"], ["calls", "ms", "share"])
    for kernel in found.kernels:
        table.add_row(kernel.name[:80], f"{kernel.calls:,}", handy(1000 * kernel.seconds), f"{kernel.share:.1%}")
    console.print(table)


def _projection(found: Projection) -> str:
    from flbench.bench.projection import ROUNDS

    memory = "" if found.peak_bytes is None else f", {file_size(found.peak_bytes)}"
    return (
        f"{counted(found.runs, 'run')}: a round of all {spread_text(found.round_s.times(1000))} ms, an evaluation "
        f"{spread_text(found.evaluation_s.times(1000))} ms; {ROUNDS:,} rounds: "
        f"{duration(found.seconds / found.runs)} a run{memory}"
    )
