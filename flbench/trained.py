"""The networks of stored runs with their trained weights: ``flbench.model`` and ``flbench.predict``.

Shape suffixes: M images, C channels, H rows, W columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from flbench.checkpoints import NoCheckpoint, load_checkpoint
from flbench.config import Federated, Training
from flbench.data.arrays import Data
from flbench.data.datasets import Dataset, load_named
from flbench.engine.device_data import as_input, normalization
from flbench.engine.federated import FederatedTrainer
from flbench.engine.setup import make_network, make_trainer, matmul_precision_restored
from flbench.errors import DataMissing, UserError
from flbench.methods.base import Method
from flbench.models.starts import Start
from flbench.store import Checkpoint, RunDir

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Trained:
    """A run's network with its weights after ``round``, in evaluation mode, and the data that it was trained on."""

    network: nn.Module
    round: int
    data: Data

    def predict(self, images: Any) -> pd.DataFrame:
        """Return the probability of each class for each image, as ``flbench.predict`` does; raises UserError."""
        import pandas as pd

        images, kept = np.asarray(images), self.data.test.images
        shape = kept.shape[1:]
        if images.ndim == 3 and shape[0] == 1:
            images = images[:, None]
        if images.shape[1:] != shape:
            raise UserError(f"images: expected an array of shape (M, {', '.join(map(str, shape))}), got {images.shape}")
        white = self.data.white if images.dtype.kind in "ui" else 1
        dtype = next(self.network.parameters()).dtype
        samples = torch.from_numpy(np.ascontiguousarray(images))
        if kept.dtype == np.int32:
            if images.dtype.kind not in "ui" or not ((images >= 0) & (images < self.data.vocabulary)).all():
                raise UserError(f"images: expected tokens from 0 to {self.data.vocabulary - 1}")
            samples = samples.int()
        else:
            samples = as_input(samples.to(dtype) / white, 1, dtype, normalization(self.data, dtype))
        with torch.no_grad():
            logits = torch.cat([self.network(part)[1] for part in samples.split(512)])
        return pd.DataFrame(logits.softmax(1).numpy(), columns=list(self.data.class_names))


def trained(run: RunDir, round: int | None, data_root: Path | None, client: int) -> Trained:
    """Return the network of a run after a round; None: the last one that is saved.

    Raises:
        UserError: it is a study, or no weights of that round are saved, or there is no such client; or the data are
            missing or damaged.
    """
    experiment = run.experiment()
    if not isinstance(experiment, Training):
        raise UserError(f"run {run.run_id} is a study ({experiment.kind}): only training leaves a network")
    experiment = experiment.having(init=Start())  # the checkpoint has all weights
    checkpoint = _saved(run, round)
    data = load_named(cast(Dataset, experiment.dataset), data_root)
    try:
        saved = load_checkpoint(checkpoint.path)
    except NoCheckpoint as error:
        raise UserError(f"run {run.run_id} has no readable checkpoint of round {checkpoint.round}: {error}") from None
    if saved["fingerprint"] != data.fingerprint:
        trained_on = f"run {run.run_id} was trained on data with the fingerprint {saved['fingerprint']}"
        raise UserError(f"{trained_on}, the data here have {data.fingerprint}")
    with matmul_precision_restored():
        trainer, _ = make_trainer(experiment, data, device="cpu", executor="auto", pool=1)
    trainer.load(saved["trainer"])
    params, buffers = trainer.x, trainer.buffers
    if isinstance(trainer, FederatedTrainer):
        if not 0 <= client < experiment.to_json()["clients"]:
            raise UserError(f"client {client}: expected 0 to {experiment.to_json()['clients'] - 1}")
        params, buffers = trainer.model(client)
    network = make_network(experiment, data, "cpu")
    with torch.no_grad():
        for name, leaf in (*network.named_parameters(), *network.named_buffers()):
            leaf.copy_({**params, **buffers}[name])
    return Trained(network.eval(), checkpoint.round, data)


def shared_weights(run: RunDir) -> dict[str, Tensor]:
    """Return the parameters and buffers that all clients of a finished run share, after its last round, by name.

    Neither its data nor its network is needed.

    Raises:
        DataMissing: there is no such run, or it is not finished.
        UserError: it is a study, parts of its network stay on the clients, or no weights of its last round are saved.
    """
    try:
        experiment = run.experiment()
    except FileNotFoundError:
        raise DataMissing(f"there is no run {run.run_id} in the store") from None
    if not isinstance(experiment, Training):
        raise UserError(f"run {run.run_id} is a study ({experiment.kind}): only training leaves a network")
    if not (results := run.results()):
        raise DataMissing(f"run {run.run_id} is not finished")
    checkpoint = _saved(run, max(result.rounds for result in results))
    try:
        trees = load_checkpoint(checkpoint.path)["trainer"]["trees"]
    except NoCheckpoint as error:
        raise UserError(f"run {run.run_id} has no readable checkpoint of round {checkpoint.round}: {error}") from None
    if kept := sorted(trees.get("local", {})):
        raise UserError(f"run {run.run_id} has no shared network: {kept[0]} stays on the clients")
    x = trees["x"]
    if isinstance(experiment, Federated):
        x = cast(Method, experiment.method).evaluated(x, trees["server"])
    return {**x, **trees["buffers"]}


def _saved(run: RunDir, round: int | None) -> Checkpoint:
    """Return the newest saved state after a round; raises UserError, which names the rounds that are saved."""
    attempts = run.attempts()
    superseded = max((attempt.number for attempt in attempts if attempt.is_superseded()), default=0)
    current = [attempt for attempt in attempts if attempt.number > superseded]
    found = [checkpoint for attempt in reversed(current) for checkpoint in run.sound_checkpoints(attempt)]
    fitting = [checkpoint for checkpoint in found if round is None or checkpoint.round == round]
    if fitting:
        return max(fitting, key=lambda checkpoint: checkpoint.round)
    rounds: Sequence[int] = sorted({checkpoint.round for checkpoint in found})
    if not rounds:
        raise UserError(
            f"no weights of run {run.run_id} are saved: it has not trained, `flbench gc` deleted them, or its results "
            "were imported; flbench.run(...) or `flbench run --rerun` trains it again"
        )
    listed = ", ".join(map(str, rounds))
    raise UserError(f"no weights of run {run.run_id} after round {round} are saved; saved rounds: {listed}")
