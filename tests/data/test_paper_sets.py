"""The further sets of the label-skew paper: CIFAR-100, TinyImageNet and PACS, in small, and for real where they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flbench.data.arrays import Data
from flbench.data.catalog.published import TinyImageNet
from flbench.data.datasets import download, load, locate, verify
from flbench.data.shards import split
from flbench.errors import DataMissing, UserError
from flbench.registry import DATASETS, PARTITIONS
from tests.data.files import (
    REAL,
    encode,
    labels,
    official,
    pixels,
    write_cifar100,
    write_parquet,
    write_tinyimagenet,
)

DOMAINS = ("photo", "art_painting", "cartoon", "sketch")
WNIDS = [f"n{number:08d}" for number in np.random.default_rng(0).permutation(200)]


@pytest.mark.parametrize("below", ["cifar100", ""])
def test_cifar100_has_fine_labels(tmp_path: Path, below: str) -> None:
    folder = tmp_path / below / "cifar-100-python"
    images = write_cifar100(folder)
    data = load(official("cifar100", folder), tmp_path)
    assert (data.train.images == images[:200]).all()
    assert (data.test.images == images[200:]).all()
    assert data.train.labels.tolist() == list(range(100)) * 2
    assert (data.classes, data.class_names[0], data.class_names[99]) == (100, "apple", "worm")


def test_cifar100_names_its_classes_in_alphabetic_order() -> None:
    names = DATASETS["cifar100"].class_names
    assert len(names) == 100
    assert list(names) == sorted(names)


def test_cifar100_in_hugging_faces_columns(tmp_path: Path) -> None:
    images = pixels(100, (3, 32, 32))
    for half in ("train", "test"):
        table = {
            "img": [encode(image) for image in images],
            "fine_label": labels(100, 100),
            "coarse_label": labels(100),
        }
        write_parquet(tmp_path / f"cifar100/data/{half}-00000-of-00001.parquet", table)
    data = load(DATASETS.parse("cifar100"), tmp_path)
    assert (data.train.images == images).all()
    assert data.train.labels.tolist() == list(range(100))


@pytest.mark.parametrize("below", ["tinyimagenet/", ""])
def test_tinyimagenet_is_read_from_its_authors_folders(tmp_path: Path, below: str) -> None:
    images = write_tinyimagenet(tmp_path / f"{below}tiny-imagenet-200", WNIDS)
    source = locate(DATASETS.parse("tinyimagenet"), tmp_path)
    assert source.layout.title == "the authors' folders"
    data = load(DATASETS.parse("tinyimagenet"), tmp_path)
    assert data.train.images.shape == (400, 3, 64, 64)  # grey images became RGB
    assert (data.train.images == images).all()
    assert (data.test.images == images[1::2]).all()  # sorted by label, whatever the annotations' order
    assert data.train.labels.tolist() == np.repeat(np.arange(200), 2).tolist()
    assert data.test.labels.tolist() == list(range(200))
    assert data.class_names[0] == WNIDS[0]  # without words
    assert data.class_names[1] == f"{WNIDS[1]} name of {WNIDS[1]}, with a comma"


def test_tinyimagenet_without_its_lists(tmp_path: Path) -> None:
    folder = tmp_path / "tiny-imagenet-200"
    write_tinyimagenet(folder, WNIDS)
    (folder / "wnids.txt").unlink()
    (folder / "words.txt").unlink()
    assert load(DATASETS.parse("tinyimagenet"), tmp_path).class_names == tuple(sorted(WNIDS))
    (folder / "val/val_annotations.txt").unlink()
    with pytest.raises(DataMissing, match=r"incomplete, no tiny-imagenet-200/val/val_annotations.txt"):
        load(DATASETS.parse("tinyimagenet"), tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("val_0.PNG\tn99\t0\n", "'n99' is no class"),
        ("val_0.PNG\n", r"val_annotations.txt:1: expected an image and its class, got 'val_0.PNG'"),
        (f"gone.PNG\t{WNIDS[0]}\t0\n", r"cannot read .*gone.PNG"),
    ],
)
def test_damaged_annotations_of_tinyimagenet_are_reported(tmp_path: Path, line: str, message: str) -> None:
    folder = tmp_path / "tiny-imagenet-200"
    write_tinyimagenet(folder, WNIDS)
    (folder / "val/val_annotations.txt").write_text(line)
    with pytest.raises(UserError, match=message):
        load(DATASETS.parse("tinyimagenet"), tmp_path)


def test_tinyimagenet_in_hugging_faces_shards(tmp_path: Path) -> None:
    image = [encode(one) for one in pixels(200, (1, 64, 64))]
    for half in ("train", "valid"):
        table = {"image": [{"bytes": one, "path": None} for one in image], "label": labels(200, 200)}
        write_parquet(tmp_path / f"tinyimagenet/data/{half}-00000-of-00001.parquet", table)
    data = load(DATASETS.parse("tinyimagenet"), tmp_path)
    assert data.test.images.shape == (200, 3, 64, 64)
    assert (data.test.images[:, 0] == data.test.images[:, 2]).all()


def write_pacs(root: Path, *, size: int = 64, **columns: Any) -> None:
    images = [encode(image, "JPEG") for image in pixels(56, (3, size, size))]
    table = {"image": images, "label": np.arange(56) % 7, "domain": [DOMAINS[at // 14] for at in range(56)], **columns}
    for half in ("train", "test"):
        write_parquet(root / f"pacs/{half}-00000-of-00001.parquet", {k: v for k, v in table.items() if v is not None})


def test_the_domains_of_pacs_have_a_fixed_order(tmp_path: Path) -> None:
    write_pacs(tmp_path, size=96)
    data = load(DATASETS.parse("pacs"), tmp_path)
    assert data.domain_names == DOMAINS  # not alphabetic, although there is no domains.txt
    assert data.train.domains is not None
    assert data.train.domains.tolist() == np.repeat(np.arange(4), 14).tolist()
    assert data.train.images.shape == (56, 3, 64, 64)  # resized
    assert data.class_names == ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")


def test_pacs_without_domains_is_refused(tmp_path: Path) -> None:
    write_pacs(tmp_path, domain=None)
    with pytest.raises(UserError, match="has no column 'domain'; the set has domains: photo, art_painting"):
        load(DATASETS.parse("pacs"), tmp_path)
    write_pacs(tmp_path, domain=["sketch", "clipart"] * 28)
    with pytest.raises(UserError, match="domain 'clipart' is not among its domains"):
        load(DATASETS.parse("pacs"), tmp_path)


def test_sets_that_cannot_be_downloaded_are_reported(tmp_path: Path) -> None:
    for name, why in (
        ("pacs", "torchvision does not have it"),
        ("digits", "it is part of scikit-learn"),
        ("folder:x", "you name"),
    ):
        with pytest.raises(UserError, match=why):
            download(DATASETS.parse(name), tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not (REAL / "pacs").is_dir(), reason="$FLBENCH_DATA does not hold pacs")
def test_real_pacs() -> None:
    data = load(DATASETS.parse("pacs"), REAL)
    assert data.train.domains is not None
    assert data.test.domains is not None
    # The standard lists: photo, art_painting, cartoon, sketch.
    assert np.bincount(data.train.domains).tolist() == [1499, 1840, 2107, 3531]
    assert np.bincount(data.test.domains).tolist() == [171, 208, 237, 398]
    sketches = np.bincount(data.train.labels[data.train.domains == 3])
    assert sketches.tolist() == [694, 665, 677, 547, 734, 71, 143]
    assert data.fingerprint == "a7ba09379128cd3f"
    shards = split(PARTITIONS.parse("domain-classes:2-2-3"), data, clients=12, min_size=32, val_fraction=0, seed=0)
    assert sum(map(len, shards.train)) == 8977
    assert sum(map(len, shards.test)) == 1014
    for beta in (0.5, 1):
        parted = PARTITIONS.parse(f"domain-dirichlet:{beta}")
        assert sum(map(len, split(parted, data, clients=12, min_size=1, val_fraction=0, seed=0).train)) == 8977


@pytest.fixture(scope="module")
def tiny() -> Data:
    return load(DATASETS.parse("tinyimagenet"), REAL)


needs_tinyimagenet = pytest.mark.skipif(
    not (REAL / "tinyimagenet").is_dir(), reason="$FLBENCH_DATA does not hold tinyimagenet"
)


@pytest.mark.slow
@needs_tinyimagenet
def test_real_tinyimagenet(tiny: Data) -> None:
    if tiny.fingerprint not in TinyImageNet.parts:
        assert (len(tiny.train.labels), len(tiny.test.labels)) == TinyImageNet.counts
        return
    assert (np.bincount(tiny.train.labels) == 70).all()
    assert (np.bincount(tiny.test.labels) == 20).all()
    assert tiny.class_names[0] == "n02124075 Egyptian cat"
    verdict = verify(DATASETS.parse("tinyimagenet"), REAL)
    assert not verdict.problems
    assert verdict.notes == ("a part of the set: 70 of 500 training and 20 of 50 test images a class",)


@pytest.mark.slow
@needs_tinyimagenet
@pytest.mark.parametrize(("clients", "beta"), [(200, 0.01), (200, 0.02), (200, 0.05), (20, 0.1), (20, 0.2), (20, 0.5)])
def test_real_tinyimagenet_among_the_papers_clients(tiny: Data, clients: int, beta: float) -> None:
    for seed in range(5):
        parted = PARTITIONS.parse(f"dirichlet:{beta}")
        shards = split(parted, tiny, clients=clients, min_size=1, val_fraction=0, seed=seed)
        assert sorted(np.concatenate(shards.train)) == list(range(len(tiny.train.labels)))
        assert sorted(np.concatenate(shards.test)) == list(range(len(tiny.test.labels)))
        assert min(map(len, shards.train)) >= 1
