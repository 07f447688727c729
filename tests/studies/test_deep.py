"""Deep MLPs on digits: ranks at initialization, after pre-training, and what training makes of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flbench.data.datasets import load
from flbench.registry import DATASETS
from flbench.streams import stream
from flbench.studies.deep_study import DeepMlp, DeepTraining, Pretraining, differentiable_rank, standardized
from flbench.theory import rank


def study(network: DeepMlp, how: Pretraining | None = None, *, lr: float | None = None, seed: int = 0) -> DeepTraining:
    data = load(DATASETS.parse("digits"))
    train, test = standardized(data.train.images, data.test.images)
    labels = torch.from_numpy(data.train.labels.copy()), torch.from_numpy(data.test.labels.copy())
    sets: dict[str, Any] = {"train": (train, labels[0]), "test": (test, labels[1]), "classes": 10}
    return DeepTraining(network, how, **sets, lr=lr, batch_size=128, seed=seed)


def last_rank(network: DeepMlp, how: Pretraining | None = None, seed: int = 0) -> float:
    return float(study(network, how, seed=seed).evaluate()["rank"])


@pytest.mark.slow
def test_ranks_at_initialization_over_depth() -> None:
    """Width 128 on digits, near what an independent implementation measured on pixels standardized one by one."""
    assert 2 < last_rank(DeepMlp(2, 128)) < 4
    assert last_rank(DeepMlp(32, 128)) == pytest.approx(1.0, abs=0.05)
    assert last_rank(DeepMlp(32, 128, init="he")) == pytest.approx(1.05, abs=0.1)
    assert last_rank(DeepMlp(8, 128, "bn")) == pytest.approx(33, rel=0.25)
    assert 9 < last_rank(DeepMlp(32, 128, "bn")) < 19


@pytest.mark.slow
def test_weights_off_centre_break_batch_norm() -> None:
    """The more, the more: r of the last layer falls from over 10 to 1 (poster, figure 4, dashed)."""
    found = [last_rank(DeepMlp(32, 128, "bn", shift=shift)) for shift in (0.0, 0.05, 0.1, 0.2, 1.0)]
    assert found[0] > found[1] > found[2] > found[3]
    assert found[1] == pytest.approx(2.6, rel=0.3)
    assert found[3] == pytest.approx(1.0, abs=0.05)
    assert found[4] == pytest.approx(1.0, abs=0.01)


@pytest.mark.slow
def test_pretraining_raises_every_layers_rank() -> None:
    vanilla = DeepMlp(32, 128, init="he")
    before = study(vanilla).evaluate()["ranks"]
    after = study(vanilla, Pretraining(25)).evaluate()["ranks"]
    assert all(high > low for high, low in zip(after, before, strict=True))
    assert after[-1] > 20
    control = study(vanilla, Pretraining(0)).evaluate()["ranks"]
    assert control == pytest.approx(before, rel=1e-3), "rescaling alone changes no rank"


def test_pretraining_as_in_the_authors_code() -> None:
    """Against an independent program: modules, one matrix product a line, plain steps of all weights, no bias."""
    network, how = DeepMlp(10, 12, init="glorot"), Pretraining(3, "code", "sgd", 0.1, rescale=False)
    drawn = network.draw(64, 10, seed=5)
    found = study(network, how, seed=5)
    x = found._train_set[0]
    batch = x[torch.from_numpy(stream(5, "pretraining batch").choice(len(x), 32, False))].double()

    linear = [torch.nn.Linear(*drawn[f"w{layer}"].shape[::-1], dtype=torch.float64) for layer in range(1, 11)]
    for layer, module in enumerate(linear, start=1):
        module.load_state_dict({"weight": drawn[f"w{layer}"], "bias": drawn[f"b{layer}"]})
    for raised in (5, 9):
        for _ in range(3):
            h = linear[0](batch)
            for module in linear[1:raised]:
                h = module(h.clamp(min=0))
            moments = h.T @ h / len(h)
            loss = torch.trace(moments @ moments) / torch.trace(moments) ** 2
            weights = [module.weight for module in linear[:raised]]
            for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                weight.data -= 0.1 * gradient
    for layer, module in enumerate(linear, start=1):
        torch.testing.assert_close(found.x[f"w{layer}"].double(), module.weight.data, atol=2e-6, rtol=2e-5)
        assert torch.equal(found.x[f"b{layer}"], drawn[f"b{layer}"])
    moved = [not torch.equal(found.x[f"w{layer}"], drawn[f"w{layer}"]) for layer in range(1, 12)]
    assert moved == [True] * 9 + [False] * 2


def test_glorots_weights_have_the_variance_of_both_sides() -> None:
    drawn = DeepMlp(2, 300, init="glorot").draw(500, 10, seed=0)
    assert float(drawn["w1"].std()) == pytest.approx((2 / 800) ** 0.5, rel=0.01)
    assert float(drawn["w2"].std()) == pytest.approx((2 / 600) ** 0.5, rel=0.01)
    assert float(drawn["b2"].abs().max()) == pytest.approx(300**-0.5, rel=0.05)


def test_rescaling_keeps_the_signal() -> None:
    scaled, faded = (study(DeepMlp(12, 64, init="he"), Pretraining(10, rescale=scale)) for scale in (True, False))
    x = scaled._train_set[0][:1000]
    sizes = [[float(h.square().mean().sqrt()) for h in s._network.layers(s.x, x)][:-1] for s in (scaled, faded)]
    assert sizes[0] == pytest.approx([2**0.5] * 12, rel=1e-4)
    assert sizes[1][-1] < 0.5


def test_differentiable_rank_is_the_rank() -> None:
    for shape in ((40, 12), (12, 40)):
        h = torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        expected = rank.effective_rank(rank.eigenvalues(h.mT.numpy()))
        assert float(differentiable_rank(h)) == pytest.approx(expected, rel=1e-12)
        assert float(differentiable_rank(1e-9 * h)) == pytest.approx(expected, rel=1e-12)


def test_batch_norm_with_a_batchs_own_statistics_is_batch_norm() -> None:
    network = DeepMlp(3, 16, "bn")
    params = network.draw(8, 4, seed=0)
    x = torch.randn(20, 8, generator=torch.Generator().manual_seed(0))
    for own, given in zip(
        network.layers(params, x), network.layers(params, x, network.statistics(params, x)), strict=True
    ):
        torch.testing.assert_close(own, given)


@pytest.mark.slow
def test_training_learns_where_the_rank_allows_it() -> None:
    accuracies = {}
    for name, network in {"bn": DeepMlp(16, 128, "bn"), "shifted": DeepMlp(16, 128, "bn", shift=0.5)}.items():
        trained = study(network, lr=0.1)
        for _ in range(5):
            trained.step()
        record = trained.evaluate()
        accuracies[name] = record["train_acc"]
        assert 0 < record["test_acc"] <= 1
    assert accuracies["bn"] > 0.9
    assert accuracies["shifted"] < 0.5
