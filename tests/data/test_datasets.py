from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from flbench.data.arrays import Data
from flbench.data.datasets import Dataset, data_root, load, locate
from flbench.errors import DataMissing, UserError
from flbench.registry import DATASETS
from tests.data.files import (
    REAL,
    encode,
    folder_set,
    labels,
    official,
    pixels,
    write_batches,
    write_folder,
    write_halves,
    write_idx,
    write_parquet,
)
from tests.start_up import heavy_imports


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Data:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLBENCH_CACHE", str(tmp_path_factory.mktemp("digits")))
        return load(DATASETS.parse("digits"))


def test_digits(digits: Data) -> None:
    assert digits.train.images.shape == (1442, 1, 8, 8)
    assert digits.test.images.shape == (355, 1, 8, 8)
    assert digits.train.labels.dtype == np.int64
    assert (digits.white, digits.classes, digits.train.images.max()) == (16, 10, 16)
    assert digits.class_names == tuple("0123456789")
    assert digits.train.domains is None
    assert digits.fingerprint == DATASETS["digits"].official


@pytest.mark.slow
def test_the_split_of_digits_is_stratified_and_complete(digits: Data) -> None:
    from sklearn.datasets import load_digits

    everything = np.concatenate([digits.train.images, digits.test.images]).reshape(-1, 64)
    assert sorted(map(bytes, everything)) == sorted(map(bytes, load_digits().data.astype(np.uint8)))
    train, test = (np.bincount(half.labels) for half in (digits.train, digits.test))
    assert (test == (train + test) // 5).all()


def test_arrays_are_mapped_contiguous_and_read_only(digits: Data) -> None:
    images = digits.train.images
    assert isinstance(images, np.memmap)
    assert images.flags.c_contiguous
    with pytest.raises(ValueError, match="read-only"):
        images[0] = 0


def test_loading_from_the_cache_imports_no_decoder(tmp_path: Path) -> None:
    write_halves(tmp_path, ["a/a.png"])
    program = (
        "from flbench.registry import DATASETS\n"
        "from flbench.data.datasets import load\n"
        f"load(DATASETS.parse('digits')), load(DATASETS.parse('folder:{tmp_path}'))"
    )
    assert [heavy_imports(program)[0] for _ in range(2)] == [["PIL"], []]


def test_the_root_is_argument_then_variable_then_the_users_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert data_root(tmp_path / "x") == tmp_path / "x"
    assert data_root() == tmp_path / "data"
    monkeypatch.setenv("FLBENCH_DATA", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data_root() == tmp_path / "flbench" / "data"


def test_a_missing_set_is_reported_with_the_places_searched_and_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(DataMissing) as caught:
        load(DATASETS.parse("cifar10"), tmp_path)
    message = str(caught.value)
    assert message.startswith("the data set cifar10 is missing")
    for part in (
        f"{tmp_path}/cifar10, torchvision's python batches: no cifar-10-batches-py/data_batch_1",
        f"{tmp_path}, torchvision's python batches",
        f"{tmp_path}/cifar10, parquet shards: no train-*.parquet, test-*.parquet",
        f"{tmp_path}/cifar10, image folder: no train/<class>/<image>, test/<class>/<image>",
        "flbench data download cifar10",
        "$FLBENCH_DATA",
    ):
        assert part in message


def test_an_incomplete_set_is_reported_with_its_missing_files(tmp_path: Path) -> None:
    write_batches(tmp_path / "cifar10/cifar-10-batches-py")
    (tmp_path / "cifar10/cifar-10-batches-py/test_batch").unlink()
    with pytest.raises(DataMissing, match="incomplete, no cifar-10-batches-py/test_batch"):
        load(DATASETS.parse("cifar10"), tmp_path)


@pytest.mark.parametrize("below", ["mnist", ""])
@pytest.mark.parametrize("packed", [True, False])
def test_idx_files(tmp_path: Path, below: str, packed: bool) -> None:
    folder = tmp_path / below / "MNIST/raw"
    written = write_idx(folder, packed=packed)
    data = load(official("mnist", folder), tmp_path)
    assert (data.train.images == written["train"]).all()
    assert (data.test.images == written["t10k"]).all()
    assert (data.train.labels == labels(20)).all()
    assert data.white == 255


@pytest.mark.parametrize("below", ["cifar10", ""])
def test_python_batches(tmp_path: Path, below: str) -> None:
    folder = tmp_path / below / "cifar-10-batches-py"
    images = write_batches(folder)
    data = load(official("cifar10", folder), tmp_path)
    assert (data.train.images == images[:20]).all()
    assert (data.test.images == images[20:]).all()
    assert data.class_names[0] == "airplane"


def test_torchvisions_layout_comes_before_parquet_and_that_before_images(tmp_path: Path) -> None:
    folder = tmp_path / "cifar10"
    write_halves(folder, [f"{n}/a.png" for n in range(10)], pixels(1, (3, 32, 32))[0])
    assert locate(DATASETS.parse("cifar10"), tmp_path).layout.title == "image folder"
    image = [encode(pixels(1, (3, 32, 32))[0])]
    for half in ("train", "test"):
        write_parquet(folder / f"{half}-00000-of-00001.parquet", {"image": image, "label": [0]})
    assert locate(DATASETS.parse("cifar10"), tmp_path).layout.title == "parquet shards"
    write_batches(tmp_path / "cifar-10-batches-py")
    assert locate(DATASETS.parse("cifar10"), tmp_path).folder == tmp_path


@pytest.mark.slow
def test_published_checksums_are_torchvisions() -> None:
    from torchvision import datasets

    for name, cifar in (("cifar10", datasets.CIFAR10), ("cifar100", datasets.CIFAR100)):
        assert DATASETS[name].layouts[0].md5 == dict([*cifar.train_list, *cifar.test_list])
    assert DATASETS["mnist"].layouts[0].md5 == dict(datasets.MNIST.resources)
    assert DATASETS["fashion_mnist"].layouts[0].md5 == dict(datasets.FashionMNIST.resources)
    svhn = [datasets.SVHN.split_list[half][1:] for half in ("train", "test")]
    assert DATASETS["svhn"].layouts[0].md5 == dict(svhn)


@pytest.mark.slow
def test_class_names_are_torchvisions() -> None:
    """In the order of the labels; of EMNIST Letters without the class 0, which has no letter."""
    from torchvision import datasets

    emnist = datasets.EMNIST.classes_split_dict
    expected = {f"emnist-{split}": tuple(emnist[split]) for split in ("balanced", "byclass", "digits")}
    expected |= {"emnist-letters": tuple(emnist["letters"][1:]), "fashion_mnist": tuple(datasets.FashionMNIST.classes)}
    assert {name: DATASETS[name].class_names for name in expected} == expected


@pytest.mark.parametrize("name", sorted(name for name, cls in DATASETS.classes.items() if cls.class_names))
def test_a_set_has_one_name_for_each_class(name: str) -> None:
    names = DATASETS[name].class_names
    assert len({*names}) == len(names) == DATASETS[name].classes


def test_the_same_images_have_one_fingerprint_in_every_layout(tmp_path: Path) -> None:
    images = write_batches(tmp_path / "a/cifar-10-batches-py")
    order = np.random.default_rng(0).permutation(20)
    for half, part, rows in (("train", images[:20], order), ("test", images[20:], np.arange(4))):
        target = labels(4) if half == "test" else np.tile(labels(4), 5)
        write_parquet(
            tmp_path / f"b/cifar10/{half}-00000-of-00001.parquet",
            {"image": [encode(part[row], "WEBP") for row in rows], "label": target[rows], "index": rows},
        )
    first = load(official("cifar10", tmp_path / "a/cifar-10-batches-py"), tmp_path / "a")
    second = load(DATASETS.parse("cifar10"), tmp_path / "b")
    assert (second.train.images == images[:20]).all()
    assert first.fingerprint == second.fingerprint


def test_the_wrong_number_of_classes_is_refused(tmp_path: Path) -> None:
    write_halves(tmp_path / "cifar10", ["cat/a.png"], pixels(1, (3, 32, 32))[0])
    with pytest.raises(UserError, match="cifar10 has 10 classes, the files name 1: cat"):
        load(DATASETS.parse("cifar10"), tmp_path)


def test_a_new_data_set_is_one_small_class(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Pairs(Dataset):
        image = (3, 4, 4)
        classes = 2

    Pairs.name = "pairs"
    write_halves(tmp_path / "pairs", ["a/a.png", "b/a.png"])
    data = load(Pairs(), tmp_path)
    assert (data.classes, data.class_names, data.white) == (2, ("a", "b"), 255)
    write_folder(tmp_path / "pairs", {"train/a/b.png": pixels(1, (3, 5, 4))[0]})
    with pytest.raises(UserError, match=r"train/a/b.png is 4x5 pixels, expected 4x4"):
        load(Pairs(), tmp_path)


def test_folder_takes_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataMissing, match=f"Check 'path': it is read as {tmp_path}/photos, which is no folder"):
        load(DATASETS.parse("folder:photos"))
    write_halves(tmp_path / "photos", ["a/a.png", "b/a.png"])
    relative, absolute = load(DATASETS.parse("folder:photos")), load(folder_set(tmp_path / "photos"))
    assert relative.fingerprint == absolute.fingerprint
    assert relative.class_names == ("a", "b")


@pytest.mark.skipif(not (REAL / "cifar10").is_dir(), reason="$FLBENCH_DATA does not hold cifar10")
@pytest.mark.slow
def test_real_cifar10_in_its_official_order() -> None:
    data = load(DATASETS.parse("cifar10"), REAL)

    def sha(array: np.ndarray) -> str:
        return hashlib.sha256(array.tobytes()).hexdigest()

    assert sha(data.train.images) == "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111"
    assert sha(data.test.images) == "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56"
    assert sha(data.train.labels.astype(np.uint8)) == "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253"
    assert sha(data.test.labels.astype(np.uint8)) == "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5"
    assert data.fingerprint == DATASETS["cifar10"].official


@pytest.mark.slow
@pytest.mark.parametrize(("name", "shape"), [("fashion_mnist", (60_000, 1, 28, 28)), ("mnist", (60_000, 1, 28, 28))])
def test_real_official_sets(name: str, shape: tuple[int, ...]) -> None:
    if not (REAL / name).is_dir():
        pytest.skip(f"$FLBENCH_DATA does not hold {name}")
    data = load(DATASETS.parse(name), REAL)
    assert data.train.images.shape == shape
    assert data.fingerprint == DATASETS[name].official
