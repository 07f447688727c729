"""What ``flbench run`` shows: the headline number as a curve while it runs, and the result."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from flbench.cli.curves import curve
from flbench.cli.live import STOPPING, SUMMARY, news_line, remaining
from flbench.cli.numbers import duration, handy, measured, pace, value
from flbench.cli.screen import live_area, say
from flbench.config import Experiment, headline_of
from flbench.metric_specs import METRICS
from flbench.orchestrate import Outcome
from flbench.progress import Progress
from flbench.store import Result, RunDir


class RunCurve:
    """One run on a console: a curve that grows on a terminal, a line for each evaluation elsewhere."""

    def __init__(self, console: Console, found: RunDir, experiment: Experiment) -> None:
        self._console, self._run, self._experiment = console, found, experiment
        self._rounds, self._metric = experiment.rounds, headline_of(experiment.to_json())
        self._live: Live | None = None
        self._printed, self._evaluated, self._stopping = -1, 0, False
        self._said = time.monotonic()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Draw the curve in one place of the terminal until the end of the context."""
        with live_area(self._console) as self._live:
            yield

    def update(self, progress: Progress) -> None:
        """Draw or print the evaluations so far."""
        attempts = self._run.attempts()
        # Until its worker has begun, a run that is executed again has the records of its earlier result. The attempt of
        # a run that was extended has further rounds than this request.
        every = attempts[-1].records() if attempts and not attempts[-1].is_superseded() else []
        records = [record for record in every if record["round"] <= self._rounds]
        self._evaluated = records[-1]["round"] if records else 0
        if self._live:
            speed = progress.rounds_per_second
            text = "" if speed is None else f"{pace(speed)}, {remaining(progress)}"
            text = STOPPING if progress.stopping else ", ".join(filter(None, (self._between(progress), text)))
            drawn = picture(records, self._rounds, self._console.width, text, metric=self._metric)
            self._live.update(drawn, refresh=True)
            return
        for record in records if self._rounds else ():  # without rounds, the result says it all
            if record["round"] > self._printed:
                self._printed = record["round"]
                known = progress.rounds_per_second and record["round"] < self._rounds
                left = f", {remaining(progress)}" if known else ""
                say(self._console, record_line(record, self._rounds, self._metric) + left)
            self._said = time.monotonic()
        if (between := self._between(progress)) and time.monotonic() - self._said > SUMMARY:
            self._said = time.monotonic()
            say(self._console, f"{between}, {remaining(progress)}" if progress.rounds_per_second else between)
        if progress.stopping and not self._stopping:
            say(self._console, STOPPING)
        self._stopping = progress.stopping

    def _between(self, progress: Progress) -> str:
        """Return the round that the run has reached since its last evaluation; empty if there is none."""
        reached = min(max((seen.round for seen in progress.active), default=0), self._rounds)
        if reached <= max(self._evaluated, 0):
            return ""
        coming = next((round for round in sorted(self._experiment.evaluated_rounds()) if round > reached), None)
        return f"round {reached}/{self._rounds}" + (f" (next evaluation at {coming})" if coming else "")

    def print_end(self, outcome: Outcome) -> None:
        """Print the whole curve, the final numbers, and what to do next."""
        console, found, rounds = self._console, self._run, self._rounds
        result = found.result_for(self._experiment)
        if result is not None:
            records = self._requested(result)
            if console.is_terminal and records:
                console.print(picture(records, rounds, console.width, metric=self._metric))
            if not outcome.launched:
                say(console, "This run was finished before; nothing was computed.")
            final = records[-1] if records else result.final
            numbers = {name: value for name, value in final.items() if isinstance(value, (int, float))}
            if not rounds:
                numbers.pop("round", None)
            if numbers:
                in_order = sorted(numbers.items(), key=lambda item: (item[0] != "round", item[0] != self._metric))
                say(console, ", ".join(f"{name} {measured(name, number)}" for name, number in in_order), fold=True)
            if result.status == "diverged":
                say(console, f"The run diverged in round {result.rounds}: its loss or a weight is not a finite number.")
        for seen in outcome.failures:
            say(console, f"failed: {news_line(seen, whole=True)}")
        if outcome.exit_code in (3, 130):
            say(console, "Stopped; the same command goes on from the last checkpoint.")
        say(console, f"Files: {found.path}")

    def _requested(self, result: Result) -> list[dict[str, Any]]:
        """Return the records up to the requested round: a run that was extended has more."""
        return [record for record in self._run.metrics(result) if record["round"] <= self._rounds]

    def summary(self, outcome: Outcome) -> dict[str, Any]:
        """Return the run for ``--json``."""
        state = self._run.state(self._experiment)
        result = state.result
        records = self._requested(result) if result else []
        return {
            "schema": 1,
            "run_id": self._run.run_id,
            "status": result.status if result else state.status,
            "kind": state.kind,
            "message": state.message,
            "rounds": result.rounds if result else None,
            "metric": self._metric,
            "final": records[-1] if records else result.final if result else None,
            "directory": str(self._run.path),
            "computed": outcome.launched > 0,
            "exit_code": outcome.exit_code,
        }


def picture(
    records: Sequence[Mapping[str, Any]], rounds: int, columns: int, speed: str = "", *, metric: str = "acc"
) -> RenderableType:
    """Return the curve, if there are rounds, with the newest numbers below it.

    The scale of an accuracy ends at 100 %, that of any other number at its greatest value.
    """
    points = [(record["round"], record[metric]) for record in records if record.get(metric) is not None]
    lines: list[str] = []
    if rounds and METRICS[metric].percent:
        lines = curve(points, rounds, width=max(20, min(72, columns - 10)))
    elif rounds:
        top = max((y for _, y in points), default=0) or 1.0
        lines = curve(points, rounds, width=max(20, min(72, columns - 14)), top=top, text=handy)
    newest = record_line(records[-1], rounds, metric) if records else "preparing data and model ..."
    return Group(*map(Text, filter(None, (*lines, newest, speed))))


def record_line(record: Mapping[str, Any], rounds: int, metric: str = "acc") -> str:
    """Return one evaluation in one line, the headline number first."""
    parts = [f"round {record['round']}/{rounds}"] if rounds else []
    parts += [f"{metric} {value(metric, record.get(metric))}"]
    formats = {"rank": ".4g", "loss": ".4f", "train_loss": ".4f"}
    shown = {name: record[name] for name in formats if name != metric and record.get(name) is not None}
    parts += [f"{name} {number:{formats[name]}}" for name, number in shown.items()]
    parts += [duration(record["seconds"])] if record.get("seconds") is not None else []
    return ", ".join(parts)
