"""The options that change or narrow a sweep (``--set``, ``--only``), and the fields that ``flbench run`` takes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from flbench.config import ALIASES, KINDS, Layer, Where, fields_of_all_kinds, normal_path
from flbench.messages import unknown
from flbench.sweeps.source import Source, SpecError, component_form, read_value
from flbench.sweeps.spec import SweepSpec

#: Keys whose values are mappings of an experiment's fields, whose names may contain dots.
_OF_FIELDS = ("base", "axes", "zip", "set", "if", "baseline")

#: Those of them with one value per field.
_OF_VALUES = ("base", "set")

#: Mappings that an option may create where the file has none.
_SECTIONS = (*_OF_FIELDS, "resources", "retry", "backend", "wandb", "search", "report")


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
        where = _place(source, option, path)
        source.replace(where, value, option)
        if len(where) > 1 and where[-2] in _OF_VALUES and isinstance(key := where[-1], str):
            settings = f"{ALIASES.get(key, key)}."
            for setting in [other for other in source.parent(where) if other.startswith(settings)]:
                source.remove((*where[:-1], setting), option)


def read_only(only: Iterable[str], prefix: str = "--only ") -> list[tuple[Source, Layer]]:
    """Return the conditions of ``FIELD=VALUE`` options, those of one field joined to any-of.

    Raises:
        SpecError: one is invalid; the message begins with ``prefix`` and the condition, as the user typed them.
    """
    wanted: dict[str, tuple[str, list[Any]]] = {}
    for text in only:
        option = f"{prefix}{text}"
        field, value = _split(option, text, "FIELD=VALUE, as in method=fedavg or lr=[0.1,0.3]")
        path = _normal_path(option, field)
        values = value if isinstance(value, list) else [value]
        wanted[path] = (option, [*wanted.get(path, ("", []))[1], *values])
    joined = {
        path: (option, given if len(given) > 1 else given[0]) for path, (option, given) in wanted.items() if given
    }
    sources = [_source_of({path: pair}) for path, pair in {**wanted, **joined}.items()]
    return [(source, source.read_layer(source.data, (), seed=True)) for source in sources]


def read_fields(fields: Iterable[str]) -> tuple[Source, Layer]:
    """Return the fields of one experiment from ``FIELD=VALUE`` arguments; raises SpecError."""
    given: dict[str, tuple[str, Any]] = {}
    split = [(text, *_split(text, text, "FIELD=VALUE, as in lr=0.1 or norm=ln")) for text in fields]
    kind = next((value for _, key, value in split if key == "kind" and value in [*KINDS]), "federated")
    for text, key, value in split:
        path = _normal_path(text, key, kind)
        if path in given:
            raise SpecError(f"{text}: {path} is given twice: {given[path][0]} and {text}")
        given[path] = text, value
    source = _source_of(given)
    return source, source.read_values(source.data, (), seed=True)


def _source_of(given: dict[str, tuple[str, Any]]) -> Source:
    """Return values as a source whose errors name the options, from option and value by path."""
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


def _normal_path(option: str, key: str, kind: str | None = None) -> str:
    try:
        return normal_path(key, kind)
    except ValueError as error:
        raise SpecError(f"{option}: {error}") from None


def _field_of(key: str) -> str:
    """Return the field at the start of a key, which need not be valid."""
    head = key.partition(".")[0]
    return ALIASES.get(head, head)


def _place(source: Source, option: str, path: str) -> Where:
    """Return the place in the file that a ``--set`` path names; its parent exists afterwards.

    The path leads through sections (``grids[0].axes``) to a mapping of fields, there to the value of a field, and in it
    to a position of a list or to a setting of a component. A component that the path enters becomes a mapping.

    Raises:
        SpecError: the path leads nowhere, or names a field that does not come from ``base`` here.
    """
    parts = re.sub(r"\[(\d+)\]", r".\1", path).split(".")
    if parts[0] not in SweepSpec.known_keys():
        _refuse_unless_base(source, option, path, parts[0])
        parts = ["base", *parts]
    where: Where = ()
    node: Any = source.data
    field = ""  # the field whose value, or list of values, contains the node
    while True:
        key: str | int
        if isinstance(node, list):
            if not parts[0].isdecimal() or int(parts[0]) >= len(node):
                raise SpecError(f"{option}: there is no {parts[0]!r} in {_name(where)}, a list of {len(node)}")
            key, parts = int(parts[0]), parts[1:]
        elif not isinstance(node, dict):
            raise SpecError(f"{option}: {_name(where)} is {node!r} and has no {parts[0]!r}")
        elif where and (where[-1] in _OF_FIELDS or (where[0] == "exclude" and len(where) == 2)):
            key, parts = _key_of_field(option, node, where, parts)
            field = normal_path(key)
        else:
            key, parts = parts[0], parts[1:]
            if parts and key not in node:
                if key not in _SECTIONS:
                    raise SpecError(f"{option}: {unknown('part', key, node, _name(where))}")
                node[key] = {}
        if not parts:
            return (*where, key)
        if field and (form := component_form(field, node[key])) is not None:
            node[key], field = form, ""
        where, node = (*where, key), node[key]


def _refuse_unless_base(source: Source, option: str, path: str, name: str) -> None:
    """Raise SpecError where a bare name, which means ``base``, is no field, or a grid gives the field."""
    fields = [*fields_of_all_kinds(), *ALIASES]
    if name not in fields:
        raise SpecError(f"{option}: {unknown('path', name, [*SweepSpec.known_keys(), *fields])}")
    field = _field_of(_normal_path(option, path.partition(".")[0]))
    places = [("", source.data)]
    if isinstance(grids := source.data.get("grids"), list):
        places = [(f"grids.{index}.", grid) for index, grid in enumerate(grids) if isinstance(grid, dict)]
    given = []
    for prefix, grid in places:
        parts = [part for part in ("axes", "zip", "set") if isinstance(grid.get(part), dict)]
        keys = [f"{prefix}{part}.{key}" for part in parts for key in grid[part] if _field_of(key) == field]
        given += keys[:1]
    if given:
        raise SpecError(
            f"{option}: {field} does not come from base here but from {' and '.join(given)}: use --set {given[0]}=..."
        )


def _key_of_field(option: str, node: dict[str, Any], where: Where, parts: list[str]) -> tuple[str, list[str]]:
    """Return the key of the field at the start of ``parts``, or of the component around it, and the remaining parts."""
    words = next((index for index, part in enumerate(parts) if part.isdecimal()), len(parts))
    for length in range(words, 0, -1):
        key, rest = _spelled(node, ".".join(parts[:length])), parts[length:]
        if key is not None and (not rest or _leads_into(key, node[key], rest)):
            return key, rest
    if words < len(parts):
        raise SpecError(f"{option}: there is no list {'.'.join(parts[:words])!r} in {_name(where)}")
    key = ".".join(parts)
    _normal_path(option, key)
    return key, []


def _spelled(node: dict[str, Any], key: str) -> str | None:
    """Return the key by which a mapping already names a field."""
    for there in node:
        try:
            if normal_path(there) == normal_path(key):
                return there
        except ValueError:
            continue  # a mistake in the file is reported later, with its line
    return None


def _leads_into(key: str, value: Any, rest: list[str]) -> bool:
    """Return whether the rest of a path is inside a value: a position in a list, or a setting of a component."""
    if isinstance(value, list):
        return rest[0].isdecimal()
    return isinstance(value, dict) or component_form(normal_path(key), value) is not None


def _name(where: Where) -> str:
    return ".".join(map(str, where)) or "the file"
