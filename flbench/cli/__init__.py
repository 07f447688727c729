"""The command line: parse, call, print.

``flbench --help`` imports this module, ``boundary.py`` and ``commands.py``, which import nothing slow. The module of a
command is imported when the command is called or completed; its imports are at its top.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from flbench.cli.boundary import guarded_output, plugin_mistakes, prepare_environment
from flbench.cli.commands import Commands
from flbench.errors import UserError
from flbench.plugin_files import add_plugins

app = typer.Typer(
    name="flbench",
    cls=Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},  # those of the commands, too
    rich_markup_mode=None,  # plain help: drawing it with rich would take longer than the rest of the command
    pretty_exceptions_enable=False,
    help="Which normalization and which federated method survive label skew, and why?\n\n"
    "Start with: flbench sweep quickstart\n\n"
    "Help on a command: flbench help sweep",
)


def _show_version(show: bool) -> None:
    if show:
        from importlib.metadata import version  # slow, and for this option only

        typer.echo(f"flbench {version('flbench')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    plugin: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE.py", help="Load components from a file; repeatable. $FLBENCH_PLUGINS lists more."),
    ] = None,
) -> None:
    add_plugins(plugin or [])


def main() -> None:
    """Run the command line: a UserError becomes one message and its exit code, any other exception a traceback."""
    try:
        with guarded_output():
            prepare_environment()
            with plugin_mistakes():
                app()
    except UserError as error:
        from flbench.literal import visible  # slow, and after an error only

        with guarded_output():
            print(f"error: {visible(str(error))}", file=sys.stderr)
        sys.exit(error.exit_code)
