"""Schedules of the learning rate over rounds, in the form that is hashed: ``constant``, ``decay:0.99``, ``cosine:200``.

The rate of a round depends on the number of the round and on the schedule alone, never on how many rounds are
requested, so a longer request continues the same run.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

CONSTANT = "constant"

_EXPECTED = (
    "expected constant, decay:FACTOR (the rate is multiplied by FACTOR after every round, 0 < FACTOR <= 1) or "
    "cosine:ROUNDS (half a cosine that would reach zero after ROUNDS rounds)"
)


def parse_schedule(raw: Any) -> str:
    """Return the one spelling of a schedule, given as text or as ``{decay: FACTOR}`` or ``{cosine: ROUNDS}``.

    >>> parse_schedule("decay:0.990"), parse_schedule({"cosine": 200}), parse_schedule("decay:1")
    ('decay:0.99', 'cosine:200', 'constant')

    Raises:
        ValueError: the value is no schedule.
    """
    if isinstance(raw, dict) and len(raw) == 1:
        ((name, number),) = raw.items()
    else:
        name, _, number = str(raw).partition(":")
    if raw == CONSTANT:
        return CONSTANT
    try:
        value = float("nan" if isinstance(number, bool) else number)
    except (TypeError, ValueError):
        value = math.nan
    if name == "decay" and 0 < value <= 1:
        return CONSTANT if value == 1 else f"decay:{value!r}"
    if name == "cosine" and 1 <= value < 2**53 and value.is_integer():
        return f"cosine:{int(value)}"
    raise ValueError(f"{_EXPECTED}, got {raw!r}")


#: The field's type.
LrSchedule = Annotated[
    str,
    BeforeValidator(parse_schedule),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": "^(constant|decay:.+|cosine:.+)$"},
                {"type": "object", "minProperties": 1, "maxProperties": 1, "additionalProperties": {"type": "number"}},
            ]
        }
    ),
]


@lru_cache(1000)
def rate_factor(schedule: str, round: int) -> float:
    """Return the learning rate in a round (from 0) over that of the first round.

    >>> rate_factor("decay:0.5", 3), round(rate_factor("cosine:4", 1), 4), rate_factor("cosine:4", 2)
    (0.125, 0.8536, 0.5)
    """
    name, _, number = schedule.partition(":")
    if name == "decay":
        return float(number) ** round
    if name == "cosine":
        return (1 + math.cos(math.pi * round / int(number))) / 2
    return 1.0


def schedule_problem(rounds: int, lr_schedule: str) -> str | None:
    """Return why a run of that many rounds cannot have the schedule, or None."""
    name, _, number = lr_schedule.partition(":")
    if name == "cosine" and rounds > int(number):
        return f"{lr_schedule} ends before the run's {rounds} rounds; use cosine:{rounds} or fewer rounds"
    return None
