"""What a report can show of some experiments: one rule for the check of a sweep file and for the report itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import get_args

from flbench.config import REQUEST_FIELDS, Experiment, Training, normal_path, registry_of
from flbench.errors import UserError
from flbench.messages import by_similarity, unknown
from flbench.metric_specs import METRICS

#: Fields that name a section; they are not axes of its tables.
SECTION = ("dataset", "model")

#: Why a field is no axis of tables.
_NO_AXIS: Mapping[str, str] = {
    **dict.fromkeys(SECTION, "each data set and model has tables of its own"),
    "kind": "each kind of experiment has tables of its own",
    "seed": "a cell is the mean over its seeds",
    **dict.fromkeys(REQUEST_FIELDS - {"rounds"}, "it changes what a run records, not what it computes"),
}


def axes_of(kinds: Iterable[type[Experiment]]) -> list[str]:
    """Return the fields that tables of some kinds of experiment may have as axes, in the order of the schema."""
    fields = dict.fromkeys(field for kind in dict.fromkeys(kinds) for field in kind.model_fields)
    return [*(field for field in fields if field not in {*_NO_AXIS, "rounds"}), "rounds"]


def check_axis(axis: str) -> None:
    """Raise UserError for an axis that no table of trainings can have: a field, or a setting as in ``method.mu``."""
    try:
        field, _, setting = normal_path(axis).partition(".")
    except ValueError as error:
        raise UserError(f"cannot lay out a leaderboard by {axis!r}: {error}") from None
    possible = axes_of(get_args(Training))
    if field not in possible:
        why = _NO_AXIS.get(field, "no training has it")
        known = ", ".join(by_similarity(axis, possible))
        raise UserError(f"cannot lay out a leaderboard by {axis!r}: {why}; possible: {known}")
    if setting and (registry := registry_of(field)) is not None:
        settings = sorted({name for cls in registry.classes.values() for name in cls.setting_names()})
        if setting not in settings:
            problem = unknown("setting", setting, settings, f"any {registry.kind}")
            raise UserError(f"cannot lay out a leaderboard by {axis!r}: {problem}")


def check_metric(metric: str, experiments: Iterable[Experiment]) -> None:
    """Raise UserError for a metric that does not exist, or that no run of these trainings records."""
    if metric not in METRICS:
        raise UserError(unknown("metric", metric, METRICS))
    trainings = [one for one in experiments if isinstance(one, Training)]
    if trainings and not any(one.records(METRICS[metric]) for one in trainings):
        recorded = [name for name, known in METRICS.items() if any(one.records(known) for one in trainings)]
        needs = {
            "with held-out data": "set val_fraction, for example to 0.1, in base",
            "after fine-tuning": "set finetune, for example to 10 steps, in base",
            "without a shared model": "it needs a method or norm that keeps parts of the model on the clients",
        }.get(METRICS[metric].recorded, "only studies record it")
        known = ", ".join(by_similarity(metric, recorded))
        raise UserError(f"no run records {metric!r}: {needs}; recorded: {known}")
