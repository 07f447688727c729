"""TinyImageNet as its authors pack it: ``tiny-imagenet-200.zip``, unpacked."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from flbench.data.images import is_image, reading
from flbench.data.layouts.base import Expected, FoundFiles, Layout, RawData, splits_of_files
from flbench.errors import UserError
from flbench.regular import read_text

_HOME = "tiny-imagenet-200"
_ANNOTATIONS = f"{_HOME}/val/val_annotations.txt"


class TinyImageNetZip(Layout):
    """``train/<wnid>/images/*.JPEG``, ``val/images/*.JPEG`` and ``val/val_annotations.txt``.

    The validation images are the test set: those of ``test/`` have no published labels. Line n of ``wnids.txt`` is
    label n (without it, the n-th folder of ``train/``); ``words.txt`` names the classes.
    """

    title: ClassVar[str] = "the authors' folders"
    version: ClassVar[int] = 2
    optional: ClassVar[tuple[str, ...]] = (_ANNOTATIONS, f"{_HOME}/wnids.txt", f"{_HOME}/words.txt")

    def find(self, folder: Path) -> FoundFiles:
        train, val = _images(folder, "train/*/images"), _images(folder, "val/images")
        lacking = [] if train else [f"{_HOME}/train/<wnid>/images/<image>"]
        lacking += [] if (folder / _ANNOTATIONS).is_file() else [_ANNOTATIONS]
        return FoundFiles((*train, *val), lacking)

    def counts(self, folder: Path) -> tuple[int, int]:
        return len(_images(folder, "train/*/images")), len(_annotated(folder))

    def read(self, folder: Path, expected: Expected) -> RawData:
        """Read the lists now; decode pixels in batches later. Images are sorted by label and name."""
        listings = (
            [(path, path.parent.parent.name) for path in _images(folder, "train/*/images")],
            _annotated(folder),
        )
        wnids = _lines(folder / _HOME / "wnids.txt") or sorted({wnid for _, wnid in listings[0]})
        label = {wnid: number for number, wnid in enumerate(wnids)}
        for listing in listings:
            listing.sort(key=lambda entry: (label.get(entry[1], -1), entry[0].name))
        train, test = splits_of_files(listings, wnids, "wnids.txt or train/", expected)
        words = dict(line.split("\t", 1) for line in _lines(folder / _HOME / "words.txt") if "\t" in line)
        return RawData(train, test, tuple(f"{wnid} {words.get(wnid, '')}".strip() for wnid in wnids))


def _annotated(folder: Path) -> list[tuple[Path, str]]:
    """Return the validation images with the WordNet id of each, from lines of file name, id and a box."""
    entries = []
    for number, line in enumerate(_lines(folder / _ANNOTATIONS), 1):
        name, _, rest = line.partition("\t")
        if not rest:
            raise UserError(f"{folder / _ANNOTATIONS}:{number}: expected an image and its class, got {line!r}")
        entries.append((folder / _HOME / "val/images" / name, rest.partition("\t")[0]))
    return entries


def _images(folder: Path, pattern: str) -> list[Path]:
    places = (folder / _HOME).glob(pattern)
    return sorted(path for place in places for path in place.iterdir() if is_image(path))


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        return []
    with reading(path):
        return [line for line in read_text(path).splitlines() if line.strip()]
