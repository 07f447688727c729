"""Choices and defaults that sweep files, options and functions share, each declared once.

Choices are plain ``Literal`` types, which pydantic, typer and mypy check, and which cost nothing to import.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

#: The store that commands and functions use unless $FLBENCH_STORE or an option names another.
DEFAULT_STORE = Path("runs")

#: What a run computes on; ``auto`` selects CUDA if there is any, else the CPU. MPS is Apple's GPU.
Device = Literal["auto", "cpu", "cuda", "mps"]
UsedDevice = Literal["cpu", "cuda", "mps"]

#: How clients are trained: one after the other, likewise with large products by oneDNN, or stacked into one
#: computation, by torch or by compiled functions.
Executor = Literal["auto", "loop", "loop-onednn", "stacked", "native"]
UsedExecutor = Literal["loop", "loop-onednn", "stacked", "native"]

#: Those that train one client after the other.
LOOPS: tuple[UsedExecutor, ...] = ("loop", "loop-onednn")

#: Arithmetic of training.
Precision = Literal["fp32", "tf32", "bf16", "fp64"]

#: Optimizer of local steps.
LocalOptimizer = Literal["sgd", "adam", "adamw"]

#: Training augmentation.
Augmentation = Literal["none", "flip-crop"]

#: Where workers run, unless a plug-in knows another place.
OwnBackend = Literal["inline", "local", "slurm"]

#: How much memory a worker has: all that any can have, or, where others can have more, the usual amount or more.
Memory = Literal["all", "usual", "more"]

#: Which evaluation of a run counts: the last, the mean of the last five, the best on held-out training data, the mean
#: of the last five with settings chosen on held-out training data, or the best on the test data.
SelectBy = Literal["last", "tail", "val", "val-tail", "oracle"]

#: The rules that choose on held-out training data, and those whose value is the mean of the last five evaluations.
ON_VALIDATION_DATA: frozenset[SelectBy] = frozenset({"val", "val-tail"})
OVER_TAIL: frozenset[SelectBy] = frozenset({"tail", "val-tail"})

#: The number of evaluations that the rules of ``OVER_TAIL`` average.
TAIL = 5

#: What a planned comparison compares: how far training gets, how fast, or how easily a rate is found that works.
Measure = Literal["far", "fast", "easy"]

#: Whether and how runs are mirrored to W&B; ``auto`` follows wandb's settings and login.
TrackingMode = Literal["auto", "online", "offline", "off"]
UsedTrackingMode = Literal["online", "offline", "off"]
