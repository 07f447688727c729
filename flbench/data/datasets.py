"""What a data set is, where flbench looks for its files, and how to load, verify and download it.

The sets themselves are in ``catalog/``.

A set's files are under the data root: the ``root`` argument, else ``$FLBENCH_DATA``, else the user's cache folder. Its
layouts are tried in the order of ``Dataset.layouts``: what torchvision downloads (in ``<root>/<name>/``, and in
``<root>`` itself, where other programs have torchvision put it), then parquet shards in ``<root>/<name>/``, then an
image folder in ``<root>/<name>/``. The first that is complete is read.

A further set is one class here::

    @DATASETS.register("mine")
    @dataclass(frozen=True)
    class Mine(Dataset):
        '''Where it is from.'''

        image = (3, 64, 64)
        classes = 7
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field

from flbench.choices import Augmentation
from flbench.data import cache
from flbench.data.arrays import Data, fingerprint
from flbench.data.images import Shape
from flbench.data.layouts.base import Expected, Layout, RawData
from flbench.data.layouts.image_folder import ImageFolder
from flbench.data.layouts.parquet import Parquet
from flbench.data.split_again import split_again
from flbench.errors import DataMissing, OtherData, UserError
from flbench.registry import Component

#: Classes that labels may count; each has a name, and a model an output.
_MOST_CLASSES = 1_000_000


@dataclass(frozen=True)
class Source:
    """The place of a data set's files, and their layout."""

    layout: Layout
    folder: Path


@dataclass(frozen=True)
class Dataset(Component):
    """Base of the data sets: class attributes describe the content and the layouts of the files.

    ``image`` is (channels, height, width); it is None, like ``classes``, where only the files define it. ``augment`` is
    the training augmentation that is usual for the set. Images are floats in [0, 1]: the stored bytes over ``white``.

    ``content`` is the fingerprint of the decoded arrays, by which the data enter the run id. None stands for the
    official content, the only way to write it; for a set without official content it means: not known yet.

    With ``test_fraction`` the training and the test set are joined and split again (``split_again.py``), and what the
    class declares of content and counts does not apply.

    ``mean`` and ``std`` normalize images in [0, 1] as torchvision's ``Normalize`` does: a number for all channels, or
    one for each.
    """

    image: ClassVar[Shape | None] = None
    classes: ClassVar[int | None] = None
    augment: ClassVar[Augmentation] = "none"
    white: ClassVar[int] = 255
    class_names: ClassVar[tuple[str, ...]] = ()
    #: Its domains in order, where it has some: partitions ``by_domain`` divide these first.
    domains: ClassVar[tuple[str, ...]] = ()
    #: Whether images of another size are resized to ``image`` rather than refused.
    resize: ClassVar[bool] = False
    #: Images in train and test, where the whole set is meant.
    counts: ClassVar[tuple[int, int] | None] = None
    #: The fingerprint of the whole set in its official order, where it is known.
    official: ClassVar[str | None] = None
    #: Descriptions of parts of the set that are in use, by fingerprint.
    parts: ClassVar[Mapping[str, str]] = MappingProxyType({})
    #: The class in torchvision.datasets that downloads it, or why there is none.
    torchvision: ClassVar[str | None] = None
    #: The arguments with which that class is called, once for each.
    downloads: ClassVar[tuple[Mapping[str, str], ...]] = (MappingProxyType({}),)
    no_download: ClassVar[str] = (
        "torchvision does not have it; put its files into its folder yourself ('flbench data list' says where)"
    )
    #: The licence, as far as it is known.
    terms: ClassVar[str] = "see its authors"
    layouts: ClassVar[tuple[Layout, ...]] = (Parquet(), ImageFolder())

    content: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")] | None = dataclasses.field(default=None, kw_only=True)
    test_fraction: Annotated[float, Field(gt=0, lt=1)] | None = dataclasses.field(default=None, kw_only=True)
    mean: tuple[float, ...] = dataclasses.field(default=(), kw_only=True)
    std: tuple[Annotated[float, Field(gt=0)], ...] = dataclasses.field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        """Write the official content as None, and forget it where the set is split again."""
        channels = {1, self.image[0]} if self.image else {len(self.mean)}
        if len(self.mean) != len(self.std) or (self.mean and len(self.mean) not in channels):
            wanted = " or ".join(map(str, sorted(channels))) if self.image else "as many"
            raise ValueError(f"expected mean and std with {wanted} numbers, got {len(self.mean)} and {len(self.std)}")
        if self.test_fraction is not None:
            for declared in ("official", "counts"):
                object.__setattr__(self, declared, None)
        if self.content == self.official:
            object.__setattr__(self, "content", None)

    def holding(self, content: str | None) -> Self:
        """Return the same data set with another content (None: the official one, or not known yet)."""
        return dataclasses.replace(self, content=content)

    def same_place(self, other: Dataset) -> bool:
        """Return whether another data set names the same files, whatever their content."""
        return self.holding(None) == other.holding(None)

    def places(self, root: Path) -> Iterator[Source]:
        """Yield the places where its files may be, the preferred one first."""
        for layout in self.layouts:
            yield Source(layout, root / self.name)
            if not isinstance(layout, (Parquet, ImageFolder)):
                yield Source(layout, root)

    def expected(self) -> Expected:
        """Return the shape that its images must have."""
        size = self.image[1] if self.image is not None and self.resize else None
        return Expected(shape=self.image, size=size, domains=self.domains, test_fraction=self.test_fraction)

    def names_of(self, contents: RawData) -> tuple[str, ...]:
        """Return the classes' names: of the files, else of the set, else numbers; raises UserError if they differ."""
        names = contents.class_names or self.class_names
        if not names:
            count = self.classes or int(contents.train.labels.max(initial=0)) + 1
            if count > _MOST_CLASSES:
                raise UserError(f"{self.label()}: label {count - 1} is too large; labels count from 0")
            names = tuple(map(str, range(count)))
        if self.classes is not None and len(names) != self.classes:
            raise UserError(
                f"{self.name} has {self.classes} classes, the files name {len(names)}: {', '.join(names[:20])}"
            )
        return names

    def advice(self, root: Path) -> str:
        """Return advice for missing files."""
        fetch = f"Fetch it with: flbench data download {self.name}\n" if self.torchvision else ""
        return (
            f"{fetch}Or put its files there yourself, or set $FLBENCH_DATA to the folder that holds {self.name}/ "
            f"(now {root}). 'flbench data list' shows what is found."
        )


def data_root(root: Path | None = None) -> Path:
    """Return the folder of data sets: ``root``, else ``$FLBENCH_DATA``, else ``data`` in the user's cache folder."""
    given = root or os.environ.get("FLBENCH_DATA")
    return Path(given).expanduser() if given else cache.user_cache() / "data"


def locate(dataset: Dataset, root: Path | None = None) -> Source:
    """Return the first complete source of a data set; raises DataMissing, which lists every place and what it lacks."""
    where = data_root(root)
    looked = []
    for source in dataset.places(where):
        files, lacking = source.layout.find(source.folder)
        if not lacking:
            return source
        more = f" and {len(lacking) - 4} more" if len(lacking) > 4 else ""
        state = f"{'incomplete, ' if files else ''}no {', '.join(lacking[:4])}{more}"
        looked.append(f"  {source.folder}, {source.layout.title}: {state}")
    raise DataMissing(
        f"the data set {dataset.label()} is missing. Looked for, in this order:\n"
        + "\n".join(looked)
        + f"\n{dataset.advice(where)}"
    )


def recipe(dataset: Dataset, source: Source) -> cache.Recipe:
    """Return the recipe by which a found data set becomes an entry of the decoded cache."""
    expected = dataset.expected()
    folder = source.folder.resolve()
    # Settings at their defaults are left out, so that entries made before they existed are found.
    settings: dict[str, Any] = {} if expected.test_fraction is None else {"test_fraction": expected.test_fraction}
    settings |= {"labels": "renumber"} if expected.renumber else {}
    settings |= {name: True for name in ("floats", "standardize") if getattr(expected, name)}
    settings |= {"groups": list(expected.groups)} if expected.groups else {}
    settings |= source.layout.settings()

    def read() -> RawData:
        if expected.test_fraction is not None and not source.layout.splits:
            whole = dataclasses.replace(dataset, test_fraction=None, content=None)  # not normalized: stored as bytes
            return split_again(cache.load(recipe(whole, source)), expected.test_fraction)
        contents = source.layout.read(folder, expected)
        return contents.renumbered() if expected.renumber else contents

    return cache.Recipe(
        name=dataset.name,
        version=source.layout.version,
        source={"layout": source.layout.title, "folder": str(folder), "size": expected.size, **settings},
        signature=source.layout.signature(folder),
        white=dataset.white,
        names=dataset.names_of,
        read=read,
    )


def load(dataset: Dataset, root: Path | None = None) -> Data:
    """Return a data set as memory-mapped arrays; decoded into the cache the first time.

    Raises:
        DataMissing: its files are missing; the message names the files and the folder.
        UserError: its files are damaged, or the cache cannot be written.
    """
    data = cache.load(recipe(dataset, locate(dataset, root)))
    if not dataset.mean:
        return data
    if data.train.images.ndim != 4:
        raise UserError(f"{dataset.label()}: mean and std normalize images, and its samples are of shape {data.shape}")
    if len(dataset.mean) not in (1, data.train.images.shape[1]):
        raise UserError(
            f"{dataset.label()}: mean and std have {len(dataset.mean)} numbers, the images "
            f"{data.train.images.shape[1]} channels; give one number, or one for each channel"
        )
    return dataclasses.replace(data, normalize=(dataset.mean, dataset.std))


def load_named(dataset: Dataset, root: Path | None = None) -> Data:
    """Return the data as ``load`` does, but only those that ``dataset`` names: its ``content``, or the official one.

    Raises:
        OtherData: its files hold something else.
        DataMissing, UserError: as for ``load``.
    """
    data = load(dataset, root)
    wanted = dataset.content or dataset.official
    if wanted not in (None, data.fingerprint):
        source = locate(dataset, root)
        raise OtherData(
            f"{source.folder} ({source.layout.title}) holds other data than the experiment names: expected "
            f"{dataset.name} with the content {wanted}, found {data.fingerprint}. Use the folder of data sets that it "
            "was planned with (--data, $FLBENCH_DATA), or plan it again on these data (flbench sweep, flbench run)"
        )
    return data


@dataclass(frozen=True)
class DatasetCheck:
    """The result of a check: ``problems`` are damage, ``notes`` are other findings."""

    source: Source
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()
    fingerprint: str | None = None
    counts: tuple[int, int] | None = None


def verify(dataset: Dataset, root: Path | None = None) -> DatasetCheck:
    """Return the problems of a data set, from its checksums and all images decoded again, compared with the cache.

    Raises:
        DataMissing: its files are not there.
    """
    source = locate(dataset, root)
    if damage := source.layout.damage(source.folder):
        return DatasetCheck(source, tuple(damage))
    how = recipe(dataset, source)
    place = cache.cache_root() / "decoded"
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place, prefix="verify-") as folder:
            fresh = cache.decode(how, Path(folder))
    except UserError as error:
        return DatasetCheck(source, (str(error),))
    counts = (len(fresh.train.labels), len(fresh.test.labels))
    problems, notes = [], []
    if part := dataset.parts.get(fresh.fingerprint):
        notes.append(f"a part of the set: {part}")
    else:
        for half, found, expected in zip(("train", "test"), counts, dataset.counts or counts, strict=True):
            if found != expected:
                problems.append(f"expected {expected:,} {half} images, found {found:,}")
        if dataset.official not in (None, fresh.fingerprint):
            notes.append(f"not the official arrays (fingerprint {dataset.official}): other images, or another order")
    if cached := cache.read_entry(how.entry):
        actual = fingerprint(cached.train, cached.test, cached.classes)
        if not fresh.fingerprint == cached.fingerprint == actual:
            problems.append(
                f"its decoded copy {how.entry} differs from the files; delete that folder, it is made again when needed"
            )
    return DatasetCheck(source, tuple(problems), tuple(notes), fresh.fingerprint, counts)


def download(dataset: Dataset, root: Path | None = None) -> Path:
    """Return the folder of a data set below the data root, after torchvision downloaded into it what is not there.

    Raises:
        UserError: torchvision does not have the set, or it could not be fetched or written.
    """
    folder = data_root(root) / dataset.name
    if dataset.torchvision is None:
        raise UserError(f"{dataset.name} cannot be downloaded: {dataset.no_download}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}; name another folder by --data") from error
    import torchvision.datasets

    try:
        for given in dataset.downloads:
            getattr(torchvision.datasets, dataset.torchvision)(root=str(folder), download=True, **given)
    except Exception as error:  # torchvision passes on any error of urllib, tarfile or the disk
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"cannot download {dataset.name} into {folder}: {reason}\n"
            f"Without internet: run 'flbench data download {dataset.name}' on a machine that has it, "
            f"and copy its folder {dataset.name}/ to {folder}."
        ) from error
    return folder
