"""Training: ``local`` is one client's round, ``executors`` map it over clients, ``rounds`` is the server's side.

On a GPU ``whole`` is all of a round as one function of tensors, and ``graphs`` records it.
"""
