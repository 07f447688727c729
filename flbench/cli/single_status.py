"""The runs of a store that belong to no sweep, as ``flbench status`` shows them: those of ``flbench run``."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from flbench.cli.plan_status import SweepStatus, Tally, tally_entries
from flbench.cli.ranking import names
from flbench.errors import UserError
from flbench.store import Entry, Store


class SingleRuns(SweepStatus):
    """All single runs of a store, shown like one sweep; one that has stopped waits until its user starts it again."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, Path("single runs"))
        self._entries: dict[str, Entry] = {}

    def _read(self) -> Tally:
        planned = self._store.planned_ids()
        for run_id in self._store.run_ids():
            if run_id not in planned and run_id not in self._entries:
                with suppress(OSError, UserError):  # `flbench verify` reports it
                    self._entries[run_id] = Entry.of(self._store.run(run_id).experiment())
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
