"""One numpy archive (``.npz``) with the arrays of a whole data set."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from flbench.data.arrays import Bytes, Ints, Samples
from flbench.data.images import reading
from flbench.data.layouts.base import Expected, FoundFiles, Layout, RawData, split_of_arrays
from flbench.data.layouts.numbers import as_floats, as_tokens, grouped, standardized
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
_AS_THEY_ARE = "read them as they are: {name: arrays, path: ..., dtype: float32}"
#: Errors of rounding up to this are those of bytes that were divided by 255 as float16 or float32.
_EXACT = 2.5e-4


class NumpyArchive(Layout):
    """``x_train``, ``y_train``, ``x_test``, ``y_test``, or MedMNIST's ``train_images`` ...; other arrays are not read.

    Images are (N, H, W), (N, H, W, C) or (N, C, H, W) with one channel or three, as uint8, or as floats in [0, 1],
    which are rounded to the nearest of 256 levels. Floats (N, D) are features, whole numbers (N, T) are tokens. With
    ``Expected.floats`` all numbers are read as float32, and images may have any number of channels. Labels are whole
    numbers from 0, (N,) or (N, 1). So are ``train_client`` and ``test_client``, the client of each sample, which may be
    missing. Pickled arrays are refused.
    """

    title: ClassVar[str] = "numpy archive"
    version: ClassVar[int] = 2

    def find(self, folder: Path) -> FoundFiles:
        """Return the archive: here ``folder`` is the file itself."""
        return FoundFiles([folder], []) if folder.is_file() else FoundFiles([], ["file"])

    def read(self, folder: Path, expected: Expected) -> RawData:
        with reading(folder), open_regular(folder) as file, zipfile.ZipFile(file) as archive:
            names, images, labels = zip(*_arrays(archive, folder), strict=True)
            values, notes = [], []
            for name, array in zip(names, images, strict=True):
                samples, error = _samples(array, f"{folder}, {name}", floats=expected.floats)
                values.append(samples)
                if error > _EXACT:
                    notes.append(f"{name}: floats are rounded to 256 levels, by up to {error:.2g}")
            if values[0].shape[1:] != values[1].shape[1:]:
                raise UserError(
                    f"{folder}: training images are {values[0].shape[1:]}, test images {values[1].shape[1:]}"
                )
            if values[0].dtype != values[1].dtype:
                raise UserError(f"{folder}: training samples are {values[0].dtype}, test samples {values[1].dtype}")
            if expected.standardize:
                values = list(standardized(*values))
            halves = [
                split_of_arrays(half, _labels(own, f"{folder}, labels"), folder, None)
                for half, own in zip(values, labels, strict=True)
            ]
            sizes = [len(half.labels) for half in halves]
            clients, domain_names = _clients(archive, sizes, folder)
            groups, group_names = _groups(archive, expected.groups, sizes, folder)
        train, test = (
            replace(half, domains=own, groups=several)
            for half, own, several in zip(halves, clients, groups, strict=True)
        )
        return RawData(
            train,
            test,
            domain_names=domain_names,
            notes=tuple(notes),
            vocabulary=1 + int(max(half.max() for half in values)) if values[0].dtype == np.int32 else 0,
            group_names=dict(zip(expected.groups, group_names, strict=True)),
        )


def _arrays(archive: zipfile.ZipFile, path: Path) -> list[tuple[str, np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Return the name of the images, images and labels of train and test."""
    names = {name.removesuffix(".npy") for name in archive.namelist()}
    for spelling in _SPELLINGS:
        if names >= {name for pair in spelling for name in pair}:
            return [(image, _array(archive, image, path), _array(archive, label, path)) for image, label in spelling]
    wanted = " or ".join(", ".join(name for pair in spelling for name in pair) for spelling in _SPELLINGS)
    raise UserError(f"{path}: expected the arrays {wanted}; it holds {', '.join(sorted(names)[:20]) or 'none'}")


def _clients(
    archive: zipfile.ZipFile, sizes: Sequence[int], path: Path
) -> tuple[Sequence[Ints | None], tuple[str, ...]]:
    """Return the client of each sample in train and test, counted from 0 in sorted order, and the clients' names."""
    there = [name for name in _CLIENTS if f"{name}.npy" in archive.namelist()]
    if not there:
        return (None, None), ()
    if len(there) == 1:
        raise UserError(f"{path}: expected both or none of {' and '.join(_CLIENTS)}; it holds {there[0]}")
    numbers = [_labels(_array(archive, name, path), f"{path}, {name}") for name in _CLIENTS]
    for name, own, size in zip(_CLIENTS, numbers, sizes, strict=True):
        if len(own) != size:
            raise UserError(f"{path} is damaged: {size} labels and {len(own)} numbers in {name}")
    known = np.unique(numbers[0])
    if len(unknown := np.setdiff1d(numbers[1], known)):
        raise UserError(f"{path}: client {unknown[0]} is in test_client and not in train_client")
    return [np.searchsorted(known, own) for own in numbers], tuple(map(str, known))


def _groups(
    archive: zipfile.ZipFile, names: Sequence[str], sizes: Sequence[int], path: Path
) -> tuple[Sequence[Ints | None], Sequence[tuple[str, ...]]]:
    """Return the groups of each sample in train and test, and the values of each array that groups them."""
    there = {name.removesuffix(".npy") for name in archive.namelist()}
    columns = []
    for group in names:
        halves = []
        for half, size in zip(("train", "test"), sizes, strict=True):
            if (name := f"{half}_{group}") not in there:
                raise UserError(f"{path}: groups: expected an array {name}; it holds {', '.join(sorted(there)[:20])}")
            own = _array(archive, name, path, kinds="uiU")
            if own.shape != (size,):
                raise UserError(f"{path}: expected {name} as ({size},), got {own.shape}")
            halves.append(own)
        columns.append((halves[0], halves[1]))
    if not columns:
        return (None, None), ()
    train, test, values = grouped(columns)
    return (train, test), values


def _array(archive: zipfile.ZipFile, name: str, path: Path, kinds: str = "uif") -> np.ndarray[Any, Any]:
    """Return an array whose header fits its size: a header alone can claim more memory than the machine has."""
    member = archive.getinfo(f"{name}.npy")
    with archive.open(member) as file:
        major, _ = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
        if dtype.hasobject or dtype.kind not in kinds:
            wanted = "numbers or strings" if "U" in kinds else "numbers"
            raise UserError(f"{path}: {name} must hold {wanted}, not {dtype}; pickled Python objects are never read")
        claimed, stored = math.prod(shape) * dtype.itemsize, member.file_size - file.tell()
        if min(shape, default=0) < 0 or claimed != stored:
            raise UserError(f"{path} is damaged: {name} claims {claimed:,} bytes and has {stored:,}")
        if claimed > _MOST_BYTES:
            raise UserError(f"{path}: {name} has {claimed:,} bytes, more than the {_MOST_BYTES:,} that are read")
    with archive.open(member) as file:
        array: np.ndarray[Any, Any] = np.lib.format.read_array(file, allow_pickle=False)
        return array


def _samples(array: np.ndarray[Any, Any], where: str, *, floats: bool) -> tuple[Samples, float]:
    """Return samples as images (N, C, H, W), features (N, D) or tokens (N, T), and the largest error of rounding."""
    if array.ndim != 2:
        array = _channels_first(array, where, floats=floats)
    if not array.size:
        raise UserError(f"{where}: there are no images, its shape is {array.shape}")
    if floats or (array.ndim == 2 and array.dtype.kind == "f"):
        return as_floats(array, where), 0.0
    return (as_tokens(array, where), 0.0) if array.ndim == 2 else _images(array, where)


def _channels_first(images: np.ndarray[Any, Any], where: str, *, floats: bool) -> np.ndarray[Any, Any]:
    """Return images as (N, C, H, W)."""
    if images.ndim == 3:
        return images[:, None]
    if images.ndim == 4 and (first := images.shape[1] in (1, 3)) != (images.shape[3] in (1, 3)):
        return images if first else images.transpose(0, 3, 1, 2)
    if images.ndim == 4 and floats and not first:
        return images
    raise UserError(
        f"{where}: expected images as (N, H, W), (N, H, W, C) or (N, C, H, W) with C of 1 or 3, got {images.shape}; or "
        "features (N, D) as floats, or tokens (N, T) as whole numbers"
    )


def _images(images: np.ndarray[Any, Any], where: str) -> tuple[Bytes, float]:
    """Return images of bytes, and the largest error of rounding floats to them."""
    if images.dtype.kind == "f":
        low, high = float(images.min()), float(images.max())
        if not (low >= 0 and high <= 1):
            raise UserError(
                f"{where}: floats must be in [0, 1], got {low:g} to {high:g}; rescale them, use uint8, or "
                f"{_AS_THEY_ARE}"
            )
        rounded, error = np.empty(images.shape, np.uint8), 0.0
        for start in range(0, len(images), _BLOCK):
            levels = images[start : start + _BLOCK].astype(np.float64) * 255
            nearest = np.rint(levels)
            error = max(error, float(np.abs(levels - nearest).max()) / 255)
            rounded[start : start + _BLOCK] = nearest
        return rounded, error
    if images.dtype != np.uint8:
        raise UserError(f"{where}: expected uint8, or floats in [0, 1], got {images.dtype}; or {_AS_THEY_ARE}")
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
