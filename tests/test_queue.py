"""The order in which a worker tries the runs of a plan, and the cost of this."""

from __future__ import annotations

from flbench.config import Experiment
from flbench.store import Lease, Plan, Queue, Store
from flbench.store.queue import BATCH
from tests.faults.stub import experiments
from tests.report.stores import finish


def tried(queue: Queue, plan: list[Experiment], *, keep: bool = False) -> list[int]:
    numbers = {experiment.run_id: number for number, experiment in enumerate(plan)}
    found = []
    for entry in queue:
        found.append(numbers[entry.run_id])
        if keep:
            queue.keep()
    return found


def test_runs_come_in_the_plans_order_from_the_offset(store: Store) -> None:
    plan = experiments(5)
    queue = Queue(store, Plan.of(plan), offset=13)
    assert tried(queue, plan, keep=True) == [3, 4, 0, 1, 2]
    assert tried(queue, plan) == [3, 4, 0, 1, 2]
    assert tried(queue, plan) == []


def test_finished_runs_are_skipped_until_the_thorough_pass(store: Store) -> None:
    plan = experiments(5)
    finish(store, plan[1])
    finish(store, plan[4])
    queue = Queue(store, Plan.of(plan), offset=0)
    assert tried(queue, plan) == [0, 2, 3]
    queue.is_thorough = True
    assert tried(queue, plan) == [1, 4]


def test_a_result_of_another_length_is_not_skipped(store: Store) -> None:
    finish(store, experiments(1, rounds=20)[0])
    longer = experiments(2, rounds=40)
    assert tried(Queue(store, Plan.of(longer), offset=0), longer) == [0, 1]


def test_runs_claimed_by_other_workers_meanwhile_come_last(store: Store) -> None:
    plan = experiments(5)
    store.claim(plan[0], Lease.here())
    queue = Queue(store, Plan.of(plan), offset=0)
    store.claim(plan[2], Lease.here())
    assert queue.is_fresh
    assert tried(queue, plan) == [0, 1, 3, 4]
    assert not queue.is_fresh
    assert tried(queue, plan) == [2]


def test_neighbours_and_remaining_runs(store: Store) -> None:
    plan = experiments(5)
    finish(store, plan[3])
    queue = Queue(store, Plan.of(plan), offset=1)
    passing = iter(queue)
    assert next(passing).run_id == plan[1].run_id
    assert queue.left == 5
    assert [entry.run_id for entry in queue.near(3)] == [plan[2].run_id, plan[4].run_id]
    assert next(passing).run_id == plan[2].run_id
    assert queue.left == 4


def test_rounds_are_read_without_the_rest_of_the_line() -> None:
    plan = experiments(3, rounds=7, eval_every=3) + experiments(3, rounds=1234, method="scaffold")
    assert [Plan.of(plan).rounds(index) for index in range(6)] == [7] * 3 + [1234] * 3


def test_workers_of_short_runs_take_batches_in_turn_and_then_what_others_left(store: Store) -> None:
    plan = experiments(5 * BATCH)

    def order(worker: int) -> list[int]:
        queue = Queue(store, Plan.of(plan), offset=worker)
        first = next(passing := iter(queue))
        queue.take_batches(workers=3)
        return [entry.experiment["seed"] for entry in (first, *passing)]

    orders = [order(worker) for worker in range(3)]
    assert [found[0] for found in orders] == [0, 1, 2]
    own = [[*range(1, BATCH), *range(3 * BATCH, 4 * BATCH)], [*range(BATCH, 2 * BATCH), *range(4 * BATCH, 5 * BATCH)]]
    assert [found[1 : 1 + len(first)] for found, first in zip(orders, own, strict=False)] == own
    assert all(sorted(found) == list(range(5 * BATCH)) for found in orders)


def test_companions_are_no_runs_that_others_have_begun(store: Store) -> None:
    plan = experiments(4)
    queue = Queue(store, Plan.of(plan), offset=0)
    passing = iter(queue)
    next(passing)
    store.claim(plan[2], Lease.here())
    assert [entry.run_id for entry in queue.near(3)] == [plan[1].run_id, plan[3].run_id]
