"""Which run of a plan a worker looks at next, without looking at all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain

from flbench.store.plans import Entry, Plan
from flbench.store.root import Store


class Queue:
    """The runs of a plan, pass after pass, in the order of the plan from some place on.

    To find out a run's state takes several files. So a pass leaves out, by the look of one name each, the runs that
    have a result of the length that is requested, and the first pass those that others have begun since this queue
    was made: what a worker does for its next run does not grow with what is finished. Nothing is taken on trust in the
    end: a pass of a queue that ``is_thorough`` leaves out nothing.
    """

    def __init__(self, store: Store, plan: Plan, offset: int) -> None:
        self._runs = os.fspath(store.root / "runs")
        self._plan = plan
        self._begun: set[str] | None = set(store.run_ids())
        begin = offset % len(plan)
        self._todo = list(chain(range(begin, len(plan)), range(begin)))
        self._left_out: list[int] = []
        self._again: list[int] = []
        self._position = 0
        self.is_thorough = False

    def __iter__(self) -> Iterator[Entry]:
        """Yield one pass; what is to be looked at again in the next has to be kept."""
        if self.is_thorough:
            self._todo, self._left_out = sorted(self._todo + self._left_out), []
        self._again = []
        for position, index in enumerate(self._todo):
            self._position = position
            if self._begun is not None and self._is_of_late(index):
                self._again.append(index)
            elif not self.is_thorough and self._is_published(index):
                self._left_out.append(index)
            else:
                yield self._plan[index]
        self._todo, self._begun = self._again, None

    @property
    def is_fresh(self) -> bool:
        """Whether there was no pass yet."""
        return self._begun is not None

    @property
    def left(self) -> int:
        """How many runs are left in this pass, with the one that was given last."""
        return len(self._todo) - self._position

    def keep(self) -> None:
        """Look at the run that was given last in the next pass too."""
        self._again.append(self._todo[self._position])

    def near(self, count: int) -> Iterator[Entry]:
        """Yield the runs that follow in this pass."""
        for index in self._todo[self._position + 1 : self._position + 1 + count]:
            if self.is_thorough or not self._is_published(index):
                yield self._plan[index]

    def _is_of_late(self, index: int) -> bool:
        run_id = self._plan.run_id(index)
        return run_id not in (self._begun or ()) and os.path.exists(self._directory(run_id))  # noqa: PTH110  speed

    def _is_published(self, index: int) -> bool:
        directory = self._directory(self._plan.run_id(index))
        return os.path.exists(f"{directory}/results/{self._plan.rounds(index):08d}.json")  # noqa: PTH110

    def _directory(self, run_id: str) -> str:
        return f"{self._runs}/{run_id[:2]}/{run_id}"
