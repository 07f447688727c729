"""TinyImageNet as its authors pack it: ``tiny-imagenet-200.zip``, unpacked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from flbench.data.images import is_image, reading
from flbench.data.layouts.base import Expected, FoundFiles, Layout, RawData, splits_of_files
from flbench.errors import UserError
from flbench.regular import read_text


@dataclass(frozen=True)
class TinyImageNetZip(Layout):
    """``train/<wnid>/images/*.JPEG``, ``val/images/*.JPEG`` and ``val/val_annotations.txt``, in ``folder``.

    The validation images are the test set: those of ``test/`` have no published labels. Line n of ``wnids.txt`` is
    label n (without it, the n-th folder of ``train/``); ``words.txt`` names the classes.
    """

    title: ClassVar[str] = "the authors' folders"
    version: ClassVar[int] = 2

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
        listings = (
            [(path, path.parent.parent.name) for path in _images(home, "train/*/images")],
            _annotated(home / "val"),
        )
        wnids = _lines(home / "wnids.txt") or sorted({wnid for _, wnid in listings[0]})
        label = {wnid: number for number, wnid in enumerate(wnids)}
        for listing in listings:
            listing.sort(key=lambda entry: (label.get(entry[1], -1), entry[0].name))
        train, test = splits_of_files(listings, wnids, "wnids.txt or train/", expected)
        words = dict(line.split("\t", 1) for line in _lines(home / "words.txt") if "\t" in line)
        return RawData(train, test, tuple(f"{wnid} {words.get(wnid, '')}".strip() for wnid in wnids))


def _annotated(folder: Path) -> list[tuple[Path, str]]:
    """Return the validation images with the WordNet id of each, from lines of file name, id and a box."""
    entries = []
    for number, line in enumerate(_lines(folder / "val_annotations.txt"), 1):
        name, _, rest = line.partition("\t")
        if not rest:
            raise UserError(f"{folder / 'val_annotations.txt'}:{number}: expected an image and its class, got {line!r}")
        entries.append((folder / "images" / name, rest.partition("\t")[0]))
    return entries


def _images(home: Path, pattern: str) -> list[Path]:
    return sorted(path for folder in home.glob(pattern) for path in folder.iterdir() if is_image(path))


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        return []
    with reading(path):
        return [line for line in read_text(path).splitlines() if line.strip()]
