"""How far a search trains each run of a plan, from the results in the store."""

from __future__ import annotations

from collections.abc import Sequence

from flbench.halving import Ended, Halving, Standing
from flbench.store.plans import Entry
from flbench.store.results import Result
from flbench.store.root import Store


class Races:
    """The races of a plan.

    A rung is decided by the results of all runs that reach it, which every process reads alike: so workers need not
    agree on anything, and none can change a choice.

    Args:
        store: the store.
        plan: the runs of the plan.
        search: how they are searched.
        max_attempts: failed attempts after which a run counts as ended without a value.
    """

    def __init__(self, store: Store, plan: Sequence[Entry], search: Halving, max_attempts: int) -> None:
        self._store, self._plan, self._search, self._max_attempts = store, plan, search, max_attempts
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
        """Forget all standings that later results may change."""
        self._standings = {
            number: standings
            for number, standings in self._standings.items()
            if all(standing.dropped or standing.rung == self._races[number].rungs[-1] for standing in standings)
        }

    def standing(self, index: int) -> Standing:
        """Return how far a run of the plan is trained, as of the first call for its race after ``refresh``."""
        number, place = self._places[index]
        return self._of_race(number)[place]

    def may_go_on(self, index: int) -> bool:
        """Return whether the search has not decided yet how far a run is trained."""
        number, place = self._places[index]
        standing = self._of_race(number)[place]
        return not standing.dropped and standing.rung < self._races[number].rungs[-1]

    def expected_rounds(self) -> int:
        """Return the rounds of all runs: those decided so far, and from there on those without ties."""
        return sum(self._search.expected_rounds(race, self._of_race(number)) for number, race in enumerate(self._races))

    def _of_race(self, number: int) -> list[Standing]:
        if number not in self._standings:
            self._standings[number] = self._search.standings(self._races[number], self._ended)
        return self._standings[number]

    def _ended(self, index: int, rung: int) -> Ended | None:
        if (known := self._values.get((index, rung))) is not None:
            return known
        entry = self._plan[index].until(rung)
        state = self._store.run(entry.run_id).state(entry.request())
        if state.result is not None:
            found = self._values[index, rung] = Ended(self._value(state.result, rung))
            return found
        given_up = state.status in ("failed", "lost") and not state.claimable(self._max_attempts)
        return Ended(None) if given_up else None  # not kept: `flbench retry` may change it

    def _value(self, result: Result, rung: int) -> float | None:
        if result.status == "diverged":
            return None
        if result.final.get("round") == rung:
            return self._search.value(result.final)
        records = self._store.run(result.run_id).metrics(result)  # of a run that was longer before the search
        return self._search.value(next((record for record in records if record["round"] == rung), None))
