"""Named components: methods, norms, heads, models, starts, data sets, partitions, samplers of cohorts and probes.

A component is a frozen dataclass whose fields are its YAML hyperparameters. It registers under a name::

    @METHODS.register("fedprox")
    @dataclass(frozen=True)
    class FedProx(Method):
        mu: Annotated[float, Field(ge=0)] = 0.01

and is written in YAML as ``fedprox``, as ``{name: fedprox, mu: 0.1}``, or, where the class names a ``shorthand`` field,
as ``name:value`` (``dirichlet:0.1``). Other packages add components through the entry-point groups ``flbench.methods``,
``flbench.norms``, ``flbench.heads``, ``flbench.models``, ``flbench.inits``, ``flbench.datasets``,
``flbench.partitions``, ``flbench.samplers`` and ``flbench.probes``.

Nothing here, and no module that only defines components, imports torch: a sweep of 100,000 runs is checked, hashed and
planned without it.
"""

from __future__ import annotations

import dataclasses
import re
import traceback
from collections.abc import Callable, Iterable, Set
from functools import cache, cached_property
from pathlib import PurePath
from typing import Any, ClassVar, Generic, TypeVar

import pydantic

from flbench.discovery import Discovery, package_of, plugin_packages
from flbench.errors import InvalidComponent, text_of
from flbench.messages import explain, format_scalar, hook_at, reason, unknown
from flbench.plugin_files import CURE, PREFIX


class UnknownName(KeyError):
    """A name that is not registered; the message gives the reason, or lists the registered names, the nearest first.

    ``what`` names it alone: ``norm 'lm'``.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], why: str | None = None) -> None:
        super().__init__(why or unknown(kind, name, known) + CURE)
        self.what = f"{kind} {name[:80]!r}"

    def __str__(self) -> str:
        """Return the message itself (KeyError would show its repr)."""
        return str(self.args[0])


@dataclasses.dataclass(frozen=True)
class Component:
    """Base of everything a registry holds.

    ``version`` is part of the run id: raise it when a fix changes numbers, and old results are no longer used. A field
    equal to its default is not part of the id, so a new field keeps old ids, and a changed *default* needs a new
    version.
    """

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = pydantic.ConfigDict(extra="forbid", allow_inf_nan=False)

    name: ClassVar[str]
    version: ClassVar[int] = 1
    shorthand: ClassVar[str | None] = None
    #: Whether the value after the colon is a text even where it looks like a number, such as a run id.
    shorthand_is_text: ClassVar[bool] = False
    #: Where it is described: text that may name entries of ``references.bib`` (``@key``).
    source: ClassVar[str] = ""

    def settings(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, by name, as plain JSON values."""
        out = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value != default_of(field):
                out[field.name] = plain(value)
        return out

    @classmethod
    def setting_names(cls) -> list[str]:
        """Return the names of its settings."""
        return [field.name for field in dataclasses.fields(cls)]

    def canonical(self) -> Component:
        """Return the component that computes the same and whose run id both get: this one, unless overridden."""
        return self

    def as_given(self) -> Component:
        """Return the component as the user writes it, without what planning has found; reports group runs by it."""
        return self

    def identity(self) -> dict[str, Any]:
        """Return what defines a run's numbers: name, version and the settings of the canonical form."""
        same = self.canonical()
        return {"name": same.name, "version": same.version, **same.settings()}

    def label(self, always: Iterable[str] = (), write: Callable[[Any], str] = format_scalar) -> str:
        """Return the shortest YAML form, for people: ``gn``, ``dirichlet:0.1``, ``fedprox(mu=0.1)``.

        Fields named in ``always`` are shown at their default, too; ``write`` returns the text of a setting.
        """
        settings = {**{name: plain(getattr(self, name)) for name in always}, **self.settings()}
        head = self.name
        if self.shorthand is not None and (value := getattr(self, self.shorthand)) is not None:
            head = f"{head}:{write(value)}"
            settings.pop(self.shorthand, None)
        return head + (f"({', '.join(f'{k}={write(v)}' for k, v in settings.items())})" if settings else "")


C = TypeVar("C", bound=Component)


class Registry(Generic[C]):
    """The components of one kind, by name; loads its folder, its entry points and plug-in files on first use."""

    def __init__(self, kind: str, module: str, group: str, base: str) -> None:
        self.kind = kind
        #: Full name of the class that components derive from. A name, because its module imports this one.
        self.base = base
        self._classes: dict[str, type[C]] = {}
        self._discovery = Discovery(kind, module, group)

    def register(self, name: str) -> Callable[[type[C]], type[C]]:
        """Return the decorator that registers a class under ``name``; each name can be registered once.

        Raises:
            InvalidComponent: the name is missing. From the decorator: the class does not derive from the base of its
                kind, is no dataclass, lacks a method of its contract, or has a field or a name that is taken.
        """
        if not isinstance(name, str):
            raise InvalidComponent(f"register takes the name of a {self.kind}, as in register('my-own'); got {name!r}")

        def enter(cls: type[C]) -> type[C]:
            self._discovery.before(cls.__module__)
            if self.base not in map(_full_name, cls.__mro__):
                raise InvalidComponent(f"{self.kind} {name!r} must derive from {self.base}")
            if "__dataclass_fields__" not in vars(cls):
                raise InvalidComponent(f"{self.kind} {name!r}: write @dataclass(frozen=True) below its registration")
            known = {field.name for field in dataclasses.fields(cls)}
            if reserved := {"name", "version"} & known:
                raise InvalidComponent(f"{self.kind} {name!r} cannot have a field called {reserved.pop()!r}: reserved")
            if missing := sorted(getattr(cls, "__abstractmethods__", ())):
                raise InvalidComponent(f"{self.kind} {name!r} must define {', '.join(f'{one}()' for one in missing)}")
            static: Any = getattr(cls, "static", frozenset())
            if not isinstance(static, Set):
                raise InvalidComponent(f"{self.kind} {name!r}: static must be a frozenset of fields, got {static!r}")
            if strange := sorted(map(str, static - known)):
                raise InvalidComponent(unknown("field", strange[0], known, f"static of {self.kind} {name!r}"))
            taken = self._classes.setdefault(name, cls)
            if _full_name(taken) != _full_name(cls):
                raise InvalidComponent(f"{self.kind} {name!r} is registered twice: {taken!r} and {cls!r}")
            cls.name = name
            self._classes[name] = cls
            return cls

        return enter

    @cached_property
    def classes(self) -> dict[str, type[C]]:
        """Every registered class by name; a warning names what cannot be loaded, once.

        Ours come in the order of their modules' names, whichever was imported first. A module waits for those that its
        classes derive from, so that a new component moves no other. Those of plug-ins follow as they are registered.
        """
        self._discovery.load()
        here = package_of(__name__)
        modules: dict[str, list[str]] = {}
        for name, cls in sorted(self._classes.items(), key=lambda item: item[1].__module__):
            if package_of(cls.__module__) == here:
                modules.setdefault(cls.__module__, []).append(name)
        bases = {
            module: {base.__module__ for name in names for base in self._classes[name].__mro__} - {module}
            for module, names in modules.items()
        }
        ordered: dict[str, type[C]] = {}
        while modules:
            module = next(each for each in modules if bases[each].isdisjoint(modules))
            ordered.update({name: self._classes[name] for name in modules.pop(module)})
        self._classes = {**ordered, **self._classes}
        return self._classes

    def __getitem__(self, name: str) -> type[C]:
        try:
            return self.classes[name]
        except KeyError:
            raise UnknownName(self.kind, name, self.classes, self._discovery.broken.get(name)) from None

    @property
    def has_plugins(self) -> bool:
        """Whether another package has added components."""
        return bool(self.classes and self._discovery.sources)

    def source(self, name: str) -> str:
        """Return the source code behind a component of another package, as ``package=hash``; empty for our own."""
        cls = self.classes.get(name)
        return self._discovery.source_of(cls.__module__) if cls else ""

    def is_plugin(self, cls: type[Any]) -> bool:
        """Return whether a class is a component that another package has added."""
        return cls in self._classes.values() and package_of(cls.__module__) in self._discovery.sources

    def read(self, raw: Any) -> tuple[type[C], dict[str, Any]]:
        """Return the class that a YAML form names and the fields it gives, names checked and values not.

        Raises:
            UnknownName: no such component.
            InvalidComponent: not a form of a component, or a field that it does not have.
        """
        if isinstance(raw, str):
            name, colon, rest = raw.partition(":")
            cls = self[name]
            if colon and cls.shorthand is None:
                raise InvalidComponent(f"{self.kind} {name!r} takes no value after a colon, got {raw!r}")
            fields = {str(cls.shorthand): rest if cls.shorthand_is_text else _scalar(rest)} if colon else {}
        elif isinstance(raw, dict) and isinstance(raw.get("name"), str):
            cls = self[raw["name"]]
            fields = {key: value for key, value in raw.items() if key != "name"}
        else:
            forms = f"expected a {self.kind} as a name or as {{name: ..., its fields}}, got {raw!r}"
            if meant := self._without_space(raw):
                name = meant.partition(":")[0]
                raise InvalidComponent(f'{forms}; write "{meant}", without a space, or {{name: {name}, its fields}}')
            raise InvalidComponent(f"{forms}; known: {', '.join(self.classes)}")
        known = [field.name for field in dataclasses.fields(cls)]
        for key in fields:
            if key not in known:
                raise InvalidComponent(unknown("field", str(key), known, f"{self.kind} {cls.name!r}"), (str(key),))
        return cls, fields

    def _without_space(self, raw: Any) -> str | None:
        """Return ``classes:1`` for the mapping that YAML makes of ``classes: 1``; None for what is no such slip."""
        if isinstance(raw, dict) and len(raw) == 1:
            name, value = next(iter(raw.items()))
            has_shorthand = name in self.classes and self.classes[name].shorthand is not None
            if has_shorthand and isinstance(value, (bool, int, float, str)):
                return f"{name}:{format_scalar(value)}"
        return None

    def parse(self, raw: Any) -> C:
        """Return a component from its YAML form, or the component itself; raises UnknownName or InvalidComponent."""
        if isinstance(raw, Component):
            if type(raw) not in self.classes.values():
                raise InvalidComponent(f"expected a {self.kind}, got {raw!r}")
            return raw  # type: ignore[return-value]
        cls, fields = self.read(raw)
        try:
            component: C = adapter(cls).validate_python(fields)  # type: ignore[arg-type]
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            example = _example(cls, fields) if first["type"] in ("missing", "missing_argument") else ""
            raise InvalidComponent(explain(first) + example, tuple(str(part) for part in first["loc"])) from None
        for key, value in fields.items():
            if _coerced(value, getattr(component, key)):
                raise InvalidComponent(f"expected {_type_of(getattr(component, key))}, got {value!r}", (key,))
        return component


def _full_name(cls: type[Any]) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _example(cls: type[Component], given: dict[str, Any]) -> str:
    """Return ``, e.g. classes:2``, or the mapping with all that a component needs: ``, e.g. {name: table, ...}``."""
    needed = [field.name for field in dataclasses.fields(cls) if default_of(field) is dataclasses.MISSING]
    kind = schema_of(cls)["properties"][needed[0]].get("type", "") if needed == [cls.shorthand] else ""
    if value := {"integer": "2", "number": "0.1"}.get(kind):
        return f", e.g. {cls.name}:{value}"
    shown = {"name": cls.name, **given, **{name: name.upper() for name in needed if name not in given}}
    return f", e.g. {{{', '.join(f'{name}: {format_scalar(value)}' for name, value in shown.items())}}}"


def stated(cls: type[Component], what: str) -> str:
    """Return what a component, or the one it derives from, states about itself; the base of its kind is ignored."""
    for one in cls.__mro__:
        if one is not cls and Component in one.__bases__:
            return ""
        if text := vars(one).get(what):
            return str(text)
    return ""


def declares_version(cls: type[Any]) -> bool:
    """Return whether a plug-in's class, or one of its own package that it derives from, declares a ``version``."""
    package = package_of(cls.__module__)
    return any("version" in vars(one) for one in cls.__mro__ if package_of(one.__module__) == package)


@cache
def adapter(cls: type[Any]) -> pydantic.TypeAdapter[Any]:
    """Pydantic's validator of a component's fields."""
    return pydantic.TypeAdapter(cls)


def schema_of(cls: type[Component]) -> dict[str, Any]:
    """Return the JSON Schema of a component's fields (their names under ``properties``)."""
    return {"properties": {}, **adapter(cls).json_schema()}  # type: ignore[arg-type]


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Return a dataclass field's default, or ``dataclasses.MISSING``."""
    return field.default_factory() if callable(field.default_factory) else field.default


def plain(value: Any) -> Any:
    """Return a setting as JSON: lists for tuples, text for paths, and 0.0 for -0.0, so that both have one id.

    >>> plain((1, -0.0))
    [1, 0.0]
    """
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value or 0.0
    return str(value) if isinstance(value, PurePath) else value


def _scalar(text: str) -> int | float | str:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def _coerced(raw: Any, value: Any) -> bool:
    """Return whether pydantic converted one kind of scalar to another, such as the text '1' to a number."""
    if isinstance(raw, (list, tuple)) and isinstance(value, (list, tuple)):
        return any(map(_coerced, raw, value))
    return raw is not None and isinstance(value, (bool, int, float, str)) and _type_of(raw) != _type_of(value)


def _type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, (int, float)):
        return "a number"
    return "text" if isinstance(value, str) else type(value).__name__


# The registries themselves. Each loads lazily, by module name, because those modules import this one.
METHODS: Registry[Any] = Registry("method", "flbench.methods", "flbench.methods", "flbench.methods.base.Method")
NORMS: Registry[Any] = Registry("norm", "flbench.models.norms", "flbench.norms", "flbench.models.norms.base.Norm")
HEADS: Registry[Any] = Registry("head", "flbench.models.heads", "flbench.heads", "flbench.models.heads.base.Head")
INITS: Registry[Any] = Registry("init", "flbench.models.starts", "flbench.inits", "flbench.models.starts.Start")
MODELS: Registry[Any] = Registry("model", "flbench.models.architectures", "flbench.models", "flbench.models.base.Model")
DATASETS: Registry[Any] = Registry(
    "dataset", "flbench.data.catalog", "flbench.datasets", "flbench.data.datasets.Dataset"
)
PARTITIONS: Registry[Any] = Registry(
    "partition", "flbench.data.partition", "flbench.partitions", "flbench.data.partition.base.Partition"
)
#: Named by the field of an experiment that holds one.
SAMPLERS: Registry[Any] = Registry(
    "cohort", "flbench.data.cohorts", "flbench.samplers", "flbench.data.cohorts.base.Sampler"
)
PROBES: Registry[Any] = Registry("probe", "flbench.probes", "flbench.probes", "flbench.probes.base.Probe")
#: Places outside the store that show runs; no part of an experiment.
TRACKERS: Registry[Any] = Registry(
    "tracker", "flbench.tracking.trackers", "flbench.trackers", "flbench.tracking.sink.Tracker"
)
#: Where workers run, beside this machine and SLURM; no part of an experiment either.
LAUNCHERS: Registry[Any] = Registry(
    "backend", "flbench.launch.backend", "flbench.launchers", "flbench.launch.backend.Backend"
)
REGISTRIES = (METHODS, NORMS, HEADS, MODELS, INITS, DATASETS, PARTITIONS, SAMPLERS, PROBES)


def plugin_mistake(error: BaseException) -> str | None:
    """Return the message about an error that a component of another package raised; None if none of them did.

    It names the first method of such a component on the way to the error, or the one whose arguments are wrong.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        cls, hook = type(frame.f_locals.get("self")), frame.f_code.co_name
        registry = next((one for one in (*REGISTRIES, TRACKERS, LAUNCHERS) if one.is_plugin(cls)), None)
        if registry is None:
            continue
        if package_of(frame.f_globals["__name__"]) != package_of(cls.__module__):
            wrong_call = re.match(rf"{re.escape(cls.__qualname__)}\.(\w+)\(\) ", text_of(error))
            hook = wrong_call[1] if isinstance(error, TypeError) and wrong_call else ""
        if hasattr(cls, hook):
            return f"{hook_at(cls, hook, registry.kind, error)} raised {reason(error)}"
    return None


def plugin_place(error: Exception) -> str | None:
    """Return ``FILE:LINE``, the last line of another package's code that led to an error; None if none did.

    Unlike ``plugin_mistake`` it finds the ``forward`` of a layer, which is no component.
    It reads no local variables of the frames: Python keeps what it hands out, and with it a failed run's tensors.
    """
    packages = plugin_packages()
    places = [
        f"{frame.f_code.co_filename}:{line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if (module := str(frame.f_globals.get("__name__"))).startswith(PREFIX) or package_of(module) in packages
    ]
    return places[-1] if places else None
