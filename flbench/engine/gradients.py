"""The gradient of a local step: by autograd for any network, by hand for stacks of multi-layer perceptrons.

Shape suffixes: N clients (absent for one), B batch, Y classes, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from flbench.engine.dense_stack import DenseLayer, DenseStack, Target
from flbench.engine.half_passes import HalfPasses
from flbench.engine.hooks import TERMS, LiftedHooks, derives_terms, mean_over_batch, own_hooks
from flbench.engine.native_stack import NativeMlp, NativeStack
from flbench.methods.base import Batch, Method, Outputs, Tree
from flbench.models.layers import at_least_float
from flbench.models.network import Forward
from flbench.models.norm_layers import Normalization


@dataclass(frozen=True)
class Passes:
    """The passes of a network that no other thread uses, and that is in training mode.

    ``dense`` are the layers of a stack whose backward pass is derived by hand; None: autograd derives it. ``mask_keys``
    are the places of the keys of masks, each with a number of the layer. ``native`` computes the passes of these layers
    by compiled functions; None: torch does. ``half`` are the passes in bfloat16 that are derived by hand.
    """

    network: nn.Module
    forward: Forward
    dense: Sequence[DenseLayer] | None = None
    mask_keys: Mapping[str, int] = field(default_factory=dict)
    native: NativeMlp | None = None
    half: HalfPasses | None = None


#: Passes that are derived by hand, all with the interface of ``DenseStack``.
Derived = DenseStack | NativeStack | HalfPasses


class Gradient(Protocol):
    """The passes of a round's local steps, called without torch's gradient."""

    def taught(self, images: Tensor) -> dict[str, Outputs]:
        """Return the teachers' outputs on a batch."""

    def __call__(
        self, params: Tree, buffers: Tree, images: Tensor, target: Target, taught: Mapping[str, Outputs]
    ) -> tuple[Any, Tree]:
        """Return a note of the data term of the loss, and the gradient of the whole loss, valid until the next call.

        The buffers are updated in place.
        """

    def losses(self, notes: Sequence[Any]) -> Sequence[Tensor]:
        """Return each step's data term, 0-d or (N,), from its note."""


def rounds_by_hand(method: type[Method]) -> bool:
    """Return whether the gradients by hand of a method's terms round in another way than autograd's."""
    own = own_hooks(method) & {f"{term}_gradient" for term in TERMS}
    return bool(own) and derives_terms(method) and not method.rounds_as_autograd


def gradient_of(passes: Passes, lifted: LiftedHooks, autocast: torch.dtype | None) -> Gradient:
    """Return the fastest way to compute the gradient; ``autocast`` is the dtype of mixed precision, or None."""
    if autocast is not None or (passes.dense is None and passes.native is None):  # as ``StackedExecutor.by_hand`` says
        if passes.half is not None and autocast == torch.bfloat16 and not lifted.has_terms:
            half = passes.half
            return ByHand(lambda training: half, (), lifted)
        return ByAutograd(passes, lifted, autocast)
    native, dense = passes.native, passes.dense or ()

    def stack(training: bool) -> Derived:
        return DenseStack(dense) if native is None else NativeStack(native, training=training)

    return ByHand(stack, dense, lifted)


class ByAutograd:
    """For any network."""

    def __init__(self, passes: Passes, lifted: LiftedHooks, autocast: torch.dtype | None) -> None:
        self._passes, self._lifted, self._autocast = passes, lifted, autocast

    def taught(self, images: Tensor) -> dict[str, Outputs]:
        with evaluating([self._passes.network]), autocast(images.device, self._autocast):
            every = {name: self._passes.forward(*model, images) for name, model in self._lifted.teachers.items()}
        return {name: Outputs(*map(at_least_float, outputs)) for name, outputs in every.items()}

    def __call__(
        self, params: Tree, buffers: Tree, images: Tensor, target: Target, taught: Mapping[str, Outputs]
    ) -> tuple[Tensor, Tree]:
        leaves = {name: leaf.detach().requires_grad_() for name, leaf in params.items()}
        with torch.enable_grad():
            with autocast(images.device, self._autocast):
                features, logits = self._passes.forward(self._lifted.of_network(leaves), buffers, images)
            loss, objective = self._lifted.loss_terms(leaves, target, features, logits, taught)
        grads = torch.autograd.grad(
            objective, list(leaves.values()), torch.ones_like(objective), allow_unused=True, materialize_grads=True
        )
        return loss.detach(), dict(zip(params, grads, strict=True))

    def losses(self, notes: Sequence[Tensor]) -> Sequence[Tensor]:
        return notes


class ByHand:
    """For networks whose passes are derived: stacks of multi-layer perceptrons, one client in bfloat16; else autograd.

    The method's terms are derived by autograd where the method does not.
    """

    def __init__(self, stack: Callable[[bool], Derived], layers: Sequence[DenseLayer], lifted: LiftedHooks) -> None:
        """``stack`` returns the passes in training mode or not; ``layers`` are empty without normalizations."""
        self._lifted, self._stack = lifted, stack(True)
        self._teachers = {name: stack(False) for name in lifted.teachers}
        #: The layers that differ in evaluation mode; to switch the whole network takes longer than a teacher's pass.
        self._modal = [module for _, module in layers if isinstance(module, Normalization)]

    def taught(self, images: Tensor) -> dict[str, Outputs]:
        with evaluating(self._modal):
            models = self._lifted.teachers
            every = {name: stack.forward(*models[name], images) for name, stack in self._teachers.items()}
        return {name: Outputs(*outputs) for name, outputs in every.items()}

    def __call__(
        self, params: Tree, buffers: Tree, images: Tensor, target: Target, taught: Mapping[str, Outputs]
    ) -> tuple[Any, Tree]:
        """As in ``Gradient``; a note is that of ``cross_entropy``, or the loss."""
        features, logits = self._stack.forward(params, buffers, images)
        if self._lifted.own_loss:
            return self._of_own_loss(params, (features, logits), target, taught)
        batch = Batch(target[0], features, logits, taught)
        if self._lifted.loss_by_hand:
            note, added = self._lifted.loss_gradient(params, batch)
        else:
            changed = self._lifted.changes_logits
            note, of_logits = (self._of_changed_logits if changed else self._stack.cross_entropy)(logits, target)
            added = {"logits_BY": of_logits}
        if self._lifted.by_hand:
            for name, leaf in self._lifted.penalty_gradient(params, batch).items():
                added[name] = added[name] + leaf if name in added else leaf
        grads = self._stack.backward(params, added.pop("logits_BY", None), added.pop("features_BD", None))
        return note, {name: leaf + added[name] if name in added else leaf for name, leaf in grads.items()}

    def _of_changed_logits(self, logits: Tensor, target: Target) -> tuple[Any, Tensor]:
        """The same as ``cross_entropy`` where others than the network's logits enter it."""
        derived = not self._lifted.shifts_logits
        z = logits.detach().requires_grad_(derived)
        with torch.set_grad_enabled(derived):
            entering = self._lifted.logits(z)
        note, of_logits = self._stack.cross_entropy(entering.detach(), target)
        if derived:
            (of_logits,) = torch.autograd.grad(entering, [z], of_logits)
        return note, of_logits

    def _of_own_loss(
        self, params: Tree, outputs: tuple[Tensor, Tensor], target: Target, taught: Mapping[str, Outputs]
    ) -> tuple[Tensor, Tree]:
        """The same where the method changes the loss: autograd derives it by features, logits and parameters."""
        features, logits = (each.detach().requires_grad_() for each in outputs)
        leaves = {name: leaf.detach().requires_grad_() for name, leaf in params.items()}
        with torch.enable_grad():
            loss, objective = self._lifted.loss_terms(leaves, target, features, logits, taught)
        of_features, of_logits, *own = torch.autograd.grad(
            objective, [features, logits, *leaves.values()], torch.ones_like(objective), allow_unused=True
        )
        grads = self._stack.backward(self._lifted.of_network(params), of_logits, of_features)
        added = {name: leaf for name, leaf in zip(leaves, own, strict=True) if leaf is not None}
        if len(grads) < len(leaves):  # the method has parameters of its own
            grads |= {name: torch.zeros_like(leaf) for name, leaf in leaves.items() if name not in grads}
        return loss.detach(), {name: leaf + added[name] if name in added else leaf for name, leaf in grads.items()}

    def losses(self, notes: Sequence[Any]) -> Sequence[Tensor]:
        """As in ``Gradient``; one operation for all steps."""
        if isinstance(notes[0], Tensor):
            return notes
        log_p, sizes = zip(*notes, strict=True)
        each = -torch.cat(log_p).squeeze(1)
        means = mean_over_batch(each, None if sizes[0] is None else torch.cat(sizes))
        return means.view(len(notes), -1).unbind()


@contextmanager
def evaluating(modules: Sequence[nn.Module]) -> Iterator[None]:
    """In evaluation mode."""
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for module in modules:
            module.train()


def autocast(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[Any]:
    """Return the context of mixed precision, or an empty one.

    The cache of cast weights is off: each is used once, and a recorded graph must not read one made outside of it.
    """
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype, cache_enabled=False)
