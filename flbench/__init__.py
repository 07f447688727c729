"""flbench: which normalization and which federated method survive label skew, and why?

From Python, for notebooks (``flbench.api`` has the details; the results are pandas frames):

``flbench.load(source)``: the runs of a store or of exported files, one a row.
``flbench.run(norm="ln", partition="classes:1")``: run one experiment; its evaluations, one a row.
``flbench.sweep("sweeps/quickstart.yaml")``: run what is missing of a sweep; its runs, one a row.

Importing this package imports nothing heavy; what needs torch or pandas imports them when it is called.
"""

from __future__ import annotations

from flbench.api import load, run, sweep

__all__ = ["load", "run", "sweep"]
