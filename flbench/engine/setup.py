"""Make a trainer from an experiment."""

from __future__ import annotations

import ctypes
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache, lru_cache, partial
from typing import Any, assert_never, cast

import torch
from torch import nn

from flbench.choices import LOOPS, Executor, UsedExecutor
from flbench.config import Centralized, Federated, Training, require_executor
from flbench.data.arrays import Data
from flbench.data.cohorts.base import Sampler
from flbench.data.preflight import require_batches, require_fit
from flbench.data.shards import shards_of
from flbench.engine.centralized import CentralizedTrainer
from flbench.engine.conv_tuner import ConvTuner, cuda_clock
from flbench.engine.convolution_stack import NativeConvolutions
from flbench.engine.cuda_graph import CudaRecorder
from flbench.engine.dense_stack import dense_layers
from flbench.engine.device_data import DeviceData
from flbench.engine.executors import CHUNK, LoopExecutor, StackedExecutor, StacksInThreads
from flbench.engine.federated import FederatedTrainer
from flbench.engine.gradients import rounds_by_hand
from flbench.engine.initial_factors import Measured, set_factors
from flbench.engine.local_steps import drawn_steps, local_steps
from flbench.engine.native_stack import NativeMlp
from flbench.engine.optimizers import Adam, Sgd
from flbench.engine.partial_batches import stacks_partial_batches
from flbench.engine.randomness import check_network, check_same_weights, without_draws
from flbench.engine.run import TrainingSetup
from flbench.engine.stack_bits import any_place
from flbench.engine.stack_or_loop import stack_is_faster
from flbench.engine.stack_size import clients_that_fit
from flbench.engine.trainer import Trainer
from flbench.errors import UserError
from flbench.methods.base import Method
from flbench.models.base import Model
from flbench.models.flops import sample_flops
from flbench.models.frozen import initial_trees
from flbench.models.initial_weights import build
from flbench.models.masks import mask_keys
from flbench.models.network import head_weight
from flbench.models.norms import Norm
from flbench.models.onednn_products import has_large_products, has_onednn
from flbench.models.sites import Shape
from flbench.models.starts import Start
from flbench.models.trained_parts import train_only
from flbench.models.weight_files import start_from
from flbench.streams import stream

_log = logging.getLogger(__name__)

#: Bytes of the weights of a stack that compiled functions train, unless one client has more. They train one client
#: after the other: a larger stack gains nothing, and one of 80 MB took a tenth longer, because its weights leave the
#: cache.
COMPILED_BYTES = 48 << 20

#: Most clients in a stack of fused runs on a GPU: 30 to 60 of them saturate its throughput, and further runs would only
#: use memory and delay the others.
SATURATED = 60

#: Options of mallopt(3) and their values: bytes of freed memory that are kept at the end of the heap; no block outside
#: of the heap, however large, because it is returned when it is freed; and one heap for all threads, because those of
#: threads hold at most 64 MB each and are returned when they are empty.
MALLOC_OPTIONS = {"M_TRIM_THRESHOLD": (-1, 256 << 20), "M_MMAP_MAX": (-4, 0), "M_ARENA_MAX": (-8, 1)}


@dataclass(frozen=True)
class Numerics:
    """The settings within which runs are bit-identical; a resumed run has the same ones, or starts over.

    Attributes:
        gradient: ``by hand`` where the gradient of a method's terms rounds in another way than autograd's; else empty.
    """

    device: str
    executor: str
    precision: str
    torch: str
    gradient: str = ""

    def facts(self) -> dict[str, str]:
        """Return what a result records; what is empty did not exist when older runs were computed."""
        return {name: value for name, value in asdict(self).items() if value}


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
        device: ``cpu``, ``cuda`` or ``mps``.
        executor: how clients are trained; ``auto`` selects by the device and the experiment alone.
        pool: threads of the loop executor; they change the speed, but no bit of the result.
        neighbours: processes that share the GPU, including this one.

    Raises:
        flbench.errors.UserError: the model, the norm or the head does not fit the images, the partition cannot be
            drawn, or a partial batch is too small for the norm or the method.
    """
    require_fit(experiment, data)  # as planning does where the data are
    image = data.shape
    set_matmul_precision(experiment.precision)
    keep_freed_memory()
    autocast = torch.bfloat16 if experiment.precision == "bf16" else None
    network = partial(make_network, experiment, data, device)
    first = network()
    runner: LoopExecutor | StackedExecutor
    record = None
    used = executor_for(experiment, data, device=device, wanted=executor, network=first)
    if used in LOOPS:
        runner = LoopExecutor([network() for _ in range(pool)], autocast, onednn=used == "loop-onednn")
        if _method(experiment).trains and device != "cpu":
            _log.warning("%s trains each client by itself: no stacks, no graphs", _method(experiment).label())
    elif device != "cuda":
        own = network()
        compiled = native_network(own, image) if used == "native" else None
        if compiled is not None and compiled.convolutions is not None:
            runner = StacksInThreads([own, *(network() for _ in range(pool - 1))], compiled)
        elif compiled is not None:
            runner = StackedExecutor(own, autocast, _compiled_chunk(own), native=compiled)
        else:
            runner = StackedExecutor(own, autocast)
    else:
        tuner, method = _gpu_tuner(), _method(experiment)
        chunk = clients_that_fit(first, image, experiment.batch_size, method, neighbours)
        runner = StackedExecutor(network(), autocast, chunk, tuner.record, tuner, pixels_last=True)
        record = tuner.record
    model = cast(Model, experiment.model)
    if model.initialized_by() == "build":
        check_same_weights(first, make_network(experiment, data, "cpu"), f"model {model.label()}")
    check_network(first, image, f"model {model.label()}", stacked=used not in LOOPS)
    params, buffers = initial_trees(first)
    setup = TrainingSetup(
        sgd=_optimizer(experiment),
        autocast=autocast,
        batch_size=experiment.batch_size,
        images=DeviceData.of(data, device, _dtype(experiment), augment=experiment.augment == "flip-crop"),
        executor=runner,
        params=params,
        buffers=buffers,
        masked=bool(mask_keys(first)),
        seed=experiment.seed,
        record=record,
        drop_last=_drops_last(experiment),
    )
    gradient = "by hand" if isinstance(runner, StackedExecutor) and runner.by_hand and _by_hand(experiment) else ""
    numerics = Numerics(device, runner.name, experiment.precision, str(torch.__version__), gradient)
    return _trainer(experiment, data, first, setup), numerics


@lru_cache(maxsize=1)
def _gpu_tuner() -> ConvTuner:
    """One tuner for the process, so that all graphs share a memory pool and no kind of round is measured twice."""
    return ConvTuner(CudaRecorder(), cuda_clock)


def make_network(experiment: Training, data: Data, device: str) -> nn.Module:
    """Return the experiment's network with its initial weights, factors measured on its data, and what trains."""
    model, norm = cast(Model, experiment.model), cast(Norm, experiment.norm)
    options: dict[str, Any] = {"seed": experiment.seed, "dtype": _dtype(experiment), "head": experiment.head}
    network = build(model, data.shape, data.classes, norm, experiment.bias, **options)
    init = cast(Start, experiment.init)
    start_from(network, init, model)
    measured = Measured(model, init, norm, experiment.bias, experiment.seed, data.fingerprint, data.normalize, data)
    set_factors(network, measured)
    train_only(network, experiment.train, experiment.seed)
    return network.to(device)


def runs_worth_fusing(experiment: Training, data: Data, *, device: str, executor: Executor, neighbours: int = 1) -> int:
    """Return how many runs like this one to train together: as many as fill a stack and fit into memory."""
    used = executor_for(experiment, data, device=device, wanted=executor)
    if not isinstance(experiment, Federated) or used in LOOPS or cast(Norm, experiment.norm).lock_step:
        return 1
    most = CHUNK
    if used == "native":
        network = make_network(experiment, data, device)
        if NativeConvolutions.of(network, data.shape) is not None:
            return 1  # a stack has fewer clients than a cohort
        most = _compiled_chunk(network)
    if device == "cuda":
        network = make_network(experiment, data, device)
        fitting = clients_that_fit(network, data.shape, experiment.batch_size, _method(experiment), neighbours)
        most = min(SATURATED, fitting)
    return max(1, most // experiment.cohort_size)


def executor_for(
    experiment: Training, data: Data, *, device: str, wanted: Executor, network: nn.Module | None = None
) -> UsedExecutor:
    """Return the executor for this experiment; ``auto`` selects by the device and, on a CPU, by what is faster.

    On a CPU multi-layer perceptrons in fp32 are trained by compiled functions, however large they are, and so are
    convolutional networks like LeNet with batches for which that is faster; all others as ``stack_or_loop`` has
    measured. Partial batches that a stack cannot compute exactly are always trained by the loop. ``network`` is the
    experiment's, on the device, if there is one already; its weights and buffers stay as they are.

    Raises:
        flbench.errors.UserError: the norm needs all clients in one stack, and the loop is wanted; or the other way
            round, because of the method; or torch has no oneDNN, or there are no compiled functions for this network
            here, and they are wanted.
    """
    norm, method = cast(Norm, experiment.norm), _method(experiment)
    require_executor(experiment, wanted)
    if method.trains:
        return "loop"
    if norm.lock_step:
        return "stacked"
    if wanted == "auto" and device != "cpu":
        wanted = "stacked"
    if wanted == "loop-onednn" and not has_onednn():
        raise UserError("executor loop-onednn: torch has no oneDNN on this machine; use auto or loop")
    if wanted in LOOPS or (wanted == "stacked" and _drops_last(experiment)):
        return wanted
    network, image = make_network(experiment, data, device) if network is None else network, data.shape
    is_fp32, batch_size = experiment.precision == "fp32", experiment.batch_size
    if _drops_last(experiment) or stacks_partial_batches(method, network, image):
        if wanted == "stacked":
            return wanted
        compiled = native_network(network, image) if device == "cpu" and is_fp32 else None
        if compiled is not None and (wanted == "native" or compiled.gains(batch_size)):
            return "native"
        if wanted == "native":
            raise UserError("executor native: it trains networks like mlp, lenet and cnn in fp32 on a CPU; use auto")
        if stack_is_faster(network, sample_flops(network, image, backward=False), batch_size):
            return "stacked"
    elif wanted != "auto":
        return "loop"
    return "loop-onednn" if is_fp32 and has_large_products(network, image, batch_size) else "loop"


def _compiled_chunk(network: nn.Module) -> int:
    """Return how many clients with such a network are trained as one stack by compiled functions."""
    weights = sum(leaf.numel() * leaf.element_size() for leaf in network.parameters())  # exact: whole numbers
    return max(1, min(CHUNK, COMPILED_BYTES // weights))


def native_network(network: nn.Module, image: Shape) -> NativeMlp | None:
    """Return a network for images of this shape whose passes are compiled; None where there is no such code for it."""
    convolutions = NativeConvolutions.of(network, image)
    return NativeMlp.of(dense_layers(network, convolutions.paths if convolutions else ()), convolutions)


def _optimizer(experiment: Training) -> Sgd:
    """The local optimizer; centralized training has SGD at a constant rate."""
    plain: dict[str, Any] = {
        name: getattr(experiment, name) for name in ("lr", "momentum", "weight_decay", "nesterov", "clip_norm", "agc")
    }
    if isinstance(experiment, Centralized):
        return Sgd(**plain)
    plain |= {"schedule": experiment.lr_schedule, "kept": experiment.keep_momentum}
    if experiment.optimizer == "sgd":
        return Sgd(**plain)
    return Adam(**plain, decoupled=experiment.optimizer == "adamw")


def _method(experiment: Training) -> Method:
    """The method; centralized training has the hooks of FedAvg."""
    return cast(Method, experiment.method) if isinstance(experiment, Federated) else Method()


def _by_hand(experiment: Training) -> bool:
    """Whether stacks of multi-layer perceptrons round in another way than by autograd."""
    method = _method(experiment)
    every = [method, method.twin()]
    return any(rounds_by_hand(type(one)) for one in every if isinstance(one, Method))


def _drops_last(experiment: Training) -> bool:
    return not isinstance(experiment, Federated) or experiment.drop_last


def _dtype(experiment: Training) -> torch.dtype:
    return torch.float64 if experiment.precision == "fp64" else torch.float32


def _trainer(experiment: Training, data: Data, network: nn.Module, setup: TrainingSetup) -> Trainer:
    match experiment:
        case Federated():
            with without_draws(f"partition {experiment.partition.label()}"):
                shards = shards_of(experiment, data)
            require_batches(experiment, map(len, shards.train))
            trainer = FederatedTrainer(
                setup,
                method=cast(Method, experiment.method),
                network=network,
                shards=shards,
                steps=[local_steps(experiment, rows) for rows in shards.train],
                draw_steps=drawn_steps(experiment, shards.train),
                participation=experiment.participation,
                sampler=cast(Sampler, experiment.cohort),
                finetune=experiment.finetune,
            )
            trainer.may_order_stacks(any_place(trainer))
            return trainer
        case Centralized():
            order = stream(experiment.seed, "held out").permutation(len(data.train.labels))
            held_out = experiment.held_out(len(order))
            rows = order[held_out:]
            return CentralizedTrainer(
                setup,
                train_rows=rows,
                val_rows=order[:held_out],
                steps=local_steps(experiment, rows),
                head=head_weight(network),
            )
    assert_never(experiment)


def set_matmul_precision(precision: str) -> None:
    """Allow TF32 for matrix products and convolutions on CUDA if the precision is ``tf32``, and forbid it otherwise.

    ``cudnn.benchmark`` is off: with it cuDNN times its algorithms in each process, and nothing says which one it took.
    """
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = False


@contextmanager
def matmul_precision_restored() -> Iterator[None]:
    """Restore the process's settings of TF32 and cuDNN, which building a trainer changes."""
    cudnn = torch.backends.cudnn
    before = torch.backends.cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before


@cache
def keep_freed_memory() -> bool:
    """Keep freed memory in this process, where the next local step uses it again.

    By default glibc returns it to the kernel, which clears each page on its next use: a tenth of a CNN's local step.

    Returns:
        Whether it is glibc that allocates, and has accepted the options.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return mallopt is not None and all(mallopt(*option) == 1 for option in MALLOC_OPTIONS.values())
