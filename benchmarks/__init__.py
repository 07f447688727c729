"""Measurements of flbench, outside the package: ``python -m benchmarks.NAME`` in a checkout; flbench imports none."""
