"""A sweep file as plain data with the line of every value, and its values by path of an experiment.

YAML 1.2 through ruamel.yaml's node graph, whose marks are the lines: no tag constructs an object, a key given twice is
an error, anchors and merge keys work, and the size of a file, of what it unfolds to, its depth and its numbers are
bounded. ruamel's round-trip loader has line numbers too (``lc``), but turns dates into objects without their text,
wraps numbers in types of its own, and accepts unknown tags.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import MaxDepthExceededError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from flbench.config import GivenValue, Layer, Where, normal_path, registry_of
from flbench.errors import InvalidComponent, UserError
from flbench.plugin_files import with_near_cure
from flbench.registry import Registry
from flbench.regular import NotRegular, open_regular
from flbench.sweeps.files import near

#: Most bytes of a file. The parser is pure Python and takes a second for about 100 KB.
_MOST_BYTES = 256 * 1024
#: Most values that a file may unfold to by anchors and merge keys.
_MOST_VALUES = 100_000
_DEEPEST = 50
_TAG = "tag:yaml.org,2002:"


class SpecError(UserError):
    """A mistake in a sweep: the message starts with file and line, or the option, and the path inside."""


def dotted(where: Where) -> str:
    """Return a path as users write it: ``grids[1].axes.lr[0]``.

    >>> dotted(("grids", 1, "axes", "lr", 0))
    'grids[1].axes.lr[0]'
    """
    text = ""
    for part in where:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def read_text(path: Path) -> str:
    """Return the text of a sweep file; raises SpecError for a file that cannot be one."""
    try:
        with open_regular(path) as file:
            data = file.read(_MOST_BYTES + 1)
        text = data.decode("utf-8-sig") if len(data) <= _MOST_BYTES else None
    except FileNotFoundError:
        raise SpecError(f"{path}: no such file: expected a sweep file (YAML){near(path)}") from None
    except NotRegular as error:
        raise SpecError(f"{path}: expected a sweep file (YAML), got {error.kind}") from None
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: expected text in UTF-8, got byte 0x{error.object[error.start]:02x}") from None
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from None
    if text is None:
        raise SpecError(
            f"{path}: expected a YAML file of at most {_MOST_BYTES >> 10} KiB, got more: write long lists of "
            "numbers as {range: ...}, {linspace: ...} or {logspace: ...}, or split the sweep"
        )
    return text


class Source:
    """The content of a sweep file, changed by ``--set`` options.

    Attributes:
        name: the file as the user named it.
        text: the file's text.
        data: its content: dicts, lists, texts, numbers, truth values and None.
    """

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text
        self._lines: dict[Where, int] = {}
        self._options: dict[Where, str] = {}
        self.data: Any = self._load(text)

    @classmethod
    def open(cls, path: Path) -> Source:
        """Read a file; raises SpecError."""
        return cls(str(path), read_text(path))

    def replace(self, where: Where, value: Any, option: str) -> None:
        """Set the value at a path whose parent exists; later errors about it name ``option``."""
        self._forget(where, option)
        self.parent(where)[where[-1]] = value
        self._options[where] = option

    def remove(self, where: Where, option: str) -> None:
        """Remove the value at a path, which ``option`` replaces by a value elsewhere."""
        self._forget(where, option)
        del self.parent(where)[where[-1]]

    def parent(self, where: Where) -> Any:
        """Return the mapping or list that contains the value at a path."""
        parent = self.data
        for part in where[:-1]:
            parent = parent[part]
        return parent

    def is_option(self, where: Where) -> bool:
        """Return whether an option gave the value at a path."""
        return any(where[:length] in self._options for length in range(1, len(where) + 1))

    def has_option(self, parts: Collection[str]) -> bool:
        """Return whether an option changed one of these parts of the file."""
        return any(where[0] in parts for where in self._options)

    def _forget(self, where: Where, option: str) -> None:
        """Forget the lines of what is replaced; raises SpecError where an earlier option gave it."""
        for old, earlier in self._options.items():
            if old[: len(where)] == where:
                raise SpecError(f"{earlier}: has no effect: {option} replaces it")
        for old in [old for old in self._lines if old[: len(where)] == where]:
            del self._lines[old]

    def error(self, where: Where, message: str) -> SpecError:
        """Return the error about a value: file and line (or the option), path, and message.

        A component that is unknown because its plug-in file, beside the sweep file or here, was not named has the file.
        """
        message = with_near_cure(message, (Path(self.name).parent, Path()))
        return SpecError(": ".join(filter(None, [self.origin(where), dotted(where), message])))

    def origin(self, where: Where) -> str:
        """Return ``FILE:LINE`` of a value or its nearest parent, or the option that gave it."""
        for length in range(len(where), 0, -1):
            if where[:length] in self._options:
                return self._options[where[:length]]
            if where[:length] in self._lines:
                return f"{self.name}:{self._lines[where[:length]]}"
        return f"{self.name}:1"

    def read_layer(self, values: Mapping[str, Any], where: Where, *, seed: bool = False) -> Layer:
        """Return the values of one mapping of the file by path; a field may be given once, under one name."""
        layer: Layer = {}
        for key, raw in values.items():
            try:
                path = normal_path(key)
            except ValueError as error:
                raise self.error((*where, key), str(error)) from None
            if path == "seed" and not seed:
                raise self.error((*where, key), "seeds are given by 'seeds: [0, 1, 2]' at the top of the file")
            if path in layer:
                raise self.error((*where, key), f"{path} is given twice: as {layer[path].where[-1]} and as {key}")
            layer[path] = GivenValue(raw, (*where, key))
        return layer

    def read_values(self, values: Mapping[str, Any], where: Where, *, seed: bool = False) -> Layer:
        """Return a mapping's values by path, the settings inside a component at paths of their own, each given once."""
        layer: Layer = {}
        for path, value in self.read_layer(values, where, seed=seed).items():
            for part, inner in split_component(path, value).items():
                if part in layer:
                    inside = part.partition(".")[0]
                    raise self.error(value.where, f"{part} is given twice: inside {inside} and as {part}")
                layer[part] = inner
        return layer

    def _load(self, text: str) -> Any:
        yaml = YAML(typ="safe", pure=True)
        yaml.max_depth = _DEEPEST  # stop there: scanning deeper brackets takes quadratic time
        try:
            node = yaml.compose(text)
        except MaxDepthExceededError as error:
            line = error.problem_mark.line + 1
            raise SpecError(f"{self.name}:{line}: nested more than {_DEEPEST} levels deep") from None
        except MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            hint = " (indent with spaces, not with tabs)" if "\\t" in str(error.problem) else ""
            line = mark.line + 1 if mark else 1
            raise SpecError(f"{self.name}:{line}: not valid YAML: {error.problem or error.context}{hint}") from None
        except (YAMLError, ValueError, RecursionError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise SpecError(f"{self.name}:1: not valid YAML: {reason}") from None
        if node is None:
            raise SpecError(
                f"{self.name}:1: the file is empty: expected a sweep, at least 'version', 'name' and 'axes'"
            )
        data = _Reader(self.name, self._lines).value(node, ())
        if not isinstance(data, dict):
            raise SpecError(f"{self.name}:1: expected a mapping (version: 1, name: ..., axes: ...), got {data!r:.80}")
        return data


def read_value(text: str) -> Any:
    """Return the value of an option, read as YAML: number, truth value, list, mapping, else text; raises SpecError.

    >>> read_value("[0.1, 1e-3]"), read_value("no")
    ([0.1, 0.001], 'no')
    """
    return Source("value", f"value: {text}").data["value"]


def component_form(path: str, raw: Any) -> dict[str, Any] | None:
    """Return a component as a mapping of name and settings; None for other fields and for values that are not valid."""
    registry: Registry[Any] | None = registry_of(path)
    if registry is None or path == "probes":
        return None
    try:
        cls, settings = registry.read(raw)
    except (KeyError, InvalidComponent):
        return None  # reported where the value is parsed
    return {"name": cls.name, **settings}


def split_component(path: str, value: GivenValue) -> Layer:
    """Split a value by path: a component's name, and each of its settings, as in ``method`` and ``method.mu``."""
    form = component_form(path, value.raw)
    if form is None or len(form) == 1:
        return {path: value}
    name = GivenValue(form.pop("name"), value.where)
    return {path: name, **{f"{path}.{key}": GivenValue(raw, (*value.where, key)) for key, raw in form.items()}}


class _Reader:
    """Turns YAML nodes into plain data and records the line of each path."""

    def __init__(self, name: str, lines: dict[Where, int]) -> None:
        self.name, self.lines = name, lines
        self.scalars = YAML(typ="safe", pure=True).constructor
        self.open: set[int] = set()  # nodes whose content is being read: reaching one again is a cycle
        self.values = 0

    def count(self, node: Node) -> None:
        """Count a value, or a pair that a merge key brings in, against the limit."""
        self.values += 1
        if self.values > _MOST_VALUES:
            raise self.error(node, f"the file unfolds to more than {_MOST_VALUES} values")

    def value(self, node: Node, where: Where) -> Any:
        """Return plain data of a node."""
        self.lines.setdefault(where, self.line(node))
        self.count(node)
        if isinstance(node, ScalarNode):
            return self.scalar(node, where)
        if node.tag not in (_TAG + "map", _TAG + "seq"):
            raise self.error(node, f"the tag {node.tag!r} is not allowed: only plain mappings, lists and values are")
        if id(node) in self.open:
            raise self.error(node, f"the anchor &{node.anchor} contains itself")
        if len(where) > _DEEPEST:
            raise self.error(node, f"nested more than {_DEEPEST} levels deep")
        self.open.add(id(node))
        data: Any
        if isinstance(node, MappingNode):
            data = self.mapping(node, where)
        else:
            data = [self.value(item, (*where, index)) for index, item in enumerate(node.value)]
        self.open.discard(id(node))
        return data

    def mapping(self, node: MappingNode, where: Where) -> dict[str, Any]:
        given: dict[str, tuple[Node, Node]] = {}
        merged: dict[str, tuple[Node, Node]] = {}
        for key, item in node.value:
            if key.tag == _TAG + "merge":
                for name, pair in self.merged(item):
                    merged.setdefault(name, pair)
                continue
            name = self.key(key)
            if name in given:
                first = self.line(given[name][0])
                raise self.error(key, f"the key {name!r} is given twice (first in line {first})", (*where, name))
            given[name] = key, item
        data = {}
        for name, (key, item) in {**merged, **given}.items():
            self.lines[(*where, name)] = self.line(key)
            data[name] = self.value(item, (*where, name))
        return data

    def merged(self, node: Node) -> Iterator[tuple[str, tuple[Node, Node]]]:
        """Yield the pairs that a merge key brings in, the ones that win first."""
        for mapping in node.value if isinstance(node, SequenceNode) else [node]:
            if not isinstance(mapping, MappingNode):
                raise self.error(node, "a merge key (<<) takes a mapping or a list of mappings")
            for key, item in mapping.value:
                if key.tag == _TAG + "merge":
                    raise self.error(
                        key, "a merge key inside a merged mapping is not supported; merge a list: <<: [*a, *b]"
                    )
                self.count(key)
                yield self.key(key), (key, item)

    def key(self, node: Node) -> str:
        if isinstance(node, ScalarNode) and isinstance(name := self.scalar(node), str):
            return name
        raise self.error(node, f"expected text as a key, got {node.value!r:.80}")

    def scalar(self, node: ScalarNode, where: Where = ()) -> Any:
        kind = str(node.tag).removeprefix(_TAG)
        if kind in ("str", "timestamp"):
            return node.value
        if kind not in ("int", "float", "bool", "null"):
            raise self.error(node, f"the tag {node.tag!r} is not allowed: only plain mappings, lists and values are")
        try:
            value = getattr(self.scalars, f"construct_yaml_{kind}")(node)
        except (ValueError, KeyError):
            raise self.error(node, f"expected a value of type {kind}, got {node.value!r:.80}") from None
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise self.error(node, f"expected a whole number of at most 64 bits, got {node.value!r:.80}", where)
        return value

    def line(self, node: Node) -> int:
        return int(node.start_mark.line) + 1

    def error(self, node: Node, message: str, where: Where = ()) -> SpecError:
        return SpecError(": ".join(filter(None, [f"{self.name}:{self.line(node)}", dotted(where), message])))
