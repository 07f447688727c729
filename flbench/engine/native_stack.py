"""Stacks of multi-layer perceptrons by compiled functions (``native.mlp``), in place of torch's operations.

The slow twin is ``dense_stack.DenseStack``, which has the same interface and, but for the order of its sums, the same
numbers. Here a client's bits do not depend on the stack at all.

Shape suffixes: N clients, E local steps, B batch, D features, Y classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flbench.engine.convolution_stack import ConvolutionStack, NativeConvolutions
from flbench.engine.dense_stack import DenseLayer, Target
from flbench.engine.device_data import LeavingBatches
from flbench.engine.native_norms import NativeNorm
from flbench.methods.base import Tree
from flbench.models.layers import Dense, Relu
from flbench.native.build import Native, native
from flbench.native.mlp_layout import Field, Kind, Operation, Part

#: Floats of the widest register: rows of activations are multiples of it on every CPU.
_REGISTER = 16

#: What sums start from, and the factor that sums rows.
_CONSTANTS = torch.cat([torch.zeros(_REGISTER), torch.ones(_REGISTER)])


@dataclass(kw_only=True)
class _Layer(NativeNorm):
    """A dense layer or a normalization, with the ReLU after it."""

    inputs: int
    outputs: int
    relu: bool = False

    @property
    def kept(self) -> int:
        """Rows of activations that a client keeps: the output, and of a normalization also two other parts."""
        padded = _padded(self.outputs)
        return padded if self.kind == Kind.DENSE else 2 * padded + self.groups


@dataclass
class NativeMlp:
    """A network whose passes are compiled.

    Attributes:
        run: the function.
        layers: in order.
        features: number of layers whose output the features are.
        convolutions: layers before these, or None.
    """

    run: Native
    layers: list[_Layer]
    features: int
    convolutions: NativeConvolutions | None = None

    @classmethod
    def of(cls, dense: Sequence[DenseLayer] | None, convolutions: NativeConvolutions | None = None) -> NativeMlp | None:
        """Return the network of these layers; None where a layer is not compiled, or nothing is on this machine."""
        layers = _layers(dense) if dense else None
        run = native("mlp", "run") if layers else None
        if layers is None or run is None:
            return None
        features = sum(layer.path not in ("head", "logits") for layer in layers)  # exact: whole numbers
        return cls(run, layers, features, convolutions)

    def gains(self, batch: int) -> bool:
        """Return whether this is faster than torch for batches of this size."""
        return self.convolutions is None or self.convolutions.gain(batch)

    @cached_property
    def local_steps(self) -> NativeStack:
        """The stack whose memory the rounds share."""
        return NativeStack(self)


def _layers(dense: Sequence[DenseLayer]) -> list[_Layer] | None:
    """The layers of a network with each ReLU joined to the one before it; None where this is impossible."""
    if any(leaf.dtype != torch.float32 for _, module in dense for leaf in module.parameters()):
        return None
    width = next(module.in_features for _, module in dense if isinstance(module, Dense))
    layers: list[_Layer] = []
    for path, module in dense:
        if isinstance(module, Relu):
            if not layers or layers[-1].relu:
                return None
            layers[-1].relu = True
            continue
        layer = _layer(path, module, width)
        if layer is None:
            return None
        layers.append(layer)
        width = layer.outputs
    return layers


def _layer(path: str, module: nn.Module, width: int) -> _Layer | None:
    if type(module) is Dense:  # exactly this: a subclass may compute something else
        widths: dict[str, Any] = {"inputs": module.in_features, "outputs": module.out_features}
        return _Layer(path=path, kind=Kind.DENSE, gains=True, bias=module.bias is not None, **widths)
    norm = NativeNorm.of(path, module)
    return None if norm is None else _Layer(**vars(norm), inputs=width, outputs=width)


class NativeStack:
    """A stack of clients with such a network; what it returns is valid until its next pass."""

    def __init__(self, network: NativeMlp, *, training: bool = True) -> None:
        """``training``: whether batches are normalized by their own statistics."""
        self._network, self._training = network, training
        self._head = np.zeros(len(Field) + len(Part) * len(network.layers), np.int64)
        self._parts = self._head[len(Field) :].reshape(-1, len(Part))
        self._kept: dict[str, Any] = {}  # what the addresses belong to
        self._shape: tuple[int, ...] = ()
        self._grads: Tree = {}
        self._outputs: list[Tensor] = []
        self._of_images: Tensor | None = None
        convolutions = network.convolutions
        self._convolutions = None if convolutions is None else ConvolutionStack(convolutions, training=training)

    def forward(self, params: Tree, buffers: Tree, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return features_NBD and logits_NBY of images_NBCHW, or of features (N, B, D)."""
        clients, batch = images.shape[:2]
        self._allocate(clients, batch, clients)
        if self._convolutions is not None:
            images = self._convolutions.forward(params, buffers, images)
        self._set(Field.IMAGES, images.reshape(clients * batch, -1).contiguous())
        self._set_params(params, buffers, clients)
        self._do(Operation.FORWARD)
        layers = self._network.layers
        features = self._outputs[self._network.features]
        return features[..., :batch].mT, self._outputs[len(layers)][..., :batch].mT

    def cross_entropy(self, logits: Tensor, target: Target) -> tuple[Tensor, Tensor]:
        """Return the loss (N,) of logits, and its gradient by them; the network's own stay as they are."""
        labels, sizes = target
        self._set(Field.LABELS, labels.contiguous())
        self._set(Field.SIZES, None if sizes is None else sizes.contiguous())
        losses = self._set(Field.LOSSES, logits.new_empty(len(logits)))
        own = self._outputs[len(self._network.layers)][..., : logits.shape[-2]].mT
        others = logits.data_ptr() != own.data_ptr()
        if others:  # the function reads them where the network's are
            kept = own.clone()
            own.copy_(logits)
        self._do(Operation.LOSS)
        if others:
            own.copy_(kept)
        return losses, self._kept["of_logits"][..., : logits.shape[-2]].mT

    def backward(self, params: Tree, of_logits: Tensor | None, of_features: Tensor | None = None) -> Tree:
        """As ``DenseStack.backward``."""
        if of_logits is None:
            self._kept["of_logits"].zero_()
        else:
            own = self._kept["of_logits"][..., : of_logits.shape[-2]].mT
            if of_logits.data_ptr() != own.data_ptr() or of_logits.stride() != own.stride():
                own.copy_(of_logits)
        added = None
        if of_features is not None:
            added = torch.zeros_like(self._outputs[self._network.features], memory_format=torch.contiguous_format)
            added[..., : of_features.shape[-2]] = of_features.mT
        self._set(Field.OF_FEATURES, added)
        if not self._grads:
            self._grads = {
                name: torch.empty_like(leaf, memory_format=torch.contiguous_format) for name, leaf in params.items()
            }
            self._address(self._grads, Part.OF_WEIGHT, Part.OF_BIAS)
        if self._convolutions is None:
            self._do(Operation.BACKWARD)
            return dict(self._grads)
        if self._of_images is None:
            self._of_images = self._set(Field.OF_IMAGES, torch.zeros_like(self._outputs[0]))
        self._do(Operation.BACKWARD)
        return {**self._grads, **self._convolutions.backward(self._of_images)}

    def train(self, params: Tree, buffers: Tree, batches: LeavingBatches, rates: float | Tensor) -> Tensor:
        """Take all local steps of a round by plain SGD.

        Args:
            params: moved in place; contiguous.
            buffers: those of the layers.
            batches: those of the steps, of images that have a ``plain_source``.
            rates: the learning rate, or each client's (N,).

        Returns:
            Each client's sum of losses (N,).
        """
        rows = batches.drawn["rows_NEB"].contiguous()
        clients, steps, batch = rows.shape
        source = batches.images.plain_source
        assert source is not None
        self._allocate(clients, batch, 1)
        self._head[Field.STEPS] = steps
        self._set(Field.IMAGES, source.images)
        self._head[Field.ARE_BYTES] = source.images.dtype == torch.uint8
        self._set(Field.SCALE, torch.tensor([source.white, source.mean, source.deviation]))
        self._set(Field.ROWS, rows)
        self._set(Field.LABELS, batches.images.train_labels_M)
        sizes = batches.drawn.get("sizes_NE")
        self._set(Field.SIZES, None if sizes is None else sizes.contiguous())
        self._set(Field.TAKEN, torch.tensor(batches.leave_after))
        self._set(Field.RATES, torch.full((clients,), rates) if isinstance(rates, float) else rates.contiguous())
        losses: Tensor = self._set(Field.LOSSES, torch.empty(clients))
        self._set_params(params, buffers, clients)
        self._address(params, Part.OF_WEIGHT, Part.OF_BIAS)
        self._do(Operation.TRAIN)
        return losses

    def _allocate(self, clients: int, batch: int, at_once: int) -> None:
        """Reserve memory for the activations of ``at_once`` clients, if it is not the last call's."""
        if self._shape == (clients, batch, at_once):
            return
        self._shape = clients, batch, at_once
        layers, row = self._network.layers, _padded(batch)
        inputs, classes = layers[0].inputs, layers[-1].outputs
        places, floats = [], 2 * row * _padded(inputs)
        for layer in layers:
            places.append(floats)
            floats += row * layer.kept
        memory = torch.empty(at_once, floats)
        widest = row * max(_padded(width) for layer in layers for width in (layer.inputs, layer.outputs))
        head = self._head
        head[Field.CLIENTS], head[Field.LAYERS], head[Field.BATCH], head[Field.ROW] = clients, len(layers), batch, row
        head[Field.INPUTS], head[Field.CLASSES], head[Field.STEPS] = inputs, classes, 1
        head[Field.CLIENT] = 4 * floats if at_once > 1 else 0
        head[Field.WIDEST], head[Field.FEATURES] = widest, self._network.features
        self._set(Field.MEMORY, memory)
        self._set(Field.SPARE, torch.empty(3 * widest))
        self._set(Field.CONSTANTS, _CONSTANTS)
        self._kept["of_logits"] = self._set(Field.OF_LOGITS, torch.empty(at_once, classes, row))
        self._set(Field.ROWS, torch.arange(clients * batch))
        self._set(Field.SCALE, torch.zeros(3))
        head[Field.ARE_BYTES] = 0
        places = [row * _padded(inputs), *places]
        widths = [inputs, *(layer.outputs for layer in layers)]
        self._outputs = [
            memory[:, at : at + width * row].unflatten(1, (width, row))
            for at, width in zip(places, widths, strict=True)
        ]
        self._numbers, self._of_images = torch.empty(len(layers), clients), None
        self._grads = {}
        for part, layer, place in zip(self._parts, layers, places[1:], strict=True):
            part[Part.KIND], part[Part.RELU], part[Part.CENTRED] = layer.kind, layer.relu, layer.centred
            part[Part.INPUTS], part[Part.OUTPUTS], part[Part.GROUPS] = layer.inputs, layer.outputs, layer.groups
            part[Part.Y], part[Part.NORMALIZED] = 4 * place, 4 * (place + row * _padded(layer.outputs))

    def _set_params(self, params: Tree, buffers: Tree, clients: int) -> None:
        leaves = {name: leaf.contiguous() for name, leaf in params.items()}
        self._address(leaves, Part.WEIGHT, Part.BIAS)
        for part, layer, numbers in zip(self._parts, self._network.layers, self._numbers, strict=True):
            if layer.kind != Kind.DENSE:
                read = layer.tensors(buffers, numbers, training=self._training)
                for name, tensor in read.items():
                    part[Part[name]] = tensor.data_ptr()
                self._kept[layer.path] = read

    def _address(self, leaves: Tree, weight: Part, bias: Part) -> None:
        self._kept[weight.name] = leaves
        for part, layer in zip(self._parts, self._network.layers, strict=True):
            part[weight] = leaves[f"{layer.path}.weight"].data_ptr() if layer.gains else 0
            part[bias] = leaves[f"{layer.path}.bias"].data_ptr() if layer.bias else 0

    def _set(self, field: Field, value: Tensor | None) -> Any:
        """Pass a tensor's address, and keep the tensor."""
        self._kept[field.name] = value
        self._head[field] = 0 if value is None else value.data_ptr()
        return value

    def _do(self, operation: Operation) -> None:
        self._head[Field.OPERATION] = operation
        self._network.run(self._head.ctypes.data)


def _padded(floats: int) -> int:
    return -(-floats // _REGISTER) * _REGISTER
