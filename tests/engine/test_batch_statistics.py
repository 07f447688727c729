"""Policies of batch statistics: their invariants, with every executor, resumed, fused and refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flbench.config import InvalidExperiment, parse_experiment
from flbench.data.datasets import load
from flbench.data.shards import Shards
from flbench.engine.federated import FederatedTrainer, step_together
from flbench.engine.optimizers import Sgd
from flbench.engine.setup import executor_for, runs_worth_fusing
from flbench.errors import UserError
from flbench.methods.base import Method
from flbench.registry import METHODS, NORMS
from tests.recording import rerun
from tests.samples import fast
from tests.toys import (
    everything,
    largest_difference,
    record_of,
    same_bits,
    toy_clients,
    toy_images,
    toy_trainer,
    train,
    train_together,
)

RECORDED: dict[str, Any] = {"record": rerun}

POLICIES: list[Any] = ["silobn", {"name": "fixbn", "rounds": 2}, "fbn", "hbn"]


def trainer_of(
    norm: Any, executor: str = "stacked", method: str | Method = "fedavg", **kwargs: Any
) -> FederatedTrainer:
    settings: dict[str, Any] = {"sgd": Sgd(0.01, 0.5, 0.01), "norm": norm, "executor": executor}
    return toy_trainer(METHODS.parse(method) if isinstance(method, str) else method, **(settings | kwargs))


def statistics(trainer: FederatedTrainer) -> dict[str, Tensor]:
    return {name: leaf.clone() for name, leaf in trainer.model(0)[1].items() if "running" in name}


def test_fixed_statistics_are_those_of_bn_and_then_never_move() -> None:
    plain, fixed = trainer_of("bn"), trainer_of({"name": "fixbn", "rounds": 2}, participation=1.0)
    train(2, plain, fixed)
    assert largest_difference(plain.x, fixed.x) < 1e-14
    before = statistics(fixed)
    assert largest_difference(statistics(plain), before) < 1e-14
    train(3, plain, fixed)
    assert all(torch.equal(leaf, before[name]) for name, leaf in statistics(fixed).items())
    assert largest_difference(plain.x, fixed.x) > 1e-4
    assert float(fixed.buffers["trunk.after1.round"]) == 5


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_local_statistics_train_as_bn_and_are_evaluated_by_client(executor: str) -> None:
    plain, silo = trainer_of("bn", executor), trainer_of("silobn", executor)
    train(3, plain, silo)
    assert all(torch.equal(leaf, silo.x[name]) for name, leaf in plain.x.items())  # used at evaluation only
    assert {name.rpartition(".")[2] for name in silo.local} == {"running_mean", "running_var"} and not silo.buffers
    assert not torch.equal(*(silo.model(client)[1]["trunk.after1.running_mean"] for client in (0, 1)))
    assert "acc_personal" in record_of(silo) and "acc_personal" not in record_of(plain)
    assert silo.bytes_up < plain.bytes_up


def test_local_statistics_of_one_client_are_bns() -> None:
    one = {"clients": toy_clients((60,))}
    plain, silo = trainer_of("bn", **one), trainer_of("silobn", **one)
    train(3, plain, silo)
    assert largest_difference(statistics(plain), statistics(silo)) < 1e-15
    assert record_of(plain)["acc"] == record_of(silo)["acc"]


def test_a_client_that_does_not_take_part_keeps_its_statistics() -> None:
    trainer = trainer_of("silobn", participation=0.34)
    (chosen,) = trainer.run.cohort(0)
    train(1, trainer)
    moved = [float(leaf.abs().sum()) > 0 for leaf in trainer.local["trunk.after1.running_mean"]]
    assert moved == [client == chosen for client in range(3)]


def test_global_statistics_start_without_normalization_and_reach_the_moments_of_all_data() -> None:
    """With momentum 1 and one step of all data, the running moments are those of all clients' features together."""
    whole = {"steps": 1, "batch_size": 20, "clients": toy_clients((20, 20, 20)), "sgd": Sgd(1e-12)}
    trainer = trainer_of({"name": "fbn", "momentum": 1.0}, **whole)
    params, buffers = trainer.model(0)
    images = trainer.images.prepare(trainer.images.train_MCHW)
    features = torch.relu(images.flatten(1) @ params["trunk.dense1.weight"].T)
    assert float(buffers["trunk.after1.running_var"].min()) == 1  # the first round does not normalize
    train(1, trainer)
    found = statistics(trainer)
    torch.testing.assert_close(found["trunk.after1.running_mean"], features.mean(0), rtol=0, atol=1e-9)
    torch.testing.assert_close(found["trunk.after1.running_var"], features.var(0, correction=0), rtol=0, atol=1e-9)


def test_global_statistics_do_not_depend_on_the_rest_of_the_batch() -> None:
    network = trainer_of("fbn", "loop").executor._idle.get().network.train()  # type: ignore[attr-defined]
    images = torch.rand(4, 1, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(network(images)[1][:1], network(images[:1])[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm", POLICIES, ids=str)
@pytest.mark.parametrize("method", fast(["scaffold", "fedsam", "moon"], "scaffold"))
@pytest.mark.parametrize("kept", [False, pytest.param(True, id="kept momentum")])
def test_executors_recordings_and_resumed_runs_agree(norm: Any, method: str, kept: bool) -> None:
    """Also where the statistics become fixed in between, and with momentum that clients keep (FixBN's two halves)."""
    settings: dict[str, Any] = {"method": method, "steps": [3, 1, 4], "sgd": Sgd(0.01, 0.5, 0.01, kept=kept)}
    kinds: list[dict[str, Any]] = [{"executor": "loop"}, {}, {"chunk": 2}, {"record": rerun}]
    trainers = [trainer_of(norm, **settings, **kind) for kind in kinds]
    train(2, *trainers)
    resumed = trainer_of(norm, **settings)
    resumed.load(trainers[1].state())
    train(2, resumed, *trainers)
    for other in (resumed, *trainers[1:]):
        assert largest_difference(everything(trainers[0]), everything(other)) < 1e-10
    assert same_bits(resumed, trainers[1])


@pytest.mark.parametrize("norm", POLICIES, ids=str)
def test_fused_runs_may_be_in_different_rounds(norm: Any) -> None:
    together, alone = ([trainer_of(norm, seed=seed) for seed in (0, 1)] for _ in range(2))
    train(1, together[0], alone[0])
    train_together(3, together)
    train(3, *alone)
    assert all(map(same_bits, together, alone))


@pytest.mark.parametrize("norm", POLICIES[:3], ids=str)
def test_batch_statistics_move_once_in_a_step_of_fedsam(norm: Any) -> None:
    none, some = (trainer_of(norm, method="fedsam", steps=1) for _ in range(2))
    object.__setattr__(none.run.method, "rho", 0.0)
    train(1, none, some)
    assert largest_difference(statistics(none), statistics(some)) == 0
    assert largest_difference(none.x, some.x) > 1e-9


#: How much clients observe, and at most how many samples that is.
OBSERVED = [("batch", 64), ("all", 200)]


def with_mixture(norm: Any, mix: float, **kwargs: Any) -> FederatedTrainer:
    """A trainer whose clients mix batch and global statistics by the sigmoid of this number."""
    trainer = trainer_of(norm, **kwargs)
    for name, leaf in trainer.local.items():
        if name.endswith("mix"):
            leaf.fill_(mix)
    return trainer


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_a_mixture_of_batch_statistics_alone_trains_as_bn(executor: str) -> None:
    plain, mixed = trainer_of("bn", executor), with_mixture("hbn", 50, executor=executor)
    train(3, plain, mixed)
    assert largest_difference(plain.x, mixed.x) < 1e-12
    assert not mixed.is_personal and "acc_personal" not in record_of(mixed)
    moments = [leaf for name, leaf in mixed.buffers.items() if ".seen_" in name]
    numbers = sum(leaf.numel() for leaf in (*mixed.x.values(), *moments))
    assert mixed.bytes_up == mixed.bytes_down == 3 * 3 * 8 * numbers  # rounds, clients, bytes


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_a_mixture_of_global_statistics_alone_trains_with_fixed_ones(executor: str) -> None:
    fixed, mixed = trainer_of("fbn", executor), with_mixture("hbn", -50, executor=executor)
    for name, leaf in fixed.buffers.items():
        if "running" in name:
            leaf.copy_(torch.linspace(0.2, 1.5, len(leaf)))
            mixed.buffers[name.replace("running", "global")].copy_(leaf)
    before = {name: leaf.clone() for name, leaf in mixed.buffers.items() if "global" in name}
    train(1, fixed, mixed)
    assert largest_difference(fixed.x, mixed.x) < 1e-12
    assert largest_difference(before, {name: mixed.buffers[name] for name in before}) < 1e-12


class WithMeans(Method):
    """A method for which the engine passes over all data of a client in any case."""

    statistics = "mean"


MEANS = WithMeans()


@pytest.mark.parametrize("executor", ["loop", "stacked"])
@pytest.mark.parametrize("method", [Method(), MEANS], ids=["plain", "means"])
@pytest.mark.parametrize(("observed", "rows"), OBSERVED)
def test_clients_observe_a_batch_or_all_of_their_samples(
    observed: str, rows: int, method: Method, executor: str
) -> None:
    """With mixtures of batch statistics alone, the evaluated ones are the moments of all that clients observe."""
    settings: dict[str, Any] = {"images": toy_images(train=190), "clients": toy_clients((70, 20, 100)), "steps": 1}
    settings |= {"method": method, "executor": executor}
    trainer = with_mixture({"name": "hbn", "observed": observed, "momentum": 1.0}, 50, **settings)
    images = trainer.images.prepare(trainer.images.train_MCHW)
    seen = images[np.concatenate([own[:rows] for own in trainer.run.rows])].flatten(1)

    def moments() -> list[Tensor]:
        features = torch.relu(seen @ trainer.x["trunk.dense1.weight"].T)
        return [features.mean(0), features.var(0, correction=0)]

    received = moments()
    train(1, trainer)
    for kind, expected, at in (("global", received, trainer.buffers), ("running", moments(), trainer.model(0)[1])):
        for name, leaf in zip(("mean", "var"), expected, strict=True):
            torch.testing.assert_close(at[f"trunk.after1.{kind}_{name}"], leaf, rtol=0, atol=1e-9)


def test_what_clients_learn_to_mix_is_neither_sent_nor_seen_by_the_method() -> None:
    trainer = trainer_of("hbn", method="scaffold", participation=0.34)
    (chosen,) = trainer.run.cohort(0)
    train(1, trainer)
    moved = [bool(row.any()) for row in trainer.local["trunk.after1.mix"]]
    assert moved == [client == chosen for client in range(3)]
    trees = (trainer.x, trainer.server, trainer.states)
    assert not [name for tree in trees for name in tree if name.endswith("mix")]


def test_layers_without_trained_parameters_observe_nothing() -> None:
    trainer = trainer_of("hbn", trained="head")
    before = statistics(trainer)
    train(1, trainer)
    assert trainer.run.observation is None and not trainer.local
    assert largest_difference(statistics(trainer), before) == 0


@pytest.mark.parametrize("norm", [*POLICIES, "fedtan"], ids=str)
def test_where_a_policy_has_no_meaning_it_is_refused(norm: Any) -> None:
    name = NORMS.parse(norm).label()
    for method in ("fedbn", "local-only"):
        with pytest.raises(InvalidExperiment) as caught:
            parse_experiment({"method": method, "norm": norm})
        assert f"{method} keeps batch statistics on the clients, {name} has another policy" in str(caught.value)
    with pytest.raises(InvalidExperiment) as caught:
        parse_experiment({"kind": "centralized", "norm": norm})
    assert f"{name} is bn among clients; use bn" in str(caught.value)


LOCK_STEP: list[Any] = ["fedtan", {"name": "fedtan", "steps": "all"}]


def same_rows(clients: int, size: int = 20) -> Shards:
    """Clients that have the same samples, in batches of all of them."""
    rows = np.arange(size)
    return Shards(train=(rows,) * clients, val=(rows[:0],) * clients, test=(rows,) * clients)


@pytest.mark.parametrize("norm", LOCK_STEP, ids=str)
def test_equal_clients_in_lock_step_are_one_client_with_bn(norm: Any) -> None:
    one = trainer_of("bn", clients=same_rows(1), batch_size=20)
    three = trainer_of(norm, clients=same_rows(3), batch_size=20)
    train(2, one, three)
    assert largest_difference(one.x, three.x) < 1e-12
    assert largest_difference(statistics(one), statistics(three)) < 1e-12


def test_a_step_in_lock_step_is_one_of_all_batches_together() -> None:
    """The mean of the clients' gradients at equal weights is that of bn on the joined batch."""
    joined = trainer_of("bn", clients=toy_clients((60,)), steps=1, batch_size=60)
    apart = trainer_of("fedtan", clients=toy_clients((20, 20, 20)), steps=1, batch_size=20)
    plain = trainer_of("bn", clients=toy_clients((20, 20, 20)), steps=1, batch_size=20)
    train(2, joined, apart, plain)
    assert largest_difference(joined.x, apart.x) < 1e-12
    assert largest_difference(joined.x, plain.x) > 1e-5


def test_only_the_first_step_of_a_round_is_in_lock_step_by_default() -> None:
    first, every, plain = (trainer_of(norm, steps=2) for norm in (*LOCK_STEP, "bn"))
    train(2, first, every, plain)
    assert largest_difference(first.x, every.x) > 1e-6
    assert min(largest_difference(plain.x, other.x) for other in (first, every)) > 1e-6


@pytest.mark.parametrize("norm", LOCK_STEP, ids=str)
@pytest.mark.parametrize("method", ["scaffold", "moon"])
def test_a_cohort_in_lock_step_is_never_cut(norm: Any, method: str) -> None:
    trainers = [trainer_of(norm, method=method, participation=0.67, **kind) for kind in ({}, {"chunk": 1}, RECORDED)]
    train(2, *trainers)
    resumed = trainer_of(norm, method=method, participation=0.67)
    resumed.load(trainers[0].state())
    train(1, resumed, *trainers)
    assert same_bits(trainers[0], trainers[1]) and same_bits(trainers[0], resumed)
    assert largest_difference(everything(trainers[0]), everything(trainers[2])) < 1e-10
    with pytest.raises(RuntimeError, match="out of memory"):
        trainers[0].executor.halve(2, RuntimeError("CUDA out of memory"))  # type: ignore[attr-defined]


def test_lock_step_is_refused_where_clients_train_apart() -> None:
    for fields, message in (
        ({"local_epochs": 1}, "fedtan take each step together; give local_steps in place of local_epochs"),
        ({"method": "fedsam"}, "share one pass of a step, and fedsam takes two"),
        ({"model": "simple-vit"}, "the model's own layers know no stack"),
    ):
        with pytest.raises(InvalidExperiment, match=message):
            parse_experiment({"norm": "fedtan", **fields})
    experiment: Any = parse_experiment({"norm": "fedtan"})
    digits = load(experiment.dataset)
    assert executor_for(experiment, digits, device="cpu", wanted="auto") == "stacked"
    assert runs_worth_fusing(experiment, digits, device="cpu", executor="auto") == 1
    with pytest.raises(UserError, match="use auto or stacked"):
        executor_for(experiment, digits, device="cpu", wanted="loop")
    with pytest.raises(ValueError, match="stacked executor"):
        trainer_of("fedtan", "loop")
    with pytest.raises(ValueError, match="one by one"):
        step_together([trainer_of("fedtan") for _ in range(2)], [False, False])
