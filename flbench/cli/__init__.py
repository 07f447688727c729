"""The command line: parse, call, print. Everything heavy is imported inside the commands."""

from __future__ import annotations

import sys

import typer

from flbench.cli import data, doctor, exchange, partition, report, run, schema, show, status, sweep
from flbench.errors import UserError

app = typer.Typer(
    name="flbench",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Which normalization and which federated method survive label skew, and why?\n\n"
    "Start with: [bold]flbench sweep sweeps/quickstart.yaml[/bold]",
)
app.command("sweep")(sweep.sweep)
app.command("report")(report.report)
app.command("run")(run.run)
app.command("status")(status.status)
app.command("show")(show.show)
app.command("schema")(schema.schema)
app.command("export")(exchange.export)
app.command("import")(exchange.import_)
app.command("doctor")(doctor.doctor)
app.add_typer(data.app, name="data")
app.add_typer(partition.app, name="partition")


def main() -> None:
    """Entry point: a user's mistake becomes one message and its exit code; our own becomes a traceback."""
    try:
        app()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
