"""The sweep of FL-Simulator has that code's network and settings."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from flbench.config import Federated
from flbench.registry import MODELS
from flbench.sweeps import load_sweep

#: The plug-in imports torchvision.
pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[1] / "sweeps/fl_simulator"


@pytest.fixture
def plugged(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(MODELS, "classes", dict(MODELS.classes))
    spec = importlib.util.spec_from_file_location("resnet18_gn", FOLDER / "resnet18_gn.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "resnet18_gn", module)
    spec.loader.exec_module(module)
    return module


def test_the_network_is_torchvisions_with_group_normalization_everywhere(plugged: Any) -> None:
    """11,689,512 weights of torchvision's ResNet-18, less its head of 1,000 classes, plus one of 10."""
    network = plugged.Network(10, 2)
    norms = [module for module in network.modules() if isinstance(module, nn.GroupNorm)]
    assert {norm.num_groups for norm in norms} == {2}
    assert len(norms) == 20, "two a block, the stem's, and three in shortcuts"
    assert not [*network.buffers()]
    assert sum(leaf.numel() for leaf in network.parameters()) == 11_689_512 - 513_000 + 5_130
    features, logits = network(torch.zeros(2, 3, 32, 32))
    assert (features.shape, logits.shape) == ((2, 512), (2, 10))


def test_every_run_has_the_codes_settings(plugged: Any) -> None:
    runs = [run for run in load_sweep(FOLDER / "cifar10.yaml").experiments if isinstance(run, Federated)]
    for run in runs:
        assert (run.lr, run.weight_decay, run.clip_norm, run.batch_size, run.momentum) == (0.1, 0.001, 10, 50, 0)
        assert (run.local_epochs, run.rounds, run.clients, run.participation) == (5, 1000, 100, 0.1)
        assert (run.drop_last, run.cohort.label(), run.eval_every, run.augment) == (False, "bernoulli", 1, "flip-crop")
        assert str(run.lr_schedule) == ("decay:0.9995" if run.method.name == "feddyn" else "decay:0.998")
        assert run.dataset.label().startswith("cifar10(mean=[0.491, 0.482, 0.447]")
    cells = Counter(run.method.name for run in runs)
    names = "fedavg fedprox fedadam scaffold feddyn fedcm fedgamma mofedsam fedspeed"
    assert cells == dict.fromkeys(names.split(), 3)
