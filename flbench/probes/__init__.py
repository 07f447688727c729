"""Measurements taken on the models at every evaluation."""

from flbench.probes import drift
from flbench.probes.base import Observation, Probe

__all__ = ["Observation", "Probe", "drift"]
