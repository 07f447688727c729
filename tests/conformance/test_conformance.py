"""Properties of every method: without its own term it equals FedAvg, with the term it does not, and its invariants."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from flbench.engine.device_data import DeviceData
from flbench.engine.optimizers import Sgd
from flbench.errors import InvalidComponent
from flbench.methods.base import Batch, Context, Method, Tree, tmap
from flbench.methods.fedbn import FedBN
from flbench.methods.scaffold import Scaffold
from flbench.registry import METHODS
from tests.toys import largest_difference, toy_clients, toy_context, toy_images, toy_network, toy_trainer, train

METHOD_NAMES = [
    "fedavg",
    "balanced-softmax",
    "fedacg",
    "fedaws",
    "fedbn",
    "fedcm",
    "feddecorr",
    "feddyn",
    "fedexp",
    "fedlc",
    "fednova",
    "fedntd",
    "fedavgm",
    "fedadagrad",
    "fedadam",
    "fedyogi",
    "fedprox",
    "fedrs",
    "fedsam",
    "local-only",
    "mofedsam",
    "moon",
    "scaffold",
]

#: Methods without their own term, and the tolerance within which they equal FedAvg if all clients have all classes.
#: FedLC's margins vanish with tau. The adaptive optimizers equal FedAvg if tau is much larger than the changes: sqrt(v)
#: then stays tau, or vanishes if v decays from its initial value, and server_lr is sqrt(v) + tau. FedExP's step stays 1
#: if eps is large. FedDyn and FedAwS have no such setting.
TERM_OFF: list[dict[str, Any]] = [
    {"name": "fedprox", "mu": 0.0, "tolerance": 0},
    {"name": "fedlc", "tau": 0.0, "tolerance": 0},
    {"name": "fedrs", "alpha": 1.0, "tolerance": 0},
    *({"name": "feddecorr", "coefficient": 0.0, "variant": v, "tolerance": 0} for v in ("original", "text")),
    {"name": "fedavgm", "beta": 0.0, "tolerance": 0},
    *(
        {"name": name, "beta1": 0.0, "tau": 1e15, "server_lr": 2e15, "tolerance": 1e-12}
        for name in ("fedadagrad", "fedyogi")
    ),
    {"name": "fedadam", "beta1": 0.0, "beta2": 0.0, "tau": 1e15, "server_lr": 1e15, "tolerance": 1e-12},
    {"name": "fednova", "tolerance": 1e-14},
    {"name": "fedacg", "lam": 0.0, "beta": 0.0, "tolerance": 0},
    {"name": "fedcm", "alpha": 1.0, "tolerance": 0},
    {"name": "fedexp", "eps": 1e9, "tolerance": 0},
    {"name": "fedntd", "beta": 0.0, "tolerance": 0},
    {"name": "fedsam", "rho": 0.0, "tolerance": 0},
    {"name": "mofedsam", "rho": 0.0, "alpha": 1.0, "tolerance": 0},
    {"name": "moon", "mu": 0.0, "tolerance": 0},
]


def toy_skewed_images() -> DeviceData:
    """Return images with labels such that client 0 lacks class 2 and client 1 lacks class 0."""
    labels = torch.cat([torch.arange(20) % 2, 1 + torch.arange(14) % 2, torch.arange(26) % 3])
    return replace(toy_images(), train_labels_M=labels)


def after(method: Method, rounds: int = 3, **kwargs: Any) -> Tree:
    trainer = toy_trainer(method, **kwargs)
    train(rounds, trainer)
    return trainer.x


def test_every_registered_method_is_tested_here() -> None:
    assert set(METHOD_NAMES) == set(METHODS.classes)


@pytest.mark.parametrize("variant", ["text", "code", "niid-bench", "flower"])
def test_scaffold_is_fedavg_in_round_one_and_never_again(variant: str) -> None:
    scaffold = METHODS.parse({"name": "scaffold", "variant": variant})
    assert largest_difference(after(scaffold, rounds=1), after(Method(), rounds=1)) == 0
    assert largest_difference(after(scaffold, rounds=2), after(Method(), rounds=2)) > 1e-4


def test_the_original_scaffold_is_fedavg_in_round_one_if_clients_are_equal() -> None:
    equal = toy_clients((20, 20, 20))
    assert largest_difference(after(Scaffold(), 1, clients=equal), after(Method(), 1, clients=equal)) < 1e-15
    assert largest_difference(after(Scaffold(), 1), after(Method(), 1)) > 1e-4


@pytest.mark.parametrize("norm", ["none", "ln", "bn"])
@pytest.mark.parametrize("off", TERM_OFF, ids=lambda off: off["name"])
def test_without_its_own_term_a_method_is_fedavg(off: dict[str, Any], norm: str) -> None:
    off = dict(off)
    tolerance = off.pop("tolerance")
    method = METHODS.parse(off)
    assert largest_difference(after(method, norm=norm), after(Method(), norm=norm)) <= tolerance


@pytest.mark.parametrize(
    "name", [name for name in METHOD_NAMES if name not in ("fedavg", "fedbn", "fedexp", "local-only")]
)
def test_with_its_own_term_a_method_is_not_fedavg(name: str) -> None:
    skewed, steps = toy_skewed_images(), (2, 4, 5)
    found = after(METHODS.parse(name), images=skewed, steps=steps)
    assert largest_difference(found, after(Method(), images=skewed, steps=steps)) > 1e-6


def test_fedexp_is_not_fedavg_on_clients_with_one_class_each() -> None:
    """Their changes cancel in part; where clients agree more, its step stays 1."""
    images = replace(toy_images(), train_labels_M=torch.arange(60) // 20)
    clients, fedexp = toy_clients((20, 20, 20)), METHODS.parse("fedexp")
    found = after(fedexp, images=images, clients=clients)
    assert largest_difference(found, after(Method(), images=images, clients=clients)) > 1e-3
    assert largest_difference(after(fedexp), after(Method())) == 0


def test_fednova_with_equal_steps_is_fedavg() -> None:
    for momentum in (0.0, 0.9):
        sgd = Sgd(0.1, momentum)
        assert largest_difference(after(METHODS.parse("fednova"), sgd=sgd), after(Method(), sgd=sgd)) < 1e-14


def test_fednova_gives_clients_with_many_steps_less_weight() -> None:
    weights = METHODS.parse("fednova").delta_weights([0.5, 0.5], [1, 9], 0.0)
    assert weights == pytest.approx([2.5, 2.5 / 9], abs=1e-15)  # 0.5 / a_k times the mean of 1 and 9


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_fedlc_gives_missing_classes_no_gradient(executor: str) -> None:
    """Client 0 has classes 0 and 1: after a round of this client, the head's row of class 2 has not changed."""
    images = toy_skewed_images()
    alone = toy_clients((20,))
    trainer = toy_trainer(METHODS.parse("fedlc"), images=images, clients=alone, executor=executor)
    before = trainer.x["head.weight"].clone()
    trainer.step()
    moved = (trainer.x["head.weight"] - before).abs().sum(1)
    assert moved[2] == 0
    assert moved[:2].min() > 1e-3


@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_fedlc_of_one_class_trains_nothing(tau: float) -> None:
    images = toy_images()
    images = replace(images, train_labels_M=torch.arange(60) // 20)
    clients = toy_clients((20, 20, 20))
    trainer = toy_trainer(METHODS.parse({"name": "fedlc", "tau": tau}), images=images, clients=clients)
    before = {name: leaf.clone() for name, leaf in trainer.x.items()}
    assert trainer.step().loss == 0
    assert largest_difference(trainer.x, before) == 0


def test_fedlc_without_margin_is_a_softmax_over_the_clients_own_classes() -> None:
    """If a client lacks a class, the limit of small tau is not FedAvg."""
    images = toy_skewed_images()
    off, tiny = (after(METHODS.parse({"name": "fedlc", "tau": tau}), images=images) for tau in (0.0, 1e-9))
    assert 0 < largest_difference(off, tiny) < 1e-7
    assert largest_difference(off, after(Method(), images=images)) > 1e-4


def test_balanced_softmax_is_fedavg_on_clients_with_equally_many_samples_of_each_class() -> None:
    clients, balanced = toy_clients((18, 12, 30)), METHODS.parse("balanced-softmax")
    assert largest_difference(after(balanced, clients=clients), after(Method(), clients=clients)) < 1e-14


def test_fedrs_scales_the_gradient_of_missing_classes() -> None:
    """The gradient of a missing class's row is alpha times that of the softmax, so alpha = 0 keeps the row."""
    images, alone = toy_skewed_images(), toy_clients((20,))
    moved = []
    for alpha in (0.0, 0.5, 1.0):
        method = METHODS.parse({"name": "fedrs", "alpha": alpha})
        trainer = toy_trainer(method, images=images, clients=alone, steps=1)
        before = trainer.x["head.weight"].clone()
        trainer.step()
        moved.append(float((trainer.x["head.weight"] - before)[2].abs().sum()))
    assert moved[0] == 0 < moved[1] < moved[2]


@pytest.mark.parametrize(
    ("variant", "one_feature_twice", "two_features"),
    [("original", 0.5, 0.5 / 2), ("text", 0.5 * 9 / 4, 0.0), ("code", 0.1 * 9 / 4, 0.0)],
)
def test_feddecorr_counts_correlations(variant: str, one_feature_twice: float, two_features: float) -> None:
    """With n = 4 and all correlations 1: 0.5 ||K||^2 / d^2 = 0.5, or coefficient (n - 1)^2 / n."""
    method = METHODS.parse({"name": "feddecorr", "variant": variant})
    same = torch.tensor([[0.0, 5.0], [2.0, 9.0], [4.0, 13.0], [9.0, 23.0]], dtype=torch.float64)
    apart = torch.tensor([[1.0, 3.0], [1.0, 1.0], [-1.0, 3.0], [-1.0, 1.0]], dtype=torch.float64)
    for features, expected in ((same, one_feature_twice), (apart, two_features)):
        batch = Batch(torch.zeros(4), features, features, {})
        assert float(method.penalty({}, batch, toy_context())) == pytest.approx(expected, rel=1e-7)


def test_the_code_of_feddecorr_takes_no_coefficient() -> None:
    with pytest.raises(InvalidComponent, match=r"has the fixed coefficient 0\.1"):
        METHODS.parse({"name": "feddecorr", "variant": "code", "coefficient": 0.3})


def test_local_only_does_not_depend_on_other_clients() -> None:
    """Every client equals the client of a federation of one, whatever the other clients do."""
    together = toy_trainer(METHODS.parse("local-only"), norm="bn", clients=toy_clients((20, 14, 26)))
    alone = toy_trainer(Method(), norm="bn", clients=toy_clients((20,)))
    train(3, together, alone)
    first = {name: leaf[0] for name, leaf in together.local.items()}
    assert largest_difference(first, {**alone.x, **alone.buffers}) < 1e-15
    assert together.diverged_in() is None
    record = together.evaluate()
    assert set(record) >= {"acc_personal", "acc_global"}
    assert record["bytes_up"] == record["bytes_down"] == 0


#: What clients send besides one set of float64 weights and statistics, in bytes, as (numbers, weights): three classes.
SENT_BESIDES = {"fedaws": (3, 0), "fedexp": (1, 0), "scaffold": (0, 1)}


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_bytes_sent(method: str) -> None:
    """FedCM and MoFedSAM send the mean step alone: the change is K lr times as long."""
    trainer = toy_trainer(METHODS.parse(method), norm="bn")
    train(1, trainer)
    clients, weights = trainer.run.cohort_size, sum(leaf.numel() for leaf in trainer.x.values())
    statistics = sum(leaf.numel() for leaf in trainer.buffers.values())
    numbers, copies = SENT_BESIDES.get(method, (0, 0))
    assert trainer.bytes_up == 8 * clients * ((1 + copies) * weights + statistics + numbers)


@dataclass(frozen=True)
class InPlaceOfChanges(Method):
    """Sends half of the change as float32, in place of the change."""

    sends_change: ClassVar[bool] = False

    def finish(self, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
        return ctx.client, tmap(lambda a, x: ((a - x) / 2).float(), w, ctx.x)


def test_a_message_takes_the_place_of_the_change() -> None:
    small, fedavg = toy_trainer(InPlaceOfChanges(), norm="bn"), toy_trainer(Method(), norm="bn")
    train(1, small, fedavg)
    clients, weights = small.run.cohort_size, sum(leaf.numel() for leaf in small.x.values())
    statistics = sum(leaf.numel() for leaf in small.buffers.values())
    assert small.bytes_up == clients * (4 * weights + 8 * statistics)
    assert small.bytes_down == fedavg.bytes_down == fedavg.bytes_up


def test_diverged_personal_models_are_detected() -> None:
    trainer = toy_trainer(METHODS.parse("local-only"))
    trainer.step()
    assert trainer.diverged_in() is None
    trainer.local["head.weight"][1, 0, 0] = float("nan")
    trainer.step()
    assert trainer.diverged_in() == 2


def test_every_method_has_an_equation_and_a_source() -> None:
    for name in METHODS.classes:
        own = vars(METHODS[name])
        assert own["equation"], name
        assert own["source"], name


def test_fedbn_is_fedavg_without_batch_norm_only() -> None:
    for norm in ("none", "fn", "ln", "gn"):
        assert largest_difference(after(FedBN(), norm=norm), after(Method(), norm=norm)) == 0
    fedavg = {name: leaf for name, leaf in after(Method(), norm="bn").items() if "after" not in name}
    assert largest_difference(after(FedBN(), norm="bn"), fedavg) > 1e-4


def test_scaffold_controls_average_to_the_servers() -> None:
    trainer = toy_trainer(Scaffold(), norm="ln")
    for _ in range(4):
        trainer.step()
        means = {name: leaf.mean(0) for name, leaf in trainer.states.items()}
        assert largest_difference(means, trainer.server) < 1e-14
    assert max(float(leaf.abs().max()) for leaf in trainer.server.values()) > 1e-3


def test_scaffold_with_momentum_is_stable_only_with_the_correction_after_it() -> None:
    """A control is about 1 / (1 - momentum) gradients: before momentum each round multiplies it by that again."""

    def largest_control(variant: str) -> float:
        method = METHODS.parse({"name": "scaffold", "variant": variant})
        trainer = toy_trainer(method, model="square", executor="stacked", sgd=Sgd(0.001, 0.9), steps=60)
        train(4, trainer)
        return max(float(leaf.abs().max()) for leaf in trainer.states.values())

    assert largest_control("niid-bench") < 1 < 20 < largest_control("original")


def test_scaffold_control_is_the_mean_gradient_along_the_path() -> None:
    """Without momentum (x - w) / (K lr) is the mean corrected direction, so c_i' is the mean raw gradient."""
    seen: list[Tree] = []

    class Recording(Scaffold):
        def direction(self, w: Tree, g: Tree, ctx: Context) -> Tree:
            seen.append({name: leaf.clone() for name, leaf in g.items()})
            return super().direction(w, g, ctx)

    trainer = toy_trainer(Recording(), clients=toy_clients((20,)), steps=4)
    for _ in range(3):
        seen.clear()
        trainer.step()
        mean = {name: torch.stack([g[name] for g in seen]).mean(0) for name in seen[0]}
        assert largest_difference(mean, {name: leaf[0] for name, leaf in trainer.states.items()}) < 1e-12


def test_fedbn_finds_batch_norm_by_type_not_by_name() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn_like_name = nn.Linear(2, 2)
            self.shortcut = nn.BatchNorm1d(2)
            self.group = nn.GroupNorm(1, 2)

    fedbn = METHODS.parse("fedbn")
    kept = fedbn.local_names(Odd())
    assert kept == {f"shortcut.{n}" for n in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")}
    ours = fedbn.local_names(toy_network(norm="bn"))
    layers = ("trunk.after1", "trunk.after2")
    assert ours == {f"{at}.{n}" for at in layers for n in ("weight", "bias", "running_mean", "running_var")}


def test_fedbn_norm_layers_never_leave_the_client() -> None:
    trainer = toy_trainer(FedBN(), norm="bn")
    train(2, trainer)
    assert not trainer.buffers
    assert all("after" not in name for name in trainer.x)
    spread = trainer.local["trunk.after1.running_mean"].std(0).max()
    assert spread > 1e-4, "every client has statistics of its own"
    assert set(trainer.evaluate()) >= {"acc_personal", "acc_global"}


def test_one_step_of_equal_clients_is_centralized_sgd_on_the_union_batch() -> None:
    """With E = 1, equal sizes, no momentum and no batch norm, the mean gradient is the gradient on the union."""
    images = toy_images(train=15)
    split = toy_trainer(Method(), images=images, clients=toy_clients((5, 5, 5)), steps=1, batch_size=5)
    whole = toy_trainer(Method(), images=images, clients=toy_clients((15,)), steps=1, batch_size=15)
    train(5, split, whole)
    assert largest_difference(split.x, whole.x) < 1e-14


def test_a_client_outside_the_cohort_keeps_its_state() -> None:
    trainer = toy_trainer(Scaffold(), participation=1 / 3)
    before = {name: leaf.clone() for name, leaf in trainer.states.items()}
    (client,) = trainer.run.cohort(trainer.round)
    trainer.step()
    for name, leaf in trainer.states.items():
        others = [k for k in range(3) if k != client]
        assert torch.equal(leaf[others], before[name][others])
        assert not torch.equal(leaf[client], before[name][client])


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_a_client_may_return_its_state_unchanged(executor: str) -> None:
    class Constant(Method):
        def init_client(self, x: Tree, buffers: Tree) -> Tree:
            return {"seen": 0 * x["head.weight"] + 7}

    trainer = toy_trainer(Constant(), executor=executor)
    trainer.step()
    assert bool((trainer.states["seen"] == 7).all())


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_hooks_do_not_modify_their_inputs(method: str) -> None:
    trainer = toy_trainer(METHODS.parse(method), norm="bn")
    x = {name: leaf.clone() for name, leaf in trainer.x.items()}
    first = trainer.x
    trainer.step()
    assert largest_difference(first, x) == 0


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_momentum_changes_training(method: str) -> None:
    def weights(momentum: float) -> Tree:
        trainer = toy_trainer(METHODS.parse(method), sgd=Sgd(0.1, momentum))
        train(2, trainer)
        return {**trainer.x, **trainer.local}

    assert largest_difference(weights(0.9), weights(0.0)) > 1e-4
