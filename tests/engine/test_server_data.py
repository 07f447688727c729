"""What hooks of the server see of its data, in the loop and as a recorded round."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch.nn.functional import cross_entropy

from flbench.config import parse_experiment
from flbench.data.datasets import load
from flbench.engine.setup import make_trainer
from flbench.errors import UserError
from flbench.methods.base import Method, Outputs, ServerContext, Tree
from tests.toys import toy_clients, toy_network, toy_trainer


@dataclass(frozen=True)
class Looking(Method):
    """Notes the outputs of the averaged model."""

    needs_server_data: ClassVar[bool] = True
    seen: ClassVar[list[tuple[Tree, Outputs, Any]]] = []

    def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, ctx: ServerContext) -> tuple[Tree, Tree]:
        x, _ = super().server_step(x, delta, message, state, ctx)
        assert ctx.data is not None
        self.seen.append((x, ctx.data.outputs(x, samples=slice(2, 5)), ctx.data))
        return x, state


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_the_server_evaluates_with_the_averaged_statistics(executor: str) -> None:
    Looking.seen.clear()
    trainer = toy_trainer(Looking(), executor=executor, norm="bn", model="toy-cnn")
    trainer.step()
    (x, outputs, data), network = Looking.seen[0], toy_network("toy-cnn", "bn")
    network.load_state_dict({**x, **trainer.buffers})
    rows, images = torch.arange(0, 30, 4), trainer.images
    with torch.no_grad():
        features, logits = network.eval()(images.prepare(images.train_MCHW[rows]))
    assert torch.equal(data.labels_M, images.train_labels_M[rows])
    assert torch.allclose(outputs.features_BD, features[2:5], rtol=0, atol=1e-14)
    assert torch.allclose(outputs.logits_BY, logits[2:5], rtol=0, atol=1e-14)
    first = dict(toy_network("toy-cnn", "bn").named_buffers())
    assert not torch.allclose(data.outputs(x, first).logits_BY, data.outputs(x).logits_BY)


def test_outputs_are_differentiable_in_the_weights() -> None:
    Looking.seen.clear()
    toy_trainer(Looking()).step()
    x, _, data = Looking.seen[0]
    w = {name: leaf.clone().requires_grad_() for name, leaf in x.items()}
    cross_entropy(data.outputs(w).logits_BY, data.labels_M).backward()
    network = toy_network()
    network.load_state_dict(x)
    cross_entropy(network(data.images.prepare(data.images.train_MCHW[data.rows_M]))[1], data.labels_M).backward()
    for name, leaf in network.named_parameters():
        assert leaf.grad is not None and torch.allclose(w[name].grad, leaf.grad, rtol=0, atol=1e-14)


def test_what_the_server_does_not_have_is_named() -> None:
    class Personal(Looking):
        def local_names(self, model: Any) -> frozenset[str]:
            return frozenset({"head.weight"})

    with pytest.raises(UserError, match=r"outputs need 'head\.weight', which is not given or stays on the clients"):
        toy_trainer(Personal()).step()
    Looking.seen.clear()
    toy_trainer(Looking()).step()
    x, _, data = Looking.seen[0]
    with pytest.raises(UserError, match="got 'haed', which the network does not have"):
        data.outputs({**x, "haed": x["head.weight"]})


def test_a_method_without_the_servers_data_is_refused() -> None:
    clients = replace(toy_clients(), server=torch.arange(0).numpy())
    with pytest.raises(UserError, match="needs data of the server: server_fraction above 0"):
        toy_trainer(Looking(), clients=clients)

    class Without(Method):
        def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, ctx: ServerContext) -> Any:
            assert ctx.data is None
            return super().server_step(x, delta, message, state, ctx)

    toy_trainer(Without(), clients=clients).step()


def test_an_experiment_holds_its_share_apart() -> None:
    fields = {"dataset": "digits", "model": {"name": "mlp", "widths": [8]}, "partition": "iid", "clients": 4, "E": 1}
    plain, held = parse_experiment(fields), parse_experiment({**fields, "server_fraction": 0.1})
    assert plain.run_id == parse_experiment({**fields, "server_fraction": 0.0}).run_id != held.run_id
    data = load(held.dataset)  # type: ignore[attr-defined]
    trainer: Any = make_trainer(held, data, device="cpu", executor="auto", pool=1)[0]  # type: ignore[arg-type]
    rows = trainer.run.server_data.rows_M.tolist()
    assert len(rows) == round(0.1 * len(data.train.labels))
    assert not {*rows} & {row for own in trainer.run.rows for row in own.tolist()}
