"""Encoded images (PNG, JPEG, WebP ...) to uint8 arrays. Pillow is imported only when something is decoded."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from flbench.data.arrays import Bytes
from flbench.errors import UserError
from flbench.regular import open_regular

#: Channels, height, width.
Shape = tuple[int, int, int]

#: File name endings that count as images in an image folder.
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff"})

_GREY_MODES = frozenset({"1", "L", "LA"})
_DEEP_MODES = frozenset({"I", "F", "I;16", "I;16B", "I;16L", "I;16N"})
#: Decoding small images hardly gains from threads (1.0 to 1.3 times with two), large ones nearly linearly.
_MOST_THREADS = 4


@dataclass(frozen=True)
class Encoded:
    """One image that is not decoded yet; ``where`` names it in messages."""

    where: str
    source: bytes | Path

    @contextmanager
    def open(self) -> Iterator[Any]:
        """The Pillow image; only its header is read."""
        from PIL import Image

        source = self.source
        with io.BytesIO(source) if isinstance(source, bytes) else open_regular(source) as file:
            yield Image.open(file)


@contextmanager
def reading(where: str | Path) -> Iterator[None]:
    """Turn any error about a damaged file into one message that names the file."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:
        detail = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"cannot read {where}: {detail}. If it is damaged, fetch or write it again.") from error


def common_shape(images: Iterable[Encoded], size: int | None) -> Shape:
    """Return the shape that all images share: one channel if all are grey, else three; ``size`` squared if given.

    Raises:
        UserError: images differ in size and no ``size`` was given, or a file is no image with 8 bits per channel.
    """
    channels, height, width, first = 1, 0, 0, ""
    for image in images:
        with reading(image.where), image.open() as header:
            mode, (w, h) = header.mode, header.size
        if mode in _DEEP_MODES:
            raise UserError(f"{image.where} has more than 8 bits a channel (mode {mode}); convert it to 8 bits")
        if not first:
            height, width, first = h, w, image.where
        elif size is None and (h, w) != (height, width):
            raise UserError(
                f"the images differ in size: {first} is {width}x{height}, {image.where} is {w}x{h}; "
                "set 'size' to resize them all: {name: folder, path: ..., size: 32}"
            )
        if mode not in _GREY_MODES:
            channels = 3
    return (channels, size or height, size or width)


def decode(images: list[Encoded], shape: Shape, *, resize: bool) -> Bytes:
    """Decode images to (N, C, H, W); ``resize`` allows other sizes (bilinear with antialiasing)."""
    from PIL import Image

    channels, height, width = shape
    decoded = np.empty((len(images), *shape), dtype=np.uint8)
    for row, image in enumerate(images):
        with reading(image.where), image.open() as opened:
            converted = opened.convert("L" if channels == 1 else "RGB")
        if converted.size != (width, height):
            if not resize:
                got = "{}x{}".format(*converted.size)
                raise UserError(f"{image.where} is {got} pixels, expected {width}x{height}")
            converted = converted.resize((width, height), Image.Resampling.BILINEAR)
        pixels = np.asarray(converted)
        decoded[row] = pixels if channels == 1 else pixels.transpose(2, 0, 1)
    return decoded


def decode_batches(batches: Iterable[list[Encoded]], shape: Shape, *, resize: bool) -> Iterator[Bytes]:
    """Decode each batch with a few threads; only one batch is held in memory."""
    threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
    with ThreadPoolExecutor(threads) as pool:
        for batch in batches:
            chunk = max(1, -(-len(batch) // (4 * threads)))
            parts = [batch[start : start + chunk] for start in range(0, len(batch), chunk)]
            yield np.concatenate(list(pool.map(partial(decode, shape=shape, resize=resize), parts)))
