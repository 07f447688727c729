"""FedLAW: the server learns the weights of the clients' models, and how much their mean shrinks."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from flbench.methods.base import Method, tmap
from flbench.registry import METHODS


@METHODS.register("fedlaw")
@dataclass(frozen=True)
class FedLAW(Method):
    """FedLAW (Li et al. 2023): x = gamma sum_k lambda_k w_k; gamma and lambda minimize the loss on the server's data.

    ``exp``: gamma = exp(g), lambda = softmax(l), from 1 and the shares; ``quad``: gamma = g^2, lambda = l^2 / |l|^2,
    from 1 and equal weights. Adam with betas 0.5 and 0.999. Its authors' code differs: its server holds 2 % of the test
    set, as many of each class, and shuffles them; it learns in training mode, so that batch statistics see these data;
    the rate is halved every 20 epochs; a second form averages the weights of all epochs, and then learns gamma.
    """

    equation: ClassVar[str] = "x <- gamma sum_k lambda_k w_k, by gradients of the loss on server data"
    source: ClassVar[str] = "Li et al. 2023, FedLAW, and ZexiLee/ICML-2023-FedLAW, server_funct.py"
    needs_server_data: ClassVar[bool] = True

    server_lr: Annotated[float, Field(ge=1, le=1)] = 1.0
    epochs: Annotated[int, Field(ge=0)] = 20
    batch: Annotated[int, Field(ge=1)] = 128
    rate: Annotated[float, Field(gt=0)] = 0.01
    variant: Literal["exp", "quad"] = "exp"

    def aggregate(self, changes_n, weights_n, ctx):
        import torch
        from torch.nn.functional import cross_entropy

        models_n, labels_M = tmap(lambda change, x: change + x, changes_n, ctx.x), ctx.data.labels_M
        one = weights_n.new_ones(1)
        start = [weights_n.log(), 0 * one] if self.variant == "exp" else [one.expand(len(weights_n)), one]
        theta = torch.cat(start).requires_grad_()
        first, second, step = torch.zeros_like(theta), torch.zeros_like(theta), 0
        for begin in [begin for _ in range(self.epochs) for begin in range(0, len(labels_M), self.batch)]:
            batch, step = slice(begin, begin + self.batch), step + 1
            outputs = ctx.data.outputs(self.mixed(models_n, theta, ctx), samples=batch)
            loss = cross_entropy(outputs.logits_BY, labels_M[batch])
            (g,) = torch.autograd.grad(loss, [theta], torch.ones_like(loss))
            first, second = 0.5 * first + 0.5 * g, 0.999 * second + 0.001 * g**2
            moved = first / (1 - 0.5**step) / ((second / (1 - 0.999**step)).sqrt() + 1e-8)
            theta = (theta.detach() - self.rate * moved).requires_grad_()
        return tmap(lambda mean, x: mean - x, self.mixed(models_n, theta.detach(), ctx), ctx.x)

    def mixed(self, models_n, theta, ctx):
        """Return gamma sum_k lambda_k w_k."""
        parts = theta[:-1].softmax(0) if self.variant == "exp" else theta[:-1] ** 2 / (theta[:-1] ** 2).sum()
        weights = parts * (theta[-1].exp() if self.variant == "exp" else theta[-1] ** 2)
        return super().aggregate(models_n, weights, ctx)
