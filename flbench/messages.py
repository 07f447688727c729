"""Parts of messages to users: values as YAML writes them, what was expected, and the nearest known name."""

from __future__ import annotations

import difflib
import inspect
import re
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from flbench.errors import text_of

#: Letters at most of two names of which the other is suggested if just half is alike, as for ``lm`` and ``ln``.
_SHORT = 10

_EXPECTED: Mapping[str, str] = {
    "greater_than": "a value greater than {gt}",
    "greater_than_equal": "a value of at least {ge}",
    "less_than": "a value less than {lt}",
    "less_than_equal": "a value of at most {le}",
    "bool_type": "true or false",
    "finite_number": "a finite number",
    "float_type": "a number",
    "float_parsing": "a number",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "string_type": "text",
    "dict_type": "a mapping (key: value)",
    "tuple_type": "a list",
    "list_type": "a list",
    "too_short": "at least {min_length} of them",
    "literal_error": "{expected}",
}


def explain(error: Any) -> str:
    """Describe a pydantic error as 'what was expected, what was got'."""
    kind, got = error["type"], error.get("input")
    got = list(got) if isinstance(got, tuple) else got  # the form in the file
    if kind in ("missing", "missing_argument"):
        return "a value is required here"
    if kind == "value_error":
        return str(error["ctx"]["error"])
    if kind not in _EXPECTED:
        return f"{str(error['msg']).replace('Input should be', 'expected')}, got {got!r}"
    context = {key: f"{value:g}" if isinstance(value, float) else value for key, value in error.get("ctx", {}).items()}
    message = f"expected {_EXPECTED[kind].format(**context)}, got {got!r}"
    choices = re.findall(r"'([^']*)'", str(context.get("expected", "")))
    return message + (did_you_mean(got, choices) if kind == "literal_error" and isinstance(got, str) else "")


def format_scalar(value: Any) -> str:
    """Return a setting as people write it: 0.1, 1e-05, [128, 128]; two different values are never written the same.

    >>> format_scalar(1e-5), format_scalar((128, 64)), format_scalar(True)
    ('1e-05', '[128, 64]', 'true')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return short if float(short := f"{value:g}") == value else repr(value)
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(map(format_scalar, value)) + "]"
    return str(value)


def without_directories(value: Any) -> Any:
    """Return a plain value in which texts that are absolute paths are names: they may leave this machine.

    >>> without_directories({"name": "folder", "path": "/home/me/my pets", "size": 32, "parts": ["~/a", "b/c"]})
    {'name': 'folder', 'path': 'my pets', 'size': 32, 'parts': ['a', 'b/c']}
    """
    if isinstance(value, Mapping):
        return {name: without_directories(part) for name, part in value.items()}
    if isinstance(value, (tuple, list)):
        return [without_directories(part) for part in value]
    if isinstance(value, str) and value.startswith(("/", "~")):
        return PurePath(value).name or value
    return value


def public_scalar(value: Any) -> str:
    """Return a setting as people write it, without directories of this machine."""
    return format_scalar(without_directories(value))


def text_without_directories(text: str) -> str:
    """Return a text in which absolute paths are names, up to a path's first space.

    >>> text_without_directories("cannot read '/home/me/rows.json' (folder:~/pets/dogs), see https://example.org/a/b")
    "cannot read 'rows.json' (folder:dogs), see https://example.org/a/b"
    """
    return re.sub(r"(?<![\w./~])(?:~[a-z]*/(?:\S*/)?|/(?!/)\S*/)", "", text)


def counted(count: int, noun: str) -> str:
    """Return a number of things: ``1 run``, ``1,200 runs``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def some_of(part: int, whole: int, noun: str, verb: str = "") -> str:
    """Return ``1 of 3 runs``; with a verb ``1 of 3 runs is``, ``2 of 3 runs are``, ``0 of 3 runs have``."""
    plural = {"is": "are", "has": "have", "": ""}[verb]
    return f"{part:,} of {counted(whole, noun)} {verb if part == 1 else plural}".rstrip()


def unknown(what: str, name: str, known: Iterable[str], of: str = "") -> str:
    """Return the message about an unknown name: a similar name if there is one, then all names, the most similar first.

    >>> unknown("norm", "lm", ["none", "ln"])
    "unknown norm 'lm'; did you mean 'ln'? known: ln, none"
    """
    known = by_similarity(name, known)
    return unknown_message(f"{what} {name[:80]!r}{' of ' if of else ''}{of}", did_you_mean(name, known), known)


def unknown_message(what: str, hint: str, known: Sequence[str]) -> str:
    """Return the message about something unknown, with a hint (``did_you_mean``) and all known names in their order."""
    if not known:
        return f"unknown {what}; there are none"
    return f"unknown {what}{hint}{' ' if hint else '; '}known: {', '.join(known)}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` where a known name is similar, else an empty text.

    >>> did_you_mean("lm", ["ln"]), did_you_mean("head-lr", ["fedlc", "fedrs"])
    ("; did you mean 'ln'?", '')
    """
    for other in by_similarity(name, known)[:1]:
        if (alike := _similarity(name, other)) > 0.5 or (alike == 0.5 and len(name + other) <= _SHORT):
            return f"; did you mean {other!r}?"
    return ""


def by_similarity(name: str, known: Iterable[str]) -> list[str]:
    """Return ``known``, the most similar to ``name`` first.

    >>> by_similarity("lm", ["none", "ln"])
    ['ln', 'none']
    """
    return sorted(known, key=lambda other: -_similarity(name, other))


def hook_at(cls: type[Any], hook: str, kind: str, error: BaseException | None = None) -> str:
    """Return file and line of a component's hook, or of the last line of its file that led to an error; then its name.

    A callable without code of its own is named by its module.
    """
    found = getattr(cls, hook)
    code = getattr(inspect.unwrap(getattr(found, "fget", found)), "__code__", None)
    where = f"{code.co_filename}:{line_in(code.co_filename, error) or code.co_firstlineno}" if code else cls.__module__
    return f"{where}: the hook {hook} of the {kind} {vars(cls).get('name', cls.__name__)!r}"


def line_in(file: str, error: BaseException | None) -> int | None:
    """Return the last line of a file that led to an error; None if none did."""
    frames = traceback.walk_tb(error.__traceback__ if error else None)
    lines = [line for frame, line in frames if frame.f_code.co_filename == file]
    return lines[-1] if lines else None


def reason(error: BaseException) -> str:
    """Return the type of an error and the first line of its text, if it has one.

    >>> reason(KeyError("conv1")), reason(ValueError())
    ("KeyError: 'conv1'", 'ValueError')
    """
    text = text_of(error).partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _similarity(name: str, other: str) -> float:
    return difflib.SequenceMatcher(None, name.lower()[:80], other.lower()).ratio()
