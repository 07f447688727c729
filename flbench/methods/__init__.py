"""Federated methods: ``base`` is the contract (and FedAvg); one file a method or family, found by its being here."""

from flbench.methods.base import Batch, Context, Method, Outputs, ServerContext

__all__ = ["Batch", "Context", "Method", "Outputs", "ServerContext"]
