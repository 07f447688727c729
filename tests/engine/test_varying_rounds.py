"""Cohorts whose size varies and numbers of steps that are drawn, in every way to train."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from flbench.config import InvalidExperiment, parse_experiment
from flbench.config.local_steps import distribution_of, mean_steps
from flbench.data.datasets import load
from flbench.engine.federated import FederatedTrainer
from flbench.engine.local_steps import numbers_of
from flbench.engine.setup import make_trainer
from flbench.engine.stack_bits import same_bits_together
from flbench.methods.base import Method, ServerContext, Tree
from flbench.registry import METHODS
from tests.conformance.problem import ROUNDS, SHARE, W0, assert_close, both_executors, local_sgd, mean, trainer_of
from tests.recording import rerun
from tests.toys import check_every_way, everything, largest_difference, toy_trainer, train, train_together


@both_executors
@pytest.mark.parametrize("momentum", [0.0, 0.8])
@pytest.mark.parametrize("cohort", ["uniform", "bernoulli"])
def test_fednova_with_random_steps(executor: str, momentum: float, cohort: str) -> None:
    """Count a_k of the drawn numbers of steps, of those who take part; only these numbers and the rows are shared."""
    share = 1.0 if cohort == "uniform" else 0.5
    settings: dict[str, Any] = {"momentum": momentum, "steps": "uniform:1:4", "cohort": cohort, "participation": share}
    trainer, x, seen, rounds = trainer_of("fednova", executor, **settings), W0.copy(), set(), 2 * ROUNDS
    for round in range(rounds):
        members = trainer.run.cohort(round)
        numbers = trainer.run.steps_of(members, round)
        seen |= {len(members), *(-number for number in numbers)}
        p, a = SHARE[members] / SHARE[members].sum(), []
        for steps in numbers:
            velocity = total = 0.0
            for _ in range(steps):
                velocity = momentum * velocity + 1
                total += velocity
            a.append(total)
        ends = [local_sgd(x, int(k), round, steps=n, momentum=momentum) for k, n in zip(members, numbers, strict=True)]
        normalised = [(end - x) / a_k for end, a_k in zip(ends, a, strict=True)]
        x = x + sum(p * a) * mean(p, normalised)
    train(rounds, trainer)
    assert_close(trainer.x["head.weight"], x)
    assert {-1, -2, -3, -4} <= seen and len(seen) >= (5 if cohort == "uniform" else 6), "steps and sizes vary"


@dataclass(frozen=True)
class Participation(Method):
    """Adds up |S| / N."""

    def init_server(self, x: Tree) -> Tree:
        return {"sum": next(iter(x.values())).new_zeros(())}

    def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, ctx: ServerContext) -> tuple[Tree, Tree]:
        return super().server_step(x, delta, message, {"sum": state["sum"] + ctx.participation}, ctx)


@both_executors
def test_participation_and_bytes_are_those_of_each_round(executor: str) -> None:
    trainer = toy_trainer(Participation(), executor=executor, cohort="bernoulli", participation=0.5)
    sizes = [len(trainer.run.cohort(round)) for round in range(6)]
    assert len(set(sizes)) > 1
    train(6, trainer)
    assert float(trainer.server["sum"]) == pytest.approx(sum(size / 3 for size in sizes))
    weights = sum(leaf.numel() * leaf.element_size() for leaf in trainer.x.values())
    assert trainer.bytes_up == trainer.bytes_down == sum(sizes) * weights


CASES: dict[str, dict[str, Any]] = {
    "bernoulli": {"cohort": "bernoulli", "participation": 0.5},
    "cyclic": {"cohort": "cyclic:3", "participation": 0.34},
    "skewed": {"cohort": "skewed:2", "participation": 0.67},
    "random steps": {"steps": "uniform:1:4"},
    "stragglers": {"steps": "stragglers:4:0.5"},
    "both": {"cohort": "bernoulli", "participation": 0.5, "steps": "uniform:1:4:fixed"},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("method", ["scaffold", "fednova"])
def test_every_way_to_train_agrees(case: str, method: str) -> None:
    """Loop, stack, chunks, threads, resumed runs; two runs in one stack; a recorded graph, or none with one line."""

    def make(**kwargs: Any) -> FederatedTrainer:
        return toy_trainer(METHODS.parse(method), **{**CASES[case], "norm": "bn", **kwargs})

    loop = check_every_way(make, fused=False)
    recorded = make(executor="stacked", record=rerun)
    train(2, recorded)
    assert largest_difference(everything(loop), everything(recorded)) < 1e-10
    assert (recorded.record is None) == loop.run.sampler.varies
    together, alone = ([make(executor="stacked", seed=n, weights=n) for n in (0, 1)] for _ in range(2))
    train_together(3, together)
    train(3, *alone)
    for one, other in zip(together, alone, strict=True):
        assert largest_difference(everything(one), everything(other)) < 1e-10
    if loop.run.sampler.varies:
        assert same_bits_together(alone) == [[1], [0]], "each alone, because a cohort may be one client"


def test_one_line_says_that_rounds_are_not_recorded(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        toy_trainer(Method(), executor="stacked", record=rerun, **CASES["bernoulli"])
    assert [record.message for record in caplog.records] == [
        "cohort bernoulli: its size varies, so that rounds are not recorded as CUDA graphs"
    ]


def test_numbers_of_steps_are_keyed_by_client_and_round() -> None:
    of = distribution_of("uniform:3:6")
    everyone = [numbers_of(of, 0, round, range(50), 50) for round in range(40)]
    assert {number for own in everyone for number in own} == {3, 4, 5, 6}
    assert np.mean(everyone) == pytest.approx(4.5, abs=0.1)
    assert numbers_of(of, 0, 7, [3, 48], 50) == [everyone[7][3], everyone[7][48]], "not by who else takes part"
    fixed = distribution_of("uniform:3:6:fixed")
    assert numbers_of(fixed, 0, 1, range(50), 50) == numbers_of(fixed, 0, 2, range(50), 50) != everyone[1]


@pytest.mark.parametrize("end", ["", ":fixed"])
def test_a_share_straggles(end: str) -> None:
    of = distribution_of(f"stragglers:5:0.3{end}")
    rounds = [numbers_of(of, 0, round, range(20), 20) for round in range(100)]
    assert all(sum(number < 5 for number in own) == 6 for own in rounds)
    assert min(map(min, rounds)) == 1 and max(map(max, rounds)) == 5
    assert (rounds[0] == rounds[1]) == bool(end)
    assert len({tuple(number < 5 for number in own) for own in rounds}) == (1 if end else 100)
    assert mean_steps(f"stragglers:5:0.3{end}") == pytest.approx(0.7 * 5 + 0.3 * 2.5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"E": "uniform:5"}, "local_steps: expected a whole number from 1, uniform:LOW:HIGH"),
        ({"E": "uniform:6:5"}, "1 <= LOW <= HIGH"),
        ({"E": "uniform:0:5"}, "got 'uniform:0:5'"),
        ({"E": "uniform:1.5:5"}, "uniform:LOW:HIGH"),
        ({"E": "normal:1:5"}, "stragglers:FULL:SHARE"),
        ({"E": "stragglers:1:0.5"}, "draws from 1 to FULL - 1"),
        ({"E": "stragglers:5:2"}, "a share from 0 to 1"),
        ({"E": "uniform:1:5:once"}, "with :fixed"),
        ({"E": "10"}, "got '10'"),
        ({"E": True}, "got True"),
        ({"E": 1.5}, "got 1.5"),
        ({"local_epochs": "uniform:1:x"}, "local_epochs: expected"),
        ({"kind": "centralized", "E": "uniform:1:5"}, "give a whole number for centralized training"),
        ({"norm": "fedtan", "E": "uniform:1:5"}, "take each step together; give one number of local_steps"),
    ],
)
def test_refusals(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidExperiment, match=message):
        parse_experiment(fields)


def test_spellings_and_methods_that_are_the_same() -> None:
    same = [{"E": 5}, {"E": "uniform:5:5"}, {"E": "stragglers:5:0"}, {"E": "stragglers:5:0:fixed"}]
    assert len({parse_experiment(fields).run_id for fields in same}) == 1
    others: list[dict[str, Any]] = [{"E": f"uniform:1:4{end}"} for end in ("", ":fixed")]
    assert len({parse_experiment(fields).run_id for fields in (*same, *others, {"E": "stragglers:5:0.5"})}) == 4
    assert parse_experiment({"E": "stragglers:5:1"}).run_id == parse_experiment(others[0]).run_id
    for steps, name in ((5, "fedavg"), ("uniform:1:4", "fednova")):
        experiment: Any = parse_experiment({"method": "fednova", "E": steps})
        assert experiment.method.same_as(experiment).name == name


def test_epochs_are_drawn_in_passes_through_each_clients_data() -> None:
    fields = {"partition": "dirichlet:0.3", "local_epochs": "uniform:1:3", "batch_size": 16, "clients": 5, "rounds": 2}
    experiment: Any = parse_experiment({**fields, "cohort": "bernoulli", "participation": 0.6})
    data = load(experiment.dataset, None)
    trainer: Any = make_trainer(experiment, data, device="cpu", executor="stacked", pool=1)[0]
    cohort = trainer.run.cohort(0)
    epochs = numbers_of(distribution_of("uniform:1:3"), 0, 0, cohort.tolist(), 5)
    whole = [len(trainer.run.rows[client]) // 16 for client in cohort]
    assert trainer.run.steps_of(cohort, 0) == [max(1, one) * number for one, number in zip(whole, epochs, strict=True)]
    train(2, trainer)
    assert np.isfinite(trainer.evaluate()["train_loss"])
