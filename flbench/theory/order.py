"""Mean-field order parameters of wide random fully connected networks (Karakida et al. 2019, eqs. 5 to 7 and 11).

A network u^l = W^l h^(l-1) + b^l, h^l = phi(u^l), with a linear readout h^L = u^L, weights N(0, sigma_w^2 / M_(l-1)),
biases N(0, sigma_b^2) and inputs N(0, 1). In wide layers every sum over units is a Gaussian average. The paper's names:
a hat is a forward, a tilde a backward order parameter; index t is one sample with itself, st two different samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flbench.sums import sum_in_order
from flbench.theory.gaussian import Activation


@dataclass(frozen=True)
class OrderParameters:
    """Of each layer, in order.

    Attributes:
        forward_t: sum_i h_i(t)^2 / M_l, layers 0 to L-1.
        forward_st: sum_i h_i(s) h_i(t) / M_l, layers 0 to L-1.
        backward_t: sum_i delta_i(t)^2, delta_i = d f_k / d u_i, layers 1 to L.
        backward_st: sum_i delta_i(s) delta_i(t), layers 1 to L.
    """

    forward_t: tuple[float, ...]
    forward_st: tuple[float, ...]
    backward_t: tuple[float, ...]
    backward_st: tuple[float, ...]

    def kappas(self, alphas: Sequence[float] | None = None) -> Kappas:
        """Return alpha, kappa_1 and kappa_2 of eq. 11.

        The text prints a hat on both factors. By the chain rule d f / d W^l = delta^l h^(l-1), and by measurements, the
        first is the backward one of layer l, the second the forward one of layer l - 1.

        Args:
            alphas: relative widths M_l / M of layers 0 to L-1; default: all 1.

        Raises:
            ValueError: ``alphas`` has another number of layers.
        """
        depth = len(self.backward_t)
        widths = [1.0] * depth if alphas is None else list(alphas)
        if len(widths) != depth:
            raise ValueError(f"alphas of layers 0 to {depth - 1} expected, got {len(widths)}")
        alpha = sum_in_order(after * before for after, before in zip(widths[1:], widths[:-1], strict=True))

        def average(backward: Sequence[float], forward: Sequence[float]) -> float:
            return sum_in_order(a / alpha * b * f for a, b, f in zip(widths, backward, forward, strict=True))

        return Kappas(
            alpha=alpha,
            kappa1=average(self.backward_t, self.forward_t),
            kappa2=average(self.backward_st, self.forward_st),
        )


@dataclass(frozen=True)
class Kappas:
    """What the eigenvalues of the Fisher information depend on: alpha, kappa_1 and kappa_2 of eq. 11."""

    alpha: float
    kappa1: float
    kappa2: float


def order_parameters(
    activation: Activation, *, sigma_w2: float, sigma_b2: float, layers: int, layer_norm: bool = False
) -> OrderParameters:
    """Return the order parameters of a network (eqs. 5 to 7), or of one with layer normalization (theorem 4.1).

    Layer normalization divides each pre-activation by its standard deviation over units, sqrt(q^l), so that its
    variance is 1, and the backward signal by the same. The normalization of the last layer is not among these: it
    enters theorem 4.1 separately (``fisher``). The definitions are in a supplement that we do not have; these give the
    theorem's numbers term by term.

    Args:
        activation: phi of the hidden layers.
        sigma_w2: variance of the weights times the width of the layer before.
        sigma_b2: variance of the biases.
        layers: L, the readout among them.
        layer_norm: whether all layers but the last are normalized.

    >>> from flbench.theory.gaussian import RELU
    >>> order_parameters(RELU, sigma_w2=2.0, sigma_b2=0.0, layers=3).forward_t  # He's weights keep the second moment
    (1.0, 1.0, 1.0)
    """
    forward_t, forward_st = [1.0], [0.0]
    factors = []  # by which each hidden layer multiplies the backward parameters of the layer after it
    for _ in range(layers - 1):
        q = sigma_w2 * forward_t[-1] + sigma_b2
        c = (sigma_w2 * forward_st[-1] + sigma_b2) / q
        variance, scale = (1.0, sigma_w2 / q) if layer_norm else (q, sigma_w2)
        forward_t.append(activation.square(variance))
        forward_st.append(activation.product(variance, c))
        factors.append((scale * activation.slope_square(variance), scale * activation.slope_product(variance, c)))
    backward_t, backward_st = [1.0], [1.0]  # from the readout down to layer 1
    for factor_t, factor_st in reversed(factors):
        backward_t.append(factor_t * backward_t[-1])
        backward_st.append(factor_st * backward_st[-1])
    return OrderParameters(
        tuple(forward_t), tuple(forward_st), tuple(reversed(backward_t)), tuple(reversed(backward_st))
    )
