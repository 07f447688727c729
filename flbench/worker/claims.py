"""Claim runs of a plan until none is left for this worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from functools import cached_property
from typing import Any

from flbench.config import FUSABLE, REQUEST_FIELDS, canonical_json
from flbench.errors import StoreUnusable, UserError
from flbench.halving import Halving
from flbench.methods.base import Method
from flbench.registry import METHODS, default_of, plain
from flbench.slurm import record_end
from flbench.store import Attempt, Entry, Lease, Plan, Queue, Races, RunRequest, RunState, Store
from flbench.worker.attempts import MEMORY, execute_group
from flbench.worker.engine import Engine, load_engine
from flbench.worker.machine import environment
from flbench.worker.options import MemoryShort, Options

#: How many of the next runs in the plan a worker considers for training together.
GROUP_WINDOW = 200

#: Seconds within which a run is short: its worker takes batches of runs from then on (``Queue.take_batches``).
SHORT_SECONDS = 1.0


def work(
    store: Store,
    plan: Plan,
    lease: Lease,
    options: Options,
    *,
    should_stop: Callable[[], bool],
    stopped_as: Callable[[], str] = lambda: "interrupted",
    load: Callable[[Options], Engine] = load_engine,
    search: Halving | None = None,
) -> int:
    """Execute the runs of a plan until none is left that this worker may claim.

    Runs that other workers hold are skipped: if such a worker dies, the orchestrator starts another one. With
    ``search``, runs wait at a rung for the others of their race; the worker that ends the last of them goes on, also
    with the runs that the search adds then.

    Returns:
        How many runs it claimed.

    Raises:
        StoreUnusable: the disk is full; the attempts of all claimed runs have ended.
        MemoryShort: a run did not fit into the memory left by other workers; this worker ends to free its part.
        UserError: the data of all remaining runs cannot be used here; such runs are not claimed.
    """
    races = None if search is None else Races(store, plan, search, options.max_attempts, records=True)
    queue = Queue(store, plan, options.offset, races)
    claims = _Claims(store, queue, lease, options, load)
    claimed = 0
    while True:
        claimed_before, was_fresh = claimed, queue.is_fresh
        for entry in queue:
            if should_stop():
                return claimed
            group = claims.claim(entry)
            if not group:
                continue
            claimed += len(group)
            began = time.monotonic()
            kinds = execute_group(group, claims.engine, options, should_stop, stopped_as)
            if time.monotonic() - began < SHORT_SECONDS:
                queue.take_batches(options.workers)
            # The next runs would fail for the same reason.
            if "disk_full" in kinds:
                raise StoreUnusable(f"the disk is full: the store {store.root} cannot be written")
            if options.neighbours > 1 and kinds & MEMORY:
                raise MemoryShort("a run did not fit into memory; this worker ends to leave more for the others")
        if claimed > claimed_before or was_fresh:
            continue
        if claimed or (queue.is_thorough and not claims.unusable):
            return claimed
        if queue.is_thorough:
            error = next(iter(claims.unusable.values()))
            raise error
        queue.is_thorough = True  # the worker was started for some run: read the states of all before it ends


class _Claims:
    """Claims the runs of a queue that this worker can execute.

    Attributes:
        unusable: by data set, why its runs cannot be executed here.
    """

    def __init__(
        self, store: Store, queue: Queue, lease: Lease, options: Options, load: Callable[[Options], Engine]
    ) -> None:
        self._store, self._queue, self._lease, self._options, self._load = store, queue, lease, options, load
        self.unusable: dict[str, UserError] = {}

    @cached_property
    def engine(self) -> Engine:
        """The engine, loaded before the first run is claimed, after this worker's environment was recorded.

        git is called before torch is imported: until a forked child executes its program, SLURM counts its parent's
        memory twice, and may kill the job.
        """
        environment(self._options.device)
        return self._load(self._options)

    def claim(self, entry: Entry) -> list[Attempt]:
        """Claim a run, and runs that can be trained together with it; none if this worker may or can not execute it."""
        state = self._state(entry)
        if not state.claimable(self._options.max_attempts) or self._needs_more_memory(state):
            if state.status == "running":
                self._queue.keep()  # its worker may die; runs that are done or given up are not read again
            return []
        self._store.check_room()
        engine, dataset, experiment = self.engine, canonical_json(entry.experiment.get("dataset")), entry.parse()
        try:
            if dataset not in self.unusable:
                engine.check(experiment)
        except UserError as problem:
            self.unusable[dataset] = problem
        if dataset in self.unusable:
            return []
        self._queue.keep()
        first = self._store.claim(experiment, self._lease, self._options.max_attempts)
        if first is None:
            return []
        group = [first]
        # An error must not leave the first claim without an end: its execution meets the error, too, and records it.
        with suppress(OSError, UserError):
            for companion in self._claim_companions(first):
                group.append(companion)  # noqa: PERF402  those before the error count
        return group

    def _claim_companions(self, first: Attempt) -> Iterator[Attempt]:
        """Claim runs among the next ones in the plan, such as other seeds, that can be trained with the first."""
        options, queue = self._options, self._queue
        # Form smaller groups towards the end of the plan, so that all workers end at about the same time.
        fair = -(-queue.left // (2 * options.workers - 1))
        room = min(options.fuse, fair) - 1
        if room < 1:
            return
        try:
            room = min(room, self.engine.group_size(first.experiment) - 1)
        except Exception:
            return  # the execution of the first run raises the same error and records it
        key = group_key(first.experiment.to_json())
        for entry in queue.near(GROUP_WINDOW):
            if room < 1:
                return
            if group_key(entry.experiment) != key or self._needs_more_memory(self._state(entry)):
                continue
            attempt = self._store.claim(entry.parse(), self._lease, options.max_attempts)
            if attempt is not None:
                room -= 1
                yield attempt

    def _state(self, entry: Entry) -> RunState:
        """Return a run's state; if its worker died in a SLURM job, ask SLURM why first."""
        run, request = self._store.run(entry.run_id), RunRequest.of(entry.experiment)
        state = run.state(request)
        return run.state(request) if state.status == "lost" and record_end(self._store, run) else state

    def _needs_more_memory(self, state: RunState) -> bool:
        """Return whether a run needs a worker with more memory than this one, since it would only fail again here."""
        return state.kind == "oom" and self._options.memory == "usual"


def group_key(experiment: Mapping[str, Any]) -> str:
    """Return the part of an experiment (plain JSON) that must be equal for runs to be trained together.

    Runs may differ in the fields of ``FUSABLE`` and in the numbers of the method that its hooks take as tensors.
    """
    common = {field: value for field, value in experiment.items() if field not in FUSABLE | REQUEST_FIELDS}
    method = common.get("method", {})
    cls = METHODS.classes.get(method.get("name"), Method)
    # A field that equals its default is left out of the JSON; None and a number cannot be one tensor.
    whole = {field.name: plain(default_of(field)) for field in fields(cls)} | method
    common["method"] = {
        key: value for key, value in whole.items() if key in cls.static or type(value) not in (int, float)
    }
    return canonical_json(common)
