"""The worker: claims runs of a plan, executes them, and publishes their results.

``python -m flbench.worker STORE PLAN`` is the same process on a laptop and inside a SLURM job; the launcher ``inline``
calls ``work`` in a thread.
"""

from flbench.worker.attempts import kind_of
from flbench.worker.claims import group_key, work
from flbench.worker.engine import Engine, load_engine
from flbench.worker.machine import environment
from flbench.worker.options import REQUEUE, MemoryShort, Options
from flbench.worker.process import main

__all__ = [
    "REQUEUE",
    "Engine",
    "MemoryShort",
    "Options",
    "environment",
    "group_key",
    "kind_of",
    "load_engine",
    "main",
    "work",
]
