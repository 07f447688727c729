"""The store: the directory with every run's files, and the only hand-off between stages.

A run's state is a pure function of its files and the liveness of its lease; there is no database and no lock.
Everything here is free of torch, and claiming a run costs a few system calls.
"""

from flbench.store.attempts import AttemptDir, Checkpoint
from flbench.store.cancel import CANCELLED, CancelMark, StopCheck
from flbench.store.claims import Attempt
from flbench.store.leases import Heartbeat, Lease, LiveWorker
from flbench.store.plans import Entry, Plan, encode_plan, parse_plan, plan_name, read_entries, read_plan, read_search
from flbench.store.queue import Queue
from flbench.store.races import Races
from flbench.store.results import Result, RunRequest, changed_plugins
from flbench.store.root import Store
from flbench.store.runs import RunDir, RunState

__all__ = [
    "CANCELLED",
    "Attempt",
    "AttemptDir",
    "CancelMark",
    "Checkpoint",
    "Entry",
    "Heartbeat",
    "Lease",
    "LiveWorker",
    "Plan",
    "Queue",
    "Races",
    "Result",
    "RunDir",
    "RunRequest",
    "RunState",
    "StopCheck",
    "Store",
    "changed_plugins",
    "encode_plan",
    "parse_plan",
    "plan_name",
    "read_entries",
    "read_plan",
    "read_search",
]
