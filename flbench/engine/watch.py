"""How many rounds of a run were finite, counted where the run is computed."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from flbench.methods.base import Tree


def watched(watch: Tree, leaves: Sequence[Tensor], loss: Tensor) -> Tree:
    """Return ``watch`` with one more round, unless the loss or a parameter is, or was earlier, not finite.

    Args:
        watch: ``finite``, whether all was finite so far, and ``rounds``, how many rounds were.
        leaves: all parameters after the round.
        loss: of the round, 0-d.
    """
    totals = [leaf.sum() for leaf in leaves]
    if loss.is_cpu:  # reading numbers takes half the time of torch's operations
        numbers: list[Any] = [total.tolist() for total in (*totals, loss)]
        finite = watch["finite"] & all(map(isfinite, numbers))
    else:
        finite = watch["finite"] & torch.isfinite(torch.stack(totals)).all() & torch.isfinite(loss)
    return {"finite": finite, "rounds": watch["rounds"] + finite}
