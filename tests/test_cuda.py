"""Checks on an NVIDIA GPU; skipped where there is none.

``tests/engine/test_cuda_graph.py`` tests the same logic everywhere, with the recording of graphs replaced.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from flbench.config import Training, parse_experiment
from flbench.data.datasets import Dataset, load
from flbench.engine.centralized import CentralizedTrainer
from flbench.engine.conv_tuner import ConvTuner, cuda_clock
from flbench.engine.cuda_graph import CudaRecorder
from flbench.engine.federated import FederatedTrainer, step_together
from flbench.engine.model_access import ModelAccess
from flbench.engine.optimizers import Sgd
from flbench.engine.setup import make_network, make_trainer, matmul_precision_restored, set_matmul_precision
from flbench.engine.stack_size import clients_that_fit
from flbench.engine.trainer import Trainer
from flbench.methods.base import Method, ServerContext, Tree
from flbench.models.convolutions import CONVOLUTIONS
from flbench.probes import Observation, Probe
from flbench.registry import METHODS, PROBES
from tests.hook_methods import METHODS as HOOK_METHODS
from tests.hook_methods import label
from tests.toys import largest_difference, toy_clients, toy_images, toy_network, toy_trainer

pytestmark = pytest.mark.cuda
if not torch.cuda.is_available():  # before three hundred cases are collected
    pytest.skip("there is no NVIDIA GPU here", allow_module_level=True)

NORMS = ["none", "fn", "ln", "gn", "bn"]


@pytest.fixture(autouse=True)
def settings_restored() -> Iterator[None]:
    with matmul_precision_restored():
        yield


@pytest.fixture(autouse=True)
def all_is_recorded(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No test falls back from graphs unnoticed, but for those that are about that."""
    caplog.set_level(logging.WARNING, logger="flbench")
    yield
    if "cannot_be_recorded" not in request.node.name:
        assert "cannot be one CUDA graph" not in caplog.text


def trainer(device: str, **fields: Any) -> Trainer:
    return trainer_of(parse_experiment({"E": 3, "partition": "classes:2", "precision": "fp64", **fields}), device)


def trainer_of(experiment: Training, device: str) -> Trainer:
    data = load(cast(Dataset, experiment.dataset))
    return make_trainer(experiment, data, device=device, executor="auto", pool=1)[0]


def federated(**fields: Any) -> FederatedTrainer:
    made = trainer("cuda", **fields)
    assert isinstance(made, FederatedTrainer) and made.record is not None
    return made


def without_graphs(**fields: Any) -> FederatedTrainer:
    """Trains chunk by chunk, as on a CPU; it evaluates by graphs all the same."""
    made = federated(**fields)
    made.record = None
    return made


def toy(method: Method, **settings: Any) -> FederatedTrainer:
    """A small problem on the GPU, by graphs."""
    image = settings.get("image", (1, 8, 8))
    images = settings.pop("images", None) or toy_images(image)
    moved = {
        name: getattr(images, name).cuda() for name in ("train_MCHW", "train_labels_M", "test_MCHW", "test_labels_M")
    }
    network = toy_network(settings.pop("model", "mlp"), settings.pop("norm", "none"), image).cuda()
    common: dict[str, Any] = {"executor": "stacked", "network": network, "images": replace(images, **moved)}
    return toy_trainer(method, **common, **{"record": CudaRecorder(), **settings})


def on_cpu(tree: Tree) -> Tree:
    return {name: leaf.cpu() for name, leaf in tree.items()}


def everything(made: Trainer) -> dict[str, Tensor]:
    trees = made.state()["trees"]
    return {f"{tree}/{name}": leaf.cpu() for tree, leaves in trees.items() for name, leaf in leaves.items()}


def records(made: Trainer) -> dict[str, Any]:
    skip = ("seconds", "loss", "train_loss")
    return {name: value for name, value in made.evaluate().items() if name not in skip}


def train(*trainers: Trainer, rounds: int = 3) -> None:
    for _ in range(rounds):
        for made in trainers:
            made.step()


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("method", METHODS.classes)
def test_a_graph_computes_what_the_cpu_computes(method: str, norm: str) -> None:
    fields = {"method": method, "norm": norm, "participation": 0.5, "lr": 1e-3 if norm in ("gn", "bn") else 1e-2}
    reference, graph = trainer("cpu", **fields), federated(**fields)
    train(reference, graph)
    assert largest_difference(everything(reference), everything(graph)) < 1e-9
    assert records(reference) == records(graph)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("method", METHODS.classes)
def test_a_graph_computes_what_single_kernels_compute(method: str, norm: str) -> None:
    fields = {"method": method, "norm": norm, "lr": 1e-3 if norm in ("gn", "bn") else 1e-2}
    eager, graph = without_graphs(**fields), federated(**fields)
    train(eager, graph)
    assert largest_difference(everything(eager), everything(graph)) < 1e-9


@pytest.mark.parametrize("norm", ["none", "bn"])
@pytest.mark.parametrize("method", HOOK_METHODS, ids=label)
def test_every_hook_in_a_graph(method: Method, norm: str) -> None:
    settings: dict[str, Any] = {"norm": norm, "sgd": Sgd(1e-2, 0.5, 0.01), "participation": 0.67}
    graph, loop = toy(method, **settings), toy_trainer(method, **settings)
    train(graph, loop)
    assert largest_difference(everything(graph), everything(loop)) < 1e-9


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fednova"])
def test_unequal_steps(method: str) -> None:
    fields = {"method": method, "partition": "dirichlet:0.3", "local_epochs": 1, "E": None}
    fields = {name: value for name, value in fields.items() if value is not None}
    experiment = parse_experiment({"precision": "fp64", "norm": "bn", "lr": 1e-3, **fields})
    made = [trainer_of(experiment, device) for device in ("cpu", "cuda")]
    train(*made)
    assert largest_difference(*map(everything, made)) < 1e-9


@pytest.mark.parametrize("model", ["toy-cnn", "toy-resnet18", "cnn"])
def test_networks_of_convolutions_with_augmented_images(model: str) -> None:
    image = (3, 16, 16)
    images = replace(toy_images(image), augment=True)
    settings: dict[str, Any] = {"model": model, "image": image, "norm": "ln", "sgd": Sgd(1e-2, 0.5), "batch_size": 4}
    graph = toy(METHODS.parse("scaffold"), images=images, **settings)
    loop = toy_trainer(METHODS.parse("scaffold"), images=images, **settings)
    train(graph, loop)
    assert largest_difference(everything(graph), everything(loop)) < 1e-9


@pytest.mark.parametrize("method", METHODS.classes)
def test_runs_trained_together_have_the_numbers_of_the_runs_alone(method: str) -> None:
    members = [{"seed": 0, "lr": 0.01}, {"seed": 1, "lr": 0.1, "clients": 7}, {"seed": 1, "participation": 0.5}]
    together, alone = ([federated(method=method, norm="ln", **own) for own in members] for _ in range(2))
    for _ in range(3):
        step_together(together, [False] * 3)
    train(*alone)
    for one, other in zip(together, alone, strict=True):
        assert largest_difference(everything(one), everything(other)) < 1e-9
        assert records(one) == records(other)


def test_a_group_shrinks_and_its_graphs_are_let_go() -> None:
    together, alone = ([federated(method="scaffold", seed=seed) for seed in range(3)] for _ in range(2))
    step_together(together, [False] * 3)
    step_together(together[1:], [False] * 2)
    together[2].step()
    for made, rounds in zip(alone, (1, 2, 3), strict=True):
        train(made, rounds=rounds)
    for one, other in zip(together, alone, strict=True):
        assert largest_difference(everything(one), everything(other)) < 1e-9


def test_nobody_waits_for_a_round() -> None:
    made = federated(method="scaffold", norm="bn")
    made.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        report = made.step(wait=False)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert isinstance(report.loss, Tensor)
    assert made.diverged_in() is None


def test_divergence_is_dated_right() -> None:
    made = federated(method="fedavg")
    made.step()
    made.x = {name: leaf * float("inf") for name, leaf in made.x.items()}
    for _ in range(3):
        made.step(wait=False)
    assert made.diverged_in() == 2


def test_observers_see_the_clients() -> None:
    reference, graph = trainer("cpu", method="fedavg"), federated(method="fedavg")
    train(reference, graph, rounds=1)
    expected, found = reference.step(keep_clients=True), graph.step(keep_clients=True)
    assert expected.client_params is not None and found.client_params is not None
    assert largest_difference(expected.client_params, on_cpu(found.client_params)) < 1e-9


@pytest.mark.parametrize("precision", ["fp64", "fp32"])
@pytest.mark.parametrize("probe", PROBES.classes)
def test_every_probe_measures_what_it_measures_on_the_cpu(probe: str, precision: str) -> None:
    fields = {"E": 3, "partition": "classes:2", "norm": "bn", "lr": 1e-3, "precision": precision}
    found = [measured(PROBES.parse(probe), parse_experiment(fields), device) for device in ("cpu", "cuda")]
    assert numbers(found[0]), "it measures something"
    assert numbers(found[1]) == pytest.approx(numbers(found[0]), rel=1e-6 if precision == "fp64" else 0.05, abs=1e-6)


@pytest.mark.parametrize("probe", PROBES.classes)
def test_every_probe_measures_centralized_training(probe: str) -> None:
    experiment = parse_experiment({"kind": "centralized", "E": 3, "norm": "ln", "precision": "fp64"})
    found = [measured(PROBES.parse(probe), experiment, device) for device in ("cpu", "cuda")]
    assert numbers(found[1]) == pytest.approx(numbers(found[0]), rel=1e-6, abs=1e-6)


def measured(probe: Probe, experiment: Training, device: str) -> dict[str, Any]:
    """What a probe measures after two rounds, as ``execution`` asks it to."""
    made = trainer_of(experiment, device)
    train(made, rounds=1)
    before = made.x
    report = made.step(keep_clients=True)
    network = make_network(experiment, load(cast(Dataset, experiment.dataset)), device)
    access = ModelAccess(made, network, experiment.lr)
    return probe.measure(Observation(made.round, before, made.x, report.client_params, report.weights_S, access))


def numbers(value: Any) -> list[float]:
    """All numbers of a measurement, in order."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for each in value for number in numbers(each)]
    return [] if value is None else [float(value)]


@pytest.mark.parametrize("method", ["fedavg", "local-only"])
def test_an_evaluation_by_graph(method: str) -> None:
    graph = federated(method=method, norm="bn")
    train(graph, rounds=1)
    network_only = trainer("cpu", method=method, norm="bn")
    network_only.load(graph.state())
    train(graph, network_only, rounds=1)
    assert records(graph) == records(network_only)
    assert records(graph) == records(network_only), "the second time it is launched, not recorded"


def test_a_checkpoint_moves_between_devices() -> None:
    source, target = trainer("cpu", method="scaffold"), federated(method="scaffold")
    source.step()
    target.load(source.state())
    assert all(leaf.is_cuda for leaf in target.x.values())
    train(source, target)
    assert target.round == 4
    assert largest_difference(everything(source), everything(target)) < 1e-9
    source.load(target.state())
    assert not any(leaf.is_cuda for leaf in source.x.values())


def test_centralized_training() -> None:
    fields = {"kind": "centralized", "E": 5, "momentum": 0.9, "norm": "bn", "precision": "fp64"}
    made = [trainer_of(parse_experiment(fields), device) for device in ("cpu", "cuda")]
    assert all(isinstance(each, CentralizedTrainer) for each in made)
    train(*made)
    assert largest_difference(*map(everything, made)) < 1e-9


@dataclass(frozen=True)
class Peeking(Method):
    """A method that reads a number on the host."""

    def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, ctx: ServerContext) -> tuple[Tree, Tree]:
        scale = 1.0 if next(iter(delta.values())).sum().item() > 1e9 else 0.5
        return {name: leaf + scale * delta[name] for name, leaf in x.items()}, state


def test_functions_that_cannot_be_recorded_are_called_directly(caplog: pytest.LogCaptureFixture) -> None:
    graph, loop = toy(Peeking()), toy_trainer(Peeking())
    train(graph, loop)
    assert largest_difference(everything(graph), everything(loop)) < 1e-9
    assert caplog.text.count("cannot be one CUDA graph") == 1
    after, loop = toy(METHODS.parse("scaffold")), toy_trainer(METHODS.parse("scaffold"))
    train(after, loop)
    assert largest_difference(everything(after), everything(loop)) < 1e-9, "others are recorded afterwards"
    assert caplog.text.count("cannot be one CUDA graph") == 1


def test_out_of_memory_halves_the_stack(caplog: pytest.LogCaptureFixture) -> None:
    """Eight clients with activations of 25 MiB and more a layer each, and a process that may have half a GiB."""
    image = (3, 32, 32)
    images, clients = toy_images(image, train=512), toy_clients((64,) * 8)
    settings: dict[str, Any] = {"model": "cnn", "image": image, "batch_size": 64, "steps": 2, "sgd": Sgd(1e-3)}
    roomy, tight = (toy(Method(), images=images, clients=clients, **settings) for _ in range(2))
    train(roomy, rounds=2)
    expected = everything(roomy)
    del roomy
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 2**29) / total)
    try:
        train(tight, rounds=2)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert "out of memory with 8 clients in a stack; continuing with 4" in caplog.text
    assert largest_difference(expected, everything(tight)) < 1e-9


def test_some_clients_fit() -> None:
    network = toy_network("cnn", image=(3, 32, 32)).cuda()
    free = torch.cuda.mem_get_info()[0]
    assert 1 < clients_that_fit(network, (3, 32, 32), 32, Method()) < free / (32 * 3 * 32 * 32 * 8)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize("norm", NORMS)
def test_lower_precisions_are_near_to_fp32_and_learn(norm: str, precision: str) -> None:
    exact, rounded = (federated(norm=norm, precision=p, partition="iid", lr=0.05, E=5) for p in ("fp32", precision))
    first = rounded.step().loss
    exact.step()
    moved = exact.x
    start = federated(norm=norm, precision="fp32", partition="iid").x
    for name, leaf in rounded.x.items():
        assert leaf.dtype == torch.float32, "master weights"
        update = (moved[name] - start[name]).norm()
        assert (leaf - moved[name]).norm() <= (0.1 if precision == "tf32" else 0.3) * update + 1e-6
    train(rounded, rounds=20)
    assert float(rounded.step().loss) < float(first)


def test_tf32_is_used_exactly_where_it_is_asked_for() -> None:
    a, b = torch.rand(2, 512, 512, device="cuda") - 0.5
    x, weight = torch.rand(4, 64, 16, 16, device="cuda") - 0.5, torch.rand(64, 64, 3, 3, device="cuda") - 0.5
    errors = {}
    for precision in ("fp32", "tf32"):
        set_matmul_precision(precision)
        product = (a @ b).double() - a.double() @ b.double()
        convolved = torch.conv2d(x, weight).double() - torch.conv2d(x.double(), weight.double())
        errors[precision] = (float(product.abs().max()), float(convolved.abs().max()))
    assert max(errors["fp32"]) < 1e-4 < min(errors["tf32"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("way", sorted(CONVOLUTIONS))
def test_ways_to_convolve_agree(way: str, dtype: torch.dtype) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    options: dict[str, Any] = {"device": "cuda", "dtype": torch.float64, "generator": generator}
    x, weight = torch.randn(5, 8, 6, 12, 12, **options), torch.randn(5, 7, 6, 3, 3, **options)

    def passes(kind: torch.dtype, how: str) -> tuple[Tensor, ...]:
        leaves = x.to(kind).requires_grad_(), weight.to(kind).requires_grad_()
        out = CONVOLUTIONS[how](*leaves, (1, 1), (1, 1))
        return out, *torch.autograd.grad(out.sum(), leaves)

    for found, expected in zip(passes(dtype, way), passes(torch.float64, "grouped"), strict=True):
        scale = expected.abs().max()
        assert (found.double() - expected).abs().max() < (1e-12 if dtype == torch.float64 else 0.05) * scale


@pytest.mark.parametrize("model", ["toy-cnn", "toy-resnet18"])
def test_the_engine_tunes_itself(model: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="flbench")
    tuner = ConvTuner(CudaRecorder(), cuda_clock)
    made, loop = (
        toy(Method(), model=model, image=(2, 8, 8), tuner=tuner, sgd=Sgd(1e-2)),
        toy_trainer(Method(), model=model, image=(2, 8, 8), images=toy_images((2, 8, 8)), sgd=Sgd(1e-2)),
    )
    train(made, loop)
    assert len(set(made.convolutions.values())) == 1 and set(made.convolutions.values()) <= set(CONVOLUTIONS)
    assert caplog.text.count("convolutions: ") == 1
    assert "are out" not in caplog.text, "every way can be recorded"
    assert largest_difference(everything(made), everything(loop)) < 1e-9, "trials leave no trace"
