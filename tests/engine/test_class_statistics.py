"""Class statistics of features, compared with numpy over every client's rows, in every way to train."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flbench.engine.device_data import OWN_BATCH
from flbench.engine.federated import FederatedTrainer, step_together
from flbench.engine.optimizers import Sgd
from flbench.engine.stack_size import client_bytes
from flbench.errors import UserError
from flbench.methods.base import Context, Method, Tree
from flbench.models.network import pure_forward
from tests.recording import rerun
from tests.toys import largest_difference, toy_clients, toy_images, toy_network, toy_trainer

#: Samples of each client: several batches and a rest, fewer than the classes, and one batch.
SIZES = (2 * OWN_BATCH + 9, 2, OWN_BATCH)
WAYS: dict[str, dict[str, Any]] = {
    "loop": {"pool": 2},
    "stacked": {"executor": "stacked"},
    "in chunks": {"executor": "stacked", "chunk": 2},
    "recorded": {"executor": "stacked", "record": rerun},
}


@dataclass(frozen=True)
class Keeping(Method):
    """Keeps the statistics and what they were computed with as the client's state."""

    statistics: ClassVar[Literal["", "mean", "covariance"]] = "covariance"

    def init_client(self, x: Tree, buffers: Tree) -> Tree:
        rows = 0 * x["head.weight"]
        trained = {f"w/{name}": 0 * leaf for name, leaf in {**x, **buffers}.items()}
        return {**trained, "means": rows, "covariances": rows[..., None] * rows[:, None]}

    def finish(self, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
        trained = {f"w/{name}": leaf for name, leaf in {**w, **ctx.buffers}.items()}
        statistics = {"means": ctx.means_YD, "covariances": ctx.covariances_YDD}
        return {**trained, **statistics}, {"mean": ctx.means_YD}


class Means(Keeping):
    statistics = "mean"

    def finish(self, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
        assert ctx.covariances_YDD is None
        return {**ctx.client, "means": ctx.means_YD}, {}


def trainer(method: Method = Keeping(), sizes: tuple[int, ...] = SIZES, **given: Any) -> FederatedTrainer:
    clients = toy_clients(sizes)
    settings = {"images": toy_images(train=sum(sizes)), "clients": clients, "steps": [3, 1, 2], "sgd": Sgd(0.01)}
    return toy_trainer(method, **{"norm": "bn", **settings, **given})


def expected_of(trained: FederatedTrainer, client: int, network: nn.Module) -> tuple[Any, Any]:
    """Means and covariances by numpy, of all rows of a client at once."""
    rows, images = trained.run.rows[client], trained.images
    own = {name[2:]: leaf[client] for name, leaf in trained.states.items() if name.startswith("w/")}
    with torch.no_grad():
        features = pure_forward(network.eval())(own, {}, images.prepare(images.train_MCHW[rows]))[0].numpy()
    labels, width = images.train_labels_M[rows].numpy(), features.shape[1]
    means, covariances = np.zeros((3, width)), np.zeros((3, width, width))
    for label in set(labels.tolist()):
        of_class = features[labels == label]
        means[label] = of_class.mean(0)
        if len(of_class) > 1:
            covariances[label] = np.cov(of_class, rowvar=False)
    return means, covariances


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", ["mlp", "toy-cnn"])
def test_statistics_are_those_of_all_rows_at_the_clients_weights(way: str, model: str) -> None:
    found = trainer(model=model, **WAYS[way])
    found.step(), found.step()
    network = toy_network(model, "bn")
    for client in range(len(SIZES)):
        means, covariances = expected_of(found, client, network)
        assert np.abs(found.states["means"][client].numpy() - means).max() < 1e-12
        assert np.abs(found.states["covariances"][client].numpy() - covariances).max() < 1e-12
    assert found.states["means"][1][1].eq(0).all(), "the client lacks the class"
    assert found.states["covariances"][1].eq(0).all(), "one sample of each class"


def test_chunks_and_other_runs_change_no_bit() -> None:
    """Eight clients fill whole registers, whatever the width of a layer."""
    images = toy_images(train=500)
    settings: dict[str, Any] = {"norm": "none", "executor": "stacked", "steps": 2, "images": images}
    long, short = (2 * OWN_BATCH + 9, *range(10, 25)), (*range(20, 24), *range(40, 44))
    alone, together = (
        [trainer(sizes=sizes, seed=seed, **settings) for seed, sizes in enumerate([long[:8], short])] for _ in range(2)
    )
    whole, chunked = trainer(sizes=long, **settings), trainer(sizes=long, **settings, chunk=8)
    for _ in range(2):
        [each.step() for each in (*alone, whole, chunked)]
        step_together(together, [False, False])
    for one, other in zip((*together, chunked), (*alone, whole), strict=True):
        assert largest_difference(one.states, other.states) == 0


def test_means_alone_and_a_message_of_them() -> None:
    whole, means = trainer(executor="stacked"), trainer(Means(), executor="stacked")
    before = means.states["covariances"]
    report = [each.step() for each in (whole, means)]
    assert torch.equal(whole.states["means"], means.states["means"])
    assert torch.equal(means.states["covariances"], before) and report[0].loss == report[1].loss
    assert whole.bytes_up - means.bytes_up == len(SIZES) * 8 * whole.states["means"][0].numel()


@pytest.mark.parametrize("way", WAYS)
def test_statistics_of_the_received_network(way: str) -> None:
    """Those of the network that the client starts from, with the server's batch statistics."""

    class Received(Keeping):
        statistics_of = "received"

        def finish(self, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
            return super().finish(ctx.x, ctx)

    found = trainer(Received(), **WAYS[way])
    found.step()
    buffers = {f"w/{name}": leaf.expand(3, *leaf.shape) for name, leaf in found.buffers.items()}
    found.step()
    found.states |= buffers
    for client in range(len(SIZES)):
        means, covariances = expected_of(found, client, toy_network("mlp", "bn"))
        assert np.abs(found.states["means"][client].numpy() - means).max() < 1e-12
        assert np.abs(found.states["covariances"][client].numpy() - covariances).max() < 1e-12


def test_augmented_images_are_not_what_is_measured() -> None:
    images = toy_images(train=sum(SIZES))
    found = trainer(images=replace(images, augment=True), executor="stacked")
    found.step()
    means, _ = expected_of(found, 0, toy_network("mlp", "bn"))
    assert np.abs(found.states["means"][0].numpy() - means).max() < 1e-12


def test_an_unknown_statistic_is_refused() -> None:
    class Variance(Method):
        statistics: ClassVar[Any] = "variance"

    with pytest.raises(UserError, match="fedavg: statistics is 'variance'; expected '', 'mean', 'covariance'"):
        toy_trainer(Variance())


def test_memory_of_covariances_is_counted() -> None:
    network, image = toy_network("toy-cnn", image=(2, 8, 8)), (2, 8, 8)
    plain, means, covariances = (client_bytes(network, image, 10, each) for each in (Method(), Means(), Keeping()))
    assert means == plain and covariances - plain >= 6 * 8 * 3 * 6 * 6


def test_other_methods_see_none() -> None:
    seen: list[Tensor | None] = []

    class Looking(Method):
        def finish(self, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
            seen.extend([ctx.means_YD, ctx.covariances_YDD])
            return {}, {}

    toy_trainer(Looking()).step()
    assert seen == [None] * 6
