"""A pure function of tensors as one CUDA graph: recorded once, then launched without Python between its kernels.

Recording is one function (``Recorder``). Tests without a GPU replace it by one that calls the recorded function again.
"""

from __future__ import annotations

import gc
import logging
import warnings
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flbench.errors import out_of_memory
from flbench.methods.base import Tree

_log = logging.getLogger(__name__)

#: A pure function of trees. It may be called several times for one result.
TreeFunction = Callable[[Sequence[Tree]], list[Tree]]

#: Records a call whose inputs stay at their addresses. Returns a function that launches it again, and its outputs,
#: which each launch overwrites.
Recorder = Callable[[Callable[[], list[Tree]]], tuple[Callable[[], object], list[Tree]]]

#: Records a call, with the settings that its function now has, and returns what launches it.
Trial = Callable[[], Callable[[], object]]

#: Chooses the settings of a function for these shapes of its inputs.
Tune = Callable[[Hashable, Trial], None]

#: Most input shapes for which a function is recorded; for further ones it is called directly.
SHAPES = 8


class _Pool:
    """Memory that only graphs can use, released with the last reference to this object."""

    def __init__(self, stream: Any) -> None:
        self.handle = torch.cuda.graph_pool_handle()
        self._anchor = torch.cuda.CUDAGraph()  # torch refuses a graph in a pool that no other graph uses
        with warnings.catch_warnings(), torch.cuda.graph(self._anchor, pool=self.handle, stream=stream):
            warnings.simplefilter("ignore")  # that it is empty


@dataclass(frozen=True)
class _Launch:
    """Launches a graph, and keeps the graph's memory pool alive."""

    graph: Any
    pool: _Pool

    def __call__(self) -> None:
        self.graph.replay()


class CudaRecorder:
    """Records with ``torch.cuda.graph``; all graphs of one recorder that exist at the same time share a memory pool.

    Sharing is safe because they are launched one after another in one stream, and the outputs of each are copied at
    once. The pool is released with the last graph, so the trials of the next recording can use its memory.
    """

    def __init__(self) -> None:
        # Trials run on the stream of the recording, because libraries keep a handle and a workspace for each stream.
        self._stream = torch.cuda.Stream()
        self._newest: Callable[[], _Pool | None] = lambda: None  # a weak reference

    def _pool(self) -> _Pool:
        pool = self._newest()
        if pool is None:
            pool = _Pool(self._stream)
            self._newest = weakref.ref(pool)
        return pool

    def __call__(self, call: Callable[[], list[Tree]]) -> tuple[Callable[[], object], list[Tree]]:
        """Return the recorded call and its outputs, after two calls on a side stream.

        Raises:
            RuntimeError: something in it waits for the device or cannot be recorded.
        """
        pool, side, own = self._pool(), self._stream, torch.cuda.current_stream()
        side.wait_stream(own)
        try:
            with torch.cuda.stream(side):
                call()  # libraries initialize themselves
                with _waiting_is_an_error():  # before the recording, in which such an error leaves torch in a bad state
                    call()
        finally:
            own.wait_stream(side)  # after a failure too: the memory of the calls is freed on this stream
        graph = torch.cuda.CUDAGraph()
        # Other threads of this process may allocate as they like; the backward pass runs in one of torch's.
        where: dict[str, Any] = {"pool": pool.handle, "stream": side, "capture_error_mode": "thread_local"}
        with _no_garbage_collection(), torch.cuda.graph(graph, **where):
            outputs = call()
        return _Launch(graph, pool), outputs


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
    """Collect garbage now, and not during a recording: freeing a graph would invalidate the recording."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class GraphedFunction:
    """A pure function of trees, recorded for each shape of its inputs; called directly if it cannot be recorded.

    Args:
        function: the function.
        record: records it.
        what: its name in messages.
        feedback: how many of the function's last outputs are the last inputs of the next call. These stay in place in
            repeated calls, so that a call costs the host next to nothing. Callers must not modify such outputs.
        tune: called before the first recording with the shapes of its inputs, and with what records a trial.
    """

    def __init__(
        self, function: TreeFunction, record: Recorder, what: str, feedback: int = 0, tune: Tune | None = None
    ) -> None:
        self._function, self._record, self._what, self._feedback = function, record, what, feedback
        self._tune = tune
        self._recordings: dict[Hashable, _Recording | None] = {}

    def __call__(self, shape: Hashable, trees: Sequence[Tree]) -> list[Tree]:
        """Return the function's value.

        Args:
            shape: a key on which the shapes of the inputs depend.
            trees: the inputs, on the device; calls of one shape have leaves of the same names.

        Raises:
            torch.OutOfMemoryError: it does not fit into memory, recorded or not.
        """
        if shape not in self._recordings:
            self._recordings[shape] = self._recorded(trees)
        recording = self._recordings[shape]
        return self._function(trees) if recording is None else recording(trees)

    def forget(self) -> None:
        """Release all recordings and their memory."""
        self._recordings.clear()

    def _recorded(self, trees: Sequence[Tree]) -> _Recording | None:
        if not any(self._recordings.values()) and self._recordings:
            return None  # an earlier shape could not be recorded, and the log says why
        if len(self._recordings) >= SHAPES:
            if len(self._recordings) == SHAPES:
                _log.warning("%s has had %d shapes; further ones are not recorded as a graph", self._what, SHAPES)
            return None
        if self._tune is not None and not self._recordings:
            shapes = tuple((name, leaf.shape, leaf.dtype) for tree in trees for name, leaf in tree.items())
            self._tune(shapes, lambda: self._new_recording(trees).launch)
        try:
            return self._new_recording(trees)
        except Exception as error:
            if out_of_memory(error):
                raise
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            _log.warning("%s cannot be one CUDA graph and is computed step by step (%s)", self._what, reason)
            return None

    def _new_recording(self, trees: Sequence[Tree]) -> _Recording:
        return _Recording(self._function, self._record, trees, self._feedback)


class _Recording:
    """A recorded call with its own copies of its inputs."""

    def __init__(self, function: TreeFunction, record: Recorder, trees: Sequence[Tree], feedback: int) -> None:
        self._inputs = [_Packed(tree) for tree in trees]
        self._fixed = len(trees) - feedback
        #: The tree that each input already holds, if the last call returned it.
        self._held: list[Tree | None] = [None] * len(trees)
        self._launch, self._outputs = record(self._once(function))

    def launch(self) -> None:
        """Call it with the inputs that it holds; their memory exists as long as this object."""
        self._launch()

    def _once(self, function: TreeFunction) -> Callable[[], list[Tree]]:
        """Return a call that packs its outputs, and copies those that are fed back into the inputs."""
        fed_back = self._inputs[self._fixed :]

        def call() -> list[Tree]:
            outputs = function([packed.tree for packed in self._inputs])
            own = len(outputs) - len(fed_back)
            packs = [_Packed(tree) for tree in outputs[:own]]
            packs += [_Packed(packed.ordered(tree)) for packed, tree in zip(fed_back, outputs[own:], strict=True)]
            # Any output may be a view of any input: copy all outputs before the first input is overwritten.
            for packed, pack in zip(fed_back, packs[own:], strict=True):
                packed.fill(pack)
            self._layouts = packs
            return [pack.flat for pack in packs]

        return call

    def __call__(self, trees: Sequence[Tree]) -> list[Tree]:
        for packed, tree, held in zip(self._inputs, trees, self._held, strict=True):
            if tree is not held:
                packed.put(tree)
        self.launch()
        returned = [layout.like(flat) for layout, flat in zip(self._layouts, self._outputs, strict=True)]
        fed_back = len(self._inputs) - self._fixed
        self._held = [*[None] * self._fixed, *returned[len(returned) - fed_back :]]
        return returned


class _Packed:
    """A copy of a tree whose leaves are views of one flat tensor for each dtype."""

    def __init__(self, tree: Tree) -> None:
        self._groups: dict[str, dict[str, Tensor]] = {}
        for name, leaf in tree.items():
            self._groups.setdefault(str(leaf.dtype), {})[name] = leaf.detach()
        self._names = list(tree)
        self.flat: Tree = {
            kind: torch.cat([leaf.reshape(-1) for leaf in leaves.values()]) for kind, leaves in self._groups.items()
        }
        self.tree = self._unpacked(self.flat)
        self._groups = {kind: {name: self.tree[name] for name in leaves} for kind, leaves in self._groups.items()}

    def _unpacked(self, flat: Tree) -> Tree:
        leaves: Tree = {}
        for kind, own in self._groups.items():
            parts = torch._utils._unflatten_dense_tensors(flat[kind], list(own.values()))
            leaves.update(zip(own, parts, strict=True))
        return leaves if len(self._groups) == 1 else {name: leaves[name] for name in self._names}

    def like(self, flat: Tree) -> Tree:
        """Return a new tree with the values of ``flat``, which may be overwritten afterwards."""
        return self._unpacked({kind: numbers.clone() for kind, numbers in flat.items()})

    def put(self, tree: Tree) -> None:
        """Copy the leaves of a tree into this one, by name: a method may return them in another order."""
        for leaves in self._groups.values():
            torch._foreach_copy_(list(leaves.values()), [tree[name] for name in leaves])

    def fill(self, other: _Packed) -> None:
        """Copy a tree that is packed in the same way."""
        for kind, numbers in self.flat.items():
            numbers.copy_(other.flat[kind])

    def ordered(self, tree: Tree) -> Tree:
        """Return the tree in the order of this one's names.

        Raises:
            ValueError: its leaves have other names, shapes or dtypes.
        """
        for name in {*self.tree, *tree}:
            old, new = self.tree.get(name), tree.get(name)
            if old is None or new is None or (old.shape, old.dtype) != (new.shape, new.dtype):
                raise ValueError(f"a round changes the shape or dtype of {name}")
        return {name: tree[name] for name in self.tree}
