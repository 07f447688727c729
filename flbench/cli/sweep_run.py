"""Execute a sweep and print how it ends: the leaderboard, what was done, what failed, what to do next."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console

from flbench.choices import DEFAULT_STORE
from flbench.cli.live import progress_view
from flbench.cli.numbers import duration
from flbench.cli.options import public_path
from flbench.cli.screen import Pipe, say
from flbench.config import digest
from flbench.errors import UserError
from flbench.launchers import SweepWorkers
from flbench.literal import visible
from flbench.messages import counted
from flbench.orchestrate import Orchestrator, Outcome
from flbench.planning import prepare_runs, write_plan
from flbench.plugin_files import plugin_files, typed
from flbench.progress import RunSnapshot
from flbench.store import CancelMark, Store, files, read_plan, strict_json
from flbench.sweeps import Sweep
from flbench.tracking.jobs import trackers_of
from flbench.tracking.process import MirrorProcess

#: Failed runs printed at most; further ones are counted.
MOST_FAILURES = 100


class SweepRun:
    """One execution of a sweep in a store; with ``as_json`` everything for people goes to standard error."""

    def __init__(self, sweep: Sweep, workers: SweepWorkers, root: Path, *, as_json: bool) -> None:
        self._sweep, self._workers = sweep, workers
        self._console = Console(stderr=as_json)
        self._store = Store(root)
        self._directory = write_plan(self._store, sweep)
        self._plan = "/".join(self._directory.parts[-2:])
        self._elsewhere = "" if self._store.root == DEFAULT_STORE else f" --store {shlex.quote(str(self._store.root))}"

    def execute(self, *, detach: bool, rerun: bool) -> dict[str, Any]:
        """Return the summary for ``--json``, after running the sweep to its end and printing the outcome.

        Raises:
            UserError: no worker can be started, or the store is unusable; the failed runs are printed before.
        """
        began = time.monotonic()
        planned = read_plan(self._directory / "plan.jsonl", added=True)
        added = [entry.parse() for entry in planned[len(self._sweep.experiments) :]]
        for line in prepare_runs(self._store, [*self._sweep.experiments, *added], rerun=rerun):
            self._say(line)
        mirrors = {
            tracker.title: MirrorProcess.start(tracker, self._store.root, self._directory, detach=detach)
            for tracker in trackers_of(self._sweep)
        }
        outcome = self._orchestrate(detach=detach)
        board = None
        if not detach and not outcome.interrupted:
            width = self._console.width if self._console.is_terminal else None
            board, text = leaderboard(self._store, self._sweep, self._directory, outcome.fingerprint, width)
            self._say(text.rstrip())
        seconds = time.monotonic() - began
        self._print_end(outcome, seconds)
        self._print_places(board)
        for title, mirror in mirrors.items() if outcome.launched + outcome.adopted else ():
            if note := mirror.end():
                self._say(f"{title}: {note}", fold=True)
        self._print_failures(outcome.failures)
        return self._summary(outcome, board, seconds)

    def _orchestrate(self, *, detach: bool) -> Outcome:
        store, plan, experiments = self._store, self._plan, self._sweep.experiments
        orchestrator = Orchestrator(
            store,
            plan,
            experiments,
            lambda: self._workers.launcher(store, plan, experiments),
            max_attempts=self._workers.options.max_attempts,
        )
        try:
            with progress_view(self._console, store) as show:
                return orchestrator.run(show=show, detach=detach)
        except UserError:
            self._print_failures(orchestrator.failures())
            raise

    def _print_end(self, outcome: Outcome, seconds: float) -> None:
        progress = outcome.progress
        diverged = f" ({progress.diverged} diverged)" if progress.diverged else ""
        failed = f", {progress.dropped} dropped by the search" if progress.dropped else ""
        failed += f", {progress.failed} failed" if progress.failed else ""
        took = f" in {duration(seconds)}" if outcome.launched else ""
        started = f"{counted(outcome.launched, 'worker')} started" if outcome.launched else "nothing to launch"
        adopted = f", {outcome.adopted} adopted" if outcome.adopted else ""
        done = f"{progress.done} of {counted(progress.total, 'run')} done{diverged}{failed}{took}"
        self._say(f"{self._sweep.name}: {done}; {started}{adopted}.")
        if not progress.finished:
            cancelled = "Cancelled; c" if CancelMark(self._store.sweeps / self._plan).is_set() else "C"
            begin = "Interrupted; c" if outcome.interrupted else cancelled
            self._say(f"{begin}all the same command again to go on.")

    def _print_places(self, board: Path | None) -> None:
        """Print where everything is, and which commands show it."""
        elsewhere, name = self._elsewhere, self._sweep.name
        options = "".join(f" {shlex.quote(word)}" for option in self._sweep.options for word in option.split(" ", 1))
        plugins = "".join(f" --plugin {shlex.quote(typed(path))}" for path in plugin_files())
        spec = f"{shlex.quote(self._sweep.spelled)}{options}{elsewhere}"
        self._say(f"Leaderboard: {board}" if board else f"Plan:        {self._directory / 'plan.jsonl'}")
        self._say(f"Runs:        {self._store.root / 'runs'}")
        if board:
            self._say(f"Pictures:    flbench{plugins} report {spec} --figures figures --html report.html")
        self._say(f"More:        flbench status {name}{elsewhere}; flbench logs {name}{elsewhere}")

    def _print_failures(self, failures: Sequence[RunSnapshot]) -> None:
        """Print what to do about failed runs, then each of them below its reason, the most frequent reason first.

        It is printed last, so that a log of which only the end is kept says why a sweep failed.
        """
        elsewhere, name = self._elsewhere, self._sweep.name
        if any(seen.state.user_fixable for seen in failures):
            self._say("Once the reasons below are fixed, the same command tries the runs that failed for them again.")
        if any(not seen.state.user_fixable for seen in failures):
            attempts = self._workers.options.max_attempts
            again = f"--set retry.max_attempts={2 * attempts}, or first flbench retry {name}{elsewhere}"
            self._say(f"Runs are tried {attempts} times; to try these again: {again}", fold=True)
        by_reason: dict[str, list[RunSnapshot]] = {}
        for seen in failures:
            by_reason.setdefault(f"{seen.outcome}: {seen.state.message or 'no message'}", []).append(seen)
        room = MOST_FAILURES
        for reason, found in sorted(by_reason.items(), key=lambda item: -len(item[1])):
            self._say(f"{len(found)} failed: {reason}")
            for seen in found[:room]:
                self._say(f"  {seen.label} (run {seen.run_id}{f', log: {seen.log}' if seen.log else ''})")
            room -= len(found[:room])
        if len(failures) > MOST_FAILURES:
            self._say(f"{len(failures) - MOST_FAILURES} more: flbench status {name} --json{elsewhere}")

    def _summary(self, outcome: Outcome, board: Path | None, seconds: float) -> dict[str, Any]:
        progress = outcome.progress
        return {
            "schema": 1,
            "sweep": self._sweep.name,
            "spec_hash": self._sweep.spec_hash,
            "store": str(self._store.root),
            "directory": str(self._directory),
            "leaderboard": str(board) if board else None,
            "total": progress.total,
            "done": progress.done,
            "diverged": progress.diverged,
            "dropped": progress.dropped,
            "failed": progress.failed,
            "running": len(progress.active),
            "pending": progress.pending + progress.waiting,
            "launched": outcome.launched,
            "adopted": outcome.adopted,
            "interrupted": outcome.interrupted,
            "failures": [
                {
                    "run_id": seen.run_id,
                    "label": seen.label,
                    "kind": seen.outcome,
                    "message": seen.state.message,
                    "log": str(seen.log) if seen.log else None,
                }
                for seen in outcome.failures
            ],
            "seconds": round(seconds, 3),
            "exit_code": outcome.exit_code,
        }

    def _say(self, line: str, *, fold: bool = False) -> None:
        say(self._console, line, fold=fold)


def execute_on_end(command: str, summary: Mapping[str, Any]) -> None:
    """Execute the user's command after a sweep; its failure is a note, which does not change the sweep's exit code.

    Its output goes to standard error, so that ``--json`` stays one document.
    """
    variables = {"SWEEP_NAME": str(summary["sweep"]), "SWEEP_EXIT_CODE": str(summary["exit_code"])}
    # The user's own command line, not text of a file: nothing that the sweep contains is executed.
    ended = subprocess.run(
        ["/bin/sh", "-c", command],
        input=strict_json.pretty(dict(summary)),
        stdout=2,
        env={**os.environ, **variables},
        check=False,
    )
    if ended.returncode:
        print(f"--on-end {visible(command)}: exit code {ended.returncode}", file=sys.stderr)


def leaderboard(store: Store, sweep: Sweep, directory: Path, fingerprint: str, width: int | None) -> tuple[Path, str]:
    """Return the path of the leaderboard next to the plan, and its tables as text; without a ``width`` nothing is cut.

    Both are computed again only if what they show has changed, so that a finished sweep ends at once.
    """
    path, cache = directory / "leaderboard.md", directory / "leaderboard.cache.json"
    arguments = [] if store.root == DEFAULT_STORE else ["--store", public_path(store.root)]
    # In a clone the version stays while the code changes; 500 files take 5 ms.
    code = max(file.stat().st_mtime_ns for file in Path(__file__).parents[1].rglob("*.py"))
    facts = [fingerprint, version("flbench"), code, sweep.spec.report.model_dump(mode="json"), width, *arguments]
    key = digest(facts)
    cached = strict_json.read_json(cache)
    if cached is not None and cached.get("key") == key and path.exists():
        return path, str(cached["text"])
    from flbench.papers import papers  # takes a tenth of a second, which a sweep without new results does not need
    from flbench.report.output import write_leaderboard
    from flbench.report.write.terminal import to_terminal

    board = write_leaderboard(store, [sweep], path, papers(), arguments)
    drawn = StringIO()
    output: dict[str, Any] = {"file": drawn, "color_system": None}
    console = Pipe(**output) if width is None else Console(width=width, **output)
    for table in to_terminal(board, console.width):
        console.print(table)
    files.replace(cache, strict_json.pretty({"key": key, "text": drawn.getvalue()}), sync=False)
    return path, drawn.getvalue()
