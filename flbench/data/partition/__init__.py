"""Partitions: which training samples each client gets, by name.

Most say how many samples of each class each client gets, and ``shards.py`` deals the rows. ``given`` names the rows.
"""

from flbench.data.partition.base import Partition
from flbench.data.partition.counts import BalancedDirichlet, Classes, Dirichlet, Iid, LabelShards, Quantity
from flbench.data.partition.domains import DomainClasses, DomainDirichlet
from flbench.data.partition.given import Given

__all__ = [
    "BalancedDirichlet",
    "Classes",
    "Dirichlet",
    "DomainClasses",
    "DomainDirichlet",
    "Given",
    "Iid",
    "LabelShards",
    "Partition",
    "Quantity",
]
