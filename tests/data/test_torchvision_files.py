from __future__ import annotations

import gzip
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flbench.data.datasets import load
from flbench.data.layouts.torchvision_files import NumpyUnpickler
from flbench.errors import UserError
from flbench.registry import DATASETS
from tests.data.files import idx, labels, official, pixels, write_batches, write_idx


def test_files_with_other_checksums_are_refused_before_they_are_read(tmp_path: Path) -> None:
    write_idx(tmp_path / "MNIST/raw")
    with pytest.raises(
        UserError, match=r"train-images-idx3-ubyte.gz is damaged: its md5 is \w+, published is f68b3c2d"
    ):
        load(DATASETS.parse("mnist"), tmp_path)
    write_batches(tmp_path / "cifar-10-batches-py")
    with pytest.raises(UserError, match=r"data_batch_1 is damaged: its md5 is \w+, published is c99cafc1"):
        load(DATASETS.parse("cifar10"), tmp_path)


def packed(content: bytes) -> bytes:
    """Gzipped without the time of day: the content names a test, and all test processes must agree on the names."""
    return gzip.compress(content, mtime=0)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"not gzip", "cannot read .*Not a gzipped file"),
        (packed(idx(pixels(20, (1, 28, 28))[:, 0]))[:-100], "cannot read"),
        (packed(idx(pixels(20, (1, 28, 28))[:, 0])[:-1]), "not a whole idx file of bytes in 3 dimensions"),
        (packed(idx(labels(20))), "not a whole idx file of bytes in 3 dimensions"),
        (packed(b""), "not a whole idx file"),
        (packed(idx(pixels(19, (1, 28, 28))[:, 0])), "19 images and 20 labels"),
        (packed(idx(pixels(20, (1, 8, 8))[:, 0])), r"images of \(1, 8, 8\), expected \(1, 28, 28\)"),
    ],
)
def test_damaged_idx_files_are_reported(tmp_path: Path, content: bytes, expected: str) -> None:
    folder = tmp_path / "MNIST/raw"
    write_idx(folder)
    (folder / "train-images-idx3-ubyte.gz").write_bytes(content)
    with pytest.raises(UserError, match=expected):
        load(official("mnist", folder), tmp_path)


def test_a_label_out_of_range_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / "MNIST/raw"
    write_idx(folder)
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.full(10, 10))))
    with pytest.raises(UserError, match=r"test: label 10 is not in 0\.\.9, the set has 10 classes"):
        load(official("mnist", folder), tmp_path)


class Runs:
    """What a hostile pickle does: call something while it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (
            {"data": np.zeros((4, 3072), np.float32), "labels": [0] * 4},
            "expected 'data' as an .N, 3072. array of bytes",
        ),
        ({"data": np.zeros((4, 3000), np.uint8), "labels": [0] * 4}, "expected 'data'"),
        ({"data": np.zeros((4, 3072), np.uint8), "labels": "0000"}, "expected 'labels' as a list of integers"),
        ({"data": np.zeros((4, 3072), np.uint8)}, "expected 'labels'"),
        ([1, 2, 3], "expected 'data'"),
    ],
)
def test_python_batches_of_another_structure_are_reported(tmp_path: Path, batch: Any, expected: str) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    write_batches(folder)
    (folder / "data_batch_3").write_bytes(pickle.dumps(batch, protocol=2))
    with pytest.raises(UserError, match=f"data_batch_3 is damaged: {expected}"):
        load(official("cifar10", folder), tmp_path)


def test_a_pickle_runs_no_code(tmp_path: Path) -> None:
    folder, trace = tmp_path / "cifar-10-batches-py", tmp_path / "trace"
    write_batches(folder)
    (folder / "data_batch_3").write_bytes(pickle.dumps({"data": Runs(trace), "labels": []}, protocol=2))
    with pytest.raises(UserError, match=r"cannot read .*data_batch_3: it asks for .*, which no data file needs"):
        load(official("cifar10", folder), tmp_path)
    assert not trace.exists()


@pytest.mark.parametrize(
    "stream",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"c__builtin__\ngetattr\n(S'1'\nS'2'\ntR.",
        b"cnumpy\nload\n(S'1'\ntR.",
        b"c_codecs\nencode\n(S'a'\nS'zlib'\ntR.",
    ],
)
def test_a_pickle_that_names_other_functions_is_refused(stream: bytes) -> None:
    import io

    with pytest.raises(pickle.UnpicklingError, match="it asks for"):
        NumpyUnpickler(io.BytesIO(stream), encoding="latin1").load()


def test_a_truncated_pickle_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    write_batches(folder)
    content = (folder / "data_batch_3").read_bytes()
    (folder / "data_batch_3").write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=r"cannot read .*data_batch_3"):
        load(official("cifar10", folder), tmp_path)


def test_pickles_as_python_2_and_old_numpy_wrote_them(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    images = write_batches(folder)
    path = folder / "data_batch_1"
    assert b"numpy._core.multiarray" in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
    assert (load(official("cifar10", folder), tmp_path).train.images == images[:20]).all()


@pytest.mark.parametrize(("split", "classes", "first"), [("balanced", 47, 0), ("letters", 26, 1), ("byclass", 62, 0)])
@pytest.mark.parametrize("gz", [True, False])
def test_emnist_is_read_from_its_idx_files(tmp_path: Path, split: str, classes: int, first: int, gz: bool) -> None:
    folder, written = tmp_path / "EMNIST/raw", {}
    folder.mkdir(parents=True)
    for half, count in (("train", 130), ("test", 70)):
        images, own = pixels(count, (1, 28, 28), count), labels(count, classes) + first
        for what, array in (("images-idx3", images[:, 0]), ("labels-idx1", own)):
            name = f"emnist-{split}-{half}-{what}-ubyte"
            (folder / (f"{name}.gz" if gz else name)).write_bytes(packed(idx(array)) if gz else idx(array))
        written[half] = images
    data = load(DATASETS.parse(f"emnist-{split}"), tmp_path)
    assert np.array_equal(data.train.images, written["train"])
    assert np.array_equal(data.test.images, written["test"])
    assert np.array_equal(data.train.labels, labels(130, classes))
    assert (data.classes, len(set(data.class_names))) == (classes, classes)


def test_a_file_that_unpacks_to_more_than_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "EMNIST/raw"
    folder.mkdir(parents=True)
    for name in DATASETS["emnist-digits"].layouts[0].md5:
        (folder / name).write_bytes(packed(bytes(3_000_000)))
    monkeypatch.setattr("flbench.data.layouts.torchvision_files._MOST_BYTES", 2_000_000)
    with pytest.raises(UserError, match="it has more than 2,000,000 bytes"):
        load(DATASETS.parse("emnist-digits"), tmp_path)


def write_svhn(folder: Path, **changed: Any) -> dict[str, np.ndarray]:
    from scipy.io import savemat

    written = {}
    for half, count in (("train", 30), ("test", 20)):
        images = pixels(count, (3, 32, 32), count)
        arrays = {"X": images.transpose(2, 3, 1, 0), "y": (1 + labels(count)[:, None]).astype(np.uint8), **changed}
        savemat(folder / f"{half}_32x32.mat", arrays)
        written[half] = images
    return written


def test_svhn_is_read_from_its_matlab_files(tmp_path: Path) -> None:
    written = write_svhn(tmp_path)
    with pytest.raises(UserError, match=r"train_32x32.mat is damaged: its md5 is \w+, published is e26dedcc"):
        load(DATASETS.parse("svhn"), tmp_path)
    data = load(official("svhn", tmp_path), tmp_path)
    assert np.array_equal(data.train.images, written["train"])
    assert np.array_equal(data.test.images, written["test"])
    assert data.train.labels.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0] * 3  # 10 is the digit 0


def test_damaged_matlab_files_are_reported(tmp_path: Path) -> None:
    write_svhn(tmp_path, y=np.zeros((3, 4)))
    with pytest.raises(UserError, match=r"damaged: expected X as \(32, 32, 3, N\)"):
        load(official("svhn", tmp_path), tmp_path)
    (tmp_path / "test_32x32.mat").write_bytes(b"MATLAB 5.0")
    (tmp_path / "train_32x32.mat").write_bytes(b"MATLAB 5.0")
    with pytest.raises(UserError, match=r"cannot read .*train_32x32.mat"):
        load(official("svhn", tmp_path), tmp_path)
