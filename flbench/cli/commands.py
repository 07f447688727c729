"""The commands of ``flbench``, each of which is imported when it is called."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from flbench.choices import DEFAULT_STORE
from flbench.cli.boundary import announce
from flbench.errors import StoreUnusable, UserError
from flbench.messages import unknown

#: By group and name, in the order of ``flbench --help``: the module below ``flbench.cli``, the command or group of
#: commands in it, the help.
GROUPS: Mapping[str, Mapping[str, tuple[str, str, str]]] = {
    "Run": {
        "sweep": ("sweep", "sweep", "Run a sweep: launch what is missing, show the leaderboard."),
        "run": ("run", "run", "Run one experiment and watch it."),
        "jobs": ("jobs", "jobs", "Print the commands of a sweep's workers, for any queue."),
        "status": ("status", "status", "Show sweep progress and active workers."),
        "logs": ("logs", "logs", "Show the logs of a run, or of a sweep's runs."),
        "cancel": ("cancel", "cancel", "Stop sweeps or single runs; nothing is lost."),
        "retry": ("retry", "retry", "Retry failed or cancelled runs on the next sweep."),
    },
    "Results": {
        "runs": ("runs", "runs", "List runs; filter and sort them."),
        "diff": ("diff", "diff", "Compare two runs, cells, sweeps or stores."),
        "report": ("report", "report", "Write a leaderboard, pages, figures and tables."),
        "plot": ("plot", "plot", "Draw one kind of figure."),
    },
    "Store": {
        "export": ("exchange", "export", "Write finished runs into one file, or a contribution."),
        "import": ("exchange", "import_", "Add exported runs to a store."),
        "sync": ("sync", "sync", "Mirror finished runs to Weights & Biases."),
        "gc": ("gc", "gc", "Delete superseded checkpoints and stale files."),
        "verify": ("verify", "verify", "Check a store or exported files; compute runs again."),
    },
    "Tools": {
        "show": ("show", "show", "List methods, norms, ...; show one, a run, a partition."),
        "docs": ("docs", "docs", "List the pages of the documentation, or print one."),
        "new": ("new", "new", "Write a sweep or a component to start from."),
        "data": ("data", "app", "List, download and verify data sets."),
        "bench": ("bench", "bench", "Time an experiment against plain PyTorch loops."),
        "doctor": ("doctor", "doctor", "Check what works on this machine, and say how to fix the rest."),
    },
}

#: The same commands by name.
COMMANDS = {name: where for commands in GROUPS.values() for name, where in commands.items()}

#: The line that a terminal shows at once, while a command imports, and what takes the place of its arguments up to the
#: first option if there are none. All other commands read what their arguments name, and have no line without any.
DOING: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("status", "runs", "report", "sync", "gc", "verify"), ("reading {}", "{store}")),
    "plot": ("drawing {}", "a figure"),
    "run": ("preparing a run of {}", "the defaults"),
    "bench": ("preparing a benchmark of {}", "the defaults"),
    "export": ("writing {}", "a contribution"),
    "new": ("writing {}", "a file"),
    "data": ("reading the data sets", ""),
    "docs": ("reading the documentation", "all"),
    "doctor": ("checking this machine", "all"),
}

#: Commands of the last release that have another name, and that name.
RENAMED: Mapping[str, str] = {
    "contribute": "export --contribute NAME SPEC",
    "init": "new sweep NAME",
    "partition": "show partition FIELD=VALUE...",
    "schema": "show schema",
}


class Commands(TyperGroup):
    """The commands; an unexpected error of the operating system becomes a message."""

    def __init__(self, **settings: Any) -> None:
        settings["commands"] = {name: Command(name, *where) for name, where in COMMANDS.items()}
        super().__init__(**settings)

    def make_context(self, info_name: str | None, args: list[str], *others: Any, **settings: Any) -> Any:
        """Return the context of flbench; first a terminal says what the command does, since typer imports pydantic."""
        if not settings.get("resilient_parsing"):  # a Tab
            announce(_doing(args))
        return super().make_context(info_name, args, *others, **settings)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands of each group under its name, which typer does only in help that rich draws."""
        width = max(map(len, COMMANDS))  # one column of names for all groups
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{width}}", summary) for name, (*_, summary) in commands.items()])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments name; ``help NAME`` is ``NAME --help``.

        Raises:
            UserError: the command was renamed; the message has the present name.
            typer.Exit: after the help of all commands, for ``help`` alone.
        """
        if args[0] == "help" and not ctx.resilient_parsing:
            if len(args) == 1:
                typer.echo(ctx.get_help())
                raise typer.Exit
            return self.resolve_command(ctx, [*args[1:], "--help"])
        if args[0] in RENAMED and not ctx.resilient_parsing:  # a Tab offers nothing
            raise UserError(f"flbench {args[0]} has become: flbench {RENAMED[args[0]]}")
        if args[0] not in self.commands and not ctx.resilient_parsing:
            raise UserError(f"{unknown('command', args[0], COMMANDS)} (flbench help)")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Return the result of a command.

        Raises:
            StoreUnusable: a file of a store cannot be read or written.
            UserError: any other file cannot.
        """
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # the reader of a pipe closed it: no error
        except OSError as error:
            from flbench.store import Store, files  # takes a tenth of a second, which --help does not have

            named = isinstance(error.filename, str | bytes | os.PathLike)
            parents = Path(os.fsdecode(error.filename)).parents if named else []
            store = next((path for path in parents if Store.exists(path)), None)
            if store is None:
                raise UserError(files.reason(error)) from error
            raise StoreUnusable(f"the store {store} cannot be used: {files.reason(error)}") from error


class Command(TyperCommand):
    """The name and help of a command, whose module is imported when it is called or completed."""

    def __init__(self, name: str, module: str, member: str, summary: str) -> None:
        super().__init__(name, short_help=summary, rich_markup_mode=None)
        self._module, self._member = module, member

    def make_context(self, *arguments: Any, **settings: Any) -> Any:
        """Return the context of the command itself, after importing it."""
        found = getattr(import_module(f"flbench.cli.{self._module}"), self._member)
        if not isinstance(found, typer.Typer):
            command, found = found, typer.Typer(rich_markup_mode=None, add_completion=False)
            found.command(self.name, cls=PlainCommand)(command)
        try:
            return typer.main.get_command(found).make_context(*arguments, **settings)
        except typer.BadParameter as error:
            error.message = _with_nearest(error.message)
            raise


class PlainCommand(TyperCommand):
    """A command whose usage has brackets around what may be left out, and whose help shows its options in groups."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return ``[OPTIONS] SPEC [NAME...]``: typer writes ``{spec}`` for what is required."""
        pieces = [self.options_metavar or ""]
        for argument in filter(_is_argument, self.get_params(ctx)):
            name = _argument_name(argument)
            pieces.append(name if argument.required else f"[{name}]")
        return pieces

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the groups of options; an option without a group is in the last one."""
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        last: list[tuple[str, str]] = []
        for one in self.get_params(ctx):
            if (record := one.get_help_record(ctx)) is None:
                continue
            if _is_argument(one):
                groups["Arguments"].append((_argument_name(one), record[1]))
            else:
                # <int>, and no limit that only keeps typing mistakes out, such as x<=10000.
                text = re.sub(r"(; )?(\d+<=)?x<=10+\]", "]", record[1]).replace("  []", "")
                record = (record[0].replace(" range>", ">"), text)
                title = getattr(one, "rich_help_panel", None)
                (groups.setdefault(title, []) if title else last).append(record)
        for title, records in (*groups.items(), ("Options", last)):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def _doing(args: Sequence[str]) -> str:
    """Return the line that comes before the output of a command: for its help the summary; "" if there is none."""
    args, before = [*args], [""]
    while args and (args[0] in ("help", "--plugin") or before[-1] == "--plugin"):
        before.append(args.pop(0))
    name, words = "".join(args[:1]), args[1:]
    if name not in COMMANDS or "--json" in words:
        return ""
    if {"-h", "--help"} & {*words} or "help" in before:
        return COMMANDS[name][2]
    text, alone = DOING.get(name, ("reading {}", ""))
    path = re.search("(?:^|\0)--(?:store|results)[=\0]([^\0]+)", "\0".join(words))
    store = path[1] if path else f"the store {os.environ.get('FLBENCH_STORE') or DEFAULT_STORE}"
    things = [Path(word).name or word for word in takewhile(lambda word: not word.startswith("-"), words)]
    named = " ".join(things) or alone.format(store=store) or ("the arguments" if words else "")
    return text.format(named) if named else ""


def _is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


def _argument_name(argument: Any) -> str:
    return f"{argument.metavar}{'...' if argument.nargs != 1 else ''}"


def _with_nearest(message: str) -> str:
    """Return typer's message about a value that is none of the choices, with the most similar choice first."""
    if not (parts := re.search(r"'(.*)' is not one of ('.*')", message)):
        return message
    return unknown("value", parts[1], re.findall("'([^']*)'", parts[2]))
