"""The data set ``arrays``: what an archive may hold, and what hostile or damaged archives are refused with."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flbench.data.datasets import load
from flbench.errors import DataMissing, UserError
from flbench.registry import DATASETS
from tests.data.files import labels, pixels
from tests.limits import time_limit

COLOUR, GREY = pixels(12, (3, 6, 5)), pixels(12, (1, 6, 5))


def whole(x: np.ndarray = COLOUR, y: Any = None) -> dict[str, Any]:
    y = labels(len(x), 3) if y is None else y
    return {"x_train": x, "y_train": y, "x_test": x[:3], "y_test": y[:3]}


def archive(path: Path, **arrays: Any) -> Any:
    np.savez_compressed(path, **arrays)
    return DATASETS.parse(f"arrays:{path}")


@pytest.mark.parametrize(
    ("x", "images"),
    [
        (COLOUR, COLOUR),
        (COLOUR.transpose(0, 2, 3, 1), COLOUR),
        (GREY, GREY),
        (GREY[:, 0], GREY),
        (GREY.transpose(0, 2, 3, 1), GREY),
        ((COLOUR / 255).astype(np.float32), COLOUR),
        ((GREY[:, 0] / 255).astype(np.float64), GREY),
        (np.asfortranarray(COLOUR), COLOUR),
    ],
)
def test_images_in_every_form(tmp_path: Path, x: np.ndarray, images: np.ndarray) -> None:
    data = load(archive(tmp_path / "a.npz", **whole(x)))
    assert (data.train.images == images).all()
    assert (data.test.images == images[:3]).all()
    assert (data.train.labels == labels(12, 3)).all()
    assert (data.classes, data.white) == (3, 255)


def test_floats_are_rounded_to_256_levels(tmp_path: Path) -> None:
    x = np.array([0, 0.4 / 255, 0.6 / 255, 1.0]).reshape(1, 2, 2).repeat(3, axis=0)
    data = load(archive(tmp_path / "a.npz", **whole(x)))
    assert data.train.images[0].reshape(-1).tolist() == [0, 0, 1, 255]


def test_the_rounding_of_floats_is_said(tmp_path: Path) -> None:
    x = np.array([0, 0.4 / 255, 0.6 / 255, 1.0]).reshape(1, 2, 2).repeat(3, axis=0)
    notes = ("x_train: floats are rounded to 256 levels, by up to 0.0016", "x_test: floats are rounded to 256 levels, ")
    for data in (load(archive(tmp_path / "a.npz", **whole(x))) for _ in range(2)):  # decoded, and from the cache
        assert data.notes[0] == notes[0]
        assert data.notes[1].startswith(notes[1])
    for dtype in (np.float16, np.float32, np.float64):
        of_bytes = np.arange(256, dtype=np.float64).reshape(1, 16, 16).repeat(3, axis=0) / 255
        assert load(archive(tmp_path / "b.npz", **whole(of_bytes.astype(dtype)))).notes == (), "nothing is lost"


def test_medmnists_names_and_labels_in_a_column(tmp_path: Path) -> None:
    y = labels(12, 3)[:, None].astype(np.uint8)
    arrays = {"train_images": COLOUR, "train_labels": y, "test_images": COLOUR[:3], "test_labels": y[:3]}
    data = load(archive(tmp_path / "a.npz", **arrays, val_images=np.array([{}], dtype=object)))  # never read
    assert (data.train.labels == y[:, 0]).all()


def test_the_content_and_not_the_place_identifies_it(tmp_path: Path) -> None:
    first, second = archive(tmp_path / "a.npz", **whole()), archive(tmp_path / "b.npz", **whole())
    other = archive(tmp_path / "c.npz", **whole(COLOUR[::-1]))
    named = [one.holding(load(one).fingerprint) for one in (first, second, other)]
    assert named[0].identity() == named[1].identity() != named[2].identity()
    assert not first.same_place(second)
    assert first.same_place(DATASETS.parse({"name": "arrays", "path": f"{tmp_path}/./a.npz"}))


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x": COLOUR}, "expected the arrays x_train, y_train, x_test, y_test or train_images, .*; it holds x"),
        (whole() | {"x_train": np.array([{}], dtype=object)}, "x_train must hold numbers, not object; pickled"),
        (whole() | {"y_train": np.array(["cat"] * 12)}, "y_train must hold numbers, not <U3"),
        (whole(COLOUR.astype(np.int64)), "expected uint8, or floats in .0, 1., got int64"),
        (whole(COLOUR.astype(np.float32)), r"floats must be in \[0, 1\], got 0 to 255"),
        (whole(np.full((3, 4, 4), np.nan)), r"floats must be in \[0, 1\], got nan"),
        (whole(COLOUR[:, :2]), "with C of 1 or 3, got"),
        (whole(pixels(12, (3, 6, 3))), "with C of 1 or 3, got"),
        (whole() | {"x_test": COLOUR[:0]}, "there are no images"),
        (whole() | {"x_test": GREY[:3]}, "training images are .* test images"),
        (whole() | {"y_train": labels(11)}, "12 images and 11 labels"),
        (whole() | {"y_train": np.full(12, 0.5)}, "expected whole numbers"),
        (whole(y=np.full(12, -1)), "label -1 is not in"),
        (whole(y=np.full(12, 2**63, dtype=np.uint64)), "is too large"),
        (whole() | {"y_test": np.array([0, 1, 7])}, r"label 7 is not in 0\.\.2"),
    ],
)
def test_unfit_arrays_are_refused(tmp_path: Path, arrays: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        load(archive(tmp_path / "a.npz", **arrays))


def hostile(path: Path, header: bytes, payload: bytes = b"") -> Any:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, array in whole().items():
            out = io.BytesIO()
            np.save(out, array)
            content = out.getvalue()
            if name == "x_train":
                content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + payload
            file.writestr(f"{name}.npy", content)
    return DATASETS.parse(f"arrays:{path}")


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (b"{'descr': '|u1', 'fortran_order': False, 'shape': (9999999999999, 6, 5), }\n", "is damaged: x_train claims"),
        (b"{'descr': '|u1', 'fortran_order': False, 'shape': (-1, 6, 5), }\n", "is damaged: x_train claims"),
        (b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n", "pickled Python objects are never read"),
        (b"__import__('os').abort()\n", "cannot read .*a.npz"),
        (b"(" * 5000, "cannot read .*a.npz"),
    ],
)
def test_hostile_headers_are_refused(tmp_path: Path, header: bytes, says: str) -> None:
    with time_limit(60), pytest.raises(UserError, match=says):
        load(hostile(tmp_path / "a.npz", header))


class Bomb:
    """What a pickle would call."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.abort, ()


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n"
    with pytest.raises(UserError, match="never read"):
        load(hostile(tmp_path / "a.npz", header, pickle.dumps(Bomb())))
    (tmp_path / "b.npz").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(UserError, match=r"cannot read .*b.npz"):
        load(DATASETS.parse(f"arrays:{tmp_path / 'b.npz'}"))


def test_damaged_archives_are_refused(tmp_path: Path) -> None:
    dataset = archive(tmp_path / "a.npz", **whole())
    content = (tmp_path / "a.npz").read_bytes()
    flipped = bytearray(content)
    flipped[300] ^= 255
    for damaged in (content[:-30], content[:100], b"", bytes(flipped)):
        (tmp_path / "a.npz").write_bytes(damaged)
        with pytest.raises(UserError, match=r"cannot read .*a.npz|is damaged"):
            load(dataset)


@pytest.mark.parametrize(
    "make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero"), lambda path: path.symlink_to(path.name)]
)
def test_only_regular_files_are_opened(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "a.npz")
    with time_limit(60), pytest.raises(DataMissing, match="no file"):
        load(DATASETS.parse(f"arrays:{tmp_path / 'a.npz'}"))
