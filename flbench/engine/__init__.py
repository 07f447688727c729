"""Training: ``local`` is one client's round, ``executors`` map it over clients, ``rounds`` is the server's side."""
