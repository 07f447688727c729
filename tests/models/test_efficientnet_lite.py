"""EfficientNet-Lite0: the package's network to the bit, its names, its weights and its normalizations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from flbench.config import InvalidExperiment, parse_experiment
from flbench.errors import UserError
from flbench.models.efficientnet_network import EfficientNetLite0
from flbench.models.initial_weights import build
from flbench.models.starts import WeightsFile
from flbench.models.weight_files import start_from
from flbench.registry import MODELS, NORMS

LITE = "efficientnet-lite0"


@pytest.mark.parametrize("size", [32, 50])
@pytest.mark.parametrize("training", [False, True])
def test_it_is_the_packages_network(size: int, training: bool) -> None:
    theirs = pytest.importorskip("efficientnet_lite_pytorch").EfficientNet
    network = theirs.from_name(LITE, image_size=size, drop_connect_rate=0.0, dropout_rate=0.0).train(training)
    own = EfficientNetLite0(0, 0).train(training)
    own.load_state_dict(network.state_dict())
    x = torch.rand(2, 3, size, size)
    assert torch.equal(own(x), network(x))


def test_a_state_dict_of_the_package_is_a_start(tmp_path: Path) -> None:
    """Images of one channel and another size; the head is new where classes differ."""
    source = EfficientNetLite0(0, 0).eval()
    torch.save(source.state_dict(), tmp_path / "w.pth")
    start = WeightsFile(path=str(tmp_path / "w.pth"))
    grey = torch.rand(2, 1, 32, 32)
    for classes in (3, 1000):
        model = MODELS.parse({"name": LITE, "norms": "own"})
        made = build(model, (1, 32, 32), classes, NORMS.parse("none"), False, seed=0).eval()
        start_from(made, start, model)
        features, logits = made(grey)
        assert features.shape == (2, 1280) and logits.shape == (2, classes)
        assert classes == 3 or torch.equal(logits, source(grey.expand(-1, 3, -1, -1)))
    axis = MODELS.parse(LITE)
    with pytest.raises(UserError, match=r"do not fit the network: left over body\._bn0"):
        start_from(build(axis, (3, 32, 32), 3, NORMS.parse("none"), False, seed=0), start, axis)


def test_the_axis_replaces_every_normalization_and_masks_are_keyed() -> None:
    made = build(MODELS.parse(LITE), (3, 32, 32), 3, NORMS.parse("gn"), False, seed=0)
    kinds = [type(one).__name__ for one in made.modules()]
    assert kinds.count("GroupNorm") == 49 and "BatchNorm2d" not in kinds
    assert kinds.count("SampleDropout") == 9  # blocks with a shortcut


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"model": {"name": LITE, "norms": "own"}, "norm": "gn"}, "has the same layers without"),
        ({"model": {"name": LITE, "dropout": 1}}, "model.dropout"),
        ({"model": LITE, "head": "cosine"}, "the model builds its own head"),
        ({"model": "efficientnet-lite1"}, f"did you mean '{LITE}'"),
        ({"dataset": {"name": "tinyimagenet", "size": 65}}, "dataset.size"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidExperiment, match=message):
        parse_experiment({"dataset": "cifar10", **fields})


def test_models_without_a_package_of_weights_say_so() -> None:
    with pytest.raises(UserError, match=r"no package ships weights for model mlp.*; use model: efficientnet-lite0"):
        MODELS.parse("mlp").package_weights()
