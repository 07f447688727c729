"""How far a search trains each run of a plan, and which runs it adds, from the results in the store."""

from __future__ import annotations

from flbench.halving import Ended, Halving, Standing
from flbench.store.plans import Plan, record_added
from flbench.store.results import Result
from flbench.store.root import Store


class Races:
    """The races of a plan.

    A rung, or a step of a refinement, is decided by the results of all runs that reach it, which every process reads
    alike: so workers need not agree on anything, and none can change a choice.

    Args:
        store: the store.
        plan: the runs of the plan's file.
        search: how they are searched.
        max_attempts: failed attempts after which a run counts as ended without a value.
        records: whether added runs are recorded beside the plan, as the workers do.

    Attributes:
        plan: those runs, then the ones that the refinement has added as of the last ``refresh``, which only grow.
        to_come: how many more it may add at most.
    """

    def __init__(self, store: Store, plan: Plan, search: Halving, max_attempts: int, *, records: bool = False) -> None:
        self.plan, self.to_come, self._records = plan.copy(), 0, records
        self._store, self._search, self._max_attempts = store, search, max_attempts
        self._made: dict[tuple[int, float], int | None] = {}
        self._indices = {plan.run_id(index): index for index in range(len(plan))}
        runs = ((index, entry.cell_id, entry.experiment) for index, entry in enumerate(plan))
        self._races = search.races(runs)
        self._places = {
            index: (number, place)
            for number, race in enumerate(self._races)
            for place, seeds in enumerate(race.candidates)
            for index in seeds
        }
        self._values: dict[tuple[int, int], Ended] = {}
        self._standings: dict[int, list[Standing]] = {}

    def refresh(self) -> None:
        """Forget all standings that later results may change, and add the runs for which the results ask."""
        self._standings = {
            number: standings
            for number, standings in self._standings.items()
            if all(standing.dropped or standing.rung == self._races[number].rungs[-1] for standing in standings)
        }
        if self._search.refine is not None:
            standings = [self._of_race(number) for number in range(len(self._races))]
            known = len(self.plan)
            columns = self._search.columns(self._races, standings, self._ended, self._make)
            self.to_come = sum(column.to_come for column in columns)
            if self._records and self.plan.directory is not None:
                record_added(self.plan.directory, self.plan[known:], self._store.root)

    def standing(self, index: int) -> Standing:
        """Return how far a run of the plan is trained, as of the first call for its race after ``refresh``."""
        if index not in self._places:
            return Standing(self.plan.rounds(index))
        number, place = self._places[index]
        return self._of_race(number)[place]

    def may_go_on(self, index: int) -> bool:
        """Return whether the search has not decided yet how far a run is trained."""
        if index not in self._places:
            return False
        number, place = self._places[index]
        standing = self._of_race(number)[place]
        return not standing.dropped and standing.rung < self._races[number].rungs[-1]

    def expected_rounds(self) -> int:
        """Return the rounds of all runs so far: those decided, and from there on those without ties."""
        grid = sum(self._search.expected_rounds(race, self._of_race(number)) for number, race in enumerate(self._races))
        return grid + sum(map(self.plan.rounds, range(len(self._places), len(self.plan))))

    def _of_race(self, number: int) -> list[Standing]:
        if number not in self._standings:
            self._standings[number] = self._search.standings(self._races[number], self._ended)
        return self._standings[number]

    def _ended(self, index: int, rung: int) -> Ended | None:
        if (known := self._values.get((index, rung))) is not None:
            return known
        entry = self.plan[index].until(rung)
        state = self._store.run(entry.run_id).state(entry.request())
        if state.result is not None:
            found = self._values[index, rung] = Ended(self._value(state.result, rung))
            return found
        given_up = state.status in ("failed", "lost") and not state.claimable(self._max_attempts)
        return Ended(None) if given_up else None  # not kept: `flbench retry` may change it

    def _make(self, index: int, value: float) -> int | None:
        """Return the place in the plan of a run with another value, which is added; None if it cannot have it."""
        if (index, value) not in self._made:
            run = self._search.having(self.plan[index].experiment, value)
            if run is not None and run.run_id not in self._indices:
                self._indices[run.run_id] = len(self.plan)
                self.plan.extend([run])
            self._made[index, value] = None if run is None else self._indices[run.run_id]
        return self._made[index, value]

    def _value(self, result: Result, rung: int) -> float | None:
        if result.status == "diverged":
            return None
        return self._search.value_at(rung, result.final, lambda: self._store.run(result.run_id).metrics(result))
