"""Networks: what they are made of (torch-free descriptions) and the modules that run them.

``base`` describes, ``norms`` says which normalization sits where, ``layers`` and ``network`` are the torch modules.
"""

from flbench.models import cnn, mlp, resnet
from flbench.models.base import Conv, Dense, Model, Site, Stage

__all__ = ["Conv", "Dense", "Model", "Site", "Stage", "cnn", "mlp", "resnet"]
