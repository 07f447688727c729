"""The options that change or narrow a sweep (``--set``, ``--only``), and the fields that ``flbench run`` takes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from flbench.config import ALIASES, fields_of_all_kinds
from flbench.registry import unknown
from flbench.sweeps.grid import Layer, normal_path, read_layer
from flbench.sweeps.source import Source, SpecError, Where, read_value
from flbench.sweeps.spec import SweepSpec

#: Keys whose mappings hold fields of an experiment, which may have dots in their names.
_OF_FIELDS = ("base", "axes", "zip", "set", "if", "baseline")

#: Mappings that a file may leave out and an option may begin.
_SECTIONS = (*_OF_FIELDS, "resources", "retry", "backend", "wandb", "report")


def split_address(text: str) -> tuple[str | None, str]:
    """NAME and ``PATH=VALUE`` of a ``NAME:PATH=VALUE``, for the file NAME.yaml alone; no name where all are meant."""
    name, colon, change = text.partition(":")
    return (name.strip(), change) if colon and "=" not in name else (None, text)


def apply_sets(source: Source, sets: Iterable[str]) -> None:
    """Change a sweep's data as each ``PATH=VALUE`` says, whoever it is addressed to; raises SpecError."""
    for text in sets:
        option = f"--set {text}"
        _, change = split_address(text)
        path, value = _split(option, change, "PATH=VALUE, as in axes.lr=[0.1,0.3] or base.rounds=50")
        source.replace(_find(source, option, path), value, option)


def read_only(only: Iterable[str]) -> list[tuple[Source, Layer]]:
    """Conditions from ``FIELD=VALUE`` options, those of one field joined to any-of; raises SpecError."""
    wanted: dict[str, tuple[str, list[Any]]] = {}
    for text in only:
        option = f"--only {text}"
        field, value = _split(option, text, "FIELD=VALUE, as in method=fedavg or lr=[0.1,0.3]")
        path = _field(option, field)
        values = value if isinstance(value, list) else [value]
        wanted[path] = (option, [*wanted.get(path, ("", []))[1], *values])
    return [_layer_of({path: pair}) for path, pair in wanted.items()]


def read_fields(fields: Iterable[str]) -> tuple[Source, Layer]:
    """The fields of one experiment from ``FIELD=VALUE`` arguments; raises SpecError."""
    given: dict[str, tuple[str, Any]] = {}
    for text in fields:
        key, value = _split(text, text, "FIELD=VALUE, as in lr=0.1 or norm=ln")
        path = _field(text, key)
        if path in given:
            raise SpecError(f"{text}: {path} is given twice: {given[path][0]} and {text}")
        given[path] = text, value
    return _layer_of(given)


def _layer_of(given: dict[str, tuple[str, Any]]) -> tuple[Source, Layer]:
    source = Source("", "{}")
    for path, (option, value) in given.items():
        source.replace((path,), value, option)
    return source, read_layer(source, source.data, (), seed=True)


def _split(option: str, text: str, usage: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise SpecError(f"{option}: expected {usage}")
    try:
        return key.strip(), read_value(value)
    except SpecError as error:
        raise SpecError(f"{option}: {str(error).partition(': ')[2]}") from None


def _field(option: str, key: str) -> str:
    try:
        return normal_path(key)
    except ValueError as error:
        raise SpecError(f"{option}: {error}") from None


def _find(source: Source, option: str, path: str) -> Where:
    """Where in the file a ``--set`` path points; its parent exists afterwards."""
    parts = re.sub(r"\[(\d+)\]", r".\1", path).split(".")
    if parts[0] not in (known := SweepSpec.known_keys()):
        fields = [*fields_of_all_kinds(), *ALIASES]
        if parts[0] not in fields:
            raise SpecError(f"{option}: {unknown('path', parts[0], [*known, *fields])}")
        _refuse_axis(source, option, path)
        parts = ["base", *parts]
    elif parts[0] == "base" and len(parts) > 1:
        _refuse_axis(source, option, ".".join(parts[1:]), everywhere=True)
    return _walk(source, option, parts)


def _walk(source: Source, option: str, parts: list[str]) -> Where:
    node = source.data
    where: Where = ()
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        if isinstance(node, list):
            if not part.isdigit() or int(part) >= len(node):
                raise SpecError(f"{option}: there is no {part!r} in {_name(where)}, a list of {len(node)}")
            where, node = (*where, int(part)), node[int(part)]
        elif not isinstance(node, dict):
            raise SpecError(f"{option}: {_name(where)} is {node!r} and has no {part!r}")
        elif where and _holds_fields(where):
            key = _spelled(option, node, ".".join(parts[index:]))
            return (*where, key)
        else:
            if not last and part not in node:
                if part not in _SECTIONS:
                    raise SpecError(f"{option}: {unknown('part', part, node, _name(where))}")
                node[part] = {}
            where, node = (*where, part), node.get(part)
    return where


def _holds_fields(where: Where) -> bool:
    return where[-1] in _OF_FIELDS or (where[0] == "exclude" and len(where) == 2)


def _spelled(option: str, node: dict[str, Any], key: str) -> str:
    """The key by which the file already names this field, or the given one."""
    path = _field(option, key)
    for there in node:
        try:
            if normal_path(there) == path:
                return there
        except ValueError:
            continue  # the file's own mistake, reported with its line
    return key


def _refuse_axis(source: Source, option: str, key: str, *, everywhere: bool = False) -> None:
    """A base value does nothing where the grids give the field; ``everywhere``: only if all of them do."""
    field = _field(option, key).partition(".")[0]
    found = [_giving(grid, field) for grid in _raw_grids(source)]
    given = [where for where in found if where]
    if given and (len(given) == len(found) or not everywhere):
        raise SpecError(
            f"{option}: {field} does not come from base here but from {' and '.join(given)}: use --set {given[0]}=..."
        )


def _raw_grids(source: Source) -> Iterator[tuple[str, dict[str, Any]]]:
    grids = source.data.get("grids")
    if not isinstance(grids, list):
        yield "", source.data
        return
    for index, grid in enumerate(grids):
        if isinstance(grid, dict):
            yield f"grids.{index}.", grid


def _giving(grid: tuple[str, dict[str, Any]], field: str) -> str | None:
    """The path of the key by which a grid gives a field."""
    prefix, parts = grid
    for part in ("axes", "zip", "set"):
        values = parts.get(part)
        for key in values if isinstance(values, dict) else ():
            head = key.partition(".")[0]
            if ALIASES.get(head, head) == field:
                return f"{prefix}{part}.{key}"
    return None


def _name(where: Where) -> str:
    return ".".join(map(str, where)) or "the file"
