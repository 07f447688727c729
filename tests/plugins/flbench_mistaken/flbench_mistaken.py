"""Methods with mistakes in their hooks."""

from dataclasses import dataclass

from flbench.methods import Method
from flbench.methods.base import tmap
from flbench.registry import METHODS


@METHODS.register("forgetful")
@dataclass(frozen=True)
class Forgetful(Method):
    """Forgets to return the server's next state."""

    def server_step(self, x, delta, message, state, ctx):
        return tmap(lambda a, d: a + d, x, delta)


@METHODS.register("misspelt")
@dataclass(frozen=True)
class Misspelt(Method):
    """Asks for a parameter that no network has."""

    def penalty(self, w, batch, ctx):
        head = w["haed.weight"]
        return 0.1 * (head**2).sum()
