"""Stored runs whose experiments may be unreadable, and the notes about those that are left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from flbench.config import Experiment, InvalidExperiment
from flbench.errors import UserError
from flbench.plugin_files import CURE

#: What is said of a run whose id is no longer that of its experiment.
RETIRED = "of an earlier version of a component, whose numbers are retired"

#: What is left out (``run``, ``planned run``), and why.
Reason = tuple[str, str]


@dataclass(frozen=True)
class StoredRun:
    """A run of a source, under the id that it was stored with; without its experiment where that cannot be read."""

    run_id: str
    experiment: Experiment | None
    problem: str = ""  # why it cannot be read, and the cure
    unknown: str = ""  # the component that is not known here, if that is why

    @classmethod
    def read(cls, run_id: str, read: Callable[[], Experiment]) -> StoredRun:
        """Return a run with the experiment that ``read`` returns, or with the problem that it raises."""
        try:
            return cls(run_id, read())
        except (OSError, UserError) as error:
            unknown = error.unknown if isinstance(error, InvalidExperiment) else ""
            return cls(run_id, None, _problem(unknown), unknown)


def _problem(unknown: str) -> str:
    """Return why a stored experiment cannot be read; details of a file are left to ``flbench verify``."""
    if unknown:
        return f"with the unknown {unknown}{CURE}"
    return "whose experiment this version of flbench cannot read; flbench verify says why"


def readable(stored_runs: Iterable[StoredRun], reasons: Counter[Reason], what: str = "run") -> list[Experiment]:
    """Return every experiment whose stored id is still its run id; count why the others, each a ``what``, are not."""
    kept = []
    for stored in stored_runs:
        if stored.experiment is None:
            reasons[what, stored.problem] += 1
        elif stored.experiment.run_id != stored.run_id:
            reasons[what, RETIRED] += 1
        else:
            kept.append(stored.experiment)
    return kept


def notes_of(reasons: Counter[Reason]) -> tuple[str, ...]:
    """Return what is said of the runs that are left out: ``2 runs with the unknown norm 'lm'; ...``."""
    return tuple(f"{count:,} {what}{'' if count == 1 else 's'} {why}" for (what, why), count in reasons.items())
