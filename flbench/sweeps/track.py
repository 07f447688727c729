"""The trackers of a sweep file: the settings of W&B, in a section of their own, and the key ``track``."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from flbench.choices import TrackingMode
from flbench.registry import TRACKERS, UnknownName

_FORMS = [{"type": "string", "examples": ["tensorboard:DIR"]}, {"type": "object", "required": ["name"]}]


@dataclass(frozen=True)
class WandbSettings:
    """The settings of W&B: of a sweep file's section `wandb`, and of the tracker."""

    project: Annotated[str, Field(min_length=1, description="project on W&B")] = "flbench"
    entity: Annotated[str | None, Field(description="user or team on W&B")] = None
    mode: Annotated[TrackingMode, Field(description="auto: online if logged in to W&B, else off")] = "auto"


def _read(raw: Any) -> Any:
    """Return the trackers that a file names, one or a list."""
    try:
        trackers = [TRACKERS.parse(one) for one in (raw if isinstance(raw, (list, tuple)) else [raw])]
    except UnknownName as error:
        raise ValueError(str(error)) from None
    names = Counter(tracker.name for tracker in trackers)
    if "wandb" in names:
        raise ValueError("W&B has a section of its own, as wandb: {mode: online}")
    if twice := [name for name, count in names.items() if count > 1]:
        raise ValueError(f"{twice[0]} is given twice: a sweep has one tracker of each name")
    return tuple(trackers)


#: One tracker or a list of them, in the file; the trackers themselves, once it is read.
Trackers = Annotated[
    tuple[Any, ...],
    BeforeValidator(_read),
    WithJsonSchema({"anyOf": [*_FORMS, {"type": "array", "items": {"anyOf": _FORMS}}]}),
]
