"""Heads as data: what leads from the features of a network to its logits.

The last layer's weight has the name ``head.weight`` in every network that is made of stages, trained (a parameter) or
not (a buffer). The torch modules are in ``flbench.models.head_layers``.
"""

from flbench.models.heads.base import Head

__all__ = ["Head"]
