"""The interface of trackers: what one declares, where it sends runs, and how.

The store holds all results; a tracker shows them elsewhere. The mirror sends a run in full and under its id, unless the
log of the target says that its present state was sent. So a sink needs no state of its own, and sending a run replaces
what an earlier try has left of it.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from flbench.errors import InvalidComponent, UserError
from flbench.installation import install_extra
from flbench.registry import TRACKERS, Component, UnknownName
from flbench.store import Store
from flbench.store.root import ROOM
from flbench.sweeps import Sweep
from flbench.sweeps.source import SpecError, read_value

if TYPE_CHECKING:
    from flbench.tracking.run_view import RunView

#: Free bytes on a disk that sinks which write files leave to the runs.
RESERVED_BYTES = 4 * ROOM

#: The numbers of one evaluation by name, ``round`` among them; see ``run_view.rows_of``.
Row = Mapping[str, Any]


@dataclass(frozen=True)
class SweepView:
    """A sweep as trackers show it, as a run of its own: its leaderboard as a table, and its figures."""

    sweep: str
    run_id: str
    config: Mapping[str, Any]
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    figures: Sequence[Path]


#: Makes the view of a sweep: figures are drawn into the folder, and what cannot be drawn is reported to the user.
MakeSweepView = Callable[[Store, Sweep, Path, Callable[[str], None]], SweepView]


class Sink(ABC):
    """An open connection to a tracker, or its files. Opening it raises ImportError or OSError if it cannot be used.

    Any exception of ``send`` and ``send_sweep`` means that nothing was sent; the mirror tries again.
    """

    #: The address that shows the runs; None if unknown.
    url: str | None = None

    @abstractmethod
    def send(self, view: RunView, rows: Sequence[Row]) -> None:
        """Send a run with all its evaluations under ``view.run_id``, in place of what was sent of it before.

        When this returns, the run is on the server or in closed files. A running run is sent again later, with more
        evaluations.
        """

    @abstractmethod
    def send_sweep(self, view: SweepView) -> None:
        """Send a sweep's table and figures under ``view.run_id``, as ``send`` does."""

    def close(self) -> None:  # noqa: B027  most sinks hold nothing
        """Release what the sink holds, after a failure or at the end; it may be used again. Must not raise."""


@dataclass(frozen=True)
class Target:
    """Where a tracker sends the runs of a store.

    Attributes:
        name: identifies the target in its log.
        log: the file that records what was sent.
        open: opens the sink; called once there is something to send.
        mode: ``online`` sends to a server, ``offline`` writes files.
        where: completes "4 of 4 runs are", as "on W&B".
        service: completes "waiting for", as "W&B's service".
        hint: the command with which the user looks at files; empty if there is none.
        live: whether runs are sent while they run, or only once they have ended.
    """

    name: str
    log: Path
    open: Callable[[], Sink]
    mode: Literal["online", "offline"]
    where: str
    service: str
    hint: str = ""
    live: bool = True


class NotTracked(Exception):
    """A tracker is turned off; ``failed`` if the user has requested otherwise."""

    def __init__(self, note: str, *, failed: bool = False) -> None:
        super().__init__(note)
        self.failed = failed


@dataclass(frozen=True)
class Tracker(Component, ABC):
    """Base of all trackers; its fields are the tracker's settings in YAML, as for every component.

    Attributes:
        title: the name in messages.
        package: what must be installed, and is imported only by the sink.
        extra: the extra of flbench that has it; '': the author of the tracker says how to install it.
    """

    title: ClassVar[str]
    package: ClassVar[str] = ""
    extra: ClassVar[str] = ""

    def require(self) -> None:
        """Raise UserError, with a command that installs it, if the tracker's package is missing."""
        if self.package and find_spec(self.package) is None:
            hint = f"; install it: {install_extra(self.extra)}" if self.extra else ""
            raise UserError(f"{self.title} needs the package {self.package}{hint}")

    def is_off(self) -> bool:
        """Return whether nothing is sent, as far as this is known without importing the tracker's package."""
        return False

    @abstractmethod
    def target(self, store: Path) -> Target:
        """Return where the runs of the store at this path are sent; raises NotTracked if the tracker is turned off."""


def read_tracker(text: str, option: str = "--to") -> Tracker:
    """Return the tracker that an option names (``tensorboard:DIR``), if its package is installed.

    Raises:
        UserError: an unknown tracker or setting, or a missing package.
    """
    try:
        tracker: Tracker = TRACKERS.parse(read_value(text))
    except (SpecError, UnknownName, InvalidComponent) as error:
        raise UserError(f"{option} {text}: {error}") from None
    tracker.require()
    return tracker


class SendFailed(Exception):
    """A run was not sent; the message says why."""


class RunDeleted(Exception):
    """The user has deleted a run at the tracker, which does not accept its id again; the message says so."""


def check_disk_space(folder: Path) -> None:
    """Raise SendFailed if the disk of a folder is nearly full, so that no run fails because of its mirror."""
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    if free < RESERVED_BYTES:
        raise SendFailed(
            f"only {free // 10**6} MB are free in {folder}: the last {RESERVED_BYTES // 10**6} MB are left to runs"
        )
