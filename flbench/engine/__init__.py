"""Training.

``local`` trains one client, or a stack of clients. ``server_round`` is the server's round as a pure function over a
stack of clients; ``executors`` compute it (one client after another, or stacked), ``cuda_round`` records it as a CUDA
graph. ``federated`` and ``centralized`` keep a run's state from round to round, and ``setup`` makes them from an
experiment.
"""
