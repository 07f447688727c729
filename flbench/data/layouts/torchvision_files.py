"""The files that torchvision downloads: MNIST's idx files, CIFAR's python batches and SVHN's MATLAB files.

torchvision downloads them and does not read them. Its readers open a path again after they checked it: a file that is
exchanged in between reaches ``pickle.load`` (CIFAR) or ``processed/*.pt`` and unpacked files that are not checked
(MNIST). Here the bytes that are parsed are those whose md5 is the one that torchvision publishes. torchvision also
imports torch, which takes longer than to read either set here, and 600 MB more memory.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from flbench.data.arrays import Bytes, Ints
from flbench.data.images import reading
from flbench.data.layouts.base import Expected, FoundFiles, Layout, RawData, RawSplit, split_of_arrays
from flbench.errors import UserError
from flbench.regular import read_regular

#: Bytes of an unpacked file at most; the largest, EMNIST's, has 547 million.
_MOST_BYTES = 2**30


@dataclass(frozen=True)
class Checksummed(Layout):
    """Files with published md5 sums, in ``folder`` below the data set's."""

    folder: str
    md5: Mapping[str, str | None]  # None where only the archive of all files has a published sum

    def damage(self, folder: Path) -> list[str]:
        """Return files that cannot be read or whose md5 is not the published one."""
        lines = []
        for path in self.find(folder).files:
            try:
                self.checked(path)
            except UserError as error:
                lines.append(str(error))
        return lines

    def checked(self, path: Path) -> bytes:
        """Return a file's bytes, refused when its md5 is not the published one."""
        with reading(path):
            content = read_regular(path)
        got, wanted = hashlib.md5(content, usedforsecurity=False).hexdigest(), self.md5.get(path.name)
        if wanted not in (None, got):
            raise UserError(
                f"{path} is damaged: its md5 is {got}, published is {wanted}; delete it and fetch it again "
                "(flbench data download). A changed set can be named as {name: folder, path: ...}."
            )
        return content


@dataclass(frozen=True)
class Idx(Checksummed):
    """MNIST's four idx files: gzipped, as published and checked by md5, or unpacked.

    ``halves`` are the beginnings of the files' names of train and test; ``first`` is the label that becomes 0.
    """

    title: ClassVar[str] = "torchvision's idx files"
    halves: tuple[str, str] = ("train", "t10k")
    first: int = 0

    def find(self, folder: Path) -> FoundFiles:
        """Return the four files; the gzipped one before the unpacked one."""
        files, lacking = [], []
        for name in self.md5:
            packed = folder / self.folder / name
            present = [path for path in (packed, packed.with_suffix("")) if path.is_file()]
            files += present[:1]
            lacking += [] if present else [f"{self.folder}/{name}"]
        return FoundFiles(files, lacking)

    def read(self, folder: Path, expected: Expected) -> RawData:
        splits = []
        for half in self.halves:
            images, where = self._array(folder, f"{half}-images-idx3-ubyte", dimensions=3)
            labels, _ = self._array(folder, f"{half}-labels-idx1-ubyte", dimensions=1)
            splits.append(split_of_arrays(images[:, None], labels.astype(np.int64) - self.first, where, expected.shape))
        return RawData(splits[0], splits[1])

    def counts(self, folder: Path) -> tuple[int, int]:
        """Return the numbers of labels: a file that is not gzipped has no published checksum."""
        train, test = (self._array(folder, f"{half}-labels-idx1-ubyte", dimensions=1) for half in self.halves)
        return len(train[0]), len(test[0])

    def _array(self, folder: Path, name: str, *, dimensions: int) -> tuple[Bytes, Path]:
        """Return the array in one of the files, and the file."""
        path = next(path for path in self.find(folder).files if path.name.removesuffix(".gz") == name)
        content = self.checked(path)
        with reading(path):
            if path.suffix == ".gz":
                content = gzip.GzipFile(fileobj=io.BytesIO(content)).read(_MOST_BYTES + 1)
            if len(content) > _MOST_BYTES:
                raise ValueError(f"it has more than {_MOST_BYTES:,} bytes")
        header = 4 + 4 * dimensions
        shape = tuple(int(n) for n in np.frombuffer(content[4:header], dtype=">u4"))
        if content[:4] != bytes((0, 0, 8, dimensions)) or len(content) != header + int(np.prod(shape, dtype=np.int64)):
            raise UserError(f"{path} is damaged: not a whole idx file of bytes in {dimensions} dimensions")
        return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape), path


@dataclass(frozen=True)
class CifarBatches(Checksummed):
    """CIFAR's python batches: pickled dicts with ``data`` (N, 3072) and ``label``."""

    title: ClassVar[str] = "torchvision's python batches"
    train: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    label: str = "labels"

    def find(self, folder: Path) -> FoundFiles:
        paths = [folder / self.folder / name for name in (*self.train, *self.test)]
        lacking = [f"{self.folder}/{path.name}" for path in paths if not path.is_file()]
        return FoundFiles([path for path in paths if path.is_file()], lacking)

    def read(self, folder: Path, expected: Expected) -> RawData:
        """Return images as (N, 3, 32, 32), in the order of the files."""
        splits = []
        for names in (self.train, self.test):
            parts = [self._batch(folder / self.folder / name) for name in names]
            images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
            splits.append(split_of_arrays(images, labels, folder / self.folder, expected.shape))
        return RawData(splits[0], splits[1])

    def _batch(self, path: Path) -> tuple[Bytes, Ints]:
        content = self.checked(path)
        with reading(path):
            batch = NumpyUnpickler(io.BytesIO(content), encoding="latin1").load()
        data, labels = (batch.get("data"), batch.get(self.label)) if isinstance(batch, dict) else (None, None)
        if not (isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.ndim == 2 and data.shape[1] == 3072):
            raise UserError(f"{path} is damaged: expected 'data' as an (N, 3072) array of bytes")
        if not (isinstance(labels, list) and all(type(label) is int for label in labels)):
            raise UserError(f"{path} is damaged: expected {self.label!r} as a list of integers")
        return data.reshape(-1, 3, 32, 32), np.array(labels, dtype=np.int64)


@dataclass(frozen=True)
class MatFiles(Checksummed):
    """SVHN's two MATLAB files: ``X`` (32, 32, 3, N) and ``y`` (N, 1), in which the label 10 is the digit 0."""

    title: ClassVar[str] = "torchvision's MATLAB files"

    def find(self, folder: Path) -> FoundFiles:
        paths = [folder / self.folder / name for name in self.md5]
        present = [path for path in paths if path.is_file()]
        return FoundFiles(present, [path.name for path in paths if path not in present])

    def read(self, folder: Path, expected: Expected) -> RawData:
        """Return images as (N, 3, 32, 32), in the order of the files."""
        train, test = (self._split(folder / self.folder / name, expected) for name in self.md5)
        return RawData(train, test)

    def _split(self, path: Path, expected: Expected) -> RawSplit:
        from scipy.io import loadmat

        content = self.checked(path)
        with reading(path):
            arrays = loadmat(io.BytesIO(content), variable_names=["X", "y"])
            images, labels = (np.asarray(arrays[name]) for name in ("X", "y"))
        if images.dtype != np.uint8 or images.ndim != 4 or labels.dtype != np.uint8 or labels.shape[1:] != (1,):
            raise UserError(f"{path} is damaged: expected X as (32, 32, 3, N) and y as (N, 1), both of bytes")
        pixels = np.ascontiguousarray(images.transpose(3, 2, 0, 1))
        return split_of_arrays(pixels, labels[:, 0].astype(np.int64) % 10, path, expected.shape)


class NumpyUnpickler(pickle.Unpickler):
    """An unpickler that builds numpy arrays and plain containers and refuses everything else, so it runs no code."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the class or function of one of the few names that pickled arrays need; numpy moved one of them."""
        if (module, name) == ("_codecs", "encode"):
            return _latin1
        module = module.replace("numpy.core", "numpy._core")
        if (module, name) in {("numpy._core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")}:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no data file needs")


def _latin1(text: str, encoding: str) -> bytes:
    """Return how protocol 2 writes bytes; other encodings (zlib, ...) are not needed."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it asks for the encoding {encoding!r}")
    return text.encode("latin1")
