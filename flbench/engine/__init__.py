"""Training: ``local`` is one client's round, ``executors`` map it over clients, ``federated`` is the server's side.

On a GPU ``cuda_round`` is a whole round as one function of tensors, and ``cuda_graph`` records it.
"""
