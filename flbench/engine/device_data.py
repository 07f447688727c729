"""A data set on the device, and the gathering of a round's batches from it.

Shape suffixes: N clients, E local steps, B batch, M samples, C channels, H, W pixels.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flbench.data.arrays import Arrays, Data
from flbench.data.batches import Rows, crop_and_flip, draw_crops
from flbench.methods.base import Tree
from flbench.streams import stream

#: Samples of a client in one pass over all of its training data: slices of whole registers, for equal bits in stacks.
OWN_BATCH = 64

#: Some training data of a client or a stack: the network's input, labels (B,) or (N, B), and which samples count.
OwnBatch = tuple[Tensor, Tensor, Tensor]

#: Clients of which a stack never has fewer, unless it begins with one: torch computes one client in another way, with
#: other bits (``stack_bits``).
STAY = 2

#: Most pixels of a data set that is converted into the network's input once; in float32 they take 16 MB.
CONVERTED_ONCE = 2**22


@dataclass(frozen=True)
class ClientBatches:
    """What one client sees in one round: training rows, and whether each is mirrored and where it is cropped.

    ``sizes_E`` is the number of samples of each batch, of which further rows are no part; None if all batches are full.
    ``keys_E`` are the keys of the steps' masks; None for a network without dropout.
    """

    rows_EB: Rows
    crops_EB3: Rows | None
    sizes_E: Rows | None = None
    keys_E: Rows | None = None


@dataclass(frozen=True)
class StackedBatches:
    """The batches of a stack of clients: raw pixels, augmented already, and labels.

    Attributes:
        prepare: converts raw pixels into the network's input.
        sizes_EN: samples of each batch, which come first in it; None if all batches are full.
        keys_EN: int64 keys of the masks of each step; None for a network without dropout.
    """

    raw_ENBCHW: Tensor
    labels_ENB: Tensor
    prepare: Callable[[Tensor], Tensor]
    sizes_EN: Tensor | None = None
    keys_EN: Tensor | None = None

    def steps(self) -> Iterator[tuple[Tensor, Tensor, Tensor | None, Tensor | None]]:
        """Return for each local step the network's input (N, B, C, H, W) and labels (N, B), then sizes and keys (N,).

        Converted step by step: the converted pixels of a whole round would not stay in a core's cache.
        """
        none = [None] * len(self.raw_ENBCHW)
        sizes, keys = (none if each is None else each for each in (self.sizes_EN, self.keys_EN))
        every = zip(self.raw_ENBCHW, self.labels_ENB, sizes, keys, strict=True)
        return ((self.prepare(raw), labels, size, key) for raw, labels, size, key in every)


@dataclass(frozen=True)
class LeavingBatches:
    """The batches of a stack that clients leave when they have taken all of their steps; the last ``STAY`` stay.

    Batches are gathered in parts, a new one after a client has left: those that nobody trains on are left out. Compiled
    functions gather by themselves (``native_stack``).

    Attributes:
        images: the data set.
        drawn: what ``side_by_side`` describes, the clients with the most steps first.
        leave_after: the local steps of each of these clients.
    """

    images: DeviceData
    drawn: Tree
    leave_after: Sequence[int]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor | None, Tensor | None]]:
        return self.steps()

    def steps(self) -> Iterator[tuple[Tensor, Tensor, Tensor | None, Tensor | None]]:
        """As ``StackedBatches.steps``; the first axis has the clients that have not left."""
        for first, last in pairwise(sorted({0, *self.leave_after})):
            clients = sum(steps >= last for steps in self.leave_after)  # exact: whole numbers
            some = slice(max(clients, min(STAY, len(self.leave_after))))
            yield from self.images.stack({name: leaf[some, first:last] for name, leaf in self.drawn.items()}).steps()


@dataclass(frozen=True)
class PlainSource:
    """Images (M, ...) whose rows are the network's input: floats, or bytes x for (x / white - mean) / deviation."""

    images: Tensor
    white: float = 1.0
    mean: float = 0.0
    deviation: float = 1.0


@dataclass(frozen=True)
class DeviceData:
    """A data set on the device.

    Attributes:
        train_MCHW: uint8 or float32 training images, or features (M, D), or int32 tokens (M, T);
            ``train_labels_M``: int64.
        test_MCHW, test_labels_M: the same for testing.
        classes: number of classes.
        white: the uint8 value that means 1.0.
        dtype: of the network's input.
        augment: whether training images are flipped and cropped at random.
        normalize: mean and deviation that normalize the network's input, as ``normalization`` returns them.
    """

    train_MCHW: Tensor
    train_labels_M: Tensor
    test_MCHW: Tensor
    test_labels_M: Tensor
    classes: int
    white: int
    dtype: torch.dtype
    augment: bool
    normalize: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of(cls, data: Data, device: str, dtype: torch.dtype, *, augment: bool) -> DeviceData:
        """Return a data set on a device; on a CPU in the arrays' own memory."""
        train, test = _tensors(data.train, device), _tensors(data.test, device)
        normalize = normalization(data, dtype, device)
        return cls(*train, *test, data.classes, data.white, dtype, augment, normalize)

    def draw(
        self, rows_EB: Rows, sizes_E: Rows | None = None, *, seed: int, client: int, round: int, masked: bool = False
    ) -> ClientBatches:
        """Return these rows with the augmentation of the client's round, and, ``masked``, the keys of its masks."""
        keys_E = stream(seed, "masks", client, round).integers(2**63, size=len(rows_EB)) if masked else None
        if not self.augment:
            return ClientBatches(rows_EB, None, sizes_E, keys_E)
        crops_M3 = draw_crops(rows_EB.size, seed=seed, client=client, round=round)
        return ClientBatches(rows_EB, crops_M3.reshape(*rows_EB.shape, 3), sizes_E, keys_E)

    def stack(self, drawn: Tree) -> StackedBatches:
        """Gather and augment the batches that ``side_by_side`` describes, on the device."""
        rows_ENB = drawn["rows_NEB"].transpose(0, 1)
        index = rows_ENB.reshape(-1)
        source, prepare = self._source
        pixels = source.index_select(0, index)
        if "crops_NEB3" in drawn:
            pixels = crop_and_flip(pixels, drawn["crops_NEB3"].transpose(0, 1).reshape(-1, 3))
        labels = self.train_labels_M.index_select(0, index).view(rows_ENB.shape)
        sizes_EN = drawn["sizes_NE"].T if "sizes_NE" in drawn else None
        keys_EN = drawn["keys_NE"].T if "keys_NE" in drawn else None
        return StackedBatches(pixels.unflatten(0, rows_ENB.shape), labels, prepare, sizes_EN, keys_EN)

    def own(self, rows_NM: Tensor, sizes_N: Tensor) -> Iterator[OwnBatch]:
        """Yield the samples of clients in batches of ``OWN_BATCH``, without augmentation.

        Args:
            rows_NM: training rows of each client; M is a multiple of the batch.
            sizes_N: how many of them count.
        """
        source, prepare = self._source
        for number, rows_NB in enumerate(rows_NM.split(OWN_BATCH, 1)):
            index = rows_NB.reshape(-1)
            images = prepare(source.index_select(0, index)).unflatten(0, rows_NB.shape)
            there_B = torch.arange(OWN_BATCH, device=index.device) + number * OWN_BATCH
            labels_NB = self.train_labels_M.index_select(0, index).view(rows_NB.shape)
            yield images, labels_NB, there_B < sizes_N.unsqueeze(-1)

    @cached_property
    def _source(self) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The images from which batches are gathered, and what converts these into the network's input.

        On a CPU a small data set is converted once: to convert batches takes longer than to gather them.
        """
        if self.train_MCHW.is_cpu and self.train_MCHW.numel() <= CONVERTED_ONCE:
            return self.prepare(self.train_MCHW), lambda pixels: pixels
        return self.train_MCHW, self.prepare

    @cached_property
    def plain_source(self) -> PlainSource | None:
        """The images where a batch is nothing but rows of them; None if batches are augmented, or not such numbers."""
        source, _ = self._source
        if self.augment or self.dtype != torch.float32 or not source.is_contiguous():
            return None
        if source.dtype == torch.uint8 and (self.normalize is None or self.normalize[0].dim() == 0):
            mean, deviation = (0.0, 1.0) if self.normalize is None else map(float, self.normalize)
            return PlainSource(source, float(self.white), mean, deviation)
        is_input = source is not self.train_MCHW or self.normalize is None
        return PlainSource(source) if source.dtype == torch.float32 and is_input else None

    def prepare(self, images_MCHW: Tensor) -> Tensor:
        """Convert raw images into the network's input."""
        return as_input(images_MCHW, self.white, self.dtype, self.normalize)


def normalization(data: Data, dtype: torch.dtype, device: str | torch.device = "cpu") -> tuple[Tensor, Tensor] | None:
    """Return mean and deviation of the input, 0-d or (C, 1, 1); None where it is not normalized."""
    if data.normalize is None:
        return None
    mean, deviation = (torch.tensor(values, dtype=dtype, device=device) for values in data.normalize)
    return (mean[0], deviation[0]) if len(mean) == 1 else (mean.view(-1, 1, 1), deviation.view(-1, 1, 1))


def as_input(samples: Tensor, white: int, dtype: torch.dtype, normalize: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """Return samples as a network's input: bytes over ``white``, floats as they are, both normalized; whole tokens."""
    if samples.dtype == torch.int32:
        return samples
    values = samples.to(dtype) / white if samples.dtype == torch.uint8 else samples.to(dtype)
    return values if normalize is None else (values - normalize[0]) / normalize[1]


def side_by_side(batches: Sequence[ClientBatches]) -> Tree:
    """Return the batches of N clients as tensors on the CPU.

    Returns:
        ``rows_NEB``; if images are augmented also ``crops_NEB3``: mirrored or not, row and column of the crop; if there
        are partial batches also ``sizes_NE``; if the network has dropout also ``keys_NE``. E is the largest number of
        steps; the steps that a client does not take are zero, and leave no trace in its training.
    """
    arrays = {
        "rows_NEB": [batch.rows_EB for batch in batches],
        "crops_NEB3": [batch.crops_EB3 for batch in batches if batch.crops_EB3 is not None],
        "sizes_NE": [batch.sizes_E for batch in batches if batch.sizes_E is not None],
        "keys_NE": [batch.keys_E for batch in batches if batch.keys_E is not None],
    }
    steps = max(map(len, arrays["rows_NEB"]))
    return {name: torch.from_numpy(_padded(of_clients, steps)) for name, of_clients in arrays.items() if of_clients}


def own_rows(rows: Sequence[Rows]) -> Tensor:
    """Return the rows of each client (N, M) for ``DeviceData.own``: after its last one its first one again."""
    width = -(-max(map(len, rows)) // OWN_BATCH) * OWN_BATCH
    return torch.from_numpy(np.stack([np.append(own, own[:1].repeat(width - len(own))) for own in rows]))


def _padded(of_clients: Sequence[Rows], steps: int) -> Rows:
    """The arrays of clients side by side, with zeros after those of fewer steps; np.pad takes 20 times as long."""
    out = np.zeros((len(of_clients), steps, *of_clients[0].shape[1:]), dtype=np.int64)
    for own, array in zip(out, of_clients, strict=True):
        own[: len(array)] = array
    return out


def on_device(tree: Tree, device: torch.device) -> Tree:
    """Copy a tree to a GPU, to CUDA asynchronously; a tree for the CPU is returned as it is."""
    if device.type == "cpu":
        return tree
    if device.type == "mps":
        return {name: leaf.to(device) for name, leaf in without_float64(tree).items()}
    # Only from pinned memory is a copy queued and not waited for; torch reuses that memory once it is copied.
    return {name: leaf.pin_memory().to(device, non_blocking=True) for name, leaf in tree.items()}


def without_float64(tree: Tree) -> Tree:
    """Return a tree with float32 in place of float64, which MPS does not have."""
    return {name: leaf.float() if leaf.dtype == torch.float64 else leaf for name, leaf in tree.items()}


@dataclass(frozen=True, eq=False)
class _SameMemory:
    """Arrays compared by their memory, so that a cache can hold them."""

    arrays: Arrays

    def __hash__(self) -> int:
        return hash(self._key())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SameMemory) and self._key() == other._key()

    def _key(self) -> tuple[Any, ...]:
        return tuple((a.__array_interface__["data"][0], a.shape) for a in (self.arrays.images, self.arrays.labels))


def _tensors(arrays: Arrays, device: str) -> tuple[Tensor, Tensor]:
    """Images and labels on a device; on a CPU in the arrays' own memory, which is never written to."""
    if device != "cpu":
        return _copies(_SameMemory(arrays), device)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(arrays.images), torch.from_numpy(arrays.labels)


@lru_cache(maxsize=2)  # a worker's next run most likely uses the same data set
def _copies(same: _SameMemory, device: str) -> tuple[Tensor, Tensor]:
    images, labels = _tensors(same.arrays, "cpu")
    return images.to(device), labels.to(device)
