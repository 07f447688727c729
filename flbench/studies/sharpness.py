"""Sharpness: lambda_max of the Fisher information of a wide random network, and gradient descent on it.

Without a learning rate nothing trains, and the network is measured as drawn (figure 1 of the sharpness paper). With
one, each round is a step of full-batch gradient descent on E = 1/(2T) sum_kt (y_k(t) - f_k(t))^2 towards the outputs of
a teacher, another draw of the same network (figure 2).
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from flbench.methods.base import Tree
from flbench.probes import fisher
from flbench.studies.base import Record, Study
from flbench.studies.deep import Deep, gaussian_inputs


class SharpnessOfDraw(Study):
    """One draw of a network.

    Args:
        network: its description.
        samples: T.
        lr: of gradient descent; None: the network stays as it is drawn.
        spectrum: whether all nonzero eigenvalues are computed, or only the largest.
        seed: of the draw.
        dtype: of all arithmetic.
        device: where it is done.
    """

    def __init__(
        self,
        network: Deep,
        *,
        samples: int,
        lr: float | None,
        spectrum: bool,
        seed: int,
        dtype: torch.dtype = torch.float64,
        device: str = "cpu",
    ) -> None:
        super().__init__({name: leaf.to(device) for name, leaf in network.draw(seed, "student", dtype).items()})
        self._network, self._lr, self._spectrum = network, lr, spectrum
        self._x_TD = gaussian_inputs(samples, network.widths[0], seed, dtype).to(device)
        self._labels_TC: Tensor | None = None
        if lr is not None:
            teacher = {name: leaf.to(device) for name, leaf in network.draw(seed, "teacher", dtype).items()}
            with torch.no_grad():
                self._labels_TC = network.outputs(teacher, self._x_TD)

    def _train(self) -> float:
        if self._lr is None:
            return 0.0
        leaves = {name: leaf.detach().requires_grad_() for name, leaf in self.x.items()}
        loss = self._loss(leaves)
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        moved = zip(self.x.items(), gradients, strict=True)
        self.x = {name: leaf - self._lr * gradient for (name, leaf), gradient in moved}
        value = loss.item()
        self.carried = self._extremes(value)
        return value

    def _extremes(self, loss: float) -> dict[str, float]:
        """The first and the highest loss, this one among them."""
        first, peak = self.carried.get("first_loss", loss), self.carried.get("peak_loss", loss)
        return {"first_loss": first, "peak_loss": max(peak, loss)}

    def _loss(self, params: Tree) -> Tensor:
        """E, half the mean over samples of the squared error summed over outputs."""
        assert self._labels_TC is not None
        error_TC = self._labels_TC - self._network.outputs(params, self._x_TD)
        return error_TC.square().sum(1).mean() / 2

    def _measure(self) -> Record:
        outputs = partial(self._network.outputs, x_TD=self._x_TD)
        if self._spectrum:
            found = fisher.spectrum(outputs, self.x)
            assert found.nonzero is not None
            record: Record = {
                "lambda_max": found.largest,
                "lambda_mean": found.mean,
                "spectrum": [float(value) for value in found.nonzero],
            }
        else:
            record = {"lambda_max": fisher.largest_eigenvalue(outputs, self.x)}
        if self._lr is None:
            return record
        with torch.no_grad():
            loss = self._loss(self.x).item()
        # Runs above 2/lambda_max mostly come back from a peak: whether one "explodes" depends on which is asked.
        return {**record, "loss": loss, **self._extremes(loss)}
