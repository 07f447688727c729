"""Files of weights, and the networks that take them over."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flbench.errors import UserError
from flbench.models.base import Model
from flbench.models.starts import Start, WeightsFile
from flbench.models.weight_files import read_weights, safetensors, start_from
from tests.toys import toy_model, toy_network

#: A file by the format's description: the header's length, the header, then the numbers.
HEADER = (
    b'{"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
    b'"a.weight":{"dtype":"I64","shape":[1,1],"data_offsets":[8,16]},"c":{"dtype":"F16","shape":[],"data_offsets":[16,18]}}'
)
GOLDEN = (
    len(HEADER).to_bytes(8, "little")
    + HEADER
    + np.array([1.5, -2], "<f4").tobytes()
    + np.array([7], "<i8").tobytes()
    + np.array(0.25, "<f2").tobytes()
)


def state(model: str = "mlp", norm: str = "none", **given: Any) -> dict[str, Tensor]:
    return {name: leaf.clone() for name, leaf in toy_network(model, norm, **given).state_dict().items()}


def write(path: Path, tree: dict[str, Tensor]) -> Start:
    path.write_bytes(safetensors(tree))
    return WeightsFile(path=str(path))


def started(start: Start, model: str = "mlp", norm: str = "none", **given: Any) -> dict[str, Tensor]:
    network = toy_network(model, norm, **given)
    start_from(network, start, named(model))
    return network.state_dict()


def named(model: str) -> Model:
    """Return a toy model, which may be registered under no name."""
    spec = toy_model(model)
    if not hasattr(spec, "name"):
        type(spec).name = model
    return spec


def test_a_golden_file_is_read_and_equal_tensors_have_equal_bytes(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(GOLDEN)
    tree = read_weights(path)
    assert {name: (leaf.dtype, leaf.tolist()) for name, leaf in tree.items()} == {
        "b": (torch.float32, [1.5, -2.0]), "a.weight": (torch.int64, [[7]]), "c": (torch.float16, 0.25)
    }  # fmt: skip
    again = safetensors(dict(reversed(tree.items())))
    assert again == safetensors(tree) and (len(again) - 18) % 8 == 0
    length = int.from_bytes(again[:8], "little")
    assert list(json.loads(again[8 : 8 + length])) == ["a.weight", "b", "c"]
    path.write_bytes(again)
    assert all(torch.equal(tree[name], leaf) for name, leaf in read_weights(path).items())


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda data: data[:4], "cut off, or no safetensors file"),
        (lambda data: data + b"12", "damaged: 2 bytes follow the last tensor"),
        (lambda data: data[:-1], "damaged: the place of 'c' does not fit its shape"),
        (lambda data: data.replace(b"[0,8]", b"[0,7]"), "damaged: the place of 'b'"),
        (lambda data: data.replace(b"[0,8]", b"[9,8]"), "damaged: the place of 'b'"),
        (lambda data: data.replace(b'"F32"', b'"F99"'), "no type, shape and place that flbench knows for 'b'"),
        (lambda data: b"\xff" * 8 + data[8:], "cut off"),
        (lambda data: (2).to_bytes(8, "little") + b"[]", "its header is no mapping"),
        (lambda data: (2).to_bytes(8, "little") + b"{x", "cannot read the weights"),
    ],
)
def test_a_damaged_file_is_one_error(damage: Callable[[bytes], bytes], message: str, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(damage(GOLDEN))
    with pytest.raises(UserError, match=message):
        read_weights(path)


class Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("trapped"),)


@pytest.mark.parametrize("legacy", [False, True])
def test_files_of_torch_are_read_and_nothing_in_them_is_executed(
    legacy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path, own = tmp_path / "w.pt", state(weights=1)
    for content in (own, {"state_dict": own, "epoch": 3}, {"model": own}):
        torch.save(content, path, _use_new_zipfile_serialization=not legacy)
        assert all(torch.equal(own[name], leaf) for name, leaf in read_weights(path).items())
    for content in ({"a": Trap()}, nn.Linear(1, 1), [1], {}, {"a": 1}):
        torch.save(content, path, _use_new_zipfile_serialization=not legacy)
        with pytest.raises(UserError, match="cannot read the weights"):
            read_weights(path)
    path.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(UserError, match="cannot read the weights"):
        read_weights(path)
    assert not Path("trapped").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda w: w.to_sparse(),
        lambda w: w.to(torch.complex64),
        lambda w: w.to("meta"),
    ],
)
def test_tensors_that_are_no_real_numbers_are_refused(change: Callable[[torch.Tensor], Any], tmp_path: Path) -> None:
    torch.save({"head.weight": change(torch.ones(10, 6))}, tmp_path / "w.pt")
    with pytest.raises(UserError, match=r"'head\.weight' is no dense tensor of real numbers"):
        read_weights(tmp_path / "w.pt")


@pytest.mark.parametrize("model, norm", [("mlp", "ln"), ("toy-cnn", "bn"), ("bn-cnn", "none"), ("toy-vit", "fn")])
def test_a_network_starts_from_all_weights_of_a_file(model: str, norm: str, tmp_path: Path) -> None:
    own = state(model, norm, weights=1)
    found = started(write(tmp_path / "w.safetensors", own), model, norm, weights=2)
    assert found.keys() == own.keys() and all(torch.equal(own[name], leaf) for name, leaf in found.items())


def test_the_head_is_new_where_classes_differ_or_none_is_given(tmp_path: Path) -> None:
    own, random = state("bn-cnn", weights=1), state("bn-cnn", weights=2)
    others = {**own, "head.weight": torch.zeros(5, 6), "head.bias": torch.zeros(5)}
    without = {name: leaf for name, leaf in own.items() if not name.startswith("head.")}
    for number, tree in enumerate((others, without)):
        found = started(write(tmp_path / f"{number}.safetensors", tree), "bn-cnn", weights=2)
        for name, leaf in found.items():
            assert torch.equal(leaf, (random if name.startswith("head.") else own)[name]), name


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda t: t | {"trunk.extra.weight": torch.ones(1)}, r"in model mlp.*: left over trunk\.extra\.weight$"),
        (lambda t: {n: w for n, w in t.items() if n != "trunk.dense1.weight"}, r"missing trunk\.dense1\.weight$"),
        (
            lambda t: {n.replace("dense1", "fc1"): w for n, w in t.items()},
            r"missing trunk\.dense1\.weight; left over trunk\.fc1\.weight",
        ),
        (lambda t: t | {"trunk.dense2.weight": torch.ones(6, 9)}, r"dense2\.weight \(6, 9\) in place of \(6, 8\)"),
        (lambda t: t | {"head.weight": torch.ones(5, 9)}, r"of another shape head\.weight \(5, 9\)"),
        (lambda t: t | {"trunk.dense2.weight": torch.full((6, 8), torch.nan)}, r"dense2\.weight holds numbers that"),
        (
            lambda t: t | {"head.lora_A": torch.ones(2, 5), "head.lora_B": torch.ones(10, 2)},
            r"the adapter of head\.weight in the weights does not fit it",
        ),
    ],
)  # fmt: skip
def test_weights_that_do_not_fit_are_one_error(change: Callable[[Any], Any], message: str, tmp_path: Path) -> None:
    start = write(tmp_path / "w.safetensors", change(state()))
    with pytest.raises(UserError, match=message):
        started(start)


def test_adapters_in_weights_are_added_to_what_they_adapt(tmp_path: Path) -> None:
    network = toy_network("encoder-without", train="lora:2")
    torch.manual_seed(0)
    for name, leaf in network.named_parameters():
        if name.endswith("lora_B"):
            nn.init.normal_(leaf)
    start = write(tmp_path / "w.safetensors", network.state_dict())
    other, images = toy_network("encoder-without", weights=9), torch.randn(2, 1, 8, 8, dtype=torch.float64)
    start_from(other, start, named("encoder-without"))
    for got, wanted in zip(other.eval()(images), network.eval()(images), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)
    assert not any("lora" in name for name in other.state_dict())


def test_what_counts_or_measures_a_training_is_not_taken_over(tmp_path: Path) -> None:
    tree = state("mlp", "fixbn", weights=1)
    tree["trunk.after1.round"] += 200
    found = started(write(tmp_path / "w.safetensors", tree), "mlp", "fixbn")
    assert found["trunk.after1.round"] == 0 and torch.equal(found["head.weight"], tree["head.weight"])
    plain = started(WeightsFile(path=str(tmp_path / "w.safetensors")), "mlp", "bn")
    assert torch.equal(plain["trunk.after1.running_mean"], tree["trunk.after1.running_mean"])
    assert Start().weights_file() is None


def test_a_file_that_changes_after_planning_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    start = write(path, state())
    write(path, state(weights=9))
    with pytest.raises(UserError, match="holds other weights than the experiment names: expected the SHA-256"):
        start.weights_file()
    path.unlink()
    with pytest.raises(UserError, match="there is no file"):
        start.weights_file()
