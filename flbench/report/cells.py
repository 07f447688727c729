"""What a leaderboard is made of: cells (all seeds of one configuration) and their places on axes.

Nothing is dropped: a cell with missing, failed or diverged runs says so. Nothing is mixed: runs on two versions of the
data are never averaged, and seeds computed with different numerics are told.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import groupby
from typing import Any

from flbench.config import Experiment, Training, registry_of
from flbench.messages import format_scalar
from flbench.metric_specs import value_of
from flbench.registry import Component, default_of
from flbench.report.literal import line
from flbench.report.provenance import describe
from flbench.report.runs import Run
from flbench.report.stats import Summary, summarize

#: Significant digits of a number on an axis, where they tell its values apart.
DIGITS = 4


@dataclass(frozen=True)
class Tick:
    """A position on an axis: ``order`` sorts and identifies it, ``label`` is what people read."""

    order: tuple[Any, ...]
    label: str = field(compare=False)

    def __lt__(self, other: Tick) -> bool:
        return self.order < other.order


@dataclass(frozen=True)
class Cell:
    """Seeds of one configuration on one version of the data, and what may be said about them."""

    runs: tuple[Run, ...]
    metric: str
    fingerprint: str | None = None
    elsewhere: int = 0  # runs of this configuration that used other data
    chosen: str = ""  # how its hyper-parameters were chosen, where they were
    digits: Mapping[str, int] = field(default_factory=dict, compare=False)  # of an axis, where four do not suffice

    @property
    def experiment(self) -> Experiment:
        """Any of the seeds' experiments: they differ by nothing that is shown."""
        return self.runs[0].experiment

    @property
    def training(self) -> Training:
        """The same, of seeds that train on a data set."""
        return self.runs[0].training

    @property
    def wished(self) -> int:
        """How many seeds were requested."""
        return len(self.runs) + self.elsewhere

    @property
    def samples(self) -> str | None:
        """The images in train and test, as far as a result has recorded them."""
        recorded = (run.result.environment.get("samples") for run in self.runs if run.result)
        return next(filter(None, recorded), None)

    @cached_property
    def by_seed(self) -> Mapping[int, float]:
        """The metric of every seed that has it, a finite number."""
        found = {run.experiment.seed: value_of(run.record, self.metric) for run in self.runs}
        return {seed: value for seed, value in found.items() if value is not None and math.isfinite(value)}

    @property
    def values(self) -> tuple[float, ...]:
        """The metric of every seed that has it."""
        return tuple(self.by_seed.values())

    @cached_property
    def summary(self) -> Summary | None:
        """Mean, sd and interval of ``values``; None where there are none."""
        return summarize(self.values)

    @cached_property
    def gaps(self) -> Mapping[str, int]:
        """Why seeds are missing from ``values``, and how many of each: ``{"diverged": 1, "failed (oom)": 2}``."""
        gaps = Counter(why for run in self.runs if (why := gap_of(run, self.metric)))
        if self.elsewhere:
            gaps["on other data"] = self.elsewhere
        return dict(sorted(gaps.items()))

    @property
    def complete(self) -> bool:
        """Whether every seed requested is in the mean."""
        return len(self.values) == self.wished

    @cached_property
    def personal(self) -> bool:
        """Whether parts of the model stay on the clients."""
        return any(run.record is not None and "acc_personal" in run.record for run in self.runs)

    @cached_property
    def numerics(self) -> tuple[str, ...]:
        """The different ways in which the seeds' numbers were computed."""
        return tuple(sorted({describe(run.result.numerics) for run in self.runs if run.result}))

    def tick(self, axis: str, without: Sequence[str] = ()) -> Tick:
        """Where this cell stands on an axis; settings named in ``without`` have axes of their own."""
        if axis == "data":
            return Tick((self.fingerprint or "",), f"data {line(self.fingerprint or '?')[:8]}")
        if axis == "rounds":
            return Tick((self.runs[0].rounds,), format_scalar(self.runs[0].rounds))
        value = axis_value(self.experiment, axis)
        always = ("variant",) if axis == "method" and value is not None and value.name in self.runs[0].varied else ()
        return tick(axis, value, tuple(without), self.digits.get(axis, DIGITS), always)


def gap_of(run: Run, metric: str) -> str | None:
    """Why a run has no value, or None where it has."""
    if run.state != "done":
        return line(f"{run.state} ({run.failure})" if run.failure else run.state)
    value = value_of(run.record, metric)
    if value is None:
        return f"without {metric}"
    return None if math.isfinite(value) else f"{metric} not finite"


def axis_value(experiment: Experiment, axis: str) -> Any:
    """The value of a field, or of a component's field as in ``method.mu``; None where there is no such thing."""
    name, dot, sub = axis.partition(".")
    value = getattr(experiment, name, None)
    return getattr(value, sub, None) if dot else value


@lru_cache(10_000, typed=True)  # asked a dozen times a run, for few values; typed, since 1 and 1.0 are shown otherwise
def tick(
    axis: str, value: Any, without: tuple[str, ...] = (), digits: int = DIGITS, always: tuple[str, ...] = ()
) -> Tick:
    """A value as a position: components in the order of their registry, numbers by size, what is missing first.

    ``without`` names settings that have axes of their own, ``always`` those that a label shows at their default, too.
    """
    if isinstance(value, Component):
        bare = _without(value, [name.partition(".")[2] for name in without if name.startswith(f"{axis}.")])
        names = registry.names() if (registry := registry_of(axis)) else []
        place = names.index(value.name) if value.name in names else len(names)
        settings = tuple(_sortable(getattr(bare, item.name)) for item in dataclasses.fields(bare))
        shown = [name for name in always if f"{axis}.{name}" not in without]
        return Tick((place, value.name, settings), public(bare.label(shown)))
    return Tick(_sortable(value), "–" if value is None else public(_short(value, digits)))


def _short(value: Any, digits: int) -> str:
    return f"{value:.{digits}g}" if isinstance(value, float) else format_scalar(value)


def _digits(experiments: Iterable[Experiment]) -> dict[str, int]:
    """The significant digits that tell the values of an axis apart, where that takes more than ``DIGITS``."""
    values: dict[str, set[float]] = {}
    for experiment in experiments:
        for name in type(experiment).model_fields:
            value = getattr(experiment, name)
            parts = {f"{name}.{sub}": one for sub, one in vars(value).items()} if isinstance(value, Component) else {}
            for axis, one in {name: value, **parts}.items():
                if isinstance(one, float):
                    values.setdefault(axis, set()).add(one)
    return {axis: digits for axis, found in values.items() if (digits := _telling_apart(found)) > DIGITS}


def _telling_apart(values: Collection[float]) -> int:
    return next(n for n in range(DIGITS, 18) if len({f"{value:.{n}g}" for value in values}) == len(values))


def _without(component: Component, names: Sequence[str]) -> Component:
    """The component with some fields back at their defaults, so that its label leaves them out."""
    defaults = {item.name: default_of(item) for item in dataclasses.fields(component) if item.name in names}
    return dataclasses.replace(component, **{k: v for k, v in defaults.items() if v is not dataclasses.MISSING})


def _sortable(value: Any) -> tuple[Any, ...]:
    """Values of different types in one order: nothing, numbers, text, sequences."""
    if value is None:
        return (0,)
    if isinstance(value, bool | int | float):
        return (1, value)
    if isinstance(value, tuple | list):
        return (3, *map(_sortable, value))
    return (2, str(value))


def public(label: str) -> str:
    """A label without the directories of this machine: ``folder(path=/home/me/pets)`` as ``folder(path=pets)``."""
    return line(re.sub(r"(?<![^=\s(\[])[/~][^\s,()\]]*/", "", label))


def axis_label(axis: str, at: Tick) -> str:
    """``E 10``, ``lr 0.01``; a component's or the data's name speaks for itself."""
    if axis == "data" or registry_of(axis) is not None:
        return at.label
    return f"{'E' if axis == 'local_steps' else axis} {at.label}"


def cells_of(runs: Sequence[Run], metric: str) -> list[Cell]:
    """One cell a configuration and version of the data; unfinished runs join the version most of the others used."""
    used = Counter(run.fingerprint for run in runs if run.fingerprint)
    usual = max(sorted(used), key=lambda name: used[name]) if used else None
    cells = []
    by_cell = grouped(runs, lambda run: run.cell)
    digits = _digits(members[0].experiment for members in by_cell)
    for members in by_cell:
        here = Counter(run.fingerprint for run in members if run.fingerprint)
        home = max(sorted(here), key=lambda name: here[name]) if here else usual
        by_data: dict[str | None, list[Run]] = {}
        for run in members:
            by_data.setdefault(run.fingerprint or home, []).append(run)
        for fingerprint, same in sorted(by_data.items(), key=lambda item: item[0] or ""):
            cells.append(Cell(tuple(same), metric, fingerprint, elsewhere=len(members) - len(same), digits=digits))
    return cells


def grouped(items: Iterable[Any], key: Callable[[Any], Any]) -> list[list[Any]]:
    """Items of equal key together, in the order of the keys."""
    return [list(members) for _, members in groupby(sorted(items, key=key), key=key)]
