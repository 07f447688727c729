"""From an experiment to a study that is ready for its first round."""

from __future__ import annotations

from pathlib import Path
from typing import Any, assert_never, cast

import numpy as np
import torch
from torch import Tensor

from flbench.config import Deep, Rank, Sharpness
from flbench.data.datasets import Data, Dataset, load_named
from flbench.engine.setup import Numerics, set_matmul_precision
from flbench.studies import deep
from flbench.studies.base import Study
from flbench.studies.depth import RankOverDepth
from flbench.studies.sharpness import SharpnessOfDraw
from flbench.studies.training import DeepMlp, DeepTraining, Pretraining, standardized

#: What stands for the fingerprint of the data where inputs are drawn.
GAUSSIAN = "gaussian"


def make_study(experiment: Sharpness | Rank | Deep, data_root: Path | None, device: str) -> tuple[Study, Numerics, str]:
    """A study before its first round, the numerics it computes with, and the fingerprint of its data.

    Args:
        experiment: what to look at.
        data_root: folder of the data sets; None: the usual one.
        device: ``cpu`` or ``cuda``.
    """
    set_matmul_precision("fp32")
    match experiment:
        case Sharpness():
            return _sharpness(experiment, device), _numerics(device, experiment.precision), GAUSSIAN
        case Rank():
            return _rank(experiment, device), _numerics(device, "fp64"), GAUSSIAN
        case Deep():
            data = load_named(cast(Dataset, experiment.dataset), data_root)
            return _deep(experiment, data, device), _numerics(device, "fp32"), data.fingerprint
    assert_never(experiment)


def _numerics(device: str, precision: str) -> Numerics:
    return Numerics(device, "whole", precision, str(torch.__version__))


def _sharpness(experiment: Sharpness, device: str) -> Study:
    network = deep.Deep(
        widths=(*[experiment.width] * experiment.layers, experiment.outputs),
        activation=experiment.activation,
        normalized=experiment.normalized,
        sigma_w2=experiment.sigma_w2,
        sigma_b2=experiment.sigma_b2,
    )
    return SharpnessOfDraw(
        network,
        samples=experiment.samples or experiment.width,
        lr=experiment.lr,
        spectrum=experiment.spectrum,
        seed=experiment.seed,
        dtype=torch.float64 if experiment.precision == "fp64" else torch.float32,
        device=device,
    )


def _rank(experiment: Rank, device: str) -> Study:
    return RankOverDepth(
        width=experiment.width,
        samples=experiment.samples or experiment.width,
        activation=experiment.activation,
        norm=experiment.normalized,
        gamma=experiment.gamma,
        seed=experiment.seed,
        device=device,
    )


def _deep(experiment: Deep, data: Data, device: str) -> Study:
    train, test = standardized(data.train.images[: experiment.samples], data.test.images)
    raised = experiment.pretrain_steps or experiment.rescale
    pretraining = Pretraining(
        experiment.pretrain_steps, experiment.pretrain_optimizer, experiment.pretrain_lr, experiment.rescale
    )
    return DeepTraining(
        DeepMlp(experiment.depth, experiment.width, experiment.normalized, experiment.init, experiment.shift),
        pretraining if raised else None,
        train=(train.to(device), _labels(data.train.labels[: experiment.samples], device)),
        test=(test.to(device), _labels(data.test.labels, device)),
        classes=data.classes,
        lr=experiment.lr,
        batch_size=experiment.batch_size,
        seed=experiment.seed,
    )


def _labels(labels: np.ndarray[Any, Any], device: str) -> Tensor:
    return torch.from_numpy(labels.astype(np.int64)).to(device)  # a copy: the data set's own array is read-only
