"""Federated methods: ``base`` is the contract (and FedAvg); one file a method or family, found by its being here."""

from flbench.methods.base import Batch, Cohort, Context, Method, Outputs, ServerContext

__all__ = ["Batch", "Cohort", "Context", "Method", "Outputs", "ServerContext"]
