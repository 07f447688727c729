"""Folders of images, one folder per class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import ClassVar

import numpy as np

from flbench.data.images import SUFFIXES
from flbench.data.layouts.base import Expected, FoundFiles, Layout, RawData, names_in, splits_of_files
from flbench.errors import UserError


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
        return _read(listings, folder, expected)


class ClientFolder(ImageFolder):
    """Images in ``train/<client>/<class>/`` and ``test/<client>/<class>/``, at any depth below.

    Clients are the sorted names of the folders in ``train`` (by number if all are numbers); one may have no test
    images. Labels follow ``classes.txt`` or, without it, the sorted names of the folders of classes in ``train``.
    """

    title: ClassVar[str] = "image folder by client"

    def read(self, folder: Path, expected: Expected) -> RawData:
        """List the files now; decode pixels in batches later."""
        listings: list[list[tuple[Path, str]]] = []
        owners: list[list[str]] = []
        for half in ("train", "test"):
            parts = [(path, path.relative_to(folder / half).parts) for path in _images_below(folder / half)]
            if wrong := next((path for path, names in parts if len(names) < 3), None):
                raise UserError(f"{wrong}: expected {half}/<client>/<class>/<image>")
            listings.append([(path, names[1]) for path, names in parts])
            owners.append([names[0] for _, names in parts])
        clients = _sorted(owners[0])
        if unknown := sorted({*owners[1]} - {*clients}):
            raise UserError(f"{folder / 'test' / unknown[0]}: the client has no images in train/")
        raw, place = _read(listings, folder, expected), {name: number for number, name in enumerate(clients)}
        train, test = (
            replace(half, domains=np.array([place[name] for name in own], dtype=np.int64))
            for half, own in zip((raw.train, raw.test), owners, strict=True)
        )
        return replace(raw, train=train, test=test, domain_names=clients)


class UnsplitFolder(Layout):
    """Images in ``<class>/`` or ``train/<class>/`` and no test images, of which ``test_fraction`` becomes the test set.

    The split is fixed and stratified: of n images of a class, in the order of their names, floor(n * test_fraction) at
    even distances are test images (0.2: every fifth). Labels are as in ``ImageFolder``.
    """

    title: ClassVar[str] = "image folder without test images"

    def find(self, folder: Path) -> FoundFiles:
        """Return every image, and the file of names."""
        files, names = _images_below(_home(folder)), folder / "classes.txt"
        found = (*files, names) if files and names.is_file() else tuple(files)
        return FoundFiles(found, () if files else ("<class>/<image>",))

    def read(self, folder: Path, expected: Expected) -> RawData:
        """List the files now; decode pixels in batches later."""
        if _images_below(folder / "test"):
            raise UserError(f"{folder} has test images in test/; leave out 'test_fraction'")
        share, home = Fraction(str(expected.test_fraction)), _home(folder)
        listings: tuple[list[tuple[Path, str]], list[tuple[Path, str]]] = ([], [])
        seen: Counter[str] = Counter()
        for path in _images_below(home):
            name = path.relative_to(home).parts[0]
            seen[name] += 1
            listings[int(seen[name] * share) - int((seen[name] - 1) * share)].append((path, name))
        if not listings[1]:
            raise UserError(f"{folder}: test_fraction {expected.test_fraction} of each class are no images; raise it")
        return _read(listings, folder, expected)


def _home(folder: Path) -> Path:
    return folder / "train" if (folder / "train").is_dir() else folder


def _read(listings: Sequence[list[tuple[Path, str]]], folder: Path, expected: Expected) -> RawData:
    names = names_in(folder / "classes.txt")
    if not names:
        names = _sorted(name for _, name in listings[0])
    train, test = splits_of_files(listings, names, "classes.txt or train/", expected)
    return RawData(train, test, names)


def _sorted(names: Iterable[str]) -> tuple[str, ...]:
    found = {*names}
    return tuple(sorted(found, key=int if all(name.isdecimal() for name in found) else str))


def _images_below(folder: Path) -> list[Path]:
    classes = sorted(path for path in folder.glob("*") if path.is_dir() and not path.name.startswith("."))
    return [
        path
        for one in classes
        for path in sorted(one.rglob("*"))
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    ]
