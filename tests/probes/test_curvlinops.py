"""Our Fisher information against an independent one: curvlinops' generalized Gauss-Newton of the squared error.

With the mean over T samples and C outputs, that is 2 / (T C) J^T J, so C / 2 times it is F = J^T J / T.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import eigsh
from torch import Tensor, nn

from flbench import fisher
from flbench.methods.base import Tree
from flbench.studies.gaussian_network import GaussianNetwork, gaussian_inputs

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)  # a package below it still scripts functions
    curvlinops = pytest.importorskip("curvlinops", reason="needs uv sync --extra curvature")


class Module(nn.Module):
    """A network of the sharpness studies as curvlinops takes it."""

    def __init__(self, network: GaussianNetwork, drawn: Tree) -> None:
        super().__init__()
        self.network = network
        self.drawn = nn.ParameterDict({name: nn.Parameter(leaf) for name, leaf in drawn.items()})

    def forward(self, x: Tensor) -> Tensor:
        return self.network.outputs(dict(self.drawn.items()), x)


def theirs(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """lambda_max of C / 2 times the Gauss-Newton matrix; in training mode, on one batch that is all the data."""
    params = [leaf for leaf in model.parameters() if leaf.requires_grad]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        operator: Any = curvlinops.GGNLinearOperator(model, nn.MSELoss(reduction="mean"), params, [(x, y)])
        scipy_operator = operator.to_scipy()
    start = np.random.default_rng(1).standard_normal(scipy_operator.shape[0])
    (value,) = eigsh(scipy_operator, k=1, which="LA", v0=start, tol=1e-12, return_eigenvectors=False)
    return float(value) * y.shape[1] / 2


def ours(outputs: Callable[[Tree], Tensor], params: Tree) -> tuple[float, float]:
    """lambda_max through the dual Gram matrix, and without any matrix."""
    return fisher.spectrum(fisher.Jacobian(outputs, params))[0], fisher.largest_eigenvalue(
        fisher.Jacobian(outputs, params), tolerance=1e-12
    )


@pytest.mark.parametrize(
    ("normalized", "outputs"),
    [("none", 1), ("mean-last", 1), ("bn-last", 1), ("bn-middle", 2), ("bn-all", 3), ("ln-all", 6)],
)
def test_studies(normalized: Any, outputs: int) -> None:
    network = GaussianNetwork((20, 20, 20, outputs), "relu", normalized, 2.0, 0.1, eps=1e-5)
    drawn = network.draw(0, "student", torch.float64)
    x = gaussian_inputs(24, 20, 0, torch.float64)
    expected = theirs(Module(network, drawn), x, torch.zeros(24, outputs, dtype=torch.float64))
    exact, matrix_free = ours(lambda params: network.outputs(params, x), drawn)
    assert exact == pytest.approx(expected, rel=1e-10)
    assert matrix_free == pytest.approx(expected, rel=1e-10)


def test_convolutions_with_batch_and_group_normalization() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4, track_running_stats=False),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, stride=2),
        nn.GroupNorm(2, 6),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(5),
    ).double()
    x = torch.randn(8, 3, 8, 8, dtype=torch.float64)
    model(x)  # tells the lazy layer its size
    expected = theirs(model, x, torch.zeros(8, 5, dtype=torch.float64))
    params = {name: leaf.detach() for name, leaf in model.named_parameters()}
    exact, matrix_free = ours(lambda given: torch.func.functional_call(model, given, (x,)), params)
    assert exact == pytest.approx(expected, rel=1e-10)
    assert matrix_free == pytest.approx(expected, rel=1e-10)
