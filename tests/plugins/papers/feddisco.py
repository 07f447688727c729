"""FedDisco: clients whose label distribution is far from the global one weigh less."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from flbench.methods.base import Method
from flbench.registry import METHODS


@METHODS.register("feddisco")
@dataclass(frozen=True)
class FedDisco(Method):
    """FedDisco (Ye et al. 2023): p_k = max(0, n_k - a d_k + b) / sum_j max(0, n_j - a d_j + b), n_k the sample shares.

    d_k is the discrepancy of the client's label distribution from the uniform one, which stands for the global one.
    Its authors' code has further measures, and differs from the formula in this:
    - ``kl``, its default, is divided by the sum over the participants; ``l2`` is not;
    - running statistics are averaged by p_k, too; here by the shares, as for every method;
    - if no participant has a positive weight, the code fails; here the shares weigh.
    """

    equation: ClassVar[str] = "p_k = relu(n_k - a d_k + b) / sum_j relu(n_j - a d_j + b)"
    source: ClassVar[str] = "Ye et al. 2023, FedDisco, and MediaBrain-SJTU/FedDisco, disco.py"

    a: Annotated[float, Field(ge=0)] = 0.5
    b: Annotated[float, Field(ge=0)] = 0.1
    measure: Literal["kl", "l2"] = "kl"

    def delta_weights(self, cohort):
        share = np.array(cohort.share)
        of_class = cohort.counts / cohort.counts.sum(1, keepdims=True)
        uniform = 1 / of_class.shape[1]
        if self.measure == "l2":
            d = np.linalg.norm(of_class - uniform, axis=1)
        else:
            held = np.where(of_class > 0, of_class, uniform)
            d = (of_class * np.log(held / uniform)).sum(1)
            d = d / d.sum() if d.sum() > 0 else d
        weights = np.maximum(share - self.a * d + self.b, 0)
        return list(weights / weights.sum()) if weights.sum() > 0 else cohort.share
