"""What ``flbench show run`` shows: one run's configuration, state, attempts, curve, probes, environment and files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from flbench.cli.numbers import measured
from flbench.cli.run_curve import picture
from flbench.cli.screen import plain_table, wide_console
from flbench.cli.targets import entry_of
from flbench.config import headline_of, label, parse_experiment
from flbench.literal import visible
from flbench.metric_specs import METRICS
from flbench.store import AttemptDir, RunDir, Store, plan_name

#: Numbers of a list that are shown before the rest is summarized.
MOST_NUMBERS = 12


def run_facts(store: Store, run_id: str) -> dict[str, Any]:
    """Return everything that the store knows about a run, as JSON.

    Returns:
        ``run_id``, ``cell_id``, ``state``, ``kind`` and ``message`` (of a failure), ``metric`` (the headline number),
        ``rounds`` (requested), ``experiment``, ``changed`` (fields that differ from their defaults, as users write
        them), ``result``, ``records`` (of all evaluations), ``attempts``, ``environment``, ``numerics``, ``sweeps``,
        ``directory``.

    Raises:
        UserError: no readable file describes the run.
    """
    entry = entry_of(store, run_id)
    run, experiment = store.run(run_id), entry.parse()
    state = run.state(entry.request())
    attempts, result = run.attempts(), state.result
    records = run.metrics(result) if result else attempts[-1].records() if attempts else []
    default = parse_experiment({"kind": entry.experiment["kind"]})
    fields = type(experiment).model_fields
    written = {name: label(getattr(experiment, name)) for name in fields}
    return {
        "schema": 1,
        "run_id": run_id,
        "cell_id": entry.cell_id,
        "state": result.status if result else state.status,
        "kind": state.kind,
        "message": state.message,
        "metric": headline_of(entry.experiment),
        "rounds": entry.experiment["rounds"],
        "experiment": entry.experiment,
        "changed": {name: text for name, text in written.items() if text != label(getattr(default, name))},
        "result": result and {"rounds": result.rounds, "seconds": result.seconds, "published": result.published},
        "records": [record for record in records if record["round"] <= entry.experiment["rounds"]],
        "attempts": [_attempt(run, attempt) for attempt in attempts],
        "environment": dict(result.environment) if result else attempts[-1].environment() if attempts else {},
        "numerics": dict(result.numerics) if result else {},
        "sweeps": [plan_name(plan) for plan, ids in store.readable_plans() if run_id in ids],
        "directory": str(run.path),
    }


def _attempt(run: RunDir, attempt: AttemptDir) -> dict[str, Any]:
    end, lease = run.end_of(attempt), attempt.lease()
    saved = [int(path.name.partition("-")[0]) for path in attempt.checkpoint_files()]
    return {
        "number": attempt.number,
        "host": lease.host if lease else None,
        "slurm_job": lease.slurm_job if lease else None,
        "ended": end.get("kind") if end else "running" if run.is_live(attempt) else "lost",
        "message": end.get("message") if end else None,
        "time": end.get("time") if end else None,
        "checkpoints": saved,
        "log": str(attempt.log_path) if attempt.log_path.exists() else None,
    }


def run_parts(facts: Mapping[str, Any], width: int) -> Iterator[RenderableType]:
    """Yield what the terminal shows of ``run_facts``, from the top."""
    kind = f" ({facts['kind']})" if facts["kind"] else ""
    yield Text(f"run {facts['run_id']}: {facts['state']}{kind}", style="bold")
    if facts["message"]:
        yield visible(facts["message"])
    changed = {"kind": facts["experiment"]["kind"], **facts["changed"]}
    yield _pairs("configuration (other fields have their defaults)", changed)
    records: Sequence[Mapping[str, Any]] = facts["records"]
    if records:
        yield picture(records, facts["rounds"], width, metric=facts["metric"])
        numbers = {name: value for name, value in records[-1].items() if name in METRICS and value is not None}
        yield _pairs("last evaluation", {name: measured(name, value) for name, value in numbers.items()})
        probes = {
            f"{probe}.{name}" if name else probe: _seen(value)
            for probe, found in records[-1].get("probes", {}).items()
            for name, value in (found.items() if isinstance(found, Mapping) else [("", found)])
        }
        yield from [_pairs("probes in the last evaluation", probes)] if probes else []
    yield _attempts_table(facts["attempts"])
    environment = {name: str(value) for name, value in {**facts["environment"], **facts["numerics"]}.items()}
    yield from [_pairs("environment", environment)] if environment else []
    logs = {f"log of attempt {one['number']}": one["log"] for one in facts["attempts"] if one["log"]}
    sweeps = ", ".join(facts["sweeps"]) or "none: it was started by flbench run"
    yield _pairs("where", {"cell": facts["cell_id"], "sweeps": sweeps, "files": facts["directory"], **logs})
    if any(one["checkpoints"] for one in facts["attempts"]):
        yield f'Its network: flbench.model("{facts["run_id"]}"); its log: flbench logs {facts["run_id"]}'


def print_run(facts: Mapping[str, Any]) -> None:
    """Print a run, with an empty line between its parts."""
    console = wide_console()
    for number, part in enumerate(run_parts(facts, console.width)):
        console.print(*[""] * bool(number), part, sep="\n", highlight=False, markup=False)


def _pairs(title: str, pairs: Mapping[str, str]) -> Table:
    table = plain_table(title=title)
    table.show_header, table.title_style = False, "bold"
    for name, text in pairs.items():
        table.add_row(f"  {name}", visible(text))
    return table


def _attempts_table(attempts: Sequence[Mapping[str, Any]]) -> RenderableType:
    if not attempts:
        return "no worker has started it yet"
    table = plain_table(["attempt", "ended", "when", "host", "weights saved after round"])
    for one in attempts:
        saved = ", ".join(map(str, sorted(one["checkpoints"]))) or "–"
        host = f"{one['host']} job {one['slurm_job']}" if one["slurm_job"] else one["host"] or "–"
        table.add_row(str(one["number"]), visible(one["ended"]), one["time"] or "–", visible(host), saved)
    return table


def _seen(value: Any) -> str:
    """Return a measurement in one line: a number, a short list, or the range of a long one."""
    if isinstance(value, list):
        numbers = [one for one in value if isinstance(one, int | float)]
        if len(numbers) < len(value) or len(value) <= MOST_NUMBERS:
            return ", ".join(map(_seen, value[:MOST_NUMBERS])) + (" ..." if len(value) > MOST_NUMBERS else "")
        return f"{len(numbers)} numbers from {min(numbers):.4g} to {max(numbers):.4g}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
