"""The kinds of experiment by name. A new one is a class that registers here, in a file of ``flbench.studies``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from flbench.config.base import Experiment
from flbench.config.components import components_of
from flbench.discovery import Entries
from flbench.errors import InvalidComponent
from flbench.registry import declares_version

E = TypeVar("E", bound=Experiment)


class Kinds(Entries[type[Experiment]]):
    """The kinds by name: trainings, and the studies of this package, of other packages and of plug-in files."""

    def register(self, model: type[E]) -> type[E]:
        """Register a class under the default of its field ``kind``.

        Returns:
            The class.

        Raises:
            InvalidComponent: it is no experiment, lacks a name or a part of its contract, or the name is taken.
        """
        where = f"kind {model.__qualname__}"
        if not (isinstance(model, type) and issubclass(model, Experiment)):
            raise InvalidComponent(f"{where} must derive from flbench.studies.experiment.StudyExperiment")
        name = model.model_fields["kind"].default if "kind" in model.model_fields else None
        if not isinstance(name, str):
            raise InvalidComponent(f'{where} must name itself, as in kind: Literal["walk"] = "walk"')
        if missing := sorted(model.__abstractmethods__):
            raise InvalidComponent(f"kind {name!r} must define {', '.join(missing)}")
        self.add(name, model, model.__module__)
        return model

    def __contains__(self, name: object) -> bool:
        """Return whether this names a kind; a file may have anything in its place, also what has no hash."""
        return isinstance(name, str) and name in self._all()


#: Studies register lazily, by module name, because they import this module. Importing one of their folder imports every
#: kind, in the order in which commands list them.
KINDS = Kinds("kind", "flbench.studies.experiment", "flbench.studies")


def headline_of(raw: Mapping[str, Any]) -> str:
    """Return the name of the recorded number that sums up a run, from its experiment as plain JSON."""
    # A plan may name a kind that this flbench no longer has.
    return KINDS.get(str(raw.get("kind")), Experiment).headline_of(raw)


def problem_of(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the kind of an experiment (plain JSON), and its values of the fields that make its problem."""
    kind = str(raw.get("kind"))
    return {"kind": kind, **{name: raw.get(name) for name in sorted(KINDS.get(kind, Experiment).problem)}}


def plugin_code_of(raw: Mapping[str, Any]) -> str:
    """Return ``package=hash``, space-separated, for the plug-ins that an experiment, as plain JSON, uses."""
    return " ".join(sorted({source for source, _ in _plugins(raw)}))


def plugins_of(raw: Mapping[str, Any]) -> str:
    """Return the same for those whose results are of their source code; the others declare a version, as ours do."""
    return " ".join(sorted({source for source, declares_version in _plugins(raw) if not declares_version}))


def _plugins(raw: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield the source of each plug-in behind an experiment, and whether the component or study declares a version."""
    for registry, name in components_of(raw):
        if source := registry.source(name):
            yield source, declares_version(registry.classes[name])
    if (kind := raw.get("kind")) in KINDS and (source := KINDS.source(str(kind))):
        yield source, declares_version(KINDS[str(kind)])


def fields_of_all_kinds() -> Iterator[str]:
    """Yield every field that some kind of experiment has, each once, in their order."""
    yield from dict.fromkeys(field for kind in KINDS.values() for field in kind.model_fields)
