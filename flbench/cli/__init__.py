"""The command line: parse, call, print.

``flbench --help`` imports this package, so the modules with commands import the store, rich and torch inside their
functions; the modules that only commands in action use import them at the top.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from flbench.cli.bench import bench as bench_command
from flbench.cli.boundary import Commands, check_environment, guarded_output
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
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help: drawing it with rich would take longer than the rest of the command
    pretty_exceptions_enable=False,
    help="Which normalization and which federated method survive label skew, and why?\n\n"
    "Start with: flbench sweep sweeps/quickstart.yaml",
)


def _show_version(show: bool) -> None:
    if show:
        from importlib.metadata import version

        typer.echo(f"flbench {version('flbench')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None: ...


app.command("sweep", short_help="Run a sweep: launch what is missing, show the leaderboard.")(sweep_command)
app.command("report", short_help="Write a leaderboard, pages, figures and tables.")(report_command)
app.command("plot", short_help="Draw one kind of figure.")(plot_command)
app.command("run", short_help="Run one experiment and watch it.")(run_command)
app.command("status", short_help="Show sweep progress and active workers.")(status_command)
app.command("logs", short_help="Show the logs of a run, or of a sweep's runs.")(logs_command)
app.command("cancel", short_help="Stop sweeps or single runs; nothing is lost.")(cancel_command)
app.command("retry", short_help="Retry failed or cancelled runs on the next sweep.")(retry_command)
app.command("sync", short_help="Mirror finished runs to Weights & Biases.")(sync_command)
app.command("gc", short_help="Delete superseded checkpoints and stale files.")(gc_command)
app.command("verify", short_help="Check a store; compute runs again.")(verify_command)
app.command("show", short_help="List methods, norms, data sets and other components.")(show_command)
app.command("schema", short_help="Print the JSON Schema of sweep files.")(schema_command)
app.command("export", short_help="Write finished runs into one compact file.")(export_command)
app.command("import", short_help="Add exported runs to a store.")(import_command)
app.command("bench", short_help="Time training and probes.")(bench_command)
app.command("doctor", short_help="Check what works on this machine, and say how to fix the rest.")(doctor_command)
app.add_typer(data_commands, name="data")
app.add_typer(partition_commands, name="partition")


def main() -> None:
    """Run the command line: a UserError becomes one message and its exit code, any other exception a traceback."""
    try:
        with guarded_output():
            check_environment()
            app()
    except UserError as error:
        with guarded_output():
            print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
