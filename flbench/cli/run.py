"""``flbench run``: one experiment through the same store and worker as a sweep, with its curve in the terminal."""

from __future__ import annotations

import json
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from flbench.choices import Device, Executor
from flbench.cli.completion import fields as complete_fields
from flbench.cli.options import (
    DEFAULT_STORE,
    MOST_AT_ONCE,
    DataOption,
    JsonOption,
    RerunOption,
    StoreOption,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from flbench.config import Experiment
    from flbench.orchestrate import Outcome
    from flbench.progress import Progress
    from flbench.store import RunDir


def run(
    fields: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FIELD=VALUE...",
            help="What to run, e.g. norm=ln lr=0.1 E=10 method.mu=0.01.",
            autocompletion=complete_fields,
        ),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    data: DataOption = None,
    device: Annotated[Device, typer.Option(help="What to compute on; auto takes CUDA where there is any.")] = "auto",
    executor: Annotated[Executor, typer.Option(help="How clients are mapped.")] = "auto",
    threads: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_AT_ONCE, help="Threads of the loop executor; default: every usable core."),
    ] = None,
    rerun: RerunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run one experiment and watch its accuracy; the store keeps it, so it resumes, extends, and is not repeated.

    Of a study (kind=sharpness, rank or deep) you see what it measures; `flbench show kinds` lists the fields of each.

    Example: flbench run norm=ln partition=classes:1 lr=0.1 E=10

    Example: flbench run kind=sharpness width=200 normalized=bn-last

    Example: flbench run dataset=cifar10 model=cnn method=scaffold rounds=100 --threads 2
    """
    from rich.console import Console

    from flbench.cli.live import say
    from flbench.config import require_device
    from flbench.launchers import run_launcher, used_device
    from flbench.orchestrate import Orchestrator
    from flbench.planning import begin, name_data
    from flbench.store import Store
    from flbench.sweeps import experiment_from

    given = experiment_from(fields or ())
    require_device([given], lambda: used_device(device))
    (experiment,) = name_data([given], store, data, "data")
    console = Console(stderr=as_json)
    opened = Store(store)
    for line in begin(opened, [experiment], rerun=rerun):
        say(console, line)
    found = opened.run(experiment.run_id)
    if found.state(experiment).status in ("failed", "lost"):
        found.reset_failures()

    with CurveView(console, found, experiment) as view:
        outcome = Orchestrator(
            opened,
            "",
            [experiment],
            lambda: run_launcher(opened, experiment, data, device, executor, threads),
            max_attempts=1,
            show=view.show,
        ).run()
    _conclude(console, found, experiment, outcome)
    if as_json:
        print(json.dumps(_summary(found, experiment, outcome), indent=1))
    raise typer.Exit(outcome.exit_code)


class CurveView:
    """The headline number as a curve that grows; a line for each evaluation where there is no terminal."""

    def __init__(self, console: Console, found: RunDir, experiment: Experiment) -> None:
        from rich.live import Live

        from flbench.config import headline_of

        self._console, self._run, self._rounds = console, found, experiment.rounds
        self._metric = headline_of(experiment.to_json())
        self._live = None
        if console.is_terminal and not console.is_dumb_terminal:
            self._live = Live(console=console, auto_refresh=False, transient=True)
        self._told = -1

    def __enter__(self) -> Self:
        if self._live:
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.__exit__(kind, error, trace)

    def show(self, progress: Progress) -> None:
        """Draw, or tell, the evaluations so far."""
        from flbench.cli.live import say

        attempts = self._run.attempts()
        records = attempts[-1].records() if attempts else []
        if self._live:
            speed = self._speed(progress)
            drawn = picture(records, self._rounds, self._console.width, speed, metric=self._metric)
            self._live.update(drawn, refresh=True)
            return
        for record in records if self._rounds else ():  # else the result says it all
            if record["round"] > self._told:
                self._told = record["round"]
                say(self._console, record_line(record, self._rounds, self._metric))

    @staticmethod
    def _speed(progress: Progress) -> str:
        from flbench.cli.live import remaining
        from flbench.cli.numbers import pace

        speed = progress.rounds_per_second
        return "" if speed is None else f"{pace(speed)}, {remaining(progress)}"


def picture(
    records: list[dict[str, Any]], rounds: int, columns: int, speed: str = "", *, metric: str = "acc"
) -> RenderableType:
    """The curve, where there are rounds, and the newest numbers below it."""
    from rich.console import Group
    from rich.text import Text

    points = [(record["round"], record[metric]) for record in records if record.get(metric) is not None]
    lines = _curve(points, rounds, columns, metric) if rounds else []
    newest = record_line(records[-1], rounds, metric) if records else "preparing data and model ..."
    return Group(*map(Text, filter(None, (*lines, newest, speed))))


def _curve(points: list[tuple[float, float]], rounds: int, columns: int, metric: str) -> list[str]:
    """An accuracy on a scale to 100 %, any other number on one to its greatest value."""
    from flbench.cli.curve import curve
    from flbench.cli.numbers import handy
    from flbench.metric_specs import METRICS

    if METRICS[metric].percent:
        return curve(points, rounds, width=max(20, min(72, columns - 10)))
    top = max((y for _, y in points), default=0) or 1.0
    return curve(points, rounds, width=max(20, min(72, columns - 14)), top=top, text=handy)


def record_line(record: dict[str, Any], rounds: int, metric: str = "acc") -> str:
    """One evaluation in one line: the headline number first."""
    from flbench.cli.numbers import duration, value

    parts = [f"round {record['round']}/{rounds}"] if rounds else []
    parts += [f"{metric} {value(metric, record.get(metric))}"]
    parts += [f"{name} {record[name]:.4g}" for name in ("rank",) if name != metric and record.get(name) is not None]
    parts += [f"{name} {record[name]:.4f}" for name in ("loss", "train_loss") if record.get(name) is not None]
    parts += [duration(record["seconds"])] if record.get("seconds") is not None else []
    return ", ".join(parts)


def _conclude(console: Console, found: RunDir, experiment: Experiment, outcome: Outcome) -> None:
    from flbench.cli.live import news_line, say
    from flbench.config import headline_of

    result, metric = found.result_for(experiment), headline_of(experiment.to_json())
    if result is not None:
        records = [record for record in found.metrics(result) if record["round"] <= experiment.rounds]
        if console.is_terminal and records:
            console.print(picture(records, experiment.rounds, console.width, metric=metric))
        if not outcome.launched:
            say(console, "This run was finished before; nothing was computed.")
        numbers = {name: value for name, value in result.final.items() if isinstance(value, (int, float))}
        if numbers:
            if not experiment.rounds:
                numbers.pop("round", None)
            in_order = sorted(numbers.items(), key=lambda item: (item[0] != "round", item[0] != metric))
            say(console, ", ".join(f"{name} {value:.6g}" for name, value in in_order), fold=True)
        if result.status == "diverged":
            say(console, f"The run diverged in round {result.rounds}: its loss or a weight is not a finite number.")
    for seen in outcome.failures:
        say(console, f"failed: {news_line(seen, whole=True)}")
    if outcome.exit_code in (3, 130):
        say(console, "Stopped; the same command goes on from the last checkpoint.")
    say(console, f"Files: {found.path}")


def _summary(found: RunDir, experiment: Experiment, outcome: Outcome) -> dict[str, Any]:
    from flbench.config import headline_of

    state = found.state(experiment)
    result = state.result
    return {
        "schema": 1,
        "run_id": found.run_id,
        "status": result.status if result else state.status,
        "kind": state.kind,
        "message": state.message,
        "rounds": result.rounds if result else None,
        "metric": headline_of(experiment.to_json()),
        "final": result.final if result else None,
        "directory": str(found.path),
        "computed": outcome.launched > 0,
        "exit_code": outcome.exit_code,
    }
