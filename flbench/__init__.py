"""flbench: which normalization and which federated method survive label skew, and why."""
