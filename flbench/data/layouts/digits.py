"""scikit-learn's embedded digits."""

from __future__ import annotations

from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from flbench.data.images import reading
from flbench.data.layouts.base import Expected, FoundFiles, Layout, RawData, decoded_split


class Digits(Layout):
    """scikit-learn's 1,797 digits. In each class every fifth sample, in scikit-learn's order, is a test sample."""

    title: ClassVar[str] = "embedded"

    def find(self, folder: Path) -> FoundFiles:
        """Return nothing: no files are needed."""
        return FoundFiles((), ())

    def signature(self, folder: Path) -> list[list[Any]]:
        """Return the version of scikit-learn, read without importing it."""
        return [["scikit-learn", version("scikit-learn")]]

    def read(self, folder: Path, expected: Expected) -> RawData:
        """Return images as (N, 1, 8, 8) with values up to 16.

        The table is read without importing scikit-learn, which takes seconds: 64 pixels and the label in a row.
        """
        spec = find_spec("sklearn")
        path = Path((spec and spec.origin) or "sklearn").parent / "datasets/data/digits.csv.gz"
        with reading(path):
            table = np.loadtxt(path, delimiter=",")
        images, labels = table[:, :-1].astype(np.uint8).reshape(-1, 1, 8, 8), table[:, -1].astype(np.int64)
        place = np.empty_like(labels)
        for label in range(10):
            place[labels == label] = np.arange((labels == label).sum())
        test = place % 5 == 4
        train, held = (decoded_split(images[rows], labels[rows], "digits", expected.shape) for rows in (~test, test))
        return RawData(train, held)
