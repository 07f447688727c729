"""Data sets that name their own clients, dealt by ``partition: given`` without a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flbench.config import parse_experiment
from flbench.data.datasets import load
from flbench.data.shards import Shards, split
from flbench.errors import UserError
from flbench.registry import DATASETS, PARTITIONS, InvalidComponent
from tests.data.files import folder_set, labels, pixels, write_folder

IMAGES = pixels(12, (3, 6, 5))
OWNERS = np.array([30, 4, 4, 7, 30, 7, 4, 4, 30, 7, 7, 7], dtype=np.int32)


def archive(path: Path, **arrays: Any) -> Any:
    y = labels(12, 3)
    np.savez_compressed(path, x_train=IMAGES, y_train=y, x_test=IMAGES[:3], y_test=y[:3], **arrays)
    return DATASETS.parse(f"arrays:{path}")


def dealt(dataset: Any, clients: int, partition: str = "given") -> Shards:
    spec = PARTITIONS.parse(partition)
    return split(spec, load(dataset), clients=clients, min_size=1, val_fraction=0.0, seed=0)


def test_the_clients_of_an_archive_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    dataset = archive(tmp_path / "a.npz", train_client=OWNERS, test_client=np.array([[7], [7], [30]]))
    data = load(dataset)
    assert data.domain_names == ("4", "7", "30")
    shards = dealt(dataset, 3)
    assert [rows.tolist() for rows in shards.train] == [[1, 2, 6, 7], [3, 5, 9, 10, 11], [0, 4, 8]]
    assert [rows.tolist() for rows in shards.test] == [[], [0, 1], [2]]
    without = archive(tmp_path / "b.npz")
    assert data.fingerprint != load(without).fingerprint, "the clients are part of the content"
    assert load(without).domain_names == ()


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"train_client": OWNERS}, "both or none of train_client and test_client; it holds train_client"),
        ({"train_client": OWNERS[:11], "test_client": OWNERS[:3]}, "12 labels and 11 numbers in train_client"),
        ({"train_client": OWNERS, "test_client": np.array([4, 5, 7])}, "client 5 is in test_client and not in train_"),
        ({"train_client": OWNERS / 2, "test_client": OWNERS[:3]}, "a.npz, train_client: expected whole numbers"),
        ({"train_client": OWNERS.astype("U2"), "test_client": OWNERS[:3]}, "train_client must hold numbers, not <U2"),
    ],
)
def test_unfit_clients_of_an_archive_are_refused(tmp_path: Path, arrays: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        load(archive(tmp_path / "a.npz", **arrays))


def write_clients(root: Path, **images: list[str]) -> Any:
    names = [name for listed in images.values() for name in listed]
    write_folder(root, dict(zip(names, pixels(len(names), (3, 4, 4)), strict=True)))
    return folder_set(root, clients=True)


def test_folders_of_clients(tmp_path: Path) -> None:
    dataset = write_clients(
        tmp_path,
        train=["train/ann/cat/1.png", "train/ann/dog/1.png", "train/bob/cat/deep/1.png", "train/bob/cat/2.png"],
        test=["test/bob/dog/1.png"],
    )
    data = load(dataset)
    assert (data.class_names, data.domain_names) == (("cat", "dog"), ("ann", "bob"))
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([0, 1, 0, 0], [1])
    shards = dealt(dataset, 2)
    assert [rows.tolist() for rows in shards.train] == [[0, 1], [2, 3]]
    assert [rows.tolist() for rows in shards.test] == [[], [0]]


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["train/ann/1.png", "test/ann/cat/1.png"], "train/ann/1.png: expected train/<client>/<class>/<image>"),
        (["train/ann/cat/1.png", "test/bob/cat/1.png"], "test/bob: the client has no images in train/"),
        (["train/ann/cat/1.png", "test/ann/dog/1.png"], "'dog' is no class"),
    ],
)
def test_unfit_folders_of_clients_are_refused(tmp_path: Path, names: list[str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        load(write_clients(tmp_path, images=names))
    with pytest.raises(InvalidComponent, match="leave out test_fraction or clients"):
        folder_set(tmp_path, clients=True, test_fraction=0.5)


def test_the_number_of_clients_is_that_of_the_data(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the data set has 3 clients; use clients: 3"):
        dealt(archive(tmp_path / "a.npz", train_client=OWNERS, test_client=OWNERS[:3]), 4)
    with pytest.raises(UserError, match="the data set does not name its clients; name a file: given:PATH"):
        dealt(archive(tmp_path / "b.npz"), 3)
    with pytest.raises(UserError, match="the data set has 4 clients; use clients: 4"):
        parse_experiment({"dataset": "pacs", "model": "resnet18", "clients": 10, "partition": "given"})
    assert parse_experiment({"dataset": "pacs", "model": "resnet18", "clients": 4, "partition": "given"}).run_id
    with pytest.raises(InvalidComponent, match="content is that of a file: expected path beside it"):
        PARTITIONS.parse({"name": "given", "content": "0" * 16})
    assert PARTITIONS.parse("given").label() == "given"
