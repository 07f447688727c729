"""The command line: parse, call, print. Everything heavy is imported inside the commands."""

from __future__ import annotations

import sys

import typer

from flbench.cli.bench import bench as bench_command
from flbench.cli.cancel import cancel as cancel_command
from flbench.cli.data import app as data_commands
from flbench.cli.doctor import doctor as doctor_command
from flbench.cli.exchange import export as export_command
from flbench.cli.exchange import import_ as import_command
from flbench.cli.gc import gc as gc_command
from flbench.cli.logs import logs as logs_command
from flbench.cli.partition import app as partition_commands
from flbench.cli.plot import plot as plot_command
from flbench.cli.report import report as report_command
from flbench.cli.retry import retry as retry_command
from flbench.cli.run import run as run_command
from flbench.cli.schema import schema as schema_command
from flbench.cli.show import show as show_command
from flbench.cli.status import status as status_command
from flbench.cli.sweep import sweep as sweep_command
from flbench.cli.sync import sync as sync_command
from flbench.cli.verify import verify as verify_command
from flbench.errors import UserError

app = typer.Typer(
    name="flbench",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help: drawing it with rich would take longer than all the rest of the command
    pretty_exceptions_enable=False,
    help="Which normalization and which federated method survive label skew, and why?\n\n"
    "Start with: flbench sweep sweeps/quickstart.yaml",
)
app.command("sweep")(sweep_command)
app.command("report")(report_command)
app.command("plot")(plot_command)
app.command("run")(run_command)
app.command("status")(status_command)
app.command("logs")(logs_command)
app.command("cancel")(cancel_command)
app.command("retry")(retry_command)
app.command("sync")(sync_command)
app.command("gc")(gc_command)
app.command("verify")(verify_command)
app.command("show")(show_command)
app.command("schema")(schema_command)
app.command("export")(export_command)
app.command("import")(import_command)
app.command("bench")(bench_command)
app.command("doctor")(doctor_command)
app.add_typer(data_commands, name="data")
app.add_typer(partition_commands, name="partition")


def main() -> None:
    """Entry point: a user's mistake becomes one message and its exit code; our own becomes a traceback."""
    try:
        app()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
