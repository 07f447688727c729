"""A pure function of tensors as one CUDA graph: recorded once, then launched whole, without Python between kernels.

Recording is one function (``Record``), so that everything around it is tested without a GPU by one that calls the
recorded function again.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from flbench.engine.memory import is_out_of_memory
from flbench.methods.base import Tree

_log = logging.getLogger(__name__)

#: A pure function of trees. It may be called any number of times for one result.
Function = Callable[[Sequence[Tree]], list[Tree]]

#: Records a call that reads tensors which stay where they are; returns how to launch it again, and its outputs, which
#: each launch overwrites.
Record = Callable[[Callable[[], list[Tree]]], tuple[Callable[[], object], list[Tree]]]

#: Most shapes for which a function is recorded; further ones are computed operation by operation.
SHAPES = 8


class CudaRecord:
    """Records as ``torch.cuda.graph``; all graphs of one recorder share a pool of memory.

    That is safe as they are launched one after another in one stream, and each one's outputs are copied at once.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, call: Callable[[], list[Tree]]) -> tuple[Callable[[], object], list[Tree]]:
        """Call it twice on a side stream, then record it.

        Raises:
            RuntimeError: something in it waits for the device or cannot be recorded.
        """
        side, own = torch.cuda.Stream(), torch.cuda.current_stream()
        side.wait_stream(own)
        with torch.cuda.stream(side):
            call()  # libraries set themselves up
            with _waiting_is_an_error():  # found out before a recording has begun, which would fail less cleanly
                call()
        own.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Other threads of this process may allocate as they like; the backward pass runs in one of torch's.
        with _no_garbage_collection(), torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            outputs = call()
        return graph.replay, outputs


@contextmanager
def _waiting_is_an_error() -> Iterator[None]:
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A graph that is freed while another is recorded would spoil it."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Graphed:
    """A pure function of trees, recorded for each shape of its inputs, or called where it cannot be recorded."""

    def __init__(self, function: Function, record: Record, what: str) -> None:
        self._function, self._record, self._what = function, record, what
        self._recordings: dict[Hashable, _Recording | None] = {}

    def __call__(self, shape: Hashable, trees: Sequence[Tree]) -> list[Tree]:
        """The function's value.

        Args:
            shape: whatever the shapes of the inputs depend on.
            trees: the inputs, on the device; calls of one shape have leaves of the same names.

        Raises:
            torch.OutOfMemoryError: it does not fit, recorded or not.
        """
        if shape not in self._recordings:
            self._recordings[shape] = self._recorded(trees)
        recording = self._recordings[shape]
        return self._function(trees) if recording is None else recording(trees)

    def _recorded(self, trees: Sequence[Tree]) -> _Recording | None:
        if not any(self._recordings.values()) and self._recordings:
            return None  # it was said before that it cannot be
        if len(self._recordings) >= SHAPES:
            if len(self._recordings) == SHAPES:
                _log.warning("%s has had %d shapes; further ones are not recorded as a graph", self._what, SHAPES)
            return None
        try:
            return _Recording(self._function, self._record, trees)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            _log.warning("%s cannot be one CUDA graph and is computed step by step (%s)", self._what, reason)
            return None


class _Recording:
    """A recorded call with its own copies of the inputs."""

    def __init__(self, function: Function, record: Record, trees: Sequence[Tree]) -> None:
        self._inputs = [{name: leaf.clone() for name, leaf in tree.items()} for tree in trees]
        self._launch, self._outputs = record(lambda: function(self._inputs))

    def __call__(self, trees: Sequence[Tree]) -> list[Tree]:
        _copy(trees, self._inputs)
        self._launch()
        outputs = [{name: torch.empty_like(leaf) for name, leaf in tree.items()} for tree in self._outputs]
        _copy(self._outputs, outputs)
        return outputs


def _copy(sources: Sequence[Tree], targets: Sequence[Tree]) -> None:
    """Copy leaf by leaf, by names: a method may give its leaves another order. One kernel for each kind of number."""
    by_dtype: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for source, target in zip(sources, targets, strict=True):
        for name, leaf in target.items():
            into, out_of = by_dtype.setdefault(leaf.dtype, ([], []))
            into.append(leaf)
            out_of.append(source[name])
    for into, out_of in by_dtype.values():
        torch._foreach_copy_(into, out_of)
