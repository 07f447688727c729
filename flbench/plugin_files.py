"""Components from single files: ``flbench --plugin my_norm.py``, or $FLBENCH_PLUGINS, which workers inherit."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from flbench.errors import PROCESS_ENDS, InvalidComponent, UserError, text_of
from flbench.installation import bundled
from flbench.messages import counted, line_in, reason
from flbench.regular import open_regular

#: Paths of plug-in files, separated as in $PATH.
VARIABLE = "FLBENCH_PLUGINS"

#: The cure for a component that is not known here.
CURE = f"; if a plug-in has it, name its file with --plugin or in ${VARIABLE}"

#: Python files of a folder that are searched for an unknown component at most, and characters of each.
_MOST_FILES, _MOST_TEXT = 50, 100_000

#: How the names of their modules begin.
PREFIX = "flbench_plugin_"


def add_plugins(paths: Iterable[str | Path]) -> None:
    """Let this process and those that it starts load some files; raises UserError for one that cannot be loaded."""
    files = [_find(Path(path)) for path in paths]
    # A worker may start in another folder.
    every = [*plugin_files(), *(path.resolve() for path in files)]
    os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys(map(str, every)))


def _find(path: Path) -> Path:
    """Return the path of a plug-in file: the user's, or the one of that path that comes with flbench.

    So the comments of a sweep that comes with flbench, which name its plug-in, are true in every folder.

    Raises:
        UserError: there is neither.
    """
    if path.is_file():
        return path
    own = _bundled_files()
    if path.as_posix() in own:
        return own[path.as_posix()]
    alike = [name for name in own if Path(name).stem == path.stem]
    hint = f"; did you mean {alike[0]}, which comes with flbench?" if alike else ""
    raise UserError(f"--plugin {path}: expected a Python file, there is none{hint}")


def _bundled_files() -> dict[str, Path]:
    """Return the plug-in files beside the sweeps that come with flbench, by their paths in the repository."""
    folder = bundled("sweeps")
    return {f"sweeps/{path.relative_to(folder).as_posix()}": path for path in sorted(folder.rglob("*.py"))}


def plugin_files() -> list[Path]:
    """Return the files that this process may load, as absolute paths."""
    return [Path(text).resolve() for text in os.environ.get(VARIABLE, "").split(os.pathsep) if text]


def typed(path: Path) -> str:
    """Return the path of a file as a command in the working directory names it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def with_near_cure(message: str, folders: Iterable[Path]) -> str:
    """Return a message that ends with ``CURE``, in which a file that registers the name is named.

    The file is in one of these folders, or comes with flbench as the original of a copied sweep does. Without one, a
    message in a process with plug-in files says that these do not register it.
    """
    loaded = plugin_files()
    found = re.search(r"unknown [a-z ]+ '([^']+)'", message)
    if found is None or CURE not in message:
        return message
    name = re.escape(found[1])
    registers = re.compile(rf"""(\.register(_of_records)?\(|kind: Literal\[)\s*["']{name}["']""")
    near = [path for folder in folders for path in sorted(folder.glob("*.py"))[:_MOST_FILES]]
    for path in dict.fromkeys([*near, *_bundled_files().values()]):
        if path.resolve() in loaded:
            continue
        try:
            with open_regular(path) as file:
                text = file.read(_MOST_TEXT).decode(errors="replace")
        except OSError:
            continue
        if registers.search(text):
            what = message.partition(f"'{found[1]}'")[0]
            return f"{what}'{found[1]}', which {path} has: {_with_plugin(path)}"
    if loaded:
        message = message.replace(CURE, f"; it is not registered in {', '.join(path.name for path in loaded)}")
    return message


def _with_plugin(path: Path) -> str:
    """Return this command line with a plug-in file; outside of the command line, its beginning."""
    program = Path(sys.argv[0]).name
    given = shlex.join(sys.argv[1:]) if program == "flbench" else "COMMAND"
    return f"flbench --plugin {shlex.quote(str(path))} {given}"


def load_plugins() -> Iterator[str]:
    """Import the files, which register their components.

    Yields:
        The names of their modules.

    Raises:
        UserError: a file is missing or raises an error; the message names the file and the line.
    """
    for path in plugin_files():
        if not path.is_file():
            raise UserError(f"${VARIABLE}: {path}: no such file")
        name = PREFIX + re.sub(r"\W", "_", path.stem)
        loaded = sys.modules.get(name)
        if loaded is None:
            _import(name, path)
        elif loaded.__file__ != str(path):
            raise UserError(f"{path}: {loaded.__file__} has the same name; rename one of them")
        yield name


def _import(name: str, path: Path) -> None:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path}: expected a Python file, whose name ends in .py")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, *PROCESS_ENDS) as error:
        del sys.modules[name]
        line = error.lineno if isinstance(error, SyntaxError) else line_in(str(path), error)
        what = text_of(error) if isinstance(error, InvalidComponent) else reason(error)
        raise UserError(f"{path}{f':{line}' if line else ''}: {what}") from error


def code_notes(changed: Mapping[str, int]) -> tuple[str, ...]:
    """Return a sentence for each plug-in that changed after runs had finished, of which it gives the number."""
    return tuple(
        f"The source code of the plug-in {plugin} has changed: flbench run or sweep executes "
        f"{counted(count, 'finished run')} again."
        for plugin, count in sorted(changed.items())
    )
