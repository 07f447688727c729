"""Training.

``local`` trains one client, or a stack of clients; ``executors`` do so one client after another, or stacked.
``server_round`` is the server's round as a pure function over a stack of clients; ``cuda_round`` records it as a CUDA
graph. ``run`` is what stays the same from round to round, and what is drawn for each; ``federated`` and ``centralized``
keep what changes, and ``setup`` makes them from an experiment.
"""
