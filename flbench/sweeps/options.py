"""The options that change or narrow a sweep (``--set``, ``--only``), and the fields that ``flbench run`` takes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from flbench.config import ALIASES, fields_of_all_kinds
from flbench.messages import unknown
from flbench.sweeps.grid import Layer, component_form, normal_path, read_layer, read_values
from flbench.sweeps.source import Source, SpecError, Where, read_value
from flbench.sweeps.spec import SweepSpec

#: Keys whose values are mappings of an experiment's fields, whose names may contain dots.
_OF_FIELDS = ("base", "axes", "zip", "set", "if", "baseline")

#: Those of them with one value per field.
_OF_VALUES = ("base", "set")

#: Mappings that an option may create where the file has none.
_SECTIONS = (*_OF_FIELDS, "resources", "retry", "backend", "wandb", "report")


def split_address(text: str) -> tuple[str | None, str]:
    """Split ``NAME:PATH=VALUE`` into the name of a file and the change; the name is None where all files are meant."""
    name, colon, change = text.partition(":")
    return (name.strip(), change) if colon and "=" not in name else (None, text)


def apply_sets(source: Source, sets: Iterable[str]) -> None:
    """Apply each ``PATH=VALUE`` to a sweep's data, ignoring the name of a file in front of it; raises SpecError.

    A component given as a whole replaces its settings (``method.mu``) in the same mapping; a setting is put into the
    component that the mapping gives.
    """
    for text in sets:
        option = f"--set {text}"
        _, change = split_address(text)
        path, value = _split(option, change, "PATH=VALUE, as in axes.lr=[0.1,0.3] or base.rounds=50")
        where = _find(source, option, path)
        source.replace(where, value, option)
        if len(where) > 1 and where[-2] in _OF_VALUES:
            field = ALIASES.get(str(where[-1]), str(where[-1]))
            settings = [key for key in source.parent(where) if "." in key and key.partition(".")[0] == field]
            for setting in settings:
                source.remove((*where[:-1], setting), option)


def read_only(only: Iterable[str]) -> list[tuple[Source, Layer]]:
    """Return the conditions of ``FIELD=VALUE`` options, those of one field joined to any-of; raises SpecError."""
    wanted: dict[str, tuple[str, list[Any]]] = {}
    for text in only:
        option = f"--only {text}"
        field, value = _split(option, text, "FIELD=VALUE, as in method=fedavg or lr=[0.1,0.3]")
        path = _field(option, field)
        values = value if isinstance(value, list) else [value]
        wanted[path] = (option, [*wanted.get(path, ("", []))[1], *values])
    sources = [_source_of({path: pair}) for path, pair in wanted.items()]
    return [(source, read_layer(source, source.data, (), seed=True)) for source in sources]


def read_fields(fields: Iterable[str]) -> tuple[Source, Layer]:
    """Return the fields of one experiment from ``FIELD=VALUE`` arguments; raises SpecError."""
    given: dict[str, tuple[str, Any]] = {}
    for text in fields:
        key, value = _split(text, text, "FIELD=VALUE, as in lr=0.1 or norm=ln")
        path = _field(text, key)
        if path in given:
            raise SpecError(f"{text}: {path} is given twice: {given[path][0]} and {text}")
        given[path] = text, value
    source = _source_of(given)
    return source, read_values(source, source.data, (), seed=True)


def _source_of(given: dict[str, tuple[str, Any]]) -> Source:
    source = Source("", "{}")
    for path, (option, value) in given.items():
        source.replace((path,), value, option)
    return source


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
    """Return where in the file a ``--set`` path points; its parent exists afterwards."""
    parts = re.sub(r"\[(\d+)\]", r".\1", path).split(".")
    if parts[0] not in (known := SweepSpec.known_keys()):
        fields = [*fields_of_all_kinds(), *ALIASES]
        if parts[0] not in fields:
            raise SpecError(f"{option}: {unknown('path', parts[0], [*known, *fields])}")
        _refuse_axis(source, option, path)
        parts = ["base", *parts]
    return _walk(source, option, parts)


def _walk(source: Source, option: str, parts: list[str]) -> Where:
    node, where = source.data, ()  # type: Any, Where
    field = ""  # the field whose value, or list of values, contains the current node
    while True:
        key: str | int
        if isinstance(node, list):
            if not parts[0].isdigit() or int(parts[0]) >= len(node):
                raise SpecError(f"{option}: there is no {parts[0]!r} in {_name(where)}, a list of {len(node)}")
            key, parts = int(parts[0]), parts[1:]
        elif not isinstance(node, dict):
            raise SpecError(f"{option}: {_name(where)} is {node!r} and has no {parts[0]!r}")
        elif where and (where[-1] in _OF_FIELDS or (where[0] == "exclude" and len(where) == 2)):
            key, parts = _key_of_field(option, node, where, parts)
            field = normal_path(key)
        else:
            if len(parts) > 1 and parts[0] not in node:
                if parts[0] not in _SECTIONS:
                    raise SpecError(f"{option}: {unknown('part', parts[0], node, _name(where))}")
                node[parts[0]] = {}
            key, parts = parts[0], parts[1:]
        if not parts:
            return (*where, key)
        if field and (form := component_form(field, node[key])) is not None:
            node[key], field = form, ""
        where, node = (*where, key), node[key]


def _key_of_field(option: str, node: dict[str, Any], where: Where, parts: list[str]) -> tuple[str, list[str]]:
    """Return the key of the field at the start of ``parts``, or of the component around it, and the remaining parts."""
    words = next((index for index, part in enumerate(parts) if part.isdigit()), len(parts))
    for length in range(words, 0, -1):
        key, rest = _spelled(node, ".".join(parts[:length])), parts[length:]
        if key is not None and (not rest or _leads_into(key, node[key], rest)):
            return key, rest
    if words < len(parts):
        raise SpecError(f"{option}: there is no list {'.'.join(parts[:words])!r} in {_name(where)}")
    _field(option, key := ".".join(parts))
    return key, []


def _leads_into(key: str, value: Any, rest: list[str]) -> bool:
    """Return whether the rest of a path is inside a value: a position in a list, or a setting of a component."""
    if isinstance(value, list):
        return rest[0].isdigit()
    return isinstance(value, dict) or component_form(normal_path(key), value) is not None


def _spelled(node: dict[str, Any], key: str) -> str | None:
    """Return the key by which a mapping already names a field."""
    for there in node:
        try:
            if normal_path(there) == normal_path(key):
                return there
        except ValueError:
            continue  # a mistake in the file is reported later, with its line
    return None


def _refuse_axis(source: Source, option: str, key: str) -> None:
    """Refuse a bare name, which means ``base``, where a grid gives the field."""
    field = _field(option, key.partition(".")[0])
    if given := [where for grid in _raw_grids(source) if (where := _giving(grid, field))]:
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
    """Return the path of the key by which a grid gives a field."""
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
