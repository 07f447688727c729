"""Compiled passes against their slow twin by torch."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from flbench.config import parse_experiment
from flbench.data.datasets import load_named
from flbench.engine import setup
from flbench.engine.dense_stack import DenseStack, dense_layers
from flbench.engine.device_data import DeviceData
from flbench.engine.executors import StackedExecutor
from flbench.engine.federated import FederatedTrainer
from flbench.engine.native_stack import NativeMlp, NativeStack
from flbench.engine.optimizers import Adam, Sgd
from flbench.engine.setup import executor_for
from flbench.engine.stack_bits import any_place
from flbench.errors import UserError
from flbench.methods.base import Tree
from flbench.models.frozen import initial_trees
from flbench.models.initial_weights import build
from flbench.models.network import pure_forward
from flbench.registry import HEADS, METHODS, MODELS, NORMS
from tests.samples import fast
from tests.toys import everything, same_bits, toy_clients, toy_images, toy_trainer, train, train_together

pytest.importorskip("numba")

#: Norms whose layers are compiled.
COMPILED = (
    "none", "fn", "fn-layerwise", "scale", "scale-layerwise", "ln", "ln-before", "ln-static", "ln-channel", "gn",
    "gn-static", "rms",
)  # fmt: skip

#: Norms whose statistics are those of a batch.
OF_BATCHES = ("bn", "bn-static", "silobn", "bn-last")

#: With them a run of few samples magnifies roundings: torch's own numbers in float32 and float64 part as fast as ours.
CALM: dict[str, Any] = {"norm": "bn", "batch_size": 14, "sgd": Sgd(1e-4), "steps": 2}

#: Largest difference of a gradient from the one in float64, over the largest element: a few roundings of float32.
ROUNDED = 2e-6


def network_of(norm: str = "none", widths: Any = (24, 40), dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    given = {"bias": True, "head": "linear", "image": (1, 8, 8), "classes": 3} | options
    model, head = MODELS.parse({"name": "mlp", "widths": list(widths)}), HEADS.parse(given["head"])
    return build(
        model, given["image"], given["classes"], NORMS.parse(norm), given["bias"], seed=3, dtype=dtype, head=head
    )


def compiled(network: nn.Module) -> NativeMlp:
    found = NativeMlp.of(dense_layers(network))
    assert found is not None
    return found


def stacked(network: nn.Module, clients: int) -> tuple[Tree, Tree]:
    """Return the weights of clients, each moved a little, and their buffers."""
    generator = torch.Generator().manual_seed(0)
    params, buffers = initial_trees(network)

    def moved(leaf: Tensor) -> Tensor:
        noise = torch.randn(clients, *leaf.shape, generator=generator, dtype=torch.float64)
        return (leaf.double() + 0.05 * noise).to(leaf.dtype)

    return {n: moved(leaf) for n, leaf in params.items()}, {
        n: leaf.expand(clients, *leaf.shape).clone() for n, leaf in buffers.items()
    }


def passes(stack: Any, network: nn.Module, clients: int, batch: int, classes: int, sizes: Any, **added: bool) -> Any:
    """Return outputs, gradients and buffers of a pass, with a gradient of the features beside that of the loss."""
    like = next(network.parameters())
    params, buffers = stacked(network, clients)
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(clients, batch, 1, 8, 8, generator=generator)
    labels = torch.randint(classes, (clients, batch), generator=generator)
    features, logits = stack.forward(params, buffers, images.to(like.dtype))
    outputs = features.clone(), logits.clone()
    _, of_logits = stack.cross_entropy(logits, (labels, sizes))
    if added.get("to_logits"):
        of_logits = of_logits + 0.01 * outputs[1]
    of_features = 0.01 * outputs[0] if added.get("to_features") else None
    grads = {name: leaf.clone() for name, leaf in stack.backward(params, of_logits, of_features).items()}
    return {"features": outputs[0], "logits": outputs[1], **grads, **buffers}


@pytest.mark.parametrize("norm", fast(COMPILED + OF_BATCHES, "none", "fn", "gn", "scale", "bn"))
def test_gradients_are_those_of_float64(norm: str) -> None:
    """Of batches below, at and above a register; of the loss alone and with methods' own parts."""
    for batch, bias, head in (
        (1, True, "linear"),
        (10, False, "linear"),
        (16, True, "projection"),
        (37, True, "linear"),
    ):
        if norm in OF_BATCHES and batch == 1:
            continue  # no statistics
        sizes = None if batch == 10 or norm in OF_BATCHES else torch.tensor([batch, max(1, batch - 3)])
        added = {"to_logits": batch == 16, "to_features": batch != 1}
        found = []
        for dtype in (torch.float32, torch.float64):
            network = network_of(norm, bias=bias, head=head, dtype=dtype)
            network.load_state_dict(
                {n: leaf.to(dtype) for n, leaf in network_of(norm, bias=bias, head=head).state_dict().items()}
            )
            layers = dense_layers(network)
            assert layers is not None
            stack = NativeStack(compiled(network)) if dtype == torch.float32 else DenseStack(layers)
            found.append(passes(stack, network, 2, batch, 3, sizes, **added))
        assert found[0].keys() == found[1].keys()
        for name, exact in found[1].items():
            largest = max(float(exact.abs().max()), 1.0 if norm in OF_BATCHES else 1e-3)
            assert float((found[0][name].double() - exact).abs().max()) < ROUNDED * largest * 10, (norm, batch, name)


def test_a_linear_classifier_has_its_features() -> None:
    network = network_of(widths=())
    assert passes(NativeStack(compiled(network)), network, 2, 5, 3, None)["features"].shape == (2, 5, 64)


def test_what_is_not_compiled() -> None:
    for norm in ("fixbn", "dyt", "mean-last"):
        assert NativeMlp.of(dense_layers(network_of(norm))) is None, norm
    assert NativeMlp.of(None) is None


@pytest.mark.parametrize("model", ["mlp", "lenet"])
def test_in_evaluation_running_statistics_normalize(model: str) -> None:
    """Of teachers, which the server may send to all clients as one."""
    network, image = network_of("bn"), (1, 8, 8)
    if model == "lenet":
        image = (1, 20, 20)
        network = build(MODELS.parse("lenet"), image, 3, NORMS.parse("bn"), True, seed=3, dtype=torch.float32)
    made = setup.native_network(network, image)
    assert made is not None
    params, buffers = initial_trees(network)
    for leaf in buffers.values():
        leaf.copy_(torch.linspace(0.3, 1.6, len(leaf)))
    images = torch.rand(9, *image, generator=torch.Generator().manual_seed(0))
    of_all = ({name: leaf.expand(2, *leaf.shape) for name, leaf in tree.items()} for tree in (params, buffers))
    _, logits = NativeStack(made, training=False).forward(*of_all, images.expand(2, *images.shape))
    _, exact = pure_forward(network.eval())(params, buffers, images)
    torch.testing.assert_close(logits, exact.expand(logits.shape), rtol=1e-5, atol=1e-5)
    assert float(buffers["trunk.after1.running_var"][-1]) == pytest.approx(1.6)


def images() -> DeviceData:
    return replace(toy_images(), dtype=torch.float32)


def trainer(method: str = "fedavg", norm: str = "none", executor: str = "native", **given: Any) -> FederatedTrainer:
    known: dict[str, Any] = {"network": network_of(norm, given.pop("widths", (24, 40))), "images": images()}
    return toy_trainer(METHODS.parse(method), executor=executor, **known | given)


@pytest.mark.parametrize("method", fast(METHODS.classes, "fedavg", "fedprox", "moon", "scaffold", "fedsam", "fedproto"))
def test_every_method_has_the_numbers_of_torch(method: str) -> None:
    """Within the rounding of two rounds; some divide by small numbers."""
    for settings in ({"sgd": Sgd(0.01)}, {"sgd": Sgd(0.01), "norm": "ln"}, CALM):
        both = [trainer(method, executor=executor, **settings) for executor in ("native", "stacked")]
        train(2, *both)
        ours, theirs = map(everything, both)
        for name, leaf in theirs.items():
            allowed = (5e-4 if settings is CALM else 1e-4) * max(1.0, float(leaf.abs().max()))  # some divide by rates
            assert float((ours[name] - leaf).abs().max()) < allowed, (settings, name)


SETTINGS: dict[str, dict[str, Any]] = {
    "equal steps": {},
    "unequal steps": {"steps": [3, 1, 5]},
    "drawn steps": {"steps": "uniform:1:4"},
    "partial batches": {"drop_last": False, "steps": [4, 3, 6]},
    "floats": {"image": (9,), "images": "floats"},
    "normalized": {"images": "normalized"},
    "chunks": {"chunk": 2},
    "fn": {"norm": "fn"},
    "gn": {"norm": "gn"},
    "bn": {**CALM, "steps": [3, 1, 5]},
    "scheduled": {"sgd": Sgd(0.1, schedule="cosine:4")},
}


def of(settings: dict[str, Any], **more: Any) -> FederatedTrainer:
    given = {**settings, **more}
    source = given.pop("images", None)
    if source == "normalized":
        given["images"] = replace(images(), normalize=(torch.tensor(0.3), torch.tensor(0.7)))
    elif source == "floats":
        given["images"] = replace(toy_images((9,)), dtype=torch.float32)
        given["network"] = network_of(image=(9,))
    made = trainer(**given)
    made.may_order_stacks(any_place(made))
    return made


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_all_local_steps_at_once_have_the_bits_of_single_ones(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those gather batches and move weights by compiled functions, too, these by torch."""
    at_once = of(settings)
    calls: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(NativeStack, "backward", calls.append)  # of single steps
        train(2, at_once)
    assert not calls
    monkeypatch.setattr(DeviceData, "plain_source", None)
    single, stacked = of(settings), of(settings, executor="stacked")
    train(2, single, stacked)
    assert same_bits(at_once, single)
    ours, theirs = everything(single), everything(stacked)
    assert max(float((ours[name] - leaf).abs().max()) for name, leaf in theirs.items()) < 1e-5


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("sgd", [Sgd(0.1), Sgd(0.1, momentum=0.9, weight_decay=0.01)], ids=["plain", "momentum"])
def test_a_client_has_the_same_bits_in_every_stack(settings: dict[str, Any], sgd: Sgd) -> None:
    """Alone, with two others, and beside another run."""
    given = {"sgd": sgd, **settings}
    several = of(given)
    alone_steps = given["steps"][:1] if isinstance(given.get("steps"), list) else given.get("steps", 4)
    alone = of({**given, "steps": alone_steps}, clients=toy_clients((20,)))
    together = [of(given, seed=seed) for seed in (0, 1)]
    sent = [one.step(keep_clients=True).client_params for one in (several, alone)]
    assert sent[0] is not None and sent[1] is not None
    assert all(torch.equal(leaf[0], sent[1][name][0]) for name, leaf in sent[0].items())
    train_together(1, together)
    assert same_bits(together[0], several)


def test_weights_are_not_numbers_if_the_loss_is_not() -> None:
    diverging = trainer(sgd=Sgd(1e30))
    losses = [float(diverging.step().loss) for _ in range(2)]
    assert losses[-1] != losses[-1]


@pytest.mark.parametrize("norm", ["none", "fn", "scale", "ln", "gn", "rms"])
def test_executors_agree_on_divergence(norm: str) -> None:
    """Where a step makes the weights too large for any of them, not where rounding decides."""
    rounds = {}
    for executor in ("loop", "stacked", "native"):
        diverging = trainer(norm=norm, executor=executor, sgd=Sgd(1e20))
        train(2, diverging)
        rounds[executor] = diverging.diverged_in()
    assert rounds == {"loop": 1, "stacked": 1, "native": 1}


def of_large(dtype: torch.dtype, large: dict[str, float], norm: str = "ln") -> tuple[Tensor, Tree]:
    """Return logits and gradients, compiled in float32 and by torch in float64, with some weights times a number."""
    network = network_of(norm, dtype=dtype)
    layers = dense_layers(network)
    assert layers is not None
    stack: Any = NativeStack(compiled(network)) if dtype == torch.float32 else DenseStack(layers)
    params, buffers = stacked(network_of(norm), 1)
    params = {name: (leaf * large.get(name, 1.0)).to(dtype) for name, leaf in params.items()}
    images = torch.rand(1, 10, 1, 8, 8, generator=torch.Generator().manual_seed(1)).to(dtype)
    logits = stack.forward(params, buffers, images)[1].clone()
    _, of_logits = stack.cross_entropy(logits, (torch.arange(10).unsqueeze(0) % 3, None))
    return logits, {name: leaf.clone() for name, leaf in stack.backward(params, of_logits).items()}


def test_a_layer_norm_is_exact_where_torch_overflows() -> None:
    """Torch's backward pass multiplies gradients of 1e23 by inputs of 1e16; ours by outputs."""
    large = {"trunk.dense2.weight": 1e16, "head.weight": 1e24}
    (logits, found), (exact_logits, exact) = (of_large(dtype, large) for dtype in (torch.float32, torch.float64))
    torch.testing.assert_close(logits.double(), exact_logits, rtol=1e-4, atol=1e-4 * float(exact_logits.abs().max()))
    for name, leaf in exact.items():
        torch.testing.assert_close(found[name].double(), leaf, rtol=1e-4, atol=1e-4 * float(leaf.abs().max()))


def test_where_a_variance_overflows_shifts_are_left() -> None:
    """1 / inf is 0. ``docs/engine.md`` says so: such a run is stuck, but none of its numbers needs to be infinite."""
    logits, grads = of_large(torch.float32, {"trunk.dense2.weight": 1e22})
    assert torch.equal(logits, logits[:, :1].expand_as(logits))
    assert not grads["trunk.dense2.weight"].any()


def test_other_optimizers_move_the_weights_by_torch() -> None:
    for sgd in (Adam(0.01), Sgd(0.1, clip_norm=0.1), Sgd(0.1, momentum=0.5, nesterov=True)):
        both = [trainer(sgd=sgd, executor=executor) for executor in ("native", "stacked")]
        train(1, *both)
        ours, theirs = map(everything, both)
        assert max(float((ours[name] - leaf).abs().max()) for name, leaf in theirs.items()) < 1e-4, sgd


def test_a_resumed_run_has_the_same_bits() -> None:
    one, other = trainer(), trainer(weights=5)
    train(1, one)
    other.load(copy.deepcopy(one.state()))
    train(1, one, other)
    assert same_bits(one, other)


def test_where_nothing_is_compiled_torch_computes(monkeypatch: pytest.MonkeyPatch, experiment_and_data: Any) -> None:
    experiment, data = experiment_and_data
    given: dict[str, Any] = {"device": "cpu"}
    assert executor_for(experiment, data, wanted="auto", **given) == "native"
    monkeypatch.setattr(setup, "native_network", lambda *_: None)
    assert executor_for(experiment, data, wanted="auto", **given) == "stacked"
    with pytest.raises(UserError, match=r"executor native: .* use auto"):
        executor_for(experiment, data, wanted="native", **given)


@pytest.fixture
def experiment_and_data() -> Any:
    experiment: Any = parse_experiment({"dataset": "digits", "model": {"name": "mlp", "widths": [16]}})
    return experiment, load_named(experiment.dataset, None)


def test_large_networks_are_trained_in_small_stacks() -> None:
    """Of 6.9 MB of weights each, of which seven fit."""
    experiment: Any = parse_experiment({"dataset": "digits", "model": {"name": "mlp", "widths": [1280, 1280]}})
    data = load_named(experiment.dataset, None)
    trainer, numerics = setup.make_trainer(experiment, data, device="cpu", executor="auto", pool=1)
    assert (numerics.executor, cast(StackedExecutor, trainer.executor).chunk) == ("native", 7)
    assert setup.runs_worth_fusing(experiment, data, device="cpu", executor="auto") == 1
