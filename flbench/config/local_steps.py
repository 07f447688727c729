"""Numbers of local steps (or epochs) of a round: one number, or a distribution in the form that is hashed.

The forms: ``10``, ``uniform:5:15`` and ``stragglers:20:0.9``, both also with ``:fixed`` at the end.

- ``uniform:LOW:HIGH``: each client draws its number in every round, LOW and HIGH included.
- ``stragglers:FULL:SHARE``: each round draws this share of its participants, and each of them draws its number from 1
  to FULL - 1; the others take FULL. So does the code of FedProx (Li et al. 2020, section 5.2; the paper's text
  includes FULL), in epochs.
- ``:fixed``: a client's number is drawn once for the run, as that of a slow machine; so are the stragglers among all
  clients.

``engine.local_steps`` draws them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

#: Largest number of steps of a distribution.
MOST = 2**31

_EXPECTED = (
    "expected a whole number from 1, uniform:LOW:HIGH (drawn by each client in each round, 1 <= LOW <= HIGH) or "
    "stragglers:FULL:SHARE (a share from 0 to 1 of the participants draws from 1 to FULL - 1), each of the two also "
    "with :fixed (drawn once for the run)"
)


@dataclass(frozen=True)
class Distribution:
    """A distribution of the numbers of steps.

    Attributes:
        low, high: the smallest and the largest number that is drawn.
        share: of the participants that draw one; the others take ``full``.
        full: as above.
        fixed: whether numbers are drawn once for the run.
    """

    low: int
    high: int
    share: float
    full: int
    fixed: bool

    @property
    def most(self) -> int:
        """The largest possible number."""
        return self.full if self.share < 1 else self.high

    @property
    def mean(self) -> float:
        """The mean over clients and rounds."""
        return self.share * (self.low + self.high) / 2 + (1 - self.share) * self.full


def parse_local_steps(raw: Any) -> int | str:
    """Return the one spelling of a number of steps or of its distribution.

    >>> parse_local_steps(10), parse_local_steps("uniform:5:15"), parse_local_steps("stragglers:20:0.50:fixed")
    (10, 'uniform:5:15', 'stragglers:20:0.5:fixed')
    >>> parse_local_steps("uniform:5:5"), parse_local_steps("stragglers:20:0"), parse_local_steps("stragglers:20:1")
    (5, 20, 'uniform:1:19')

    Raises:
        ValueError: the value is neither.
    """
    if isinstance(raw, float) and raw.is_integer():
        raw = int(raw)
    if isinstance(raw, int) and not isinstance(raw, bool) and 1 <= raw < 2**63:
        return raw
    if isinstance(raw, int) and not isinstance(raw, bool) and raw < 1:
        raise ValueError(f"expected a value of at least 1, got {raw!r}")
    name, *numbers = str(raw).split(":") if isinstance(raw, str) else [""]
    fixed = numbers[-1:] == ["fixed"]
    if len(numbers) - fixed == 2:
        try:
            first, second = int(numbers[0]), float(numbers[1])
        except ValueError:
            first, second = 0, -1.0
        end = ":fixed" if fixed else ""
        if name == "uniform" and 1 <= first <= second <= MOST and second.is_integer():
            return first if first == second else f"uniform:{first}:{int(second)}{end}"
        if name == "stragglers" and 2 <= first <= MOST and 0 <= second <= 1:
            if second in (0, 1):
                return first if second == 0 else parse_local_steps(f"uniform:1:{first - 1}{end}")
            return f"stragglers:{first}:{second!r}{end}"
    raise ValueError(f"{_EXPECTED}, got {raw!r}")


#: The field's type.
LocalSteps = Annotated[
    int | str,
    BeforeValidator(parse_local_steps),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "string", "pattern": "^(uniform:[0-9]+:[0-9]+|stragglers:[0-9]+:[0-9.e-]+)(:fixed)?$"},
            ]
        }
    ),
]


@lru_cache(1000)
def distribution_of(steps: str) -> Distribution:
    """Return the distribution that a spelling names."""
    name, first, second, *rest = steps.split(":")
    if name == "uniform":
        return Distribution(int(first), int(second), 1.0, int(second), bool(rest))
    return Distribution(1, int(first) - 1, float(second), int(first), bool(rest))


def most_steps(steps: int | str) -> int:
    """Return the largest number that any client takes."""
    return steps if isinstance(steps, int) else distribution_of(steps).most


def mean_steps(steps: int | str) -> float:
    """Return the mean number that a client takes.

    >>> mean_steps(10), mean_steps("uniform:5:15"), mean_steps("stragglers:20:0.5")
    (10, 10.0, 15.0)
    """
    return steps if isinstance(steps, int) else distribution_of(steps).mean


def one_length(local_steps: int | str | None, local_epochs: int | str | None) -> str | None:
    """Return what is wrong with a length that is given in both ways or in neither, or None."""
    if (local_steps is None) == (local_epochs is None):
        return f"give either local_steps (E) or local_epochs, got {local_steps} and {local_epochs}"
    return None


def partial_batches_end_epochs(drop_last: bool, local_epochs: int | str | None) -> str | None:
    """Return why partial batches need epochs, or None."""
    if drop_last or local_epochs is not None:
        return None
    return "false needs local_epochs: a number of local_steps has no last batch of an epoch"


def steps_have_clients(local_epochs: int | str | None, local_steps: int | str | None) -> str | None:
    """Return why centralized training cannot have such a length, or None."""
    drawn = next((number for number in (local_steps, local_epochs) if isinstance(number, str)), None)
    return f"{drawn} is drawn by clients; give a whole number for centralized training" if drawn else None
