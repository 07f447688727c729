"""Fast code against its slow twin: a pool of one client after the other is the reference."""

from __future__ import annotations

import threading
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flbench.engine import executors
from flbench.engine.executors import EVALUATION_BATCH, LoopExecutor
from flbench.engine.federated import FederatedTrainer
from flbench.engine.gradients import Passes
from flbench.engine.optimizers import Sgd
from flbench.errors import UserError
from flbench.methods.base import Context, Method, ServerContext, Tree
from flbench.models.network import pure_forward
from flbench.registry import HEADS, METHODS, NORMS
from tests.recording import rerun
from tests.samples import fast
from tests.toys import (
    everything,
    largest_difference,
    record_of,
    same_bits,
    toy_clients,
    toy_images,
    toy_model,
    toy_network,
    toy_trainer,
    train,
)

METHOD_NAMES = list(METHODS.classes)
NORM_NAMES = ["none", "fn", "ln", "gn", "bn"]
MODELS = {
    "mlp": (1, 8, 8),
    "toy-cnn": (2, 8, 8),
    "toy-resnet18": (2, 6, 6),
    "toy-vit": (2, 4, 6),
    "cnn": (3, 16, 16),
    "cnn-table7": (1, 16, 16),
    "lenet": (1, 16, 16),
    "narrow-resnet18": (3, 8, 8),
    "resnet18": (3, 8, 8),
}
#: Norms over the batch or over groups of few elements. On tiny activations they divide by next to nothing, which makes
#: gradients of 100, in which rounding grows: a gentle rate is due.
STEEP = {name for name, norm in NORMS.classes.items() if norm.smallest_batch > 1 or "groups" in norm.setting_names()}
#: Cases in which the cosine of features is rounding: a sample that no unit of the third layer responds to has features
#: of 0, whose gradient is 1e8 as soon as a norm has a bias.
UNDIRECTED = {("fedaws", "fbn", "toy-cnn")}
#: "ws" multiplies activations of each layer by the root of its fan-in: the loss is 200,000. "in" leaves every channel a
#: mean of 0 over the pixels, which is what the head sees: features of 1e-16, of which predictions are rounding.
DEGENERATE = {("ws", "toy-resnet18"), ("in", "toy-resnet18")}
#: Rates of methods that divide by next to nothing: FedDecorr by the deviation of a dead feature over a batch.
#: FedGamma takes its gradients where it has moved the weights along them, where those of a steep norm are steeper.
RATES = {"feddecorr": 1e-3, "fedgamma": 3e-3}


def in_full(model: str) -> bool:
    return model != "mlp" and not model.startswith("toy")


def fits(method: str, norm: str, model: str) -> bool:
    if NORMS[norm].lock_step:
        return False  # it has no loop
    if NORMS.parse(norm).problem(tuple(toy_model(model).sites(MODELS[model]))) is not None:
        return False
    if in_full(model) and (method not in ("fedavg", "scaffold") or norm not in NORM_NAMES):
        return False
    if model == "resnet18" and norm not in ("none", "bn"):
        return False  # eleven million weights: minutes
    return (method, norm, model) not in UNDIRECTED and (norm, model) not in DEGENERATE


def combinations() -> dict[tuple[str, str, str], list[tuple[str, str]]]:
    """Return norms and models that fit together, by tier and method, for FedAvg also by model.

    With every push: every method on a plain network and on batch normalization, and every norm in every model. Slow:
    every method with every norm, in one model each, and the models in full but the largest. Nightly: the rest.
    """
    cases: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
    for (m, method), (n, norm) in product(enumerate(METHOD_NAMES), enumerate(NORMS.classes)):
        models = [model for model in MODELS if fits(method, norm, model)]
        small = [model for model in models if not in_full(model)]
        for model in models:
            often = method == "fedavg" or (model == "mlp" and norm in ("none", "bn"))
            of_the_pair = (in_full(model) and model != "resnet18") or model == small[(m + n) % len(small)]
            tier = "fast" if often and not in_full(model) else "slow" if of_the_pair else "nightly"
            cases.setdefault((tier, method, model if method == "fedavg" else ""), []).append((norm, model))
    return cases


COMBINATIONS = [
    pytest.param(key[1], pairs, id="-".join(key), marks=[] if key[0] == "fast" else getattr(pytest.mark, key[0]))
    for key, pairs in combinations().items()
]


def run(method: str, rounds: int = 2, **kwargs: Any) -> tuple[dict[str, Tensor], dict[str, object]]:
    trainer = toy_trainer(METHODS.parse(method), **kwargs)
    train(rounds, trainer)
    return everything(trainer), record_of(trainer)


@pytest.mark.parametrize(("method", "pairs"), COMBINATIONS)
def test_loop_and_stacked_agree(method: str, pairs: list[tuple[str, str]]) -> None:
    for norm, model in pairs:
        settings: dict[str, Any] = {"model": model, "norm": norm, "image": MODELS[model]}
        settings["sgd"] = Sgd(RATES.get(method, 1e-2 if norm in STEEP else 0.1), momentum=0.5)
        if model != "mlp":
            settings |= {
                "sgd": Sgd(1e-5 if norm in STEEP or method in ("fedaws", "fedspeed") else 1e-2, momentum=0.5),
                "steps": 2,
                "batch_size": 4,
                "clients": toy_clients((9, 12), test=6),
                "images": toy_images(MODELS[model], 21, 6),
            }
        agree(method, settings)


def agree(method: str, settings: dict[str, Any]) -> None:
    loop, loop_record = run(method, executor="loop", **settings)
    stacked, stacked_record = run(method, executor="stacked", **settings)
    assert largest_difference(loop, stacked) < 1e-10, settings
    for key in ("loss", "train_loss"):
        assert loop_record.pop(key) == pytest.approx(stacked_record.pop(key), abs=1e-10), settings
    assert loop_record == stacked_record, settings


#: Every head, with each of its variants and with a learned scale.
HEAD_FORMS: list[Any] = [
    *HEADS.classes,
    {"name": "cosine", "learned": True},
    {"name": "frozen", "variant": "spherefed"},
    {"name": "etf", "learned": True},
]


@pytest.mark.parametrize("method", fast(METHOD_NAMES, "fedavg", "moon"))
def test_loop_and_stacked_agree_on_every_head(method: str) -> None:
    """But for heads that are not trained with methods that train the head; two methods with a norm as well."""
    for form in HEAD_FORMS:
        head = HEADS.parse(form)
        if head.trained or not METHODS.classes[method].trains_head:
            for norm in {"fedavg": ["none", "fn"], "fedbn": ["none", "bn"]}.get(method, ["none"]):
                rate = 1e-3 if norm in STEEP else 1e-2
                agree(method, {"head": head, "norm": norm, "sgd": Sgd(rate, momentum=0.5), "steps": [3, 1, 4]})


@pytest.mark.parametrize("method", fast(METHOD_NAMES, "fedavg", "scaffold", "fednova"))
def test_loop_and_stacked_agree_on_unequal_steps(method: str) -> None:
    """A client of a stack that has taken all of its steps waits for the others, and nothing of it moves."""
    for norm, rate in (("none", 0.1), ("bn", 1e-2)):
        settings = {"steps": [3, 1, 5], "norm": norm, "sgd": Sgd(rate, momentum=0.5, weight_decay=0.01)}
        agree(method, settings)
        more, fewer = (run(method, **(settings | {"steps": steps}))[0] for steps in ([3, 1, 5], [3, 1, 4]))
        assert largest_difference(more, fewer) > 1e-6, norm


@pytest.mark.parametrize("model", ["mlp", "toy-cnn", pytest.param("cnn", marks=pytest.mark.slow)])
def test_pool_size_does_not_change_a_bit(model: str) -> None:
    for norm in ["none", "bn"] if model == "cnn" else NORM_NAMES:
        settings = {"model": model, "norm": norm, "image": MODELS[model], "steps": 2, "batch_size": 3}
        one, record = run("scaffold", pool=1, **settings)
        for pool in (2, 5):
            several, others_record = run("scaffold", pool=pool, **settings)
            assert all(torch.equal(one[name], several[name]) for name in one), (norm, pool)
            assert record == others_record, (norm, pool)


@pytest.mark.slow
def test_pool_under_stress() -> None:
    """Many clients on many threads, again and again: every round must give the reference's bits."""
    clients, images = toy_clients((6,) * 24), toy_images(train=144)
    settings = {"norm": "bn", "clients": clients, "images": images, "steps": 3, "batch_size": 2}
    reference = toy_trainer(METHODS.parse("fedbn"), pool=1, **settings)  # type: ignore[arg-type]
    stressed = toy_trainer(METHODS.parse("fedbn"), pool=16, **settings)  # type: ignore[arg-type]
    for _ in range(15):
        reference.step()
        stressed.step()
        assert same_bits(stressed, reference)


def test_a_pool_uses_a_network_of_its_own_in_each_thread() -> None:
    networks = [toy_network() for _ in range(3)]
    executor = LoopExecutor(networks, autocast=None)
    barrier, used = threading.Barrier(3), set()

    def look(_: int, seat: Passes) -> None:
        used.add(id(seat.network))
        barrier.wait(timeout=120)  # all three are inside at once

    list(executor.map(look, range(3)))
    assert used == {id(network) for network in networks}


OUT_OF_MEMORY = {
    "cuda": torch.OutOfMemoryError("CUDA out of memory"),
    "cudnn": RuntimeError("GET was unable to find an engine to execute this computation"),
    "cpu": RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
}


@pytest.mark.parametrize(("kind", "record"), [("cuda", None), ("cudnn", rerun), ("cpu", None)])
def test_a_stack_that_does_not_fit_is_halved(
    kind: str, record: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings: dict[str, Any] = {"clients": toy_clients((6,) * 12), "images": toy_images(train=72), "record": record}
    roomy, tight = (toy_trainer(METHODS.parse("scaffold"), executor="stacked", **settings) for _ in range(2))
    fits = executors.local_train

    def crowded(forward: Any, lift: Any, task: Any, start: Any, *given: Any) -> Any:
        if len(start.counts_Y) > 4:
            raise OUT_OF_MEMORY[kind]
        return fits(forward, lift, task, start, *given)

    train(2, roomy)
    monkeypatch.setattr(executors, "local_train", crowded)
    train(2, tight)
    assert [record.args for record in caplog.records] == [(12, 6), (6, 3)], "halved twice, in the first round only"
    assert same_bits(tight, roomy)


def test_memory_too_small_for_one_client_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def crowded(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(executors, "local_train", crowded)
    with pytest.raises(torch.OutOfMemoryError):
        toy_trainer(Method(), executor="stacked").step()


def test_an_error_in_a_client_reaches_the_caller() -> None:
    class Failing(Method):
        def finish(self, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
            raise RuntimeError("broken hook")

    trainer = toy_trainer(Failing(), pool=2)
    with pytest.raises(UserError, match="raised RuntimeError: broken hook"):
        trainer.step()


class PlainNetwork(nn.Module):
    """A network of ordinary torch layers, as a plug-in would bring it: not natively stackable."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(64, 6)
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 3)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.norm(torch.relu(self.hidden(images.flatten(1))))
        return features, self.head(features)


def test_any_torch_network_can_be_stacked() -> None:
    torch.manual_seed(0)
    network = PlainNetwork().double()
    settings = {"network": network, "sgd": Sgd(0.2)}
    loop, _ = run("scaffold", executor="loop", **settings)
    stacked, _ = run("scaffold", executor="stacked", **settings)
    assert largest_difference(loop, stacked) < 1e-10


def test_evaluation_in_pieces_is_evaluation_at_once() -> None:
    images = toy_images(test=EVALUATION_BATCH * 2 + 17)
    trainer = toy_trainer(Method(), images=images, pool=2)
    model = (trainer.x, trainer.buffers)
    pieces = trainer.executor.predict([model], images.test_MCHW, images.prepare)[0]
    with torch.no_grad():
        whole = pure_forward(toy_network().eval())(*model, images.prepare(images.test_MCHW))[1]
    torch.testing.assert_close(pieces, whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_hooks_of_the_server_see_trees_in_torchs_own_layout(executor: str) -> None:
    """The loop trains channels last, and the bits of a hook's sum depend on the order of memory."""
    seen: list[Tree] = []

    class Watching(Method):
        def server_step(
            self, x: Tree, delta: Tree, message: Tree, server: Tree, context: ServerContext
        ) -> tuple[Tree, Tree]:
            seen.extend([x, delta, context.x])
            return super().server_step(x, delta, message, server, context)

    train(2, toy_trainer(Watching(), executor=executor, model="toy-cnn", image=(2, 8, 8)))
    assert len(seen) == 6 and all(leaf.is_contiguous() for tree in seen for leaf in tree.values())


@pytest.mark.parametrize("server_lr", [1.0, 0.5])
def test_weights_stay_in_the_layout_of_training_and_others_see_torchs_own(server_lr: float) -> None:
    """Its server's hooks see torch's own layout: the same numbers, and changed in layout in every round."""

    class Plain(Method):
        def server_step(
            self, x: Tree, delta: Tree, message: Tree, server: Tree, context: ServerContext
        ) -> tuple[Tree, Tree]:
            return {name: leaf + self.server_lr * delta[name] for name, leaf in x.items()}, server

    def trained(method: Method) -> FederatedTrainer:
        trainer = toy_trainer(method, executor="loop", model="toy-cnn", image=(2, 8, 8))
        train(3, trainer)
        return trainer

    trainer, plain = trained(Method(server_lr=server_lr)), trained(Plain(server_lr=server_lr))
    assert all(leaf.is_contiguous(memory_format=torch.channels_last) for leaf in trainer.x.values() if leaf.dim() == 4)
    assert same_bits(trainer, plain)
    for tree in (plain.x, trainer.state()["trees"]["x"], trainer.model(0)[0]):
        assert all(leaf.is_contiguous() for leaf in tree.values())
