"""FedRoD as a plug-in: ``flbench --plugin fedrod.py run method=fedrod``."""

from dataclasses import dataclass
from typing import ClassVar

from torch.nn.functional import cross_entropy

from flbench.methods.base import Method
from flbench.registry import METHODS


@METHODS.register("fedrod")
@dataclass(frozen=True)
class FedRoD(Method):
    """FedRoD (Chen & Chao 2022, Algorithm 1, linear form): a generic head for all, a personal head for each client.

    The body and the generic head learn from a balanced softmax; the personal head, which adds its logits to theirs,
    from the empirical risk, with a gradient for itself alone. The personal head starts as the generic one.
    """

    equation: ClassVar[str] = "local loss: CE(z + log counts, y) + CE(stop(z) + stop(f) P^T, y); P stays on the client"
    source: ClassVar[str] = "Chen & Chao, On Bridging Generic and Personalized FL, ICLR 2022"
    trains_head: ClassVar[bool] = True

    def extra(self, x, head):
        return {"personal": x[head]}

    def loss(self, w, batch, ctx):
        z_BY, f_BD = batch.logits_BY.detach(), batch.features_BD.detach()
        prior_Y = ctx.counts_Y.to(z_BY.dtype).log()
        generic = cross_entropy(batch.logits_BY + prior_Y, batch.labels_B)
        return generic + cross_entropy(z_BY + f_BD @ w["personal"].T, batch.labels_B)

    def predict(self, outputs, w, client, server):
        return outputs.logits_BY + outputs.features_BD @ w["personal"].T
