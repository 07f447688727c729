"""Probes: measurements of the models at evaluations."""

from flbench.probes.base import Observation, Probe

__all__ = ["Observation", "Probe"]
