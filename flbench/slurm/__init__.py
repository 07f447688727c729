"""SLURM as a worker meets it: its commands, the job that this process runs in, and why a job ended.

State comes from the store's own files first, then from the controller (squeue, scontrol), then, where there is any,
from accounting (sacct). A question that nobody answers changes nothing: unknown is not dead.
"""

from flbench.slurm.commands import ENDED, Row, config_value, scancel, squeue, state_of
from flbench.slurm.job import Job
from flbench.slurm.verdicts import SlurmPostMortem, Verdict, explain, verdict_on

__all__ = [
    "ENDED",
    "Job",
    "Row",
    "SlurmPostMortem",
    "Verdict",
    "config_value",
    "explain",
    "scancel",
    "squeue",
    "state_of",
    "verdict_on",
]
