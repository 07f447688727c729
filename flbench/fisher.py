"""The Fisher information F = 1/T sum_t sum_k grad f_k(t) grad f_k(t)^T of a network on T samples with C outputs.

F = J^T J / T, where J (T C x P) is the Jacobian of all outputs. Its nonzero eigenvalues are those of the dual Gram
matrix K = J J^T / T, which has T C rows in place of P. Outputs may depend on other samples through batch statistics:
J is that of the whole batch in training mode, so it contains what a normalization does to the landscape.

Products with J^T are backward passes; those with J are backward passes through backward passes, which every layer
allows, also batch normalization that updates its buffers (torch.func's forward mode does not). Where outputs are
functions of readouts whose gradients' products are known, no pass through the network is needed.

Shape suffixes: T samples, C outputs, R = T * C.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor

from flbench.methods.base import Tree

Array = NDArray[np.float64]


class DualGram(ABC):
    """K = J J^T / T, as products.

    Attributes:
        samples: T.
        rows: R.
        parameters: P.
        like: a tensor of K's dtype, on its device.
    """

    samples: int
    rows: int
    parameters: int
    like: Tensor

    @abstractmethod
    def gram_times(self, v_R: Tensor) -> Tensor:
        """Return K v: (R,)."""

    def gram(self) -> Tensor:
        """Return K, whole, in float64: (R, R)."""
        columns = torch.stack([self.gram_times(unit) for unit in torch.eye(self.rows).to(self.like)])
        return ((columns + columns.mT) / 2).double()


class Jacobian(DualGram):
    """J of ``outputs``, which map parameters to (T, C) and are called once, at ``params``; as products only."""

    def __init__(self, outputs: Callable[[Tree], Tensor], params: Tree) -> None:
        leaves = {name: leaf.detach().requires_grad_() for name, leaf in params.items()}
        with torch.enable_grad():
            f_TC = outputs(leaves)
            self.samples, count = f_TC.shape
            self.rows = self.samples * count
            self._leaves, self._f_R = list(leaves.values()), f_TC.flatten()
            self._u_R = torch.zeros_like(self._f_R, requires_grad=True)
            # J^T u as a function of u, whose derivative is J^T.
            self._pulled = self._grad(self._f_R, self._leaves, self._u_R, create_graph=True)
        self.parameters = sum(leaf.numel() for leaf in self._leaves)  # exact: whole numbers
        self.like = self._f_R.detach()

    def transposed_times(self, v_R: Tensor) -> tuple[Tensor, ...]:
        """Return J^T v, leaf by leaf."""
        return self._grad(self._f_R, self._leaves, v_R)

    def times(self, w: tuple[Tensor, ...]) -> Tensor:
        """Return J w of one tensor a leaf: (R,)."""
        pairs = [(pulled, part) for pulled, part in zip(self._pulled, w, strict=True) if pulled.requires_grad]
        ((out, *_),) = [self._grad([p for p, _ in pairs], [self._u_R], [part for _, part in pairs])]
        return out

    def gram_times(self, v_R: Tensor) -> Tensor:
        """Return K v = J J^T v / T."""
        return self.times(self.transposed_times(v_R)) / self.samples

    @staticmethod
    def _grad(of: Any, by: list[Tensor], with_: Any, *, create_graph: bool = False) -> tuple[Tensor, ...]:
        return torch.autograd.grad(
            of, by, with_, retain_graph=True, create_graph=create_graph, allow_unused=True, materialize_grads=True
        )


class OfReadouts(DualGram):
    """K of one output f(u) a sample behind readouts u with a known tangent kernel: K = A kernel A^T / T, A = df/du.

    Args:
        outputs: maps readouts (T, 1) to outputs (T, 1).
        u_T1: the readouts.
        kernel_TT: products of the readouts' gradients by the parameters, of every two samples.
        parameters: P.
    """

    def __init__(
        self, outputs: Callable[[Tensor], Tensor], u_T1: Tensor, kernel_TT: Tensor, *, parameters: int
    ) -> None:
        self._by_readouts = Jacobian(lambda leaves: outputs(leaves["u"]), {"u": u_T1})
        self._kernel_TT, self.like = kernel_TT, u_T1
        self.samples, self.rows, self.parameters = len(u_T1), len(u_T1), parameters

    def gram_times(self, v_R: Tensor) -> Tensor:
        """Return K v = A kernel A^T v / T."""
        (pulled_T1,) = self._by_readouts.transposed_times(v_R)
        return self._by_readouts.times((self._kernel_TT @ pulled_T1,)) / self.samples


def spectrum(dual: DualGram) -> Array:
    """Return all nonzero eigenvalues in descending order, exactly, through the whole dual Gram matrix."""
    values: Array = np.linalg.eigvalsh(dual.gram().cpu().numpy())[::-1]
    return values


def largest_eigenvalue(dual: DualGram, *, tolerance: float = 1e-6) -> float:
    """Return lambda_max by Lanczos iterations on the dual Gram matrix (of the whole matrix where it is small).

    It is NaN where an output is not finite. ``tolerance`` is relative.
    """
    if dual.rows <= 3:  # too few for Lanczos
        return float(np.linalg.eigvalsh(dual.gram().cpu().numpy())[-1])
    # A fixed start without symmetry: the same network gives the same result, and no eigenvector is orthogonal to it (a
    # constant start is orthogonal to all where the outputs' means are subtracted).
    start = np.random.default_rng(0).standard_normal(dual.rows)

    def product(v: NDArray[Any]) -> NDArray[Any]:
        given = torch.from_numpy(np.ascontiguousarray(v.reshape(-1))).to(dual.like)
        return dual.gram_times(given).double().cpu().numpy()

    operator = LinearOperator((dual.rows, dual.rows), matvec=product, dtype=np.float64)
    first = operator.matvec(start)
    if not np.isfinite(first).all():
        return math.nan
    if not first.any():  # all units are dead, or the softmax is saturated: Lanczos would stop with an error
        return 0.0
    try:
        values = eigsh(operator, k=1, which="LA", v0=start, tol=tolerance, return_eigenvectors=False)
    except ArpackNoConvergence:  # no gap between the largest eigenvalues
        values = np.linalg.eigvalsh(dual.gram().cpu().numpy())[-1:]
    return float(values[0])
