"""``mean`` and ``std`` of a data set normalize the network's input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flbench.bench.loop import from_memory
from flbench.config import Federated, parse_experiment
from flbench.data.datasets import load
from flbench.engine.device_data import DeviceData
from flbench.errors import InvalidComponent, UserError
from flbench.papers.published_numbers import other_content
from flbench.registry import DATASETS
from tests.data.files import folder_set, write_halves


def test_each_channel_is_normalized(tmp_path: Path) -> None:
    write_halves(tmp_path, ["a/0.png", "b/0.png"])
    settings: dict[str, Any] = {"mean": [0.5, 0.25, 0.0], "std": [0.5, 2.0, 1.0]}
    plain, data = load(folder_set(tmp_path)), load(folder_set(tmp_path, **settings))
    images = DeviceData.of(data, "cpu", torch.float64, augment=False)
    expected = (plain.test.images / 255 - np.array([0.5, 0.25, 0.0])[:, None, None]) / np.array(
        [[[0.5]], [[2.0]], [[1.0]]]
    )
    np.testing.assert_allclose(images.prepare(images.test_MCHW).numpy(), expected, rtol=0, atol=1e-15)
    assert data.fingerprint == plain.fingerprint


def test_one_number_is_for_all_channels_and_the_plain_loop_agrees() -> None:
    fields = {"dataset": {"name": "digits", "mean": [0.5], "std": [0.5]}, "precision": "fp64"}
    experiment = parse_experiment(fields)
    assert isinstance(experiment, Federated)
    data = load(experiment.dataset)  # type: ignore[arg-type]
    images = DeviceData.of(data, "cpu", torch.float64, augment=False)
    found = images.prepare(images.train_MCHW)
    assert (found.min(), found.max()) == (-1, 1)
    rows = np.arange(32)
    pixels, _ = next(from_memory(experiment, data, [rows], "cpu")[0]())
    assert sorted(pixels.flatten(1).sum(1).tolist()) == pytest.approx(sorted(found[:32].flatten(1).sum(1).tolist()))


def test_normalized_images_are_another_run_on_the_same_content() -> None:
    plain, other = (
        parse_experiment({"dataset": {"name": "digits", **more}}) for more in ({}, {"mean": [0.5], "std": [1]})
    )
    assert plain.run_id != other.run_id
    assert "mean" not in plain.to_json()["dataset"]
    assert other_content(other, DATASETS["digits"].official, None) == "normalized images"  # type: ignore[arg-type]
    path = {"name": "arrays", "path": "a.npz", "content": "0" * 16}
    assert DATASETS.parse(path).identity() != DATASETS.parse({**path, "mean": [0.5], "std": [1.0]}).identity()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"mean": [0.5]}, "mean and std with 1 numbers, got 1 and 0"),
        ({"mean": [0.5, 0.5], "std": [1, 1]}, "mean and std with 1 numbers, got 2 and 2"),
        ({"mean": [0.5], "std": [0]}, "greater than 0"),
        ({"mean": 0.5, "std": [1]}, "expected a list"),
    ],
)
def test_what_does_not_fit_is_refused(given: dict[str, Any], expected: str) -> None:
    with pytest.raises(InvalidComponent, match=expected):
        DATASETS.parse({"name": "digits", **given})


def test_numbers_for_other_channels_are_refused_when_the_files_are_read(tmp_path: Path) -> None:
    write_halves(tmp_path, ["a/0.png", "b/0.png"])
    with pytest.raises(UserError, match="mean and std have 2 numbers, the images 3 channels"):
        load(folder_set(tmp_path, mean=(0.5, 0.5), std=(1.0, 1.0)))
