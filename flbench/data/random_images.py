"""Images of noise, for measurements of speed and memory: training on them costs as much as on a data set."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flbench.data.arrays import Arrays, Data
from flbench.data.datasets import Dataset, load
from flbench.errors import DataMissing

#: The fingerprint of random images.
RANDOM = "random images"


def load_or_random(dataset: Dataset, root: Path | None) -> Data:
    """Return a data set, or as many random images of its shape if its files are missing.

    Raises:
        DataMissing: the files are missing, and the data set does not define the shape of its images.
    """
    try:
        return load(dataset, root)
    except DataMissing:
        if dataset.image is None or dataset.classes is None:
            raise
        train, test = dataset.counts or (10_000, 1_000)
        return random_data(dataset.image, dataset.classes, train=train, test=test)


def random_data(image: tuple[int, int, int], classes: int, *, train: int, test: int = 100) -> Data:
    """Return images of noise, with labels that cycle through the classes."""
    generator = np.random.default_rng(0)

    def half(count: int) -> Arrays:
        images = generator.integers(0, 256, size=(count, *image), dtype=np.uint8)
        return Arrays(images, np.arange(count) % classes)

    return Data(half(train), half(test), classes, tuple(map(str, range(classes))), 255, RANDOM)
