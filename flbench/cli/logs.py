"""``flbench logs``: show the logs of a run's attempts, or of a sweep's runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from flbench.choices import DEFAULT_STORE
from flbench.cli.boundary import ends_quietly
from flbench.cli.options import StoreOption
from flbench.cli.run_curve import record_line
from flbench.cli.targets import TargetsArgument, entries_of, find_targets
from flbench.config import headline_of
from flbench.literal import visible
from flbench.regular import open_regular
from flbench.store import AttemptDir, Entry, RunState, Store
from flbench.store.records import parse_records

#: Seconds between two reads of a store that is followed.
PERIOD = 0.5

#: Seconds without live workers after which a failed run counts as given up.
PATIENCE = 5.0

#: Lines shown of the log of a worker that died.
LAST_LINES = 15


def logs(
    names: TargetsArgument,
    store: StoreOption = DEFAULT_STORE,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Continue with new lines until the runs have ended.")
    ] = False,
) -> None:
    """Show the logs of runs: every attempt, where it ran, what it logged and how it ended.

    Of a sweep, only the runs that logged something or did not end well. With -f, a run is followed across its attempts
    until it has ended, and waited for if no worker has it yet; earlier attempts of a sweep's runs are not shown. Ctrl-C
    ends it.

    Example: flbench logs 3fa2 -f

    Example: flbench logs lr_robustness | grep -i error
    """
    opened = Store(store, create=False)
    targets = find_targets(opened, names)
    entries = list(entries_of(opened, targets))
    of_sweep = bool(targets.plans)
    logs = [
        RunLog(opened, entry, f"{entry.run_id} " if len(entries) > 1 else "", follow=follow, terse=of_sweep)
        for entry in entries
    ]
    with ends_quietly():
        if follow:
            _follow(opened, logs, news_only=of_sweep)
        else:
            for log in logs:
                log.print_news(log.state())
            if all(log.silent for log in logs):
                print("no run logged anything or failed; flbench logs ID shows the attempts of one", file=sys.stderr)


def _follow(store: Store, logs: Sequence[RunLog], *, news_only: bool) -> None:
    """Print what is new until every run has ended."""
    idle_since = time.monotonic()
    left, first = logs, True
    while left:
        began = time.monotonic()
        if store.live_workers():
            idle_since = began
        given_up = began - idle_since > PATIENCE
        going_on = []
        for log in left:
            state = log.state()
            failed = state.status in ("failed", "lost")
            has_ended = (state.user_fixable or given_up) if failed else state.status == "done"
            if not (first and news_only and state.status != "running"):
                log.print_news(state)
                has_ended = has_ended and log.ended
            if not has_ended:
                going_on.append(log)
        left, first = going_on, False
        if left:
            # Reading a large store takes long: leave the disk to the workers for most of the time.
            time.sleep(max(PERIOD, 5 * (time.monotonic() - began)))


class RunLog:
    """Prints the logs of one run's attempts as they grow.

    Args:
        store: its store, where the logs of workers say more about an attempt that was lost.
        entry: the run, and how many rounds are requested.
        prefix: beginning of each line.
        follow: print evaluations, too.
        terse: without ``follow``, skip attempts that logged nothing and ended well.
    """

    def __init__(
        self, store: Store, entry: Entry, prefix: str = "", *, follow: bool = False, terse: bool = False
    ) -> None:
        self._run, self._workers, self._prefix = store.run(entry.run_id), store.workers, prefix
        self._request, self._metric = entry.request(), headline_of(entry.experiment)
        self._follow, self._terse = follow, terse and not follow
        self._current, self._round = 0, -1
        self.ended = self.silent = True
        self._log, self._metrics = Tail(Path()), Tail(Path())

    def state(self) -> RunState:
        """Return the run's present state."""
        return self._run.state(self._request)

    def print_news(self, state: RunState) -> None:
        """Print what is new; ``state`` is the run's, read just now."""
        if state.unreadable:
            self._print(f"== run {self._run.run_id} cannot be read: {state.message}")
            self.ended = True
            return
        for attempt in self._run.attempts():
            if attempt.number < self._current:
                continue
            if attempt.number > self._current:
                ended_well = (attempt.exit() or {}).get("kind") in ("ok", "interrupted")
                if self._terse and ended_well and not attempt.log_path.exists():
                    continue
                self._current, self.ended = attempt.number, False
                self._log, self._metrics = Tail(attempt.log_path), Tail(attempt.metrics_path)
                lease = attempt.lease()
                job = f", job {lease.slurm_job}" if lease and lease.slurm_job else ""
                where = f" on {lease.host}, process {lease.pid}{job}, since {lease.started}" if lease else ""
                self._print(f"== attempt {attempt.number} at run {self._run.run_id}{where}")
            if not self.ended:
                self._continue(attempt)

    def _continue(self, attempt: AttemptDir) -> None:
        # In this order: an attempt that neither lives nor has an end is lost; one with an end has its whole log.
        lives = self._run.is_live(attempt)
        end = self._run.end_of(attempt)
        for line in self._log.lines():
            self._print(line)
        for line in self._metrics.lines() if self._follow else ():
            for record in parse_records(line.encode() + b"\n"):
                # A new attempt begins with the records of those before it.
                if record.get("round", -1) > self._round:
                    self._round = record["round"]
                    self._print(record_line(record, self._request.rounds, self._metric))
        if end is not None:
            reached = f" after round {end['round']}" if end.get("round") else ""
            message = f": {end['message']}" if end.get("message") else ""
            self._print(f"== attempt {attempt.number} ended: {end.get('kind')}{reached}{message}")
        elif lives:
            return
        else:
            self._print(f"== attempt {attempt.number} was lost: its worker died")
            lease = attempt.lease()
            lines = list(Tail(self._workers / lease.token / "log.txt").lines()) if lease else []
            if lines:
                self._print("the log of its worker ends with:")
            for line in lines[-LAST_LINES:]:
                self._print(line)
        self.ended = True

    def _print(self, line: str) -> None:
        self.silent = False
        print(self._prefix + visible(line), flush=True)


class Tail:
    """The whole lines of a file that may not exist yet, and may grow."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def lines(self) -> Iterator[str]:
        """Yield the lines that were not read before, without their ends."""
        try:
            with open_regular(self._path) as file:
                file.seek(self._offset)
                whole, newline, _ = file.read().rpartition(b"\n")
        except OSError:
            return
        self._offset += len(whole) + len(newline)
        if newline:
            yield from whole.decode(errors="replace").split("\n")
