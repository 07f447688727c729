"""Federated methods: ``base`` is the contract (and FedAvg); one file a method or family."""

from flbench.methods import base, fedbn, feddecorr, fedlc, fednova, fedopt, fedprox, fedrs, local_only, scaffold
from flbench.methods.base import Context, Method

__all__ = [
    "Context",
    "Method",
    "base",
    "fedbn",
    "feddecorr",
    "fedlc",
    "fednova",
    "fedopt",
    "fedprox",
    "fedrs",
    "local_only",
    "scaffold",
]
