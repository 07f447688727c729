"""A study before its first round, from its experiment and the data on this machine."""

from __future__ import annotations

from pathlib import Path

import torch

from flbench.data.datasets import load_named
from flbench.engine.setup import Numerics, set_matmul_precision
from flbench.studies.base import Study
from flbench.studies.experiment import StudyExperiment


def make_study(experiment: StudyExperiment, data_root: Path | None, device: str) -> tuple[Study, Numerics, str]:
    """Return a study before its first round, the numerics it computes with, and the fingerprint of its data.

    The fingerprint is ``gaussian`` where inputs are drawn. ``data_root`` is the folder of the data sets, None the usual
    one.
    """
    set_matmul_precision("fp32")
    dataset = getattr(experiment, "dataset", None)
    data = load_named(dataset, data_root) if dataset is not None else None
    numerics = Numerics(device, "whole", experiment.arithmetic, str(torch.__version__))
    return experiment.study(data, device), numerics, data.fingerprint if data else "gaussian"
