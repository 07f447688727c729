"""Networks: what they are made of, described without torch, and the modules that run them.

``sites`` are the places for normalizations; ``norms`` put layers there; ``stages`` and ``base`` describe a model;
``layers``, ``norm_layers`` and ``network`` are the torch modules, ``initial_weights`` draws their weights.
"""

from flbench.models import cnn, lenet, mlp, resnet, simple_vit
from flbench.models.base import Model
from flbench.models.sites import Site
from flbench.models.stages import Conv, Dense, Stage

__all__ = ["Conv", "Dense", "Model", "Site", "Stage", "cnn", "lenet", "mlp", "resnet", "simple_vit"]
