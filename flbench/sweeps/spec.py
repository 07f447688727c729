"""The schema of a sweep file: everything except the fields of experiments, which ``expand`` checks."""

from __future__ import annotations

import re
from collections import Counter
from fractions import Fraction
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from flbench.choices import SelectBy
from flbench.errors import InvalidComponent, text_of
from flbench.launch.backend import Backend
from flbench.messages import explain, unknown
from flbench.metric_specs import METRICS
from flbench.plugin_files import CURE
from flbench.refinement import MAX_STEPS, Until
from flbench.registry import LAUNCHERS
from flbench.sweeps.ranges import expand_range
from flbench.sweeps.source import Source
from flbench.sweeps.track import Trackers, WandbSettings
from flbench.sweeps.units import Memory, WallTime

#: Fields of an experiment and their values; components are names, shorthands or mappings.
Values = dict[str, Any]

#: The keys of a planned comparison beside its field: the value that the others are compared with, the field and two
#: values between which the difference is compared, conditions of the cells that are compared, and what is compared.
AGAINST = "against"
BETWEEN = "between"
IF = "if"
MEASURE = "measure"
CONTRAST_KEYS = (AGAINST, BETWEEN, IF, MEASURE)


def _metric(raw: Any) -> Any:
    known = [name for name, metric in METRICS.items() if metric.recorded != "by studies"]
    if raw not in known:
        raise ValueError(unknown("metric", str(raw), known) + CURE)
    return raw


#: The name of a metric that a report can rank by.
Metric = Annotated[str, BeforeValidator(_metric)]


def _version(raw: Any) -> Any:
    if isinstance(raw, (bool, float)):
        raise ValueError(f"expected 1, got {raw!r}")
    if isinstance(raw, int) and raw > 1:
        raise ValueError(f"this file has version {raw}, newer than this flbench knows (1): update flbench")
    return raw


#: Names of sweeps.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def _name(raw: Any) -> Any:
    if isinstance(raw, str) and not NAME.fullmatch(raw):
        shown = raw if len(raw) <= 80 else raw[:77] + "..."
        raise ValueError(
            "expected a name of at most 64 letters, digits, '.', '_' and '-', which starts with a letter or a digit"
            f" (it names a folder), got {shown!r}"
        )
    return raw


def _sequence(raw: Any) -> Any:
    return tuple(raw) if isinstance(raw, list) else raw


def _conditions(raw: Any) -> Any:
    """Put a single rule into a list."""
    return (raw,) if isinstance(raw, dict) else _sequence(raw)


def _fields(raw: Any) -> Any:
    """Put a single field into a list."""
    return (raw,) if isinstance(raw, str) else _sequence(raw)


def _rungs(raw: Any) -> Any:
    if raw is None:
        return None
    is_list = isinstance(raw, (list, tuple)) and all(type(rung) is int for rung in raw)
    if not (is_list and len(raw) > 1 and all(before < rung for before, rung in pairwise((0, *raw)))):
        raise ValueError(f"expected two or more increasing numbers of rounds, as in [10, 30, 100], got {raw!r}")
    return tuple(raw)


def _share(raw: Any) -> Any:
    if raw is None:
        return None
    try:
        share = Fraction(raw) if type(raw) in (str, float, Fraction) else None
    except (ValueError, ZeroDivisionError):
        share = None
    if share is None or not 0 < share < 1:
        raise ValueError(f"expected a share between 0 and 1, as 1/3 or 0.5, got {raw!r}")
    return share.limit_denominator(10_000)


def _seeds(raw: Any) -> Any:
    if isinstance(raw, dict):
        raw = list(expand_range(raw))
    if not isinstance(raw, (list, tuple)):
        raise ValueError(f"expected a list of seeds or {{range: [start, stop]}}, got {raw!r}")
    if not raw:
        raise ValueError("expected at least one seed, got none")
    for seed in raw:
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
            raise ValueError(f"expected whole numbers from 0 on as seeds, got {seed!r}")
    if len(set(raw)) < len(raw):
        twice = Counter(raw).most_common(1)[0][0]
        raise ValueError(f"expected different seeds, got {twice} more than once")
    return tuple(raw)


def _unknown_key(key: str, message: str) -> PydanticCustomError:
    # The message cannot be part of the template: it may contain braces.
    return PydanticCustomError("unknown_key", "{message}", {"key": key, "message": message})


class Strict(BaseModel):
    """A part of the file: frozen, typed, and without unknown keys."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, raw: Any) -> Any:
        if not isinstance(raw, dict):
            raise ValueError(f"expected a mapping ({', '.join(cls.known_keys())}), got {raw!r}")
        for key in raw:
            if key not in cls.known_keys():
                raise _unknown_key(key, unknown("key", key, cls.known_keys()))
        return raw

    @classmethod
    def read(cls, source: Source) -> Self:
        """Return a file's content, checked; raises SpecError with the line of the first mistake."""
        try:
            return cls.model_validate(source.data)
        except ValidationError as error:
            first = error.errors()[0]
            if first["type"] == "unknown_key":
                context = first["ctx"]
                raise source.error((*first["loc"], context["key"]), context["message"]) from None
            raise source.error(first["loc"], explain(first)) from None

    @classmethod
    def known_keys(cls) -> list[str]:
        """Return the keys that a file may give."""
        return [field.alias or name for name, field in cls.model_fields.items()]


class Grid(Strict):
    """One product of axes, with one joint axis, and values for all its cells."""

    set: Values = Field(default={}, description="values of this grid alone, over those of base")
    axes: Values = Field(default={}, description="lists of values; the grid is their product")
    zip: Values = Field(default={}, description="lists of equal length that advance together: one joint axis")
    seeds: Annotated[tuple[int, ...] | None, BeforeValidator(_seeds)] = Field(
        default=None, description="seeds of this grid's cells, in place of those of the file"
    )


class Override(Strict):
    """Other values for the cells that match."""

    if_: Values = Field(alias="if", min_length=1, description="partial match; a list means any of")
    set: Values = Field(min_length=1, description="the values those cells get")


class Resources(Strict):
    """The resources of one worker."""

    cpus: int = Field(default=1, ge=1, description="CPU cores of a run: the size of its thread pool")
    fuse: int = Field(default=64, ge=1, description="most runs that a worker trains as one computation; 1: each alone")
    gpus: float = Field(default=0.0, ge=0, description="GPUs of a run; 0.5 puts two runs on one GPU")
    mem: Memory = Field(default=None, description="memory of a run, as 512M or 2G")
    time: WallTime = Field(default=None, description="wall time of a worker, as 30m, 2h or 1-00:00:00")


class Retry(Strict):
    """What happens to runs that fail."""

    max_attempts: int = Field(default=3, ge=1, description="how often a run is tried in all")


class Inline(Strict):
    """Runs execute in the orchestrator's own process, one after the other."""

    kind: Literal["inline"]


class Local(Strict):
    """Workers on this machine."""

    kind: Literal["local"] = "local"
    workers: int | None = Field(default=None, ge=1, description="how many; default: what cores and GPUs allow")


class Slurm(Strict):
    """Workers as jobs of a SLURM cluster."""

    kind: Literal["slurm"]
    profile: str = Field(description="file with the cluster's partition, account, set-up lines")
    max_jobs: int = Field(default=64, ge=1, description="most jobs at a time; fewer for little work")


#: One that a plug-in adds, once it is read.
_Plugin = Annotated[InstanceOf[Backend], WithJsonSchema({"type": "object", "required": ["kind"]})]

_BACKENDS: dict[str, type[Strict]] = {"inline": Inline, "local": Local, "slurm": Slurm}


def _backend(raw: Any) -> Any:
    kind = raw.get("kind", "local") if isinstance(raw, dict) else "local"
    if isinstance(kind, str) and kind in _BACKENDS:
        return _BACKENDS[kind].model_validate(raw)
    if kind not in (known := [*_BACKENDS, *LAUNCHERS.classes]):
        raise _unknown_key("kind", unknown("kind of backend", str(kind), known) + CURE)
    try:
        return LAUNCHERS.parse({"name": kind, **{key: value for key, value in raw.items() if key != "kind"}})
    except InvalidComponent as error:
        why = ": ".join([*map(str, error.path), text_of(error)])
        raise PydanticCustomError("backend", "{why}", {"why": why}) from None


class Wandb(Strict, WandbSettings):
    """How runs are mirrored to W&B."""


class Refine(Strict):
    """Values around the best one: each step tries two for every row of a column."""

    margin: float | None = Field(
        default=None,
        gt=0,
        description="smaller differences do not matter, in the unit of what ranks settings; default: 0.01, a point, "
        "for accuracies",
    )
    until: Until = Field(
        default="gain",
        description="gain: until a step gains less than the margin in every row of a column; flat: and until both "
        "neighbours of each row's best are worse by less",
    )
    max_steps: int = Field(default=3, ge=1, le=MAX_STEPS, description="most steps of a column")


class Search(Strict):
    """Which settings are trained how far; without it, all of the grid are trained to the end.

    Settings that do badly at a rung are dropped (successive halving); further ones may be tried around the best one.
    """

    axis: Annotated[tuple[str, ...], BeforeValidator(_fields)] = Field(
        min_length=1, description="the tuned hyper-parameter, or several: lr, or [lr, method.mu]"
    )
    rungs: Annotated[tuple[int, ...] | None, BeforeValidator(_rungs)] = Field(
        default=None,
        description="increasing numbers of rounds, the last that of all runs; default: a tenth, two fifths and all of "
        "the rounds of each run",
    )
    keep: Annotated[
        Fraction | None,
        BeforeValidator(_share),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "null"}]}),
    ] = Field(
        default=None,
        description="share of the settings of a row and column that a rung keeps; default: 2/5. With refine, all "
        "settings are trained to the end unless rungs or keep is given",
    )
    select_by: Literal["val", "val-tail", "last"] = Field(
        default="val",
        description="what ranks settings at a rung, as a mean over seeds: val: accuracy on held-out training data; "
        "val-tail: its mean over the last five evaluations; last: the report's metric, on the test data",
    )
    refine: Refine | None = Field(default=None, description="try further values around the best ones; {} for defaults")

    @property
    def halves(self) -> bool:
        """Whether settings are dropped at rungs; with ``refine`` alone none is."""
        return self.refine is None or self.rungs is not None or self.keep is not None


class Report(Strict):
    """How the leaderboard is laid out."""

    metric: Metric = Field(default="acc", description="what is shown and ranked")
    rows: Annotated[tuple[str, ...], BeforeValidator(_fields)] = Field(
        default=("method", "norm"), min_length=1, description="fields that make the rows"
    )
    cols: Annotated[tuple[str, ...], BeforeValidator(_fields)] = Field(
        default=("partition",), description="fields that make the columns"
    )
    baseline: Values | None = Field(default=None, description="the row that the others are compared with")
    select_by: SelectBy = Field(
        default="last",
        description="last: the last round; tail: the mean of the last five evaluations; val: the best round on "
        "held-out training data; val-tail: the mean of the last five evaluations, with settings chosen by the same "
        "mean on held-out training data; oracle: the best round on the test data, an upper bound",
    )
    tune: Annotated[tuple[str, ...], BeforeValidator(_fields)] = Field(
        default=("lr",), description="hyper-parameters of which each row shows its best, where they vary; [] for none"
    )
    contrasts: Annotated[tuple[Values, ...], BeforeValidator(_conditions)] = Field(
        default=(),
        description="planned comparisons of a field's values with another one, as {norm: [fn, ln], against: none}; "
        'with between: {partition: ["classes:1", iid]} the difference in the first column minus that in the second; '
        "with if: {method: fedavg} among these cells alone; with measure: fast of the rounds to the level "
        "of the column, easy of the width of the rates that work; default: far, the metric",
    )
    margin: float | None = Field(
        default=None,
        gt=0,
        description="a cell ties with the best of its column if it is shown to be less than this worse, in the unit of "
        "the metric; default: 0.01, a point, for accuracies, and no ties for other metrics",
    )
    headline: Annotated[tuple[Values, ...] | None, BeforeValidator(_conditions)] = Field(
        default=None,
        description="columns on the first page, as {partition: iid, E: 10}; [] for none; default: the first ones",
    )
    target: float | None = Field(
        default=None,
        description="value of the metric to which rounds and bytes are counted, 0.9 for an accuracy of 90 %; default: "
        "95 % of the lowest plateau of the column",
    )


class SweepSpec(Strict):
    """A sweep: experiments as a grid, and how they are run and reported.

    Precedence, lowest first: defaults; base; the grid's set, axes and zip, which give each field once; overrides, in
    order. A component given as a whole (method) replaces the settings (method.mu) of lower layers; a setting alone
    changes only that setting. --set edits the file before all this: it replaces the value at its path. An entry of
    base, a grid or overrides, or a --set, that has no effect on any cell is an error, and so is an entry of report that
    matches no cell of the file.
    """

    version: Annotated[Literal[1], BeforeValidator(_version)] = Field(description="version of this schema")
    name: Annotated[str, BeforeValidator(_name)] = Field(description="names the sweep's folder in the store")
    base: Values = Field(default={}, description="values that every experiment shares")
    axes: Values = Field(default={}, description="the axes of a single grid")
    zip: Values = Field(default={}, description="the joint axis of a single grid")
    grids: Annotated[tuple[Grid, ...], BeforeValidator(_sequence)] = Field(
        default=(), description="several grids, one after the other"
    )
    exclude: Annotated[tuple[Values, ...], BeforeValidator(_conditions)] = Field(
        default=(), description="cells to leave out: partial match; a list means any of"
    )
    overrides: Annotated[tuple[Override, ...], BeforeValidator(_conditions)] = Field(
        default=(), description="other values for the cells that match; creates no cell"
    )
    seeds: Annotated[tuple[int, ...], BeforeValidator(_seeds)] = Field(
        default=(0,), description="a list, or {range: [start, stop]}; paired across all cells"
    )
    resources: Resources = Field(default=Resources(), description="what a run needs")
    retry: Retry = Field(default=Retry(), description="what happens to runs that fail")
    backend: Annotated[Inline | Local | Slurm | _Plugin, BeforeValidator(_backend)] = Field(
        default=Local(), description="where workers run"
    )
    wandb: Wandb = Field(default=Wandb(), description="mirror on W&B")
    track: Trackers = Field(default=(), description="further places that show runs, as tensorboard:DIR")
    search: Search | None = Field(default=None, description="train only the best settings to the end")
    report: Report = Field(default=Report(), description="layout of the leaderboard")
