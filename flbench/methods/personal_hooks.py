"""The hooks of methods whose clients are evaluated with models of their own, besides ``local_names`` of ``base.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from flbench.methods.values import Outputs, Tree
    from flbench.registry import Component


class PersonalHooks:
    """Their defaults: no parameters besides the network's, one set of weights, and the network's own logits."""

    def extra(self, x: Tree, head: str) -> Tree:
        """Return parameters besides the network's, which train with ``w``, and which the loss terms see in it.

        They stay on the client and are never sent.

        Args:
            x: the network's initial parameters.
            head: name of the head's weight, as in ``Context``.
        """
        return {}

    def twin(self) -> Component | None:
        """Return the method whose hooks train a second set of weights on each client, with buffers of its own.

        It starts as the initial weights, stays on the client, and takes as many steps on the same batches. Its hooks
        see the broadcast parameters as ``ctx.x`` and this method's client state. It may have the hooks of local steps
        alone (``teachers`` to ``rates``). It is evaluated in place of the shared model.
        """
        return None

    def personal(self, x: Tree, client: Tree) -> Tree:
        """Return the shared parameters with which a client is evaluated, from those of ``evaluated`` and its state."""
        return x

    def predict(self, outputs: Outputs, w: Tree, client: Tree, server: Tree) -> Tensor:
        """Return the logits (B, Y) that are evaluated for a client.

        Args:
            outputs: the network's, in evaluation mode.
            w: its weights, with those of ``extra``.
            client: the client's state.
            server: what else it would receive in the coming round.
        """
        return outputs.logits_BY
