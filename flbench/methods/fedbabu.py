"""FedBABU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flbench.methods.base import Context, Method, Tree
from flbench.models.heads.base import is_of_head
from flbench.registry import METHODS


@METHODS.register("fedbabu")
@dataclass(frozen=True)
class FedBABU(Method):
    """FedBABU (Oh et al. 2022, Algorithm 1): FedAvg of the body, under a head that keeps its initial weights.

    The paper's number is that of the whole network after fine-tuning on each client: ``finetune: K`` measures it
    (``acc_finetuned``). As in the authors' code the head has a gradient and a learning rate of 0, so that clipping
    counts it, and it is sent with the body: bytes up and down are FedAvg's.
    """

    equation: ClassVar[str] = "x <- x + server_lr sum_k m_k/m (w_k - x) for the body; the head is never trained"
    source: ClassVar[str] = "@oh2022fedbabu, Algorithm 1"
    elementwise: ClassVar[bool] = True
    trains_head: ClassVar[bool] = True

    def step(self, w: Tree, moved: Tree, ctx: Context) -> Tree:
        return {name: leaf.new_zeros(leaf.shape) if is_of_head(name) else leaf for name, leaf in moved.items()}
