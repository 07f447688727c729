"""Dropout: masks that depend on run, client, round, step and layer alone."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from flbench.engine.federated import FederatedTrainer
from flbench.engine.optimizers import Sgd
from flbench.models.masks import Masked, is_masked, mask_keys
from flbench.models.torch_layers import DROPOUTS, adapt
from flbench.registry import METHODS
from tests.samples import fast
from tests.toys import check_every_way, everything, same_bits, toy_network, toy_trainer, train

SETTINGS: dict[str, Any] = {"model": "encoder", "sgd": Sgd(0.05, momentum=0.5), "steps": [3, 1, 4]}


def trainer(executor: str, method: str = "fedavg", **settings: Any) -> FederatedTrainer:
    return toy_trainer(METHODS.parse(method), **{"executor": executor, **SETTINGS, **settings})


@pytest.mark.parametrize("method", fast(METHODS.classes, "scaffold"))
def test_every_way_to_train_agrees(method: str) -> None:
    state = torch.get_rng_state()
    check_every_way(partial(trainer, method=method))
    assert torch.equal(torch.get_rng_state(), state)


def test_masks_have_the_same_bits_in_every_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every layer, client and step has masks of its own."""
    drawn: list[Tensor] = []
    original = Masked.keeps

    def note(self: Masked, *args: Any) -> Tensor:
        kept = original(self, *args)
        inner = torch._C._functorch.get_unwrapped(kept) if torch._C._functorch.is_batchedtensor(kept) else kept
        drawn.append(inner.clone())
        return kept

    monkeypatch.setattr(Masked, "keeps", note)
    train(1, trainer("loop", steps=2))
    of_loop = list(drawn)
    drawn.clear()
    train(1, trainer("stacked", steps=2))
    calls = len(drawn)  # 2 steps of 6 masks: dropout twice, attention, and three in the encoder layer
    assert (calls, len(of_loop)) == (12, 36)
    for number, stacked in enumerate(drawn):
        for client in range(3):
            assert torch.equal(stacked[client], of_loop[client * 12 + number])
    same_shape = [kept for kept in of_loop if kept.shape == of_loop[0].shape]
    assert not any(torch.equal(a, b) for i, a in enumerate(same_shape) for b in same_shape[:i])


def test_masks_depend_on_the_runs_seed_and_nothing_stays_in_the_state() -> None:
    one, other, plain = trainer("loop"), trainer("loop", seed=1), trainer("loop", model="encoder-without")
    assert everything(one).keys() == everything(plain).keys()
    train(1, one, other, plain)
    assert not same_bits(one, other)
    assert not same_bits(one, plain)
    assert not mask_keys(toy_network("mlp")) and len(mask_keys(toy_network("encoder"))) == 5


def test_evaluation_has_no_dropout() -> None:
    one, plain = trainer("loop"), trainer("loop", model="encoder-without")
    assert one.evaluate()["loss"] == plain.evaluate()["loss"]


@pytest.mark.parametrize("form", DROPOUTS, ids=lambda form: form.__name__)
def test_layers_drop_what_torchs_drop(form: type[nn.Module]) -> None:
    """Torch's formula, for the mask that torch would have drawn: which elements are kept is read off its output."""
    torch.manual_seed(0)
    x = torch.rand(40, 30, *([2, 2, 2] if "3d" in form.__name__ else [2, 2] if "2d" in form.__name__ else [2])) + 1
    theirs = getattr(nn, form.__name__)(0.3)
    ours = copy.deepcopy(theirs)
    adapt(ours)
    assert type(ours) is form
    expected, found = theirs(x), ours(x)
    for out in (expected, found):
        dropped = (out < x.min() / 2) | (out == 0)
        share = float(dropped.double().mean())
        assert share == pytest.approx(0.3, abs=0.06 if "eature" in form.__name__ or form.__name__[-1] == "d" else 0.04)
    common = ((expected < x.min() / 2) == (found < x.min() / 2)).flatten()
    torch.testing.assert_close(found.flatten()[common], expected.flatten()[common])
    assert torch.equal(ours.eval()(x), x)
    assert torch.equal(ours(x), theirs.eval()(x))


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"batch_first": True},
        {"bias": False},
        {"add_bias_kv": True, "batch_first": True},
        {"add_zero_attn": True},
        {"kdim": 6, "vdim": 5, "batch_first": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("weights", [True, False])
def test_attention_without_a_dropped_weight_is_torchs(
    form: dict[str, Any], weights: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(8, 2, dropout=0.5, **form).double()
    ours = copy.deepcopy(theirs)
    adapt(ours)
    assert is_masked(ours)
    theirs.dropout = 0.0
    q, k, v = (torch.rand(3, 4, size, dtype=torch.float64) for size in (8, form.get("kdim", 8), form.get("vdim", 8)))
    options: dict[str, Any] = {"need_weights": weights, "attn_mask": torch.triu(torch.ones(4, 4), 1).bool()}
    if not form.get("batch_first"):
        options["attn_mask"] = torch.triu(torch.ones(3, 3), 1).bool()
    with monkeypatch.context() as patch:
        patch.setattr(Masked, "keeps", lambda self, shape, p, device: torch.ones(shape) * (1 - p))
        found, expected = ours(q, k, v, **options), theirs(q, k, v, **options)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert not torch.allclose(ours(q, k, v, **options)[0], expected[0])


def test_masks_are_independent_bits() -> None:
    """Means over elements, keys and neighbours, each within five standard deviations."""
    layer = nn.Dropout(0.5)
    adapt(layer)

    def drawn(key: Tensor) -> Tensor:
        layer.mask_key = key
        return layer.keeps((1000,), 0.5, key.device).double()  # type: ignore[operator]

    bits = vmap(drawn)(torch.arange(1000)) - 0.5
    assert abs(float(bits.mean())) < 5 * 0.5 / 1000
    for axis in (0, 1):
        assert float(bits.mean(axis).abs().max()) < 5 * 0.5 / 1000**0.5
        assert abs(float((bits * bits.roll(1, axis)).mean())) < 5 * 0.25 / 1000
