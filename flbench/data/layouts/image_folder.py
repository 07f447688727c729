"""Folders of images, one folder per class."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from flbench.data.images import SUFFIXES
from flbench.data.layouts.base import Expected, FoundFiles, Layout, RawData, names_in, splits_of_files


class ImageFolder(Layout):
    """Images in ``train/<class>/`` and ``test/<class>/``, at any depth below.

    Labels follow ``classes.txt`` (line n is the folder of label n) or, without it, the sorted names of the folders in
    ``train`` (by number if all are numbers).
    """

    title: ClassVar[str] = "image folder"

    def find(self, folder: Path) -> FoundFiles:
        """Return every image, and the file of names."""
        found = {half: _images_below(folder / half) for half in ("train", "test")}
        lacking = tuple(f"{half}/<class>/<image>" for half, files in found.items() if not files)
        files = [*found["train"], *found["test"]]
        names = folder / "classes.txt"
        return FoundFiles((*files, names) if files and names.is_file() else tuple(files), lacking)

    def counts(self, folder: Path) -> tuple[int, int]:
        """Return the files below train and test."""
        return len(_images_below(folder / "train")), len(_images_below(folder / "test"))

    def read(self, folder: Path, expected: Expected) -> RawData:
        """List the files now; decode pixels in batches later."""
        listings = [
            [(path, path.relative_to(folder).parts[1]) for path in _images_below(folder / half)]
            for half in ("train", "test")
        ]
        names = names_in(folder / "classes.txt")
        if not names:
            found = {name for _, name in listings[0]}
            names = tuple(sorted(found, key=int if all(name.isdecimal() for name in found) else str))
        train, test = splits_of_files(listings, names, "classes.txt or train/", expected)
        return RawData(train, test, names)


def _images_below(folder: Path) -> list[Path]:
    classes = sorted(path for path in folder.glob("*") if path.is_dir() and not path.name.startswith("."))
    return [
        path
        for one in classes
        for path in sorted(one.rglob("*"))
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    ]
