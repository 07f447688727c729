"""The kinds of experiment by name. A new one is a class that registers here, in a file of ``flbench.studies``."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from flbench.config.base import Experiment

E = TypeVar("E", bound=Experiment)


class Kinds(Mapping[str, type[Experiment]]):
    """The kinds by name, in the order of registration; those of ``module`` are loaded on first use."""

    def __init__(self, module: str) -> None:
        self._module, self._loaded = module, False
        self._models: dict[str, type[Experiment]] = {}

    def register(self, model: type[E]) -> type[E]:
        """Register a class under the default of its field ``kind``; raises ValueError if the name is taken."""
        name = model.model_fields["kind"].default
        if self._models.setdefault(name, model) is not model:
            raise ValueError(f"the kind {name!r} is registered twice: {self._models[name]!r} and {model!r}")
        return model

    def _all(self) -> dict[str, type[Experiment]]:
        if not self._loaded:
            importlib.import_module(self._module)
            self._loaded = True
        return self._models

    def __contains__(self, name: object) -> bool:
        """Return whether this names a kind; a file may have anything in its place, also what has no hash."""
        return isinstance(name, str) and name in self._all()

    def __getitem__(self, name: str) -> type[Experiment]:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


#: Studies register lazily, by module name, because they import this module.
KINDS = Kinds("flbench.studies")


def headline_of(raw: Mapping[str, Any]) -> str:
    """Return the name of the recorded number that sums up a run, from its experiment as plain JSON."""
    # A plan may name a kind that this flbench no longer has.
    return KINDS.get(str(raw.get("kind")), Experiment).headline_of(raw)


def problem_of(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the kind of an experiment (plain JSON), and its values of the fields that make its problem."""
    kind = str(raw.get("kind"))
    return {"kind": kind, **{name: raw.get(name) for name in sorted(KINDS.get(kind, Experiment).problem)}}


def fields_of_all_kinds() -> Iterator[str]:
    """Yield every field that some kind of experiment has, each once, in their order."""
    yield from dict.fromkeys(field for kind in KINDS.values() for field in kind.model_fields)
