"""Federated methods: ``base`` is the contract (and FedAvg); one file a method or family."""

from flbench.methods import base, fedbn, feddecorr, fedlc, fednova, fedopt, fedprox, fedrs, local_only, scaffold
from flbench.methods.base import Batch, Context, Method, Outputs, ServerContext

__all__ = [
    "Batch",
    "Context",
    "Method",
    "Outputs",
    "ServerContext",
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
