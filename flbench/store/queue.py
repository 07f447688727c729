"""The order in which a worker checks the runs of a plan, without reading the state of all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain

from flbench.store.plans import Entry, Plan
from flbench.store.races import Races
from flbench.store.root import Store

#: Consecutive runs of a plan that a worker of short runs takes in turn with the other workers.
BATCH = 8


class Queue:
    """The runs of a plan, pass after pass, in the order of the plan from an offset on.

    A pass skips finished runs, and the first pass also runs that another worker has begun since; each costs one check
    of a file name, where reading the run's state takes several files. A queue that ``is_thorough`` skips nothing.

    With ``races``, a run is yielded up to the rung to which the search trains it now, and each pass also yields the
    runs that the search has added. The order is only advice: a claim
    decides who executes a run.
    """

    def __init__(self, store: Store, plan: Plan, offset: int, races: Races | None = None) -> None:
        self._runs = os.fspath(store.root / "runs")
        self._plan, self._races, self._offset = plan if races is None else races.plan, races, offset
        self._begun: set[str] | None = set(store.run_ids())
        begin = offset % len(plan)
        self._todo = list(chain(range(begin, len(plan)), range(begin)))
        self._left_out: list[int] = []
        self._again: list[int] = []
        self._position = 0
        self._in_batches = False
        self.is_thorough = False

    def __iter__(self) -> Iterator[Entry]:
        """Yield the runs of one pass; only runs that the caller keeps (``keep``) are yielded again in the next."""
        if self.is_thorough:
            self._todo, self._left_out = sorted(self._todo + self._left_out), []
        self._again = []
        if self._races is not None:
            known = len(self._plan)
            self._races.refresh()
            self._todo += range(known, len(self._plan))
        for position, index in enumerate(self._todo):
            self._position = position
            if self._is_others(index):
                self._again.append(index)
            elif not self.is_thorough and self._is_published(index):
                self._left_out.append(index)
            else:
                if self._races is not None and self._races.may_go_on(index):
                    self.keep()
                yield self._entry(index)
        self._todo, self._begun = self._again, None

    @property
    def is_fresh(self) -> bool:
        """Whether no pass has ended yet."""
        return self._begun is not None

    @property
    def left(self) -> int:
        """How many runs are left in this pass, including the one that was yielded last."""
        return len(self._todo) - self._position

    def keep(self) -> None:
        """Yield the run that was yielded last in the next pass, too."""
        if self._again[-1:] != [index := self._todo[self._position]]:
            self._again.append(index)

    def take_batches(self, workers: int) -> None:
        """Continue with batches of this worker's own, then with what is left of the other workers' batches.

        Otherwise many workers of short runs would try to claim the same run at the same time. A batch is not claimed:
        any worker may take what is left of it.
        """
        if not self._in_batches and workers > 1:
            self._in_batches = True
            coming = slice(self._position + 1, None)
            self._todo[coming] = sorted(self._todo[coming], key=lambda index: (index // BATCH - self._offset) % workers)

    def near(self, count: int) -> Iterator[Entry]:
        """Yield those of the next ``count`` runs that this pass does not skip and that are not published."""
        for index in self._todo[self._position + 1 : self._position + 1 + count]:
            if self.is_thorough or not (self._is_others(index) or self._is_published(index)):
                yield self._entry(index)

    def _entry(self, index: int) -> Entry:
        """Return a run of the plan, up to its rung if the plan is searched."""
        entry = self._plan[index]
        return entry if self._races is None else entry.until(self._races.standing(index).rung)

    def _is_others(self, index: int) -> bool:
        """Return whether another worker has begun a run since this queue was made; only the first pass asks."""
        return self._begun is not None and self._plan.run_id(index) not in self._begun and self._exists(index)

    def _is_published(self, index: int) -> bool:
        return self._exists(index, f"/results/{self._plan.rounds(index):08d}.json")

    def _exists(self, index: int, name: str = "") -> bool:
        """Return whether a run has a file, or without ``name`` its directory."""
        run_id = self._plan.run_id(index)
        return os.path.exists(f"{self._runs}/{run_id[:2]}/{run_id}{name}")  # noqa: PTH110  speed
