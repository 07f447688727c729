"""The data sets that consist of a user's own files, which a path names."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from flbench.data.datasets import Dataset, Source
from flbench.data.layouts.base import Expected
from flbench.data.layouts.hugging_face import HuggingFace, Parts
from flbench.data.layouts.image_folder import ClientFolder, UnsplitFolder
from flbench.data.layouts.numpy_archive import NumpyArchive
from flbench.data.layouts.table import Columns, Table
from flbench.registry import DATASETS

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


@DATASETS.register("table")
@dataclass(frozen=True)
class TableFile(LocalFiles):
    """A table in a ``.csv``, ``.tsv`` or ``.parquet`` file: a column of labels, and all others as features (float32).

    Columns of numbers and truth values are features as they are; those of strings, and those named in ``categorical``,
    have a feature for each value (one-hot), in order. ``drop`` leaves columns out. The values of the column ``target``
    are the classes, in order. The test set is that of the column ``split``, whose values are ``train`` and ``test``, or
    ``test_fraction`` of each class, drawn by ``split_seed``. ``standardize`` subtracts from columns of numbers the mean
    of the training set and divides by its standard deviation. The columns in ``groups`` are no features; ``partition:
    by:COLUMN`` makes each value of one a client. Missing values are refused. Write it as ``{name: table, path: ...,
    target: COLUMN, test_fraction: 0.2}``.
    """

    target: Annotated[str, Field(min_length=1)]
    split: Annotated[str, Field(min_length=1)] | None = None
    split_seed: Annotated[int, Field(ge=0, lt=2**64)] = 0
    categorical: Groups = ()
    drop: Groups = ()
    groups: Groups = ()
    standardize: bool = False

    def __post_init__(self) -> None:
        """Refuse a table without exactly one way to its test set, and columns with two uses."""
        if (self.split is None) == (self.test_fraction is None):
            raise ValueError("give either split (a column of 'train' and 'test') or test_fraction, such as 0.2")
        uses = [self.target, *([self.split] if self.split else ()), *self.categorical, *self.drop, *self.groups]
        if twice := next((name for name in uses if uses.count(name) > 1), None):
            raise ValueError(
                f"the column {twice!r} has two uses among target, split, categorical, drop and groups; expected one"
            )
        super().__post_init__()

    def places(self, root: Path) -> Iterator[Source]:
        columns = Columns(self.target, self.split, self.categorical, self.drop, self.split_seed)
        yield Source(Table(columns), Path(self.path).expanduser())

    def expected(self) -> Expected:
        return dataclasses.replace(super().expected(), standardize=self.standardize, groups=self.groups)


@DATASETS.register("hf")
@dataclass(frozen=True)
class HuggingFaceSet(LocalFiles):
    """A set in the form of Hugging Face's ``datasets`` (the extra ``hf``): ``hf:FOLDER``, or ``hf:NAME`` on its hub.

    A folder is one that ``save_to_disk`` wrote, or has parquet files whose names begin with those of the splits.
    ``samples`` is the column of images, or of lists of one length (floats are features, whole numbers tokens), and
    ``target`` the column of labels; each may be left out where one column alone can be it. ``size``, ``dtype``,
    ``standardize`` and ``groups`` are those of ``folder`` and ``arrays``. A set of the hub is fetched once; its decoded
    copy stays until it is deleted.
    """

    samples: Annotated[str, Field(min_length=1)] | None = None
    target: Annotated[str, Field(min_length=1)] | None = None
    train: Annotated[str, Field(min_length=1)] = "train"
    test: Annotated[str, Field(min_length=1)] = "test"
    config: Annotated[str, Field(min_length=1)] | None = None
    size: Annotated[int, Field(ge=1, le=4096)] | None = None
    dtype: Literal["as-is", "float32"] = "as-is"
    standardize: bool = False
    groups: Groups = ()

    def places(self, root: Path) -> Iterator[Source]:
        parts = Parts(self.path, self.config, self.train, self.test, self.samples, self.target)
        yield Source(HuggingFace(parts), Path(self.path).expanduser())

    def expected(self) -> Expected:
        floats = self.dtype == "float32" or self.standardize
        given = dataclasses.replace(super().expected(), size=self.size, floats=floats, standardize=self.standardize)
        return dataclasses.replace(given, groups=self.groups)
