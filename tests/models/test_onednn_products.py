"""OneDNN's products against torch's own, which are the slow twin."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from benchmarks.common import data_of, experiment_of
from flbench.bench.timing import trainer_of
from flbench.config import parse_experiment
from flbench.engine.setup import executor_for, make_network, make_trainer
from flbench.errors import UserError
from flbench.models import onednn_products
from flbench.models.network import Forward, pure_forward
from flbench.models.onednn_products import has_large_products, has_onednn, multiplied_by_onednn

CNN = "dataset=cifar10 model=cnn clients=2 E=2 lr=0.1"
LOOPED = f"{CNN} norm=dyt"  # which no compiled functions train

pytestmark = pytest.mark.skipif(not has_onednn(), reason="torch has no oneDNN here")


class Tokens(nn.Module):
    """Two dense layers on each of 16 tokens, one without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(300, 400), nn.Linear(400, 200, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = torch.tanh(self.first(x))
        return features, self.head(features)


def derivatives(forward: Forward, params: dict[str, Tensor], x: Tensor) -> Sequence[Tensor]:
    """Outputs, gradients, and gradients of the gradients' squares."""
    features, logits = forward(params, {}, x)
    leaves = [x, *params.values()]
    first = torch.autograd.grad(logits.square().mean() + features.mean(), leaves, create_graph=True)
    norm = torch.stack([leaf.square().sum() for leaf in first]).sum()
    return features, logits, *first, *torch.autograd.grad(norm, leaves)


def test_outputs_and_derivatives_are_those_of_torch() -> None:
    network = Tokens()
    params = {name: leaf.detach().requires_grad_() for name, leaf in network.named_parameters()}
    x, forward = torch.randn(8, 16, 300, requires_grad=True), pure_forward(network)
    slow, fast = derivatives(forward, params, x), derivatives(multiplied_by_onednn(forward), params, x)
    assert not all(map(torch.equal, slow, fast)), "oneDNN adds in another order"
    for one, other in zip(slow, fast, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-6 * float(one.detach().abs().max()))


@pytest.mark.parametrize("change", ["small", "float64", "bf16"])
def test_other_products_are_torchs(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn_products, "_product", None)  # a call fails
    dtype = torch.float64 if change == "float64" else torch.float32
    network = Tokens().to(dtype)
    params = dict(network.named_parameters())
    x = torch.randn(1 if change == "small" else 8, 1 if change == "small" else 16, 300, dtype=dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=change == "bf16"):
        multiplied_by_onednn(pure_forward(network))(params, {}, x)


def test_a_network_has_large_products_by_its_batches() -> None:
    experiment = experiment_of(CNN)
    data = data_of(experiment, None)
    network = make_network(experiment, data, "cpu")
    # 2 x 1600 x 384 operations a sample are 15 million in batches of 13.
    assert [has_large_products(network, data.shape, size) for size in (12, 13, 32)] == [False, True, True]


def test_rounds_are_those_of_the_loop_within_rounding_and_the_numerics_say_so() -> None:
    experiment = experiment_of(CNN)
    data = data_of(experiment, None)
    own, torchs = (trainer_of(experiment, data, "cpu", executor=name) for name in ("loop-onednn", "loop"))
    for trainer in (own, torchs):
        trainer.step()
    assert any(not torch.equal(own.x[name], leaf) for name, leaf in torchs.x.items())
    for name, leaf in torchs.x.items():
        torch.testing.assert_close(own.x[name], leaf, rtol=1e-4, atol=1e-5)
    looped = make_trainer(experiment_of(LOOPED), data, device="cpu", executor="auto", pool=1)[1]
    assert (own.executor.name, looped.executor) == ("loop-onednn", "loop-onednn")


def test_threads_change_no_bit() -> None:
    experiment = parse_experiment({**experiment_of(CNN).to_json(), "clients": 3})
    data = data_of(experiment, None)  # type: ignore[arg-type]
    trainers = [make_trainer(experiment, data, device="cpu", executor="loop-onednn", pool=n)[0] for n in (1, 2)]  # type: ignore[arg-type]
    for trainer in trainers:
        trainer.step()
    assert all(torch.equal(leaf, trainers[1].x[name]) for name, leaf in trainers[0].x.items())


def test_without_onednn_auto_selects_the_loop_and_asking_for_it_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    experiment = experiment_of(LOOPED)
    data = data_of(experiment, None)
    assert executor_for(experiment, data, device="cpu", wanted="auto") == "loop"
    with pytest.raises(UserError, match="no oneDNN on this machine; use auto or loop"):
        executor_for(experiment, data, device="cpu", wanted="loop-onednn")
