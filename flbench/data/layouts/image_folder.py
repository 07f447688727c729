"""Folders of images, one folder per class."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np

from flbench.data.images import is_image, reading
from flbench.data.layouts.base import (
    Expected,
    FoundFiles,
    Layout,
    RawData,
    names_in,
    numbered,
    one_form,
    splits_of_files,
)
from flbench.errors import UserError

#: Folders that operating systems and network drives add; the first holds a small copy of every image.
_OF_SYSTEMS = frozenset(
    {"@eaDir", "#recycle", "#snapshot", "__MACOSX", "$RECYCLE.BIN", "System Volume Information", "lost+found"}
)
#: The file whose line n names class n.
_NAMES = "classes.txt"


class ImageFolder(Layout):
    """Images in ``train/<class>/`` and ``test/<class>/``, at any depth below.

    Labels follow ``classes.txt`` (line n is the folder of label n) or, without it, the sorted names of the folders in
    ``train`` (by number if all are numbers). Hidden files and folders, and those of operating systems, are left out.

    torchvision's ImageFolder is not used: it follows every link, takes the small copies of a network drive for images,
    and reads an image for each file whose name ends like one.
    """

    title: ClassVar[str] = "image folder"
    version: ClassVar[int] = 2
    optional: ClassVar[tuple[str, ...]] = (_NAMES,)

    def find(self, folder: Path) -> FoundFiles:
        train, test = _images_of_halves(folder)
        lacking = [f"{half}/<class>/<image>" for half, images in (("train", train), ("test", test)) if not images]
        return FoundFiles((*train, *test), lacking)

    def counts(self, folder: Path) -> tuple[int, int]:
        train, test = _images_of_halves(folder)
        return len(train), len(test)

    def read(self, folder: Path, expected: Expected) -> RawData:
        listings = [
            [(path, path.relative_to(folder).parts[1]) for path in images] for images in _images_of_halves(folder)
        ]
        _check_links(folder / "train", folder / "test")
        return _read(listings, folder, expected)


class ClientFolder(ImageFolder):
    """Images in ``train/<client>/<class>/`` and ``test/<client>/<class>/``, at any depth below.

    Clients are the sorted names of the folders in ``train`` (by number if all are numbers); one may have no test
    images. Labels follow ``classes.txt`` or, without it, the sorted names of the folders of classes in ``train``.
    """

    title: ClassVar[str] = "image folder by client"

    def read(self, folder: Path, expected: Expected) -> RawData:
        listings: list[list[tuple[Path, str]]] = []
        owners: list[list[str]] = []
        for half, images in zip(("train", "test"), _images_of_halves(folder), strict=True):
            parts = [(path, path.relative_to(folder / half).parts) for path in images]
            if wrong := next((path for path, names in parts if len(names) < 3), None):
                raise UserError(f"{wrong}: expected {half}/<client>/<class>/<image>")
            listings.append([(path, names[1]) for path, names in parts])
            owners.append([names[0] for _, names in parts])
        _check_links(folder / "train", folder / "test")
        clients = _sorted(owners[0])
        number = numbered(clients, f"{folder / 'train'}")
        if unknown := sorted(name for name in {*owners[1]} if one_form(name) not in number):
            raise UserError(f"{folder / 'test' / unknown[0]}: the client has no images in train/")
        raw = _read(listings, folder, expected)
        train, test = (
            replace(half, domains=np.array([number[one_form(name)] for name in own], dtype=np.int64))
            for half, own in zip((raw.train, raw.test), owners, strict=True)
        )
        return replace(raw, train=train, test=test, domain_names=clients)


class UnsplitFolder(Layout):
    """Images in ``<class>/`` or ``train/<class>/`` and no test images, of which ``test_fraction`` becomes the test set.

    The split is fixed and stratified: of n images of a class, in the order of their names, floor(n * test_fraction) at
    even distances are test images (0.2: every fifth). Labels are as in ``ImageFolder``.
    """

    title: ClassVar[str] = "image folder without test images"
    version: ClassVar[int] = 2
    optional: ClassVar[tuple[str, ...]] = (_NAMES,)
    splits: ClassVar[bool] = True

    def find(self, folder: Path) -> FoundFiles:
        images = _images_below(_home(folder))
        return FoundFiles(images, () if images else ("<class>/<image>",))

    def read(self, folder: Path, expected: Expected) -> RawData:
        if _images_below(folder / "test"):
            raise UserError(f"{folder} has test images in test/; leave out 'test_fraction'")
        share, home = Fraction(str(expected.test_fraction)), _home(folder)
        train: list[tuple[Path, str]] = []
        test: list[tuple[Path, str]] = []
        seen: Counter[str] = Counter()
        for path in _images_below(home):
            name = path.relative_to(home).parts[0]
            seen[name] += 1
            is_test = int(seen[name] * share) > int((seen[name] - 1) * share)
            (test if is_test else train).append((path, name))
        if not test:
            raise UserError(f"{folder}: test_fraction {expected.test_fraction} of each class are no images; raise it")
        _check_links(home)
        return _read((train, test), folder, expected)


def _home(folder: Path) -> Path:
    return folder / "train" if (folder / "train").is_dir() else folder


def _read(listings: Sequence[list[tuple[Path, str]]], folder: Path, expected: Expected) -> RawData:
    """Read the names of the classes now; pixels are decoded in batches later."""
    names = names_in(folder / _NAMES) or _sorted(name for _, name in listings[0])
    train, test = splits_of_files(listings, names, f"{_NAMES} or train/", expected)
    return RawData(train, test, names)


def _sorted(names: Iterable[str]) -> tuple[str, ...]:
    """Return different names in order; ``01`` comes before ``1``."""
    found = sorted({*names})
    return tuple(sorted(found, key=int) if all(name.isdecimal() for name in found) else found)


def _images_of_halves(folder: Path) -> tuple[list[Path], list[Path]]:
    return _images_below(folder / "train"), _images_below(folder / "test")


def _images_below(half: Path) -> list[Path]:
    """Return the images in the folders of a half, sorted. A link to a folder is followed where it is one of these."""
    folders = sorted(path for path in _visible(half) if path.is_dir())
    return [image for folder in folders for image in sorted(_images_in(folder))]


def _images_in(folder: Path) -> Iterator[Path]:
    for path in _visible(folder):
        if is_image(path):
            yield path
        elif path.is_dir() and not path.is_symlink():
            yield from _images_in(path)


def _visible(folder: Path) -> Iterator[Path]:
    """Yield what is in a folder, if it is one, without hidden files and folders and those of operating systems."""
    if folder.is_dir():
        with reading(folder):
            yield from (path for path in folder.iterdir() if path.name[0] != "." and path.name not in _OF_SYSTEMS)


def _check_links(*halves: Path) -> None:
    """Raise UserError where a link gives the images of one folder to another, or is not followed.

    Links that lead elsewhere are how subsets of a large set are made. One to the other half trains on test images.

    Raises:
        UserError: there is such a link.
    """
    folders = [(half, path) for half in halves for path in sorted(_visible(half)) if path.is_dir()]
    for (outer, one), (inner, other) in pairwise(sorted((_real(path), path) for _, path in folders)):
        if inner.is_relative_to(outer):
            raise UserError(f"{max(one, other)} and {min(one, other)} share images: a folder is a link; remove it")
    homes = {half: _real(half) for half in halves}
    for half, folder in folders:
        for link in _links_in(folder):
            if link.is_dir():
                raise UserError(f"{link} is a link to a folder, which is not followed; put its images there")
            target = _real(link)
            if any(target.is_relative_to(home) for other, home in homes.items() if other != half):
                raise UserError(f"{link} is a link to the image {target} of the other half; remove it")


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _links_in(folder: Path) -> Iterator[Path]:
    for path in _visible(folder):
        if path.is_symlink():
            yield path
        elif path.is_dir():
            yield from _links_in(path)
