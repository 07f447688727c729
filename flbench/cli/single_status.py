"""The runs of a store that belong to no sweep, as ``flbench status`` shows them: those of ``flbench run``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from flbench.cli.plan_status import SweepStatus, Tally, tally_entries
from flbench.cli.ranking import names
from flbench.run_sources import Reason, StoredRun, notes_of, readable
from flbench.store import Entry, Store


class SingleRuns(SweepStatus):
    """All single runs of a store, shown like one sweep; one that has stopped waits until its user starts it again."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, Path("single runs"))
        self._entries: dict[str, Entry] = {}

    def _read(self) -> Tally:
        planned, reasons = self._store.planned_ids(), Counter[Reason]()
        for run_id in self._store.run_ids():
            if run_id not in planned and run_id not in self._entries:
                found = StoredRun.read(run_id, self._store.run(run_id).experiment)
                for experiment in readable([found], reasons):
                    self._entries[run_id] = Entry.of(experiment)
        self.problem = "\n".join(f"left out: {note}" for note in notes_of(reasons))
        self._entries = {run_id: entry for run_id, entry in self._entries.items() if run_id not in planned}
        return tally_entries(self._store, list(self._entries.values()))

    @property
    def cancelled(self) -> bool:
        """Never: each run is cancelled by itself."""
        return False

    @property
    def goes_on(self) -> bool:
        """Whether a worker executes one of them."""
        return self.tally.counts["running"] > 0

    def names_of(self, run_id: str) -> tuple[str, str]:
        """Return the names of the problem and of the contender of a run."""
        return names(self._entries[run_id].experiment, self.tally.common)

    def json(self) -> dict[str, Any]:
        """Return the single runs for ``--json``."""
        whole = super().json()
        return {name: value for name, value in whole.items() if name not in ("sweep", "spec_hash", "directory")}
