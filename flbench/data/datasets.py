"""The data sets by name, where their files are looked for, and ``load``.

A set's files lie under the data root: the ``root`` argument, else ``$FLBENCH_DATA``, else the user's cache folder. Its
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

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from flbench.data import cache
from flbench.data.arrays import Arrays, Data
from flbench.data.images import Shape
from flbench.data.layouts import Contents, Found, ImageFolder, Layout, Parquet, Wanted
from flbench.data.official import Batches, Digits, Idx
from flbench.errors import DataMissing, UserError
from flbench.registry import DATASETS, Component

__all__ = ["Arrays", "Data", "Dataset", "Source", "data_root", "load", "locate", "recipe"]


@dataclass(frozen=True)
class Source:
    """The files of a data set, found."""

    layout: Layout
    folder: Path


@dataclass(frozen=True)
class Dataset(Component):
    """Base of the data sets; a set says what it holds and in which layouts it may lie.

    ``image`` is channels, height, width, and like ``classes`` None where only the files tell. ``augment`` is the
    training augmentation that is usual for the set; images are floats in [0, 1], the stored bytes over ``white``.
    """

    image: ClassVar[Shape | None] = None
    classes: ClassVar[int | None] = None
    augment: ClassVar[Literal["none", "flip-crop"]] = "none"
    white: ClassVar[int] = 255
    class_names: ClassVar[tuple[str, ...]] = ()
    #: Images in train and test, where the whole set is meant.
    counts: ClassVar[tuple[int, int] | None] = None
    #: The fingerprint of the whole set in its official order, where it has been computed.
    official: ClassVar[str | None] = None
    #: The class in torchvision.datasets that downloads it.
    torchvision: ClassVar[str | None] = None
    #: The licence, as far as it is known.
    terms: ClassVar[str] = "see its authors"
    layouts: ClassVar[tuple[Layout, ...]] = (Parquet(), ImageFolder())

    def places(self, root: Path) -> Iterator[Source]:
        """Where its files may be, in the order of preference."""
        for layout in self.layouts:
            yield Source(layout, root / self.name)
            if not isinstance(layout, (Parquet, ImageFolder)):
                yield Source(layout, root)

    def wanted(self) -> Wanted:
        """What its images must look like."""
        return Wanted(shape=self.image)

    def names_of(self, contents: Contents) -> tuple[str, ...]:
        """A name for each class: from the files, else from the set, else numbers; raises UserError if they disagree."""
        names = contents.class_names or self.class_names
        if not names:
            count = self.classes or int(contents.train.labels.max(initial=0)) + 1
            names = tuple(map(str, range(count)))
        if self.classes is not None and len(names) != self.classes:
            raise UserError(
                f"{self.name} has {self.classes} classes, the files name {len(names)}: {', '.join(names[:20])}"
            )
        return names

    def advice(self, root: Path) -> str:
        """What to do when its files are missing."""
        fetch = f"Fetch it with: flbench data download {self.name}\n" if self.torchvision else ""
        return (
            f"{fetch}Or put its files there yourself, or set $FLBENCH_DATA to the folder that holds {self.name}/ "
            f"(now {root}). 'flbench data list' shows what is found."
        )


@DATASETS.register("digits")
@dataclass(frozen=True)
class DigitsSet(Dataset):
    """scikit-learn's 8x8 digits, inside the package: 1,442 train and 355 test images with values up to 16.

    The split is fixed and stratified: in each class every fifth sample, in scikit-learn's order, is a test sample.
    """

    image = (1, 8, 8)
    classes = 10
    white = 16
    class_names = tuple("0123456789")
    counts = (1442, 355)
    official = "e3713c9c6ae47b99"
    terms = "CC BY 4.0 (UCI)"
    layouts = (Digits(),)

    def places(self, root: Path) -> Iterator[Source]:
        """Inside scikit-learn."""
        yield Source(self.layouts[0], Path("scikit-learn"))


@DATASETS.register("cifar10")
@dataclass(frozen=True)
class Cifar10(Dataset):
    """CIFAR-10 (Krizhevsky 2009): 50,000 and 10,000 colour images of 32x32."""

    image = (3, 32, 32)
    classes = 10
    augment = "flip-crop"
    class_names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    counts = (50_000, 10_000)
    official = "cba35f7e9a8daa08"
    torchvision = "CIFAR10"
    terms = "none stated; research use"
    layouts = (
        Batches(
            "cifar-10-batches-py",
            {
                "data_batch_1": "c99cafc152244af753f735de768cd75f",
                "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
                "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
                "data_batch_4": "634d18415352ddfa80567beed471001a",
                "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
                "test_batch": "40351d587109b95175f43aff81a1287e",
            },
            train=tuple(f"data_batch_{n}" for n in range(1, 6)),
            test=("test_batch",),
        ),
        *Dataset.layouts,
    )


@DATASETS.register("fashion_mnist")
@dataclass(frozen=True)
class FashionMnist(Dataset):
    """Fashion-MNIST (Xiao et al. 2017): 60,000 and 10,000 grey images of 28x28."""

    image = (1, 28, 28)
    classes = 10
    class_names = (
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    )
    counts = (60_000, 10_000)
    official = "763206a0fe63a5f5"
    torchvision = "FashionMNIST"
    terms = "MIT"
    layouts = (
        Idx(
            "FashionMNIST/raw",
            {
                "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
                "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
                "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
            },
        ),
        *Dataset.layouts,
    )


@DATASETS.register("mnist")
@dataclass(frozen=True)
class Mnist(Dataset):
    """MNIST (LeCun et al. 1998): 60,000 and 10,000 grey images of 28x28."""

    image = (1, 28, 28)
    classes = 10
    class_names = tuple("0123456789")
    counts = (60_000, 10_000)
    torchvision = "MNIST"
    terms = "CC BY-SA 3.0 (usually given)"
    layouts = (
        Idx(
            "MNIST/raw",
            {
                "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
                "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
                "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
            },
        ),
        *Dataset.layouts,
    )


@DATASETS.register("folder")
@dataclass(frozen=True)
class Folder(Dataset):
    """Any parquet set or image folder on this machine.

    ``path`` is absolute or relative to the working directory; it does not depend on the data root. ``size`` resizes
    every image to that many pixels squared (bilinear with antialiasing); without it all must be of one size. Images
    that are all grey have one channel, otherwise three. Shorthand: ``folder:path``.
    """

    shorthand = "path"
    terms = "yours"

    path: Annotated[str, Field(min_length=1)]
    size: Annotated[int, Field(ge=1, le=4096)] | None = None

    def places(self, root: Path) -> Iterator[Source]:
        """The path itself, in either layout."""
        for layout in self.layouts:
            yield Source(layout, Path(self.path).expanduser())

    def wanted(self) -> Wanted:
        """Any shape, or the given size."""
        return Wanted(size=self.size)

    def advice(self, root: Path) -> str:
        """Name the path as it was resolved."""
        path = Path(self.path).expanduser().absolute()
        return f"Check 'path': it is read as {path}, which {'is a folder' if path.is_dir() else 'is no folder'}."


def data_root(root: Path | None = None) -> Path:
    """The folder of data sets: ``root``, else ``$FLBENCH_DATA``, else ``data`` in the user's cache folder."""
    given = root or os.environ.get("FLBENCH_DATA")
    return Path(given).expanduser() if given else cache.user_cache() / "data"


def locate(dataset: Dataset, root: Path | None = None) -> Source:
    """The first complete place of a data set; raises DataMissing, which lists every place and what it lacks."""
    where = data_root(root)
    looked = []
    for source in dataset.places(where):
        found = source.layout.find(source.folder)
        if not found.lacking:
            return source
        looked.append(_looked(source, found))
    raise DataMissing(
        f"the data set {dataset.label()} is missing. Looked for, in this order:\n"
        + "\n".join(looked)
        + f"\n{dataset.advice(where)}"
    )


def recipe(dataset: Dataset, source: Source) -> cache.Recipe:
    """How a found data set becomes an entry of the decoded cache."""
    wanted = dataset.wanted()
    folder = source.folder.resolve()
    return cache.Recipe(
        name=dataset.name,
        source={"layout": source.layout.title, "folder": str(folder), "size": wanted.size},
        signature=source.layout.signature(folder),
        white=dataset.white,
        names=dataset.names_of,
        read=partial(source.layout.read, folder, wanted),
    )


def load(dataset: Dataset, root: Path | None = None) -> Data:
    """A data set as memory-mapped arrays; decoded into the cache the first time.

    Raises:
        DataMissing: its files are not there; the message says what to put where.
        UserError: its files are damaged, or the cache cannot be written.
    """
    return cache.load(recipe(dataset, locate(dataset, root)))


def _looked(source: Source, found: Found) -> str:
    lacking = ", ".join(found.lacking[:4]) + (f" and {len(found.lacking) - 4} more" if len(found.lacking) > 4 else "")
    state = f"incomplete, no {lacking}" if found.files else f"no {lacking}"
    return f"  {source.folder}, {source.layout.title}: {state}"
