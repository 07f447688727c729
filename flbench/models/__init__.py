"""Networks: what they are made of, described without torch, and the modules that run them.

``architectures`` has a file for each network; ``stages`` and ``base`` are what they describe themselves with. ``sites``
are the places for normalizations; ``norms`` put layers there, and ``heads`` lead to the logits. ``layers``,
``norm_layers`` and ``network`` are the torch modules, ``initial_weights`` draws their weights.
"""

from flbench.models.base import Model
from flbench.models.sites import Site
from flbench.models.stages import Conv, Dense, Stage

__all__ = ["Conv", "Dense", "Model", "Site", "Stage"]
