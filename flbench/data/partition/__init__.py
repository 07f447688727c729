"""Partitions: which training samples each client gets, by name.

Most say how many samples of each class each client gets, and ``shards.py`` deals the rows. ``given`` names the rows.
"""

from flbench.data.partition.base import Partition

__all__ = ["Partition"]
