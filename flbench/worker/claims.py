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

#: How far ahead in the plan a worker looks for runs to train together.
NEAR = 200


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

    Runs that other workers hold are skipped: the orchestrator starts another worker if their holder dies.

    Returns:
        How many runs it claimed.

    Raises:
        StoreUnusable: the disk is full; the attempts at all claimed runs have ended.
        MemoryShort: a run did not fit beside those of the neighbours; this worker ends to free memory for them.
        UserError: the data of all remaining runs cannot be used here; such runs are not claimed.
    """
    engine: Engine | None = None
    unusable: dict[str, UserError] = {}
    taken = 0
    queue = Queue(store, plan, options.offset)
    while True:
        claimed_before, was_fresh = taken, queue.is_fresh
        for entry in queue:
            if should_stop():
                return taken
            state = _state(store, entry)
            if not state.claimable(options.max_attempts) or _needs_more_memory(state, options):
                if state.status == "running":
                    queue.keep()  # another worker may lose it; runs that are done or given up never come back
                continue
            store.check_room()
            if engine is None:
                # Call git while this process is small: a child counts with all of its parent's memory until it becomes
                # another program, and SLURM may look at that moment and kill the job for the sum.
                environment(options.device)
                engine = load(options)
            if not _has_data(entry, engine, unusable):
                continue
            queue.keep()
            first = store.claim(entry.parse(), lease, options.max_attempts)
            if first is None:
                continue
            group = [first, *_companions(store, first, queue, lease, options, engine)]
            taken += len(group)
            kinds = execute_group(group, engine, options, should_stop, stopped_as)
            _stop_if_others_would_fail(kinds, store, options)
        if taken == claimed_before and not was_fresh:
            if taken or queue.is_thorough:
                if unusable and not taken:
                    error = next(iter(unusable.values()))
                    raise error
                return taken
            queue.is_thorough = True  # it was started for some run and found none: a run's cached state may be wrong


def _state(store: Store, entry: Entry) -> RunState:
    """Return a run's state; if its worker died in a SLURM job, ask SLURM why first."""
    run, request = store.run(entry.run_id), RunRequest.of(entry.experiment)
    state = run.state(request)
    return run.state(request) if state.status == "lost" and record_end(store, run) else state


def _has_data(entry: Entry, engine: Engine, unusable: dict[str, UserError]) -> bool:
    """Whether a run's data can be used here; ``unusable`` collects the problems by data set, each tried once."""
    dataset = canonical_json(entry.experiment.get("dataset"))
    if dataset not in unusable:
        try:
            engine.check(entry.parse())
        except UserError as problem:
            unusable[dataset] = problem
    return dataset not in unusable


def _needs_more_memory(state: RunState, options: Options) -> bool:
    """Whether a run is left to workers with more memory: here it would only fail again."""
    return state.kind == "oom" and options.memory == "usual"


def _stop_if_others_would_fail(kinds: Container[str], store: Store, options: Options) -> None:
    """Raise if runs have ended for a reason for which the next ones would end too."""
    if "disk_full" in kinds:
        raise StoreUnusable(f"the disk is full: the store {store.root} cannot be written")
    if options.neighbours > 1 and any(kind in kinds for kind in MEMORY):
        raise MemoryShort("a run did not fit into memory; this worker ends so that those beside it have more")


def _companions(
    store: Store, first: Attempt, queue: Queue, lease: Lease, options: Options, engine: Engine
) -> Iterator[Attempt]:
    """Claim runs that can be trained together with the first: they are near it in the plan, as its seeds are."""
    # Groups get smaller towards the end, so that all workers end at about the same time.
    fair = -(-queue.left // (2 * options.workers - 1))
    room = min(options.fuse, fair) - 1
    if room < 1:
        return
    try:
        room = min(room, engine.group_size(first.experiment) - 1)
    except Exception:
        return  # the run itself meets the same problem (missing data, say) and records it in its own files
    kind = kind_of_group(first.experiment.to_json())
    for entry in queue.near(NEAR):
        if room < 1:
            return
        if kind_of_group(entry.experiment) != kind or _needs_more_memory(_state(store, entry), options):
            continue
        attempt = store.claim(entry.parse(), lease, options.max_attempts)
        if attempt is not None:
            room -= 1
            yield attempt


def kind_of_group(experiment: Mapping[str, Any]) -> str:
    """Return what runs that are trained together have in common, from an experiment as plain JSON."""
    common = {field: value for field, value in experiment.items() if field not in FUSABLE | REQUEST_FIELDS}
    method = common.get("method", {})
    common["method"] = {key: value for key, value in method.items() if not _is_number(value)}
    return canonical_json(common)


def _is_number(value: Any) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool)
