"""DP-FedAvg, differentially private federated averaging (McMahan et al. 2018, Algorithm 1, with flat clipping).

flbench --plugin dp_fedavg.py run method='{name: dp-fedavg, clip: 0.5, noise: 1.1}' norm=ln clients=100
python dp_fedavg.py 1.1 0.1 1000 1e-5    # epsilon for this noise, share of clients a round, rounds and delta
"""

import sys
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from flbench.methods.base import Method, tmap
from flbench.registry import METHODS


@METHODS.register("dp-fedavg")
@dataclass(frozen=True)
class DpFedAvg(Method):
    """Clients clip their changes to the norm ``clip``; the server adds noise of ``noise * clip`` to the sum.

    Running statistics are sent without noise: choose a norm without them.
    """

    equation: ClassVar[str] = "x <- x + server_lr (sum_k clip(w_k - x) + N(0, (noise clip)^2)) / |S|"
    elementwise: ClassVar[bool] = True

    clip: Annotated[float, Field(gt=0)] = 1.0
    noise: Annotated[float, Field(ge=0)] = 1.0

    def delta_weights(self, cohort):
        return [1 / len(cohort.share)] * len(cohort.share)

    def upload(self, change, ctx):
        scale = (self.clip * (1 / ctx.norm(change))).clamp(max=1)
        return tmap(lambda leaf: leaf * scale, change), ctx.client

    def server_step(self, x, delta, message, state, ctx):
        spread = self.noise * self.clip / round(ctx.participation * ctx.clients)
        noisy = {name: leaf + spread * ctx.random.normal(name, leaf) for name, leaf in delta.items()}
        return super().server_step(x, noisy, message, state, ctx)


def epsilon(noise: float, share: float, rounds: int, delta: float) -> float:
    """Return the privacy loss with respect to all data of one client, by the RDP accountant of Opacus.

    Exact bounds are those of cohorts in which every client takes part by a coin of probability ``share``.
    """
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    accountant.history = [(noise, share, rounds)]
    return accountant.get_epsilon(delta)


if __name__ == "__main__":
    print(epsilon(float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
