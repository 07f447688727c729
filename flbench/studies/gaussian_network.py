"""The fully connected networks of the sharpness paper, with Gaussian weights, biases and inputs.

u^l = W^l h^(l-1) + b^l, h^l = phi(u^l), with a linear readout f = u^L; u^l and u^L may be normalized.

Shape suffixes: T samples, D units of a layer, C outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from flbench.methods.base import Tree
from flbench.streams import stream
from flbench.studies.choices import Normalized

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "linear": lambda u: u,
    "erf": torch.erf,
    "sigmoid": torch.sigmoid,
    "leaky-relu": lambda u: F.leaky_relu(u, 0.01),
}


@dataclass(frozen=True)
class GaussianNetwork:
    """A network of L layers.

    Attributes:
        widths: units of the inputs and of every layer up to the readout: L + 1 numbers.
        activation: phi of the hidden layers.
        normalized: see ``choices.Normalized``.
        sigma_w2: variance of a weight times the width of the layer before.
        sigma_b2: variance of a bias.
        eps: added to variances; the theory has none.
    """

    widths: tuple[int, ...]
    activation: str = "relu"
    normalized: Normalized = "none"
    sigma_w2: float = 2.0
    sigma_b2: float = 0.0
    eps: float = 0.0

    def draw(self, seed: int, purpose: str, dtype: torch.dtype) -> Tree:
        """Return random parameters; ``purpose`` separates students from teachers."""
        tree: Tree = {}
        for layer, (before, after) in enumerate(pairwise(self.widths), start=1):
            generator = stream(seed, purpose, layer)
            weight = generator.standard_normal((after, before)) * (self.sigma_w2 / before) ** 0.5
            bias = generator.standard_normal(after) * self.sigma_b2**0.5
            tree[f"w{layer}"] = torch.from_numpy(weight).to(dtype)
            tree[f"b{layer}"] = torch.from_numpy(bias).to(dtype)
        return tree

    @property
    def keeps_samples_apart(self) -> bool:
        """Whether a sample's readouts depend on no other sample."""
        kind, _, where = self.normalized.partition("-")
        return kind in ("none", "ln") or where == "last"

    def outputs(self, params: Tree, x_TD: Tensor) -> Tensor:
        """Return F (T, C)."""
        return self.of_readout(self.readout(params, x_TD))

    def of_readout(self, u_TC: Tensor) -> Tensor:
        """Return F (T, C) of u^L."""
        return self._normalize(u_TC, "last")

    def readout(self, params: Tree, x_TD: Tensor) -> Tensor:
        """Return u^L (T, C): the outputs before the last layer's normalization."""
        *_, (_, u_TC) = self._layers(params, x_TD)
        return u_TC

    def tangent_kernel(self, params: Tree, x_TD: Tensor) -> tuple[Tensor, Tensor]:
        """Return the readout u^L (T, 1), and the products of its parameter gradients at every two samples (T, T).

        The gradient by W^l at a sample is delta^l h^(l-1)^T with delta^l = du^L/du^l, that by b^l is delta^l, so the
        products are sum_l (delta^l(s) . delta^l(t)) (h^(l-1)(s) . h^(l-1)(t) + 1): a few products of matrices in place
        of passes through the network. Samples must be kept apart, and C be 1.
        """
        assert self.keeps_samples_apart and self.widths[-1] == 1
        with torch.enable_grad():
            leaves = {name: leaf.detach().requires_grad_() for name, leaf in params.items()}
            inputs, readouts = zip(*self._layers(leaves, x_TD), strict=True)
            deltas = torch.autograd.grad(readouts[-1].sum(), readouts)
        with torch.no_grad():
            terms = ((delta @ delta.T) * (h @ h.T + 1) for delta, h in zip(deltas, inputs, strict=True))
            return readouts[-1].detach(), sum(terms, start=torch.zeros(()).to(x_TD))  # exact: tensors

    def _layers(self, params: Tree, x_TD: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each layer's inputs h^(l-1) and what its weights and biases make of them, u^l."""
        phi, last = ACTIVATIONS[self.activation], len(self.widths) - 1
        h = x_TD
        for layer in range(1, last):
            u = F.linear(h, params[f"w{layer}"], params[f"b{layer}"])
            yield h, u
            h = phi(self._normalize(u, "middle"))
        yield h, F.linear(h, params[f"w{last}"], params[f"b{last}"])

    def _normalize(self, u_TD: Tensor, place: str) -> Tensor:
        kind, _, where = self.normalized.partition("-")
        if kind == "none" or where not in (place, "all"):
            return u_TD
        over = 1 if kind == "ln" else 0
        centred = u_TD - u_TD.mean(over, keepdim=True)
        if kind == "mean":
            return centred
        return centred * torch.rsqrt(centred.square().mean(over, keepdim=True) + self.eps)


def gaussian_inputs(samples: int, width: int, seed: int, dtype: torch.dtype) -> Tensor:
    """Return X (T, M_0), all numbers N(0, 1)."""
    return torch.from_numpy(stream(seed, "gaussian inputs").standard_normal((samples, width))).to(dtype)
