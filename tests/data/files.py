"""Small synthetic sets in every layout, and the pixels that went into them."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pickle
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from flbench.registry import DATASETS

#: Where the real sets are, if they are (a test's own data root replaces the variable later).
REAL = Path(os.environ.get("FLBENCH_DATA") or "/nonexistent")


def pixels(count: int, shape: tuple[int, int, int], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def labels(count: int, classes: int = 10) -> np.ndarray:
    return np.arange(count, dtype=np.int64) % classes


def encode(image: np.ndarray, format: str = "PNG") -> bytes:
    channels = image.shape[0]
    out = io.BytesIO()
    Image.fromarray(image[0] if channels == 1 else image.transpose(1, 2, 0)).save(out, format, lossless=True)
    return out.getvalue()


def idx(array: np.ndarray) -> bytes:
    header = bytes((0, 0, 8, array.ndim)) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_idx(folder: Path, packed: bool = True) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for half, count, seed in (("train", 20, 0), ("t10k", 10, 1)):
        images = pixels(count, (1, 28, 28), seed)
        for name, array in ((f"{half}-images-idx3-ubyte", images[:, 0]), (f"{half}-labels-idx1-ubyte", labels(count))):
            if packed:
                (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
            else:
                (folder / name).write_bytes(idx(array))
        written[half] = images
    return written


def write_batches(folder: Path) -> np.ndarray:
    """CIFAR-10's six python batches with four images each; returns the images of all in order."""
    folder.mkdir(parents=True, exist_ok=True)
    images = pixels(24, (3, 32, 32))
    names = [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]
    for name, part in zip(names, np.split(images, 6), strict=True):
        batch = {"batch_label": name, "labels": labels(4).tolist(), "data": part.reshape(4, 3072)}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    return images


def write_cifar100(folder: Path) -> np.ndarray:
    """CIFAR-100's two python batches with 200 training and 100 test images; returns the images of both."""
    folder.mkdir(parents=True, exist_ok=True)
    images = pixels(300, (3, 32, 32))
    for name, part in zip(("train", "test"), np.split(images, [200]), strict=True):
        fine = labels(len(part), 100).tolist()
        batch = {"data": part.reshape(len(part), 3072), "fine_labels": fine, "coarse_labels": [0] * len(part)}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    return images


def write_tinyimagenet(folder: Path, wnids: list[str], per_class: int = 2) -> np.ndarray:
    """The authors' folders with ``per_class`` training images and one test image a class; returns the training images.

    Images are grey in every third class; those of the last class come first in the annotations.
    """
    images = pixels(len(wnids) * per_class, (1, 64, 64)).repeat(3, axis=1)
    for number, wnid in enumerate(wnids):
        for at in range(per_class):
            image = images[number * per_class + at]
            write_folder(folder, {f"train/{wnid}/images/{wnid}_{at}.PNG": image[:1] if number % 3 == 0 else image})
        write_folder(folder, {f"val/images/val_{number}.PNG": image})
    box = "\t0\t0\t62\t62\n"
    lines = [f"val_{number}.PNG\t{wnid}{box}" for number, wnid in enumerate(wnids)]
    (folder / "val/val_annotations.txt").write_text("".join(reversed(lines)))
    (folder / "wnids.txt").write_text("\n".join(wnids) + "\n")
    (folder / "words.txt").write_text("".join(f"{wnid}\tname of {wnid}, with a comma\n" for wnid in wnids[1:]))
    return images


def write_parquet(path: Path, columns: dict[str, Any], metadata: dict[str, str] | None = None) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(columns)
    pq.write_table(table.replace_schema_metadata(metadata) if metadata else table, path)


def write_folder(root: Path, images: dict[str, np.ndarray]) -> None:
    """``{"train/cat/0.png": pixels}``."""
    for name, image in images.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(encode(image, {"webp": "WEBP"}.get(name.rsplit(".")[-1], "PNG")))


def write_halves(root: Path, names: Iterable[str], image: np.ndarray | None = None) -> None:
    """Write one image under these names to train and to test."""
    image = pixels(1, (3, 4, 4))[0] if image is None else image
    write_folder(root, {f"{half}/{name}": image for half in ("train", "test") for name in names})


def official(name: str, folder: Path) -> Any:
    """A registered set whose published checksums are those of the files in ``folder``."""
    cls = DATASETS[name]
    layout = cls.layouts[0]
    present = [folder / file for file in layout.md5 if (folder / file).exists()]
    sums = {path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in present}
    changed = replace(layout, md5={**layout.md5, **sums})

    @dataclass(frozen=True)
    class Changed(cls):  # type: ignore[misc, valid-type]
        layouts = (changed, *cls.layouts[1:])

    Changed.name = name
    return Changed()


def folder_set(path: Path, **settings: Any) -> Any:
    return DATASETS.parse({"name": "folder", "path": str(path), **settings})
