"""SLURM from a worker's side: its commands, the job around this process, and why a job ended.

A job's state comes from the store's files first, then from the controller (squeue, scontrol), then from accounting
(sacct) if the cluster has it. If SLURM does not answer, nothing changes: a job of unknown state counts as alive.
"""

from flbench.slurm.commands import Row, config_value, scancel, squeue, state_of
from flbench.slurm.job import Job
from flbench.slurm.post_mortem import SlurmPostMortem, record_end, shows_lack_of_memory

__all__ = [
    "Job",
    "Row",
    "SlurmPostMortem",
    "config_value",
    "record_end",
    "scancel",
    "shows_lack_of_memory",
    "squeue",
    "state_of",
]
