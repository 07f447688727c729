"""Make a trainer from an experiment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from typing import Any, assert_never, cast

import numpy as np
import torch
from torch import Tensor, nn

from flbench.choices import Executor, UsedExecutor
from flbench.config import Centralized, Federated, Training
from flbench.data.arrays import Arrays, Data
from flbench.data.batches import Rows, steps_of_epochs
from flbench.data.shards import shards_of
from flbench.engine.centralized import CentralizedTrainer
from flbench.engine.conv_tuner import ConvTuner, cuda_clock
from flbench.engine.cuda_graph import CudaRecorder
from flbench.engine.device_data import DeviceData
from flbench.engine.executors import CHUNK, make_executor
from flbench.engine.federated import FederatedTrainer
from flbench.engine.local import Sgd
from flbench.engine.stack_size import clients_that_fit
from flbench.engine.trainer import Trainer
from flbench.errors import UserError
from flbench.methods.base import Method
from flbench.models.base import Model
from flbench.models.flops import sample_flops
from flbench.models.initial_weights import build
from flbench.models.norms import Norm
from flbench.streams import stream

#: On a CPU clients are stacked if one client's local step takes fewer floating-point operations than this. It lies
#: between a small MLP (5 MFLOP, where overhead dominates) and a CNN (2,600 MFLOP, where a client saturates a core).
STACK_BELOW_FLOPS = 20e6

#: Most clients in a stack of fused runs on a GPU: 30 to 60 of them saturate its throughput, and further runs would only
#: use memory and delay the others.
SATURATED = 60


@dataclass(frozen=True)
class Numerics:
    """The settings within which runs are bit-identical; a resumed run has the same ones, or starts over."""

    device: str
    executor: str
    precision: str
    torch: str

    def to_json(self) -> dict[str, str]:
        """Return it as plain JSON."""
        return asdict(self)


def make_trainer(
    experiment: Training,
    data: Data,
    *,
    device: str,
    executor: Executor,
    pool: int,
    neighbours: int = 1,
) -> tuple[Trainer, Numerics]:
    """Return a trainer before its first round, and the numerics with which it computes.

    Args:
        experiment: what to train.
        data: its data set.
        device: ``cpu`` or ``cuda``.
        executor: how clients are trained; ``auto`` selects by the device and the FLOPs of a local step alone.
        pool: threads of the loop executor; they change the speed, but no bit of the result.
        neighbours: processes that share the GPU, including this one.

    Raises:
        flbench.errors.UserError: the model or the norm does not fit the images, or the partition cannot be drawn.
    """
    _require_fit(experiment, data)
    set_matmul_precision(experiment.precision)
    autocast = torch.bfloat16 if experiment.precision == "bf16" else None
    network = partial(make_network, experiment, data, device)
    first = network()
    name = executor_for(experiment, data, device=device, wanted=executor)
    on_gpu = device == "cuda" and name == "stacked"
    chunk = clients_that_fit(first, _image(data), experiment.batch_size, neighbours) if on_gpu else None
    tuner = _gpu_tuner() if on_gpu else None
    record = tuner.record if tuner else None
    runner = make_executor(name, network, pool=pool, autocast=autocast, chunk=chunk, record=record, tuner=tuner)
    common: dict[str, Any] = {
        "sgd": Sgd(experiment.lr, experiment.momentum, experiment.weight_decay),
        "autocast": autocast,
        "batch_size": experiment.batch_size,
        "images": _images(data, device, _dtype(experiment), augment=experiment.augment == "flip-crop"),
        "executor": runner,
        "params": {name: leaf.detach().clone() for name, leaf in first.named_parameters()},
        "buffers": {name: leaf.detach().clone() for name, leaf in first.named_buffers()},
        "seed": experiment.seed,
        "record": record,
    }
    trainer = _trainer(experiment, data, first, common)
    return trainer, Numerics(device, runner.name, experiment.precision, str(torch.__version__))


def _require_fit(experiment: Training, data: Data) -> None:
    """Raise UserError if model or norm do not fit the images; planning checks it only where the shape is known."""
    model, norm, image = cast(Model, experiment.model), cast(Norm, experiment.norm), _image(data)
    if problem := model.problem(image) or model.norm_problem(norm, image, data.classes):
        raise UserError(f"{experiment.dataset.label()}, model {model.label()}, norm {norm.label()}: {problem}")


@lru_cache(maxsize=1)
def _gpu_tuner() -> ConvTuner:
    """One tuner for the process, so that all graphs share a memory pool and no shape is measured twice."""
    return ConvTuner(CudaRecorder(), cuda_clock, "cuda")


def make_network(experiment: Training, data: Data, device: str) -> nn.Module:
    """Return the experiment's network with its initial weights."""
    model, norm = cast(Model, experiment.model), cast(Norm, experiment.norm)
    options: dict[str, Any] = {"seed": experiment.seed, "dtype": _dtype(experiment)}
    return build(model, _image(data), data.classes, norm, experiment.bias, **options).to(device)


def runs_worth_fusing(experiment: Training, data: Data, *, device: str, executor: str, neighbours: int = 1) -> int:
    """Return how many runs like this one to train together: as many as fill a stack and fit into memory."""
    wanted = cast(Executor, executor)
    stacked = executor_for(experiment, data, device=device, wanted=wanted) == "stacked"
    if not isinstance(experiment, Federated) or not stacked:
        return 1
    most = CHUNK
    if device != "cpu":
        network = make_network(experiment, data, device)
        most = min(SATURATED, clients_that_fit(network, _image(data), experiment.batch_size, neighbours))
    return max(1, most // experiment.cohort_size)


def executor_for(experiment: Training, data: Data, *, device: str, wanted: Executor) -> UsedExecutor:
    """Return the executor for this experiment; ``auto`` selects by the device and the FLOPs of a local step."""
    if wanted != "auto":
        return wanted
    if device != "cpu":
        return "stacked"
    forward = sample_flops(make_network(experiment, data, device), _image(data), backward=False)
    flops = 3 * forward * experiment.batch_size  # the backward pass counted as two forward passes
    return "stacked" if flops < STACK_BELOW_FLOPS else "loop"


def _dtype(experiment: Training) -> torch.dtype:
    return torch.float64 if experiment.precision == "fp64" else torch.float32


def _image(data: Data) -> tuple[int, int, int]:
    return cast(tuple[int, int, int], data.train.images.shape[1:])


def _trainer(experiment: Training, data: Data, network: nn.Module, common: dict[str, Any]) -> Trainer:
    match experiment:
        case Federated():
            shards = shards_of(experiment, data)
            return FederatedTrainer(
                method=cast(Method, experiment.method),
                network=network,
                shards=shards,
                steps=[_steps(experiment, rows) for rows in shards.train],
                participation=experiment.participation,
                **common,
            )
        case Centralized():
            order = stream(experiment.seed, "held out").permutation(len(data.train.labels))
            held_out = round(len(order) * experiment.val_fraction)
            rows = order[held_out:]
            steps = _steps(experiment, rows)
            return CentralizedTrainer(train_rows=rows, val_rows=order[:held_out], steps=steps, **common)
    assert_never(experiment)


def _steps(experiment: Training, rows: Rows) -> int:
    """Local steps in a round of a client with these rows."""
    if experiment.local_steps is not None:
        return experiment.local_steps
    return steps_of_epochs(len(rows), epochs=cast(int, experiment.local_epochs), batch_size=experiment.batch_size)


def set_matmul_precision(precision: str) -> None:
    """Allow TF32 for matrix products and convolutions on CUDA if the precision is ``tf32``, and forbid it otherwise."""
    allowed = precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


@contextmanager
def matmul_precision_restored() -> Iterator[None]:
    """Restore the process's TF32 settings, which building a trainer changes."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def _images(data: Data, device: str, dtype: torch.dtype, *, augment: bool) -> DeviceData:
    train, train_labels = _on_device(data.train, device)
    test, test_labels = _on_device(data.test, device)
    return DeviceData(train, train_labels, test, test_labels, data.classes, data.white, dtype, augment)


def _on_device(arrays: Arrays, device: str) -> tuple[Tensor, Tensor]:
    if device == "cpu":
        return _from_numpy(arrays.images), _from_numpy(arrays.labels)
    # A worker's next run most likely uses the same data set: keep the last copies on the device.
    return _copy_to_device(_Same(arrays), device)


@dataclass(frozen=True, eq=False)
class _Same:
    """Arrays compared by their memory, so that a cache can hold them."""

    arrays: Arrays

    def __hash__(self) -> int:
        return hash(self._key())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._key() == other._key()

    def _key(self) -> tuple[Any, ...]:
        return tuple((a.__array_interface__["data"][0], a.shape) for a in (self.arrays.images, self.arrays.labels))


@lru_cache(maxsize=2)
def _copy_to_device(same: _Same, device: str) -> tuple[Tensor, Tensor]:
    return _from_numpy(same.arrays.images).to(device), _from_numpy(same.arrays.labels).to(device)


def _from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor over the array's own memory, never written to; torch's warning about read-only maps is silenced."""
    import warnings

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
