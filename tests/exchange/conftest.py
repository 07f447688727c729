from tests.finished_sweep import here, run, runs_of_tiny  # noqa: F401  the fixtures
