"""What a data set is, where flbench looks for its files, and ``load``. The sets themselves are in ``catalog.py``.

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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field

from flbench.choices import Augmentation
from flbench.data import cache
from flbench.data.arrays import Data
from flbench.data.images import Shape
from flbench.data.layouts.base import Expected, Layout, RawData
from flbench.data.layouts.image_folder import ImageFolder
from flbench.data.layouts.parquet import Parquet
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
    #: The class in torchvision.datasets that downloads it.
    torchvision: ClassVar[str | None] = None
    #: The licence, as far as it is known.
    terms: ClassVar[str] = "see its authors"
    layouts: ClassVar[tuple[Layout, ...]] = (Parquet(), ImageFolder())

    content: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")] | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Write the official content as None."""
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
        return Expected(shape=self.image, size=size, domains=self.domains)

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
        found = source.layout.find(source.folder)
        if not found.lacking:
            return source
        lacking = ", ".join(found.lacking[:4]) + (
            f" and {len(found.lacking) - 4} more" if len(found.lacking) > 4 else ""
        )
        state = f"incomplete, no {lacking}" if found.files else f"no {lacking}"
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

    def read() -> RawData:
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
    return cache.load(recipe(dataset, locate(dataset, root)))


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
