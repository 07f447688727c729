"""Claim runs of a plan until none is left for this worker."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

from flbench.config import FUSABLE, REQUEST_FIELDS, canonical_json
from flbench.errors import StoreUnusable, UserError
from flbench.slurm import record_end
from flbench.store import Attempt, Entry, Lease, Plan, Queue, RunRequest, RunState, Store
from flbench.worker.attempts import MEMORY, execute_group
from flbench.worker.engine import Engine, load_engine
from flbench.worker.machine import environment
from flbench.worker.options import MemoryShort, Options

#: How many of the next runs in the plan a worker considers for training together.
GROUP_WINDOW = 200


def work(
    store: Store,
    plan: Plan,
    lease: Lease,
    options: Options,
    *,
    should_stop: Callable[[], bool],
    stopped_as: Callable[[], str] = lambda: "interrupted",
    load: Callable[[Options], Engine] = load_engine,
) -> int:
    """Execute the runs of a plan until none is left that this worker may claim.

    Runs that other workers hold are skipped: if such a worker dies, the orchestrator starts another one.

    Returns:
        How many runs it claimed.

    Raises:
        StoreUnusable: the disk is full; the attempts of all claimed runs have ended.
        MemoryShort: a run did not fit into the memory left by other workers; this worker ends to free its part.
        UserError: the data of all remaining runs cannot be used here; such runs are not claimed.
    """
    engine: Engine | None = None
    unusable: dict[str, UserError] = {}
    claimed = 0
    queue = Queue(store, plan, options.offset)
    while True:
        claimed_before, was_fresh = claimed, queue.is_fresh
        for entry in queue:
            if should_stop():
                return claimed
            state = _state(store, entry)
            if not state.claimable(options.max_attempts) or _needs_more_memory(state, options):
                if state.status == "running":
                    queue.keep()  # its worker may die; runs that are done or given up are not read again
                continue
            store.check_room()
            engine = engine or _start_engine(options, load)
            if not _has_data(entry, engine, unusable):
                continue
            queue.keep()
            first = store.claim(entry.parse(), lease, options.max_attempts)
            if first is None:
                continue
            group = [first, *_claim_companions(store, first, queue, lease, options, engine)]
            claimed += len(group)
            kinds = execute_group(group, engine, options, should_stop, stopped_as)
            _stop_if_others_would_fail(kinds, store, options)
        if claimed > claimed_before or was_fresh:
            continue
        if claimed or (queue.is_thorough and not unusable):
            return claimed
        if queue.is_thorough:
            error = next(iter(unusable.values()))
            raise error
        queue.is_thorough = True  # the worker was started for some run: read the states of all before it ends


def _start_engine(options: Options, load: Callable[[Options], Engine]) -> Engine:
    """Return the engine, loaded after this worker's environment was recorded.

    A forked child counts with all of its parent's memory until it executes its program, and SLURM would kill the job if
    it sampled the memory at that moment: so git is called before torch is imported.
    """
    environment(options.device)
    return load(options)


def _state(store: Store, entry: Entry) -> RunState:
    """Return a run's state; if its worker died in a SLURM job, ask SLURM why first."""
    run, request = store.run(entry.run_id), RunRequest.of(entry.experiment)
    state = run.state(request)
    return run.state(request) if state.status == "lost" and record_end(store, run) else state


def _has_data(entry: Entry, engine: Engine, unusable: dict[str, UserError]) -> bool:
    """Return whether a run's data can be used here; ``unusable`` caches the errors by data set."""
    dataset = canonical_json(entry.experiment.get("dataset"))
    if dataset not in unusable:
        try:
            engine.check(entry.parse())
        except UserError as problem:
            unusable[dataset] = problem
    return dataset not in unusable


def _needs_more_memory(state: RunState, options: Options) -> bool:
    """Return whether a run needs a worker with more memory than this one, since it would only fail again here."""
    return state.kind == "oom" and options.memory == "usual"


def _stop_if_others_would_fail(kinds: Container[str], store: Store, options: Options) -> None:
    """Raise if the next runs would fail for the same reason as these."""
    if "disk_full" in kinds:
        raise StoreUnusable(f"the disk is full: the store {store.root} cannot be written")
    if options.neighbours > 1 and any(kind in kinds for kind in MEMORY):
        raise MemoryShort("a run did not fit into memory; this worker ends to leave more for the others")


def _claim_companions(
    store: Store, first: Attempt, queue: Queue, lease: Lease, options: Options, engine: Engine
) -> Iterator[Attempt]:
    """Claim runs among the next ones in the plan, such as other seeds, that can be trained together with the first."""
    # Form smaller groups towards the end of the plan, so that all workers end at about the same time.
    fair = -(-queue.left // (2 * options.workers - 1))
    room = min(options.fuse, fair) - 1
    if room < 1:
        return
    try:
        room = min(room, engine.group_size(first.experiment) - 1)
    except Exception:
        return  # the execution of the first run raises the same error and records it
    key = group_key(first.experiment.to_json())
    for entry in queue.near(GROUP_WINDOW):
        if room < 1:
            return
        if group_key(entry.experiment) != key or _needs_more_memory(_state(store, entry), options):
            continue
        attempt = store.claim(entry.parse(), lease, options.max_attempts)
        if attempt is not None:
            room -= 1
            yield attempt


def group_key(experiment: Mapping[str, Any]) -> str:
    """Return the part of an experiment (plain JSON) that must be equal for runs to be trained together."""
    common = {field: value for field, value in experiment.items() if field not in FUSABLE | REQUEST_FIELDS}
    method = common.get("method", {})
    common["method"] = {key: value for key, value in method.items() if not _is_number(value)}
    return canonical_json(common)


def _is_number(value: Any) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool)
