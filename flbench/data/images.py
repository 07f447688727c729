"""Encoded images (PNG, JPEG, WebP ...) to uint8 arrays. Pillow is imported only when something is decoded."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

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
#: How Pillow names pixels of 16 bits a channel that it cuts to 8: ``RGB;16B``. A ``BGR;16`` has 16 bits in all.
_DEEP_PIXELS = re.compile(r"(RGB|LA|CMYK).*;16[BLN]")
#: The EXIF tag of the orientation, and its value for an image as it is stored.
_ORIENTATION, _UPRIGHT = 0x0112, 1
#: Decoding small images hardly gains from threads (1.0 to 1.3 times with two), large ones nearly linearly.
_MOST_THREADS = 4


@dataclass(frozen=True)
class Encoded:
    """One image that is not decoded yet; ``where`` names it in messages."""

    where: str
    source: bytes | Path

    @contextmanager
    def open(self) -> Iterator[Any]:
        """The Pillow image, of 8 bits a channel; only its header is read."""
        from PIL import Image

        source = self.source
        with io.BytesIO(source) if isinstance(source, bytes) else open_regular(source) as file:
            opened = Image.open(file)
            if _is_deep(opened):
                raise UserError(
                    f"{self.where} has more than 8 bits a channel (mode {opened.mode}); convert it to 8 bits"
                )
            yield opened


class Oddity(NamedTuple):
    """A property of an image file that its decoded pixels do not have, and the file."""

    what: str
    where: str


_TURNED = "has an EXIF orientation, which is not applied, as in torchvision's ImageFolder; turn the files to apply it"
_CLEAR = "has transparent pixels, whose transparency is dropped, as in torchvision's ImageFolder"


def summaries(oddities: Sequence[Oddity]) -> Iterator[str]:
    """Yield a line for each kind of oddity: ``IMAGE and 3 further images: ...``."""
    for what in dict.fromkeys(oddity.what for oddity in oddities):
        first, *others = (oddity.where for oddity in oddities if oddity.what == what)
        yield f"{first} {what}" + (f" ({len(others) + 1} images in all)" if others else "")


def is_image(path: Path) -> bool:
    """Return whether a file counts as an image by its name. Hidden files are those of editors and file managers."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


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


def decode(images: list[Encoded], shape: Shape, *, resize: bool) -> tuple[Bytes, tuple[Oddity, ...]]:
    """Decode images to (N, C, H, W); ``resize`` allows other sizes (bilinear with antialiasing).

    Returns:
        The pixels as torchvision's ImageFolder has them, and what it ignores.

    Raises:
        UserError: a file is damaged, has more than 8 bits a channel, or another size.
    """
    from PIL import Image

    channels, height, width = shape
    decoded = np.empty((len(images), *shape), dtype=np.uint8)
    oddities: list[Oddity] = []
    for row, image in enumerate(images):
        with reading(image.where), image.open() as opened:
            converted = opened.convert("L" if channels == 1 else "RGB")
            oddities += (Oddity(what, image.where) for what in _oddities(opened))
        if converted.size != (width, height):
            if not resize:
                got = "{}x{}".format(*converted.size)
                raise UserError(f"{image.where} is {got} pixels, expected {width}x{height}")
            converted = converted.resize((width, height), Image.Resampling.BILINEAR)
        pixels = np.asarray(converted)
        decoded[row] = pixels if channels == 1 else pixels.transpose(2, 0, 1)
    return decoded, tuple(oddities)


def _is_deep(opened: Any) -> bool:
    """Return whether an image has more than 8 bits a channel; Pillow cuts those of colour images silently."""
    if opened.mode in _DEEP_MODES:
        return True
    for codec, _, _, details in getattr(opened, "tile", ()):
        arguments = details if isinstance(details, tuple) else (details,)
        if codec.startswith("ppm") and arguments[1:] and arguments[1] > 255:
            return True
        if any(isinstance(argument, str) and _DEEP_PIXELS.match(argument) for argument in arguments):
            return True
    return False


def _oddities(opened: Any) -> Iterator[str]:
    """Yield the properties of an image file that its decoded pixels do not have."""
    try:
        orientation = opened.getexif().get(_ORIENTATION, _UPRIGHT)
    except Exception:  # a damaged block of EXIF data does not say how the image is turned
        orientation = _UPRIGHT
    if orientation in range(2, 9):
        yield _TURNED
    if opened.has_transparency_data and opened.convert("RGBA").getchannel("A").getextrema()[0] < 255:
        yield _CLEAR


def decode_batches(
    batches: Iterable[list[Encoded]], shape: Shape, *, resize: bool
) -> Iterator[tuple[Bytes, tuple[Oddity, ...]]]:
    """Decode each batch with a few threads; only one batch is held in memory."""
    threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
    with ThreadPoolExecutor(threads) as pool:
        for batch in batches:
            chunk = max(1, -(-len(batch) // (4 * threads)))
            parts = [batch[start : start + chunk] for start in range(0, len(batch), chunk)]
            decoded, oddities = zip(*pool.map(partial(decode, shape=shape, resize=resize), parts), strict=True)
            yield np.concatenate(decoded), tuple(chain(*oddities))
