"""How fast a client forgets the classes that it does not have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field

from flbench.probes.base import Observation, Probe
from flbench.registry import PROBES
from flbench.sums import sum_in_order


@PROBES.register("overfit")
@dataclass(frozen=True)
class Overfit(Probe):
    """Local overfitting (the label-skew paper, figure 2): what a few local steps on one client do to every class.

    ``before``: the global model's accuracy on each class; ``after``: for each of the first ``clients`` clients the same
    after ``steps`` local steps on that client's data alone; ``mean_before`` and ``mean_after`` over classes (and
    clients). On ``samples`` test samples of all classes in equal numbers. There are no numbers without clients.
    """

    lists: ClassVar[Mapping[str, int] | None] = {"before": 1, "after": 2}
    source = "@zhang2024labelskew, figure 2"
    steps: Annotated[int, Field(ge=1)] = 5
    clients: Annotated[int, Field(ge=1)] = 10
    samples: Annotated[int, Field(ge=2)] = 500

    def measure(self, seen: Observation) -> dict[str, Any]:
        access = seen.access
        if not access.clients:
            return {}
        images, labels = access.mixed_test_samples(self.samples)
        before = access.class_accuracies(access.model(), images, labels)
        after = [
            access.class_accuracies(access.after_local_steps(client, self.steps), images, labels)
            for client in range(min(self.clients, access.clients))
        ]
        return {
            "before": before,
            "after": after,
            "mean_before": _mean(before),
            "mean_after": _mean([share for row in after for share in row]),
        }


def _mean(shares: list[float | None]) -> float:
    known = [share for share in shares if share is not None]
    return sum_in_order(known) / len(known)
