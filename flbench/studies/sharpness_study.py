"""Sharpness: lambda_max of the Fisher information of a wide random network, and gradient descent on it.

Without a learning rate nothing trains, and the network is measured as drawn (figure 1 of the sharpness paper). With
one, each round is a step of full-batch gradient descent on E = 1/(2T) sum_kt (y_k(t) - f_k(t))^2 towards the outputs of
a teacher, another draw of the same network (figure 2).
"""

from __future__ import annotations

import math
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor

from flbench import fisher
from flbench.methods.base import Tree
from flbench.studies.base import Record, Study
from flbench.studies.gaussian_network import GaussianNetwork, gaussian_inputs
from flbench.theory.fisher import LayerNormConstants, largest_with_layer_norm
from flbench.theory.gaussian import ACTIVATIONS
from flbench.theory.order import order_parameters

#: Most samples for which the matrix of all pairs of samples is in memory (128 MiB).
MOST_SAMPLES = 4096


class SharpnessOfDraw(Study):
    """One draw of a network, with T ``samples``.

    Without ``lr`` the network stays as it is drawn. With ``spectrum`` all nonzero eigenvalues are computed, not only
    the largest.
    """

    def __init__(
        self,
        network: GaussianNetwork,
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

    def state(self) -> dict[str, Any]:
        """Return everything that the next round depends on; parameters that are not trained follow from the seed."""
        state = super().state()
        return {**state, "x": {}} if self._lr is None else state

    def load(self, state: dict[str, Any]) -> None:
        super().load({**state, "x": self.x} if self._lr is None else state)

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
        """Return the first and the highest loss, this one among them."""
        first, peak = self.carried.get("first_loss", loss), self.carried.get("peak_loss", loss)
        return {"first_loss": first, "peak_loss": max(peak, loss)}

    def _loss(self, params: Tree) -> Tensor:
        """Return E, half the mean over samples of the squared error summed over outputs."""
        assert self._labels_TC is not None
        error_TC = self._labels_TC - self._network.outputs(params, self._x_TD)
        return error_TC.square().sum(1).mean() / 2

    def _measure(self) -> Record:
        dual = self._dual_gram()
        if self._spectrum:
            values = fisher.spectrum(dual)
            mean = float(values.sum() / dual.parameters)
            record: Record = {"lambda_max": float(values[0]), "lambda_mean": mean, "spectrum": values.tolist()}
        else:
            record = {"lambda_max": fisher.largest_eigenvalue(dual)}
        record |= self._constants()
        if self._lr is None:
            return record
        with torch.no_grad():
            loss = self._loss(self.x).item()
        # Runs above 2/lambda_max mostly return from a peak: "explodes" means different things for the two losses.
        return {**record, "loss": loss, **self._extremes(loss)}

    def _dual_gram(self) -> fisher.DualGram:
        """Return K of this draw, in the form that is cheapest to compute with."""
        network, x_TD = self._network, self._x_TD
        if len(x_TD) > MOST_SAMPLES or network.widths[-1] > 1 or not network.keeps_samples_apart:
            return fisher.Jacobian(partial(network.outputs, x_TD=x_TD), self.x)
        u_T1, kernel_TT = network.tangent_kernel(self.x, x_TD)
        parameters = sum(leaf.numel() for leaf in self.x.values())  # exact: whole numbers
        return fisher.OfReadouts(network.of_readout, u_T1, kernel_TT, parameters=parameters)

    def _constants(self) -> Record:
        """Return the constants of eq. 19 and of theorem 4.1 from this draw's outputs before they are normalized.

        With layer normalization also the mean-field value of lambda_max for these outputs.
        """
        network = self._network
        if network.normalized not in ("bn-last", "ln-all"):
            return {}
        with torch.no_grad():
            u_TC = network.readout(self.x, self._x_TD).double().cpu()
        if network.normalized == "bn-last":
            return {"sigmas": u_TC.std(0, correction=0).tolist()}
        *widths, _ = network.widths
        order = order_parameters(
            ACTIVATIONS[network.activation],
            sigma_w2=network.sigma_w2,
            sigma_b2=network.sigma_b2,
            layers=len(widths),
            layer_norm=True,
        )
        kappas = order.kappas([width / widths[-1] for width in widths])
        constants = asdict(LayerNormConstants.of(u_TC.numpy()))
        constants["lambda_mean_field"] = largest_with_layer_norm(kappas, u_TC.numpy(), width=widths[-1])
        return {name: value for name, value in constants.items() if math.isfinite(value)}
