"""Samplers: who takes part in a round, by name; one file each."""

from flbench.data.cohorts.base import Population, Sampler

__all__ = ["Population", "Sampler"]
