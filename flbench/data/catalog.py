"""The data sets of flbench, by name."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from flbench.data.datasets import Dataset, Source
from flbench.data.images import reading
from flbench.data.layouts.base import Expected, FoundFiles, Layout, RawData, split_of_arrays
from flbench.data.layouts.image_folder import ClientFolder, ImageFolder, UnsplitFolder
from flbench.data.layouts.numpy_archive import NumpyArchive
from flbench.data.layouts.parquet import Parquet
from flbench.data.layouts.tinyimagenet import TinyImageNetZip
from flbench.data.layouts.torchvision_files import CifarBatches, Idx
from flbench.registry import DATASETS


class Digits(Layout):
    """The table of digits inside scikit-learn. In each class every fifth sample, in its order, is a test sample."""

    title: ClassVar[str] = "embedded"

    def find(self, folder: Path) -> FoundFiles:
        return FoundFiles([], [])

    def signature(self, folder: Path) -> list[list[Any]]:
        """Return the version of scikit-learn, read without importing it."""
        return [["scikit-learn", version("scikit-learn")]]

    def read(self, folder: Path, expected: Expected) -> RawData:
        """Return images as (N, 1, 8, 8) with values up to 16.

        The table is read without importing scikit-learn, which takes seconds: 64 pixels and the label in a row.
        """
        spec = find_spec("sklearn")
        path = Path((spec and spec.origin) or "sklearn").parent / "datasets/data/digits.csv.gz"
        with reading(path):
            table = np.loadtxt(path, delimiter=",")
        images, labels = table[:, :-1].astype(np.uint8).reshape(-1, 1, 8, 8), table[:, -1].astype(np.int64)
        place = np.empty_like(labels)
        for label in range(10):
            place[labels == label] = np.arange((labels == label).sum())
        test = place % 5 == 4
        train, held = (split_of_arrays(images[rows], labels[rows], "digits", expected.shape) for rows in (~test, test))
        return RawData(train, held)


@DATASETS.register("digits")
@dataclass(frozen=True)
class DigitsSet(Dataset):
    """scikit-learn's 8x8 digits, inside the package: 1,442 train and 355 test images with values up to 16.

    The split is fixed and stratified: in each class every fifth sample, in scikit-learn's order, is a test sample.
    """

    source = "@alpaydin1998digits; @pedregosa2011sklearn"
    image = (1, 8, 8)
    classes = 10
    white = 16
    class_names = tuple("0123456789")
    counts = (1442, 355)
    official = "e3713c9c6ae47b99"
    no_download = "it is part of scikit-learn, no download is needed"
    terms = "CC BY 4.0 (UCI)"
    layouts = (Digits(),)

    def places(self, root: Path) -> Iterator[Source]:
        yield Source(self.layouts[0], Path("scikit-learn"))


@DATASETS.register("cifar10")
@dataclass(frozen=True)
class Cifar10(Dataset):
    """CIFAR-10 (Krizhevsky 2009): 50,000 and 10,000 colour images of 32x32."""

    source = "@krizhevsky2009cifar"
    image = (3, 32, 32)
    classes = 10
    augment = "flip-crop"
    class_names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    counts = (50_000, 10_000)
    official = "cba35f7e9a8daa08"
    torchvision = "CIFAR10"
    terms = "none stated; research use"
    layouts = (
        CifarBatches(
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


@DATASETS.register("cifar100")
@dataclass(frozen=True)
class Cifar100(Dataset):
    """CIFAR-100 with its 100 fine labels (Krizhevsky 2009): 50,000 and 10,000 colour images of 32x32."""

    source = "@krizhevsky2009cifar"
    image = (3, 32, 32)
    classes = 100
    augment = "flip-crop"
    class_names = tuple(  # ruff would put each name of a literal on a line of its own
        "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can "  # noqa: SIM905
        "castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin "
        "elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster "
        "man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck "
        "pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk "
        "skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger "
        "tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm".split()
    )
    counts = (50_000, 10_000)
    torchvision = "CIFAR100"
    terms = "none stated; research use"
    layouts = (
        CifarBatches(
            "cifar-100-python",
            {"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
            train=("train",),
            test=("test",),
            label="fine_labels",
        ),
        Parquet(label=("label", "fine_label")),
        ImageFolder(),
    )


@DATASETS.register("tinyimagenet")
@dataclass(frozen=True)
class TinyImageNet(Dataset):
    """TinyImageNet (Le and Yang 2015): 200 classes of ImageNet, 100,000 and 10,000 images of 64x64, grey ones in RGB.

    The authors' validation images are the test set; those of their test set have no published labels.
    """

    source = "@le2015tinyimagenet"
    image = (3, 64, 64)
    classes = 200
    augment = "flip-crop"
    counts = (100_000, 10_000)
    parts = MappingProxyType({"f2cb16468fe261ed": "70 of 500 training and 20 of 50 test images a class"})
    terms = "ImageNet's: non-commercial research"
    layouts = (TinyImageNetZip(), Parquet(test=("test", "valid", "validation")), ImageFolder())


@DATASETS.register("pacs")
@dataclass(frozen=True)
class Pacs(Dataset):
    """PACS (Li et al. 2017): 7 classes in 4 domains; 8,977 and 1,014 images, resized to 64x64 (bilinear).

    Train and test are its authors' lists ``train`` and ``crossval``. The label-skew paper trains on larger images
    (224x224 in its code) and another split (7,907 and 1,920), so that its numbers are not comparable.
    """

    source = "@li2017pacs"
    image = (3, 64, 64)
    classes = 7
    augment = "flip-crop"
    class_names = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
    domains = ("photo", "art_painting", "cartoon", "sketch")
    resize = True
    counts = (8_977, 1_014)
    layouts = (Parquet(),)


@DATASETS.register("fashion_mnist")
@dataclass(frozen=True)
class FashionMnist(Dataset):
    """Fashion-MNIST (Xiao et al. 2017): 60,000 and 10,000 grey images of 28x28."""

    source = "@xiao2017fashion"
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

    source = "@lecun1998mnist"
    image = (1, 28, 28)
    classes = 10
    class_names = tuple("0123456789")
    counts = (60_000, 10_000)
    official = "8d706546e17f1bf3"
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


#: Names of columns that group samples, such as their writer.
Groups = tuple[Annotated[str, Field(min_length=1)], ...]


@dataclass(frozen=True)
class LocalFiles(Dataset):
    """Base of the sets that a path names, absolute or relative to the working directory, and not the data root.

    A run on one is identified by the content: the files may move, and other images are another run. Every label from 0
    to the largest needs images; ``labels: renumber`` counts those that have some from 0, in their order.
    """

    source: ClassVar[str] = ""

    shorthand = "path"
    no_download = "it consists of the files that you name"
    terms = "yours"

    path: Annotated[str, Field(min_length=1)]
    labels: Literal["as-is", "renumber"] = dataclasses.field(default="as-is", kw_only=True)

    def expected(self) -> Expected:
        return Expected(renumber=self.labels == "renumber", test_fraction=self.test_fraction)

    def identity(self) -> dict[str, Any]:
        """Leave out where and how the files are read once the content is named: that no longer defines the numbers."""
        settings = super().identity()
        if self.content is None:
            return settings
        defining = ("name", "version", "content", "mean", "std")
        return {name: settings[name] for name in defining if name in settings}

    def same_place(self, other: Dataset) -> bool:
        """Compare paths as absolute ones, so that ``img``, ``./img`` and ``img/`` are one place."""

        def place(dataset: LocalFiles) -> LocalFiles:
            absolute = os.path.abspath(Path(dataset.path).expanduser())  # noqa: PTH100  follow no links
            return dataclasses.replace(dataset, path=absolute, content=None)

        return isinstance(other, LocalFiles) and place(self) == place(other)

    def places(self, root: Path) -> Iterator[Source]:
        for layout in self.layouts:
            yield Source(layout, Path(self.path).expanduser())

    def advice(self, root: Path) -> str:
        path = Path(self.path).expanduser().absolute()
        kind = "a folder" if path.is_dir() else "a file" if path.is_file() else "no folder and no file"
        return f"Check 'path': it is read as {path}, which is {kind}."


@DATASETS.register("folder")
@dataclass(frozen=True)
class Folder(LocalFiles):
    """Any parquet set or image folder on this machine.

    ``size`` resizes every image to that many pixels squared (bilinear with antialiasing); without it all must be of one
    size. Images that are all grey have one channel, otherwise three. ``test_fraction`` is the share of each class that
    becomes the test set of an image folder without test images. With ``clients``, an image folder has a folder for each
    client, which has those of the classes; ``partition: given`` then deals each client its own images. ``labels:
    renumber`` leaves out classes without images. Shorthand: ``folder:path``.
    """

    size: Annotated[int, Field(ge=1, le=4096)] | None = None
    clients: bool = False

    def __post_init__(self) -> None:
        """Refuse folders of clients without test images."""
        if self.clients and self.test_fraction is not None:
            raise ValueError("folders of clients have test images of their own; leave out test_fraction or clients")
        super().__post_init__()

    def places(self, root: Path) -> Iterator[Source]:
        if self.clients:
            yield Source(ClientFolder(), Path(self.path).expanduser())
        elif self.test_fraction is None:
            yield from super().places(root)
        else:
            yield Source(UnsplitFolder(), Path(self.path).expanduser())

    def expected(self) -> Expected:
        return dataclasses.replace(super().expected(), size=self.size)

    def advice(self, root: Path) -> str:
        split = "" if self.test_fraction else " Images without a test set need 'test_fraction', such as 0.2."
        return super().advice(root) + split


@DATASETS.register("arrays")
@dataclass(frozen=True)
class ArraysFile(LocalFiles):
    """Samples and labels in a numpy archive: ``x_train``, ``y_train``, ``x_test`` and ``y_test`` in one ``.npz`` file.

    MedMNIST's names (``train_images`` ...) are read too. Images have one channel or three, as uint8 or as floats in
    [0, 1], which are rounded to 256 levels. Floats (N, D) are features, read as float32; whole numbers (N, T) are
    tokens. With ``dtype: float32`` all numbers are read as they are, images in any range and of any number of channels
    included; ``standardize`` then subtracts the mean of the training set and divides by its standard deviation, feature
    by feature (of images: channel by channel). Labels count from 0 without gaps; ``labels: renumber`` makes such labels
    of others. The arrays ``train_client`` and ``test_client`` name the client of each sample, for ``partition: given``;
    with ``groups: [NAME]``, ``train_NAME`` and ``test_NAME`` do for ``partition: by:NAME``. Pickled arrays are refused.
    Shorthand: ``arrays:path``.
    """

    layouts = (NumpyArchive(),)

    dtype: Literal["as-is", "float32"] = "as-is"
    standardize: bool = False
    groups: Groups = ()

    def expected(self) -> Expected:
        floats = self.dtype == "float32" or self.standardize
        given = super().expected()
        return dataclasses.replace(given, floats=floats, standardize=self.standardize, groups=self.groups)
