"""Runs the tests of a method against a mutated copy of its module, in this process."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from inspect import signature
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

from _pytest.mark import ParameterSet
from _pytest.outcomes import Failed

from flbench import methods
from flbench.registry import METHODS
from tests.conformance.methods.cases import case_of, module_of
from tests.conformance.test_conformance import test_without_its_own_term_a_method_is_fedavg
from tests.mutation.mutations import Mutation

Check = Callable[[], None]

FOLDER = Path(methods.__file__).parent

#: The modules of methods; each has tests and mutations of its own.
FILES = sorted({path.stem for path in FOLDER.glob("*.py")} - {"__init__", "values", "personal_hooks"})
MUTATIONS: tuple[Mutation, ...] = tuple(mutation for file in FILES for mutation in module_of(file).MUTATIONS)


def checks_of(file: str, executor: str) -> list[Check]:
    """Return the tests of a module with one executor, in their order, and its methods without their own terms."""
    own = [value for name, value in vars(module_of(file)).items() if name.startswith("test_")]
    checks: list[Check] = [
        partial(test, **given)
        for test in own
        for given in cases_of(test)
        if given.get("executor", executor) == executor and given.keys() == signature(test).parameters.keys()
    ]
    names = [name for name, cls in METHODS.classes.items() if cls.__module__ == f"{methods.__name__}.{file}"]
    terms = [(name, off) for name in names for off in case_of(name).off]
    return [*checks, *(partial(test_without_its_own_term_a_method_is_fedavg, *term, "none") for term in terms)]


def cases_of(test: Callable[..., None]) -> Iterator[dict[str, Any]]:
    """Yield the arguments with which pytest calls a test, as its marks ``parametrize`` give them."""
    tables = []
    for mark in getattr(test, "pytestmark", ()):
        if mark.name != "parametrize":
            continue
        names, rows = mark.args
        names = [names] if isinstance(names, str) else names
        rows = [row.values if isinstance(row, ParameterSet) else row if len(names) > 1 else [row] for row in rows]
        tables.append([dict(zip(names, row, strict=True)) for row in rows])
    for rows in product(*tables):
        yield {name: value for row in rows for name, value in row.items()}


def killer_of(mutation: Mutation, executor: str = "loop") -> str | None:
    """Return the name of the first test that fails on the mutated code, or None if all pass."""
    with mutated(mutation):
        for check in checks_of(mutation.file, executor):
            try:
                check()
            except (Exception, Failed):
                return name_of(check)
    return None


@contextmanager
def mutated(mutation: Mutation) -> Iterator[None]:
    """Register the classes of a mutated copy of a module; for ``base``, reload all modules that import it, too."""
    registered, modules = dict(METHODS.classes), dict(sys.modules)
    try:
        _load(mutation.file, mutation.apply(_source(mutation.file)))
        if mutation.file == "base":
            for path in sorted(FOLDER.glob("*.py")):
                if path.stem not in ("base", "__init__"):
                    _load(path.stem, _source(path.stem))
        yield
    finally:
        METHODS.classes.clear()
        METHODS.classes.update(registered)
        sys.modules.update({name: modules[name] for name in sys.modules if name.startswith("flbench.methods.")})


def _load(file: str, source: str) -> None:
    name = f"flbench.methods.{file}"
    spec = importlib.util.spec_from_loader(name, loader=None)
    assert spec is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up annotations here, and other modules import it from here
    exec(compile(source, f"mutated {file}.py", "exec"), module.__dict__)


def _source(file: str) -> str:
    return (FOLDER / f"{file}.py").read_text(encoding="utf-8")


def name_of(check: Callable[..., object]) -> str:
    """Return the name of a test with or without arguments."""
    return str(getattr(check, "func", check).__name__)
