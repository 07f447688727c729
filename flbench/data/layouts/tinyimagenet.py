"""TinyImageNet as its authors pack it: ``tiny-imagenet-200.zip``, unpacked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from flbench.data.arrays import Ints
from flbench.data.images import SUFFIXES, Encoded, Shape, common_shape, reading
from flbench.data.layouts.base import Expected, FoundFiles, Layout, RawData, RawSplit, image_blocks
from flbench.errors import UserError
from flbench.regular import read_text

#: Images of one split with the WordNet id of each.
_Listing = list[tuple[Path, str]]


@dataclass(frozen=True)
class TinyImageNetZip(Layout):
    """``train/<wnid>/images/*.JPEG``, ``val/images/*.JPEG`` and ``val/val_annotations.txt``, in ``folder``.

    The validation images are the test set: those of ``test/`` have no published labels. Line n of ``wnids.txt`` is
    label n (without it, the n-th folder of ``train/``); ``words.txt`` names the classes.
    """

    title: ClassVar[str] = "the authors' folders"

    folder: str = "tiny-imagenet-200"

    def find(self, folder: Path) -> FoundFiles:
        """Return every image and the files of labels and names."""
        home = folder / self.folder
        train, annotations = _images(home, "train/*/images"), home / "val/val_annotations.txt"
        lacking = [] if train else [f"{self.folder}/train/<wnid>/images/<image>"]
        lacking += [] if annotations.is_file() else [f"{self.folder}/val/val_annotations.txt"]
        names = [path for path in (annotations, home / "wnids.txt", home / "words.txt") if path.is_file()]
        return FoundFiles((*train, *_images(home, "val/images"), *names), tuple(lacking))

    def counts(self, folder: Path) -> tuple[int, int]:
        """Return training images, and annotated validation images."""
        home = folder / self.folder
        return len(_images(home, "train/*/images")), len(_annotated(home / "val"))

    def read(self, folder: Path, expected: Expected) -> RawData:
        """Read the lists now; decode pixels in batches later. Images are sorted by label and name."""
        home = folder / self.folder
        splits = (
            [(path, path.parent.parent.name) for path in _images(home, "train/*/images")],
            _annotated(home / "val"),
        )
        wnids = _lines(home / "wnids.txt") or sorted({wnid for _, wnid in splits[0]})
        label = {wnid: number for number, wnid in enumerate(wnids)}
        for path, wnid in (entry for split in splits for entry in split):
            if wnid not in label:
                raise UserError(f"{path}: {wnid!r} is no class; known, from wnids.txt or train/: {', '.join(wnids)}")
        shape = expected.shape or common_shape((_encoded(path) for split in splits for path, _ in split), expected.size)
        train, test = (_split(split, label, shape, resize=expected.resize) for split in splits)
        words = dict(line.split("\t", 1) for line in _lines(home / "words.txt") if "\t" in line)
        return RawData(train, test, tuple(f"{wnid} {words.get(wnid, '')}".strip() for wnid in wnids))


def _split(listing: _Listing, label: dict[str, int], shape: Shape, *, resize: bool) -> RawSplit:
    ordered = sorted(listing, key=lambda entry: (label[entry[1]], entry[0].name))
    labels: Ints = np.array([label[wnid] for _, wnid in ordered], dtype=np.int64)
    return RawSplit(labels, shape, image_blocks([_encoded(path) for path, _ in ordered], shape, resize=resize))


def _annotated(folder: Path) -> _Listing:
    """Return the validation images: file name, class and a box, separated by tabs."""
    entries = []
    for number, line in enumerate(_lines(folder / "val_annotations.txt"), 1):
        name, _, rest = line.partition("\t")
        if not rest:
            raise UserError(f"{folder / 'val_annotations.txt'}:{number}: expected an image and its class, got {line!r}")
        entries.append((folder / "images" / name, rest.partition("\t")[0]))
    return entries


def _images(home: Path, pattern: str) -> list[Path]:
    return sorted(path for folder in home.glob(pattern) for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)


def _encoded(path: Path) -> Encoded:
    return Encoded(str(path), path)


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        return []
    with reading(path):
        return [line for line in read_text(path).splitlines() if line.strip()]
