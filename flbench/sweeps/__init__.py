"""From a YAML file to typed experiments with run ids; pure: it reads one file and writes nothing.

``files`` finds files by name, ``source`` reads YAML and knows lines, ``options`` applies ``--set``, ``spec`` is the
file's schema, ``expand`` makes cells and runs, ``match`` tests conditions, ``effects`` and ``report`` refuse entries
without effect, ``layout`` is the ``report`` section, typed. Which entry wins is written down once, at
``spec.SweepSpec``, and printed by ``flbench show schema``.
"""

from __future__ import annotations

import gc
import hashlib
import operator
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from flbench.config import KINDS, Assembler, Experiment, canonical_json, label
from flbench.halving import Halving
from flbench.messages import unknown
from flbench.plugin_files import CURE
from flbench.sweeps.expand import Arithmetic, expand
from flbench.sweeps.files import FOLDER, bundled_files, find_file, name_of, shadowed
from flbench.sweeps.layout import Layout, condition
from flbench.sweeps.options import apply_sets, read_fields, read_only, split_address
from flbench.sweeps.report import OF_CELLS, read_report
from flbench.sweeps.search import read_search
from flbench.sweeps.source import Source, SpecError
from flbench.sweeps.spec import SweepSpec

__all__ = [
    "FOLDER",
    "SpecError",
    "Sweep",
    "bundled_files",
    "collection_paused",
    "condition",
    "experiment_from",
    "find_file",
    "load_sweep",
    "load_sweeps",
    "shadowed",
]


@dataclass(frozen=True)
class Sweep:
    """A sweep file, read, checked and expanded.

    Attributes:
        name: the sweep's name.
        spec: the whole file, validated.
        experiments: every run in order, each id once; the seeds of a cell follow each other.
        varying: the fields that differ between cells, axes first (``seed`` is not among them).
        arithmetic: the numbers behind the number of runs.
        spec_hash: 16 hex digits that name the plan: run ids, rounds, evaluations, probes and search; nothing else does.
        path: the file.
        file: its content as given, with the line or the option of every value.
        options: the ``--set``, ``--only`` and ``--limit`` options given, as typed.
        layout: how it is reported.
        search: how settings are dropped before the last round; None: all are trained to it.
    """

    name: str
    spec: SweepSpec
    experiments: tuple[Experiment, ...]
    varying: tuple[str, ...]
    arithmetic: Arithmetic
    spec_hash: str
    path: Path
    file: Source = field(compare=False)
    options: tuple[str, ...]
    layout: Layout
    search: Halving | None = None

    @property
    def source(self) -> str:
        """The file's text, without the changes of ``--set``."""
        return self.file.text

    @property
    def bundled_as(self) -> str | None:
        """The name of a file that was found among those that come with flbench; None for any other."""
        return name_of(self.path)

    @property
    def spelled(self) -> str:
        """The file as a command names it."""
        return self.bundled_as or str(self.path)

    @property
    def is_whole(self) -> bool:
        """Whether its cells are those that the file was written for: no option changes them or leaves any out."""
        count = self.arithmetic
        return not (count.unselected or count.beyond_limit or self.file.has_option(OF_CELLS))

    def cells(self) -> dict[str, list[Experiment]]:
        """Return the runs by cell id, in order."""
        cells: dict[str, list[Experiment]] = {}
        for experiment in self.experiments:
            cells.setdefault(experiment.cell_id, []).append(experiment)
        return cells

    def planned_as(self, experiments: Sequence[Experiment]) -> Sweep:
        """Return the sweep with its experiments on named data; each run once, and ``spec_hash`` is theirs."""
        unique = tuple({experiment.run_id: experiment for experiment in experiments}.values())
        if all(map(operator.is_, unique, self.experiments)) and len(unique) == len(self.experiments):
            return self
        return replace(self, experiments=unique, spec_hash=_plan_hash(unique, self.search))


def load_sweep(path: Path | str, sets: Iterable[str] = (), only: Iterable[str] = (), limit: int | None = None) -> Sweep:
    """Read, check and expand a sweep file.

    Args:
        path: the YAML file, or NAME for ``sweeps/NAME.yaml`` or a file that comes with flbench.
        sets: ``PATH=VALUE`` changes, applied in order (paths of the file; a bare field means ``base``);
            ``NAME:PATH=VALUE`` names the file, too.
        only: ``FIELD=VALUE`` conditions; cells that do not meet all of them are left out.
        limit: keep only the first ``limit`` runs.

    Returns:
        The sweep.

    Raises:
        SpecError: anything wrong with the file or the options; the message names the place and the fix.
    """
    (sweep,) = load_sweeps([path], sets, only, limit)
    return sweep


def load_sweeps(
    paths: Sequence[Path | str], sets: Iterable[str] = (), only: Iterable[str] = (), limit: int | None = None
) -> list[Sweep]:
    """Return several sweeps, in the order of their files; options apply to all, ``NAME:PATH=VALUE`` to NAME.yaml alone.

    Raises:
        SpecError: as for ``load_sweep``, or options are for a file that is not among them.
    """
    files, sets, only = [find_file(path) for path in paths], tuple(sets), tuple(only)
    if limit is not None and limit < 1:
        raise SpecError(f"--limit {limit}: expected at least 1 run")
    names = [path.stem for path in files]
    if not names and (sets or only or limit):
        raise SpecError("--set, --only and --limit change a sweep: name its file")
    addressed = [(split_address(text)[0], text) for text in sets]
    for name, text in addressed:
        if name is not None and name not in names:
            raise SpecError(f"--set {text}: {unknown('sweep file', name, names)}")
    return [
        _load(path, tuple(text for name, text in addressed if name in (None, stem)), only, limit)
        for path, stem in zip(files, names, strict=True)
    ]


def _load(path: Path, sets: tuple[str, ...], only: tuple[str, ...], limit: int | None) -> Sweep:
    source = Source.open(path)
    apply_sets(source, sets)
    conditions = read_only(only)
    spec = SweepSpec.read(source)
    with collection_paused():
        experiments, varying, arithmetic, cells = expand(source, spec, conditions, limit)
    layout = read_report(source, spec, cells, experiments)
    search = read_search(source, spec, experiments)
    if search is not None:
        layout = replace(layout, search=search, tune=tuple(dict.fromkeys((*layout.tune, *search.axes))))
    options = [f"--set {text}" for text in sets] + [f"--only {text}" for text in only]
    return Sweep(
        name=spec.name,
        spec=spec,
        experiments=experiments,
        varying=varying,
        arithmetic=arithmetic,
        spec_hash=_plan_hash(experiments, search),
        path=path,
        file=source,
        options=(*options, *([f"--limit {limit}"] if limit is not None else [])),
        layout=layout,
        search=search,
    )


def experiment_from(fields: Iterable[str]) -> Experiment:
    """Return one experiment from ``FIELD=VALUE`` arguments, as ``flbench run`` takes them; raises SpecError."""
    source, layer = read_fields(fields)
    kind = layer["kind"].raw if "kind" in layer else "federated"
    if not isinstance(kind, str) or kind not in KINDS:
        raise source.error(("kind",), unknown("kind", str(kind), KINDS) + CURE)
    assembler = Assembler(kind, source.error)
    cell = assembler.read(layer)
    seed = cell.pop("seed", assembler.defaults["seed"]).value
    (experiment,) = assembler.validated(cell).experiments([seed])
    return experiment


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause garbage collection: all new objects are kept, and searching them doubles the time of large sweeps."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _plan_hash(experiments: Iterable[Experiment], search: Halving | None) -> str:
    plan = hashlib.sha256()
    for run in experiments:
        probes = [label(probe) for probe in getattr(run, "probes", ())]
        finetune = f" finetune {steps}" if (steps := getattr(run, "finetune", 0)) else ""
        plan.update(f"{run.run_id} {run.rounds} {run.eval_every} {probes}{finetune}\n".encode())
    if search is not None:
        plan.update(canonical_json(search.to_json()).encode())
    return plan.hexdigest()[:16]
