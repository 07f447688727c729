"""One numpy archive (``.npz``) with the arrays of a whole data set."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from flbench.data.arrays import Bytes, Ints
from flbench.data.images import reading
from flbench.data.layouts.base import Expected, FoundFiles, Layout, RawData, split_of_arrays
from flbench.errors import UserError
from flbench.regular import open_regular

#: The names of images and labels in train and test: Keras' way, and MedMNIST's.
_SPELLINGS = (
    (("x_train", "y_train"), ("x_test", "y_test")),
    (("train_images", "train_labels"), ("test_images", "test_labels")),
)
#: The names of the arrays that say whose each sample is, in train and test.
_CLIENTS = ("train_client", "test_client")
#: Bytes that an array may have; an archive of a few megabytes can claim any number.
_MOST_BYTES = 16 * 2**30
#: Images that are rounded at once.
_BLOCK = 1024
#: Errors of rounding up to this are those of bytes that were divided by 255 as float16 or float32.
_EXACT = 2.5e-4


class NumpyArchive(Layout):
    """``x_train``, ``y_train``, ``x_test``, ``y_test``, or MedMNIST's ``train_images`` ...; other arrays are not read.

    Images are (N, H, W), (N, H, W, C) or (N, C, H, W) with one channel or three, as uint8, or as floats in [0, 1],
    which are rounded to the nearest of 256 levels. Labels are whole numbers from 0, (N,) or (N, 1). So are
    ``train_client`` and ``test_client``, the client of each sample, which may be missing. Pickled arrays are refused.
    """

    title: ClassVar[str] = "numpy archive"
    version: ClassVar[int] = 2

    def find(self, folder: Path) -> FoundFiles:
        """Return the archive: here ``folder`` is the file itself."""
        return FoundFiles([folder], []) if folder.is_file() else FoundFiles([], ["file"])

    def read(self, folder: Path, expected: Expected) -> RawData:
        with reading(folder), open_regular(folder) as file, zipfile.ZipFile(file) as archive:
            arrays = _arrays(archive, folder)
            halves, notes = [], []
            for name, images, labels in arrays:
                rounded, error = _images(images, f"{folder}, {name}")
                halves.append(split_of_arrays(rounded, _labels(labels, f"{folder}, labels"), folder, None))
                if error > _EXACT:
                    notes.append(f"{name}: floats are rounded to 256 levels, by up to {error:.2g}")
            clients, names = _clients(archive, [half.labels for half in halves], folder)
        if halves[0].shape != halves[1].shape:
            raise UserError(f"{folder}: training images are {halves[0].shape}, test images {halves[1].shape}")
        train, test = (replace(half, domains=own) for half, own in zip(halves, clients, strict=True))
        return RawData(train, test, domain_names=names, notes=tuple(notes))


def _arrays(archive: zipfile.ZipFile, path: Path) -> list[tuple[str, np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Return the name of the images, images and labels of train and test."""
    names = {name.removesuffix(".npy") for name in archive.namelist()}
    for spelling in _SPELLINGS:
        if names >= {name for pair in spelling for name in pair}:
            return [(image, _array(archive, image, path), _array(archive, label, path)) for image, label in spelling]
    wanted = " or ".join(", ".join(name for pair in spelling for name in pair) for spelling in _SPELLINGS)
    raise UserError(f"{path}: expected the arrays {wanted}; it holds {', '.join(sorted(names)[:20]) or 'none'}")


def _clients(
    archive: zipfile.ZipFile, labels: Sequence[Ints], path: Path
) -> tuple[Sequence[Ints | None], tuple[str, ...]]:
    """Return the client of each sample in train and test, counted from 0 in sorted order, and the clients' names."""
    there = [name for name in _CLIENTS if f"{name}.npy" in archive.namelist()]
    if not there:
        return (None, None), ()
    if len(there) == 1:
        raise UserError(f"{path}: expected both or none of {' and '.join(_CLIENTS)}; it holds {there[0]}")
    numbers = [_labels(_array(archive, name, path), f"{path}, {name}") for name in _CLIENTS]
    for name, own, of in zip(_CLIENTS, numbers, labels, strict=True):
        if len(own) != len(of):
            raise UserError(f"{path} is damaged: {len(of)} labels and {len(own)} numbers in {name}")
    known = np.unique(numbers[0])
    if len(unknown := np.setdiff1d(numbers[1], known)):
        raise UserError(f"{path}: client {unknown[0]} is in test_client and not in train_client")
    return [np.searchsorted(known, own) for own in numbers], tuple(map(str, known))


def _array(archive: zipfile.ZipFile, name: str, path: Path) -> np.ndarray[Any, Any]:
    """Return an array whose header fits its size: a header alone can claim more memory than the machine has."""
    member = archive.getinfo(f"{name}.npy")
    with archive.open(member) as file:
        major, _ = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
        if dtype.hasobject or dtype.kind not in "uif":
            raise UserError(f"{path}: {name} must hold numbers, not {dtype}; pickled Python objects are never read")
        claimed, stored = math.prod(shape) * dtype.itemsize, member.file_size - file.tell()
        if min(shape, default=0) < 0 or claimed != stored:
            raise UserError(f"{path} is damaged: {name} claims {claimed:,} bytes and has {stored:,}")
        if claimed > _MOST_BYTES:
            raise UserError(f"{path}: {name} has {claimed:,} bytes, more than the {_MOST_BYTES:,} that are read")
    with archive.open(member) as file:
        array: np.ndarray[Any, Any] = np.lib.format.read_array(file, allow_pickle=False)
        return array


def _images(images: np.ndarray[Any, Any], where: str) -> tuple[Bytes, float]:
    """Return images as (N, C, H, W) bytes, and the largest error of rounding floats to them."""
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and (images.shape[1] in (1, 3)) != (images.shape[3] in (1, 3)):
        images = images if images.shape[1] in (1, 3) else images.transpose(0, 3, 1, 2)
    else:
        raise UserError(
            f"{where}: expected images as (N, H, W), (N, H, W, C) or (N, C, H, W) with C of 1 or 3, got {images.shape}"
        )
    if not images.size:
        raise UserError(f"{where}: there are no images, its shape is {images.shape}")
    if images.dtype.kind == "f":
        low, high = float(images.min()), float(images.max())
        if not (low >= 0 and high <= 1):
            raise UserError(f"{where}: floats must be in [0, 1], got {low:g} to {high:g}; rescale them, or use uint8")
        rounded, error = np.empty(images.shape, np.uint8), 0.0
        for start in range(0, len(images), _BLOCK):
            levels = images[start : start + _BLOCK].astype(np.float64) * 255
            nearest = np.rint(levels)
            error = max(error, float(np.abs(levels - nearest).max()) / 255)
            rounded[start : start + _BLOCK] = nearest
        return rounded, error
    if images.dtype != np.uint8:
        raise UserError(f"{where}: expected uint8, or floats in [0, 1], got {images.dtype}")
    return images, 0.0


def _labels(labels: np.ndarray[Any, Any], where: str) -> Ints:
    """Return labels as (N,)."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "ui":
        raise UserError(f"{where}: expected whole numbers as (N,) or (N, 1), got {labels.dtype} of {labels.shape}")
    if len(labels) and labels.max() > 2**31:
        raise UserError(f"{where}: label {labels.max()} is too large; labels count from 0")
    return labels.astype(np.int64)
