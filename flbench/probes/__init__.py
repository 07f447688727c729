"""Probes: measurements of the models at evaluations."""

from flbench.probes import drift, features, overfit, sharpness
from flbench.probes.base import Observation, Probe

__all__ = ["Observation", "Probe", "drift", "features", "overfit", "sharpness"]
