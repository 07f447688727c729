"""Who takes part in a round, as the fields of an experiment say it."""

from __future__ import annotations

from typing import Any

from flbench.registry import SAMPLERS


def cohort_size(clients: int, participation: float) -> int:
    """Return how many clients train in a round: the share of all, rounded (half to even), and at least one.

    >>> cohort_size(10, 0.25), cohort_size(10, 0.01)
    (2, 1)
    """
    return max(1, round(clients * participation))


def cohort_problem(cohort: Any, clients: int, participation: float) -> str | None:
    """Return why a sampler cannot draw this share of the clients, or None."""
    problem = cohort.problem(clients, participation)
    return f"{cohort.label()}: {problem}" if problem else None


def participation_in_effect(cohort: Any, clients: int, participation: float) -> float:
    """Return the share that enters the run id: that of whole clients, unless it is a probability."""
    return participation if cohort.varies else cohort_size(clients, participation) / clients


def cohort_in_effect(cohort: Any, clients: int, participation: float) -> Any:
    """Return the sampler that enters the run id: the default where everyone takes part in every round."""
    everyone = participation_in_effect(cohort, clients, participation) == 1
    return SAMPLERS["uniform"]() if everyone else cohort
