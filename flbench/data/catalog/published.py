"""The published data sets, by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from flbench.data.datasets import Dataset, Source
from flbench.data.images import reading
from flbench.data.layouts.base import Expected, FoundFiles, Layout, RawData, split_of_arrays
from flbench.data.layouts.image_folder import ImageFolder
from flbench.data.layouts.parquet import Parquet
from flbench.data.layouts.tinyimagenet import TinyImageNetZip
from flbench.data.layouts.torchvision_files import CifarBatches, Idx, MatFiles
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

    The authors' validation images are the test set; those of their test set have no published labels. ``size`` resizes
    all images to that many pixels squared (bilinear with antialiasing): 32 for networks that go on with CIFAR-10.
    """

    source = "@le2015tinyimagenet"
    image = (3, 64, 64)
    classes = 200
    augment = "flip-crop"
    counts = (100_000, 10_000)
    parts = MappingProxyType({"f2cb16468fe261ed": "70 of 500 training and 20 of 50 test images a class"})
    terms = "ImageNet's: non-commercial research"
    layouts = (TinyImageNetZip(), Parquet(test=("test", "valid", "validation")), ImageFolder())

    size: Annotated[int, Field(ge=1, lt=64)] | None = None

    def __post_init__(self) -> None:
        """Give the instance the shape of its images."""
        if self.size is not None:
            object.__setattr__(self, "image", (3, self.size, self.size))
        super().__post_init__()

    def expected(self) -> Expected:
        return dataclasses.replace(super().expected(), size=self.size)


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


@dataclass(frozen=True)
class _Emnist(Dataset):
    """Base of the splits of EMNIST. As published, and as torchvision reads them, rows and columns are exchanged."""

    source = "@cohen2017emnist"
    image = (1, 28, 28)
    torchvision = "EMNIST"
    terms = "public domain (NIST)"


def _emnist_files(split: str, first: int = 0) -> tuple[Layout, ...]:
    """Return the layouts of a split; ``first`` is its first label. Only the archive of all splits has a checksum."""
    halves = f"emnist-{split}-train", f"emnist-{split}-test"
    names = [f"{half}-{what}-ubyte.gz" for half in halves for what in ("images-idx3", "labels-idx1")]
    return Idx("EMNIST/raw", dict.fromkeys(names), halves, first), *Dataset.layouts


@DATASETS.register("emnist-balanced")
@dataclass(frozen=True)
class EmnistBalanced(_Emnist):
    """EMNIST Balanced (Cohen et al. 2017): digits and letters in 47 classes of equal size, 112,800 and 18,800 images.

    Lower-case letters that look like their capitals are of one class with these. Rows and columns are exchanged, as in
    the published files.
    """

    classes = 47
    class_names = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt")
    counts = (112_800, 18_800)
    downloads = (MappingProxyType({"split": "balanced"}),)
    layouts = _emnist_files("balanced")


@DATASETS.register("emnist-byclass")
@dataclass(frozen=True)
class EmnistByClass(_Emnist):
    """EMNIST ByClass (Cohen et al. 2017): digits and letters in 62 classes, 697,932 and 116,323 images.

    The writers, who are FEMNIST's clients, are not in these files. Rows and columns are exchanged.
    """

    classes = 62
    class_names = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
    counts = (697_932, 116_323)
    downloads = (MappingProxyType({"split": "byclass"}),)
    layouts = _emnist_files("byclass")


@DATASETS.register("emnist-letters")
@dataclass(frozen=True)
class EmnistLetters(_Emnist):
    """EMNIST Letters (Cohen et al. 2017): letters in 26 classes, 124,800 and 20,800 images; labels from 0 on here."""

    classes = 26
    class_names = tuple("abcdefghijklmnopqrstuvwxyz")
    counts = (124_800, 20_800)
    downloads = (MappingProxyType({"split": "letters"}),)
    layouts = _emnist_files("letters", first=1)


@DATASETS.register("emnist-digits")
@dataclass(frozen=True)
class EmnistDigits(_Emnist):
    """EMNIST Digits (Cohen et al. 2017): 240,000 and 40,000 digits; rows and columns are exchanged."""

    classes = 10
    class_names = tuple("0123456789")
    counts = (240_000, 40_000)
    downloads = (MappingProxyType({"split": "digits"}),)
    layouts = _emnist_files("digits")


@DATASETS.register("svhn")
@dataclass(frozen=True)
class Svhn(Dataset):
    """SVHN (Netzer et al. 2011): house numbers cropped to single digits, 73,257 and 26,032 colour images of 32x32."""

    source = "@netzer2011svhn"
    image = (3, 32, 32)
    classes = 10
    class_names = tuple("0123456789")
    counts = (73_257, 26_032)
    torchvision = "SVHN"
    downloads = (MappingProxyType({"split": "train"}), MappingProxyType({"split": "test"}))
    terms = "non-commercial use"
    layouts = (
        MatFiles(
            "",
            {
                "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
                "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
            },
        ),
        *Dataset.layouts,
    )
