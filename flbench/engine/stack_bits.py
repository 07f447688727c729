"""Which runs have, as a part of a larger stack on a CPU, every bit that they have alone.

Clients share nothing, so the place of a client in a stack can change its bits through these things only:

- Products of matrices. MKL promises equal bits for arrays that are aligned to 64 bytes alike. A client's slice of a
  tensor begins as many slices after the first as there are clients before it, so alignments repeat with a period.
- Functions whose vectorized form has other bits than the scalar form (``PLACED``), which torch uses for the rest of a
  tensor that does not fill its registers.
- A stack of one client, whose axis torch leaves out: it multiplies and convolves in another way.
- Convolutions of images that have, with those of all clients, fewer channels than a register of oneDNN's blocked layout
  (``BLOCK``): it computes them in another way than those of more clients.

One local step is executed, and each of its operations is looked at. Runs are trained together if they have several
clients, the same number in every round, whole periods of them and no rest. All others are trained alone, and so with
the bits that they have alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from flbench.engine.executors import StackedExecutor
from flbench.engine.federated import FederatedTrainer
from flbench.engine.run import RoundInputs
from flbench.engine.server_round import RoundStart, RunGroup

#: Bytes to which slices must be aligned, and those that torch's loops take at once: two registers of AVX-512.
ALIGNED, AT_ONCE = 64, 128

#: Channels that oneDNN's convolutions keep together.
BLOCK = 8

#: Products of the clients' own matrices, and products that one client has in another way than clients of several runs.
STACKED, SHARED = frozenset({"bmm", "baddbmm"}), frozenset({"mm", "addmm", "mv", "addmv", "dot"})

#: Functions whose scalar form has other bits than the vectorized one (``tests/engine/test_stack_bits.py``).
PLACED = frozenset(
    name + form
    for name in ("atan2", "elu", "exp2", "gelu", "mish", "pow", "sigmoid", "silu", "softplus")
    for form in ("", "_", "_backward")
)

#: Powers that torch computes by products, divisions and roots.
EXACT_POWERS = (-2, -1, -0.5, 0, 0.5, 1, 2, 3)


def same_bits_together(trainers: Sequence[FederatedTrainer]) -> list[list[int]]:
    """Return groups of the positions of runs that can be trained as one stack with the bits that they have alone.

    Args:
        trainers: of runs with one method, norm, model, data set and shape of batches.

    Returns:
        The groups; each has at most as many participants as a stack. On a GPU, which promises no bits, one group.
    """
    everyone = list(range(len(trainers)))
    executor = trainers[0].executor
    if len(trainers) == 1 or trainers[0].device.type != "cpu" or not isinstance(executor, StackedExecutor):
        return [everyone]
    several = [
        trainer
        for trainer in trainers
        if not trainer.run.sampler.varies and 1 < trainer.run.cohort_size <= executor.chunk
    ]
    step = None if not several else _Operations.of_a_step(several[0], executor)
    groups: list[list[int]] = []
    room = 0
    for position, trainer in enumerate(trainers):
        size = trainer.run.cohort_size
        if step is None or trainer not in several or not step.allows(size, trainer.run.counts_NY):
            groups.insert(0, [position])  # before the group that still has room
        elif size <= room:
            groups[-1].append(position)
            room -= size
        else:
            groups.append([position])
            room = executor.chunk - size
    return groups


def any_place(trainer: FederatedTrainer) -> bool:
    """Return whether each client of a run has the same bits at every place of a stack, on a CPU, of any size above one.

    False also where nothing is gained: all clients take the same number of steps.
    """
    run, executor = trainer.run, trainer.executor
    if trainer.device.type != "cpu" or not isinstance(executor, StackedExecutor) or run.shares:
        return False
    if RunGroup((run,)).common_steps is not None or run.cohort_size < 2:
        return False
    step = _Operations.of_a_step(trainer, executor)
    return step is not None and step.allows(1, run.counts_NY)


class _Operations(TorchDispatchMode):
    """Looks at the operations of a stack.

    Attributes:
        period: clients after which all slices are aligned as the first is.
        rests: the bytes of a client's part of the results of placed functions.
        of_counts: placed functions of nothing but the clients' class counts, which never change.
        fewest: clients from which on all convolutions are computed in one way.
        shared: whether clients share an operation whose bits depend on the others.
    """

    def __init__(self, counts_NY: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._clients, self._counts_NY = counts_NY.shape[0], counts_NY
        self.period = self.fewest = 1
        self.rests: set[int] = set()
        self.of_counts: list[Callable[[Tensor], Tensor]] = []
        self.shared = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: to skip it, torch imports it, for seconds in every worker. Nothing is compiled here."""
        return False

    @classmethod
    def of_a_step(cls, trainer: FederatedTrainer, executor: StackedExecutor) -> _Operations | None:
        """Look at one local step of a run, which does not change it; None if the step fails, as the run itself will."""
        state = trainer.run_state()
        try:
            inputs = RoundInputs.draw([trainer.run], [trainer.round], trainer.device)
            job = RoundStart(RunGroup((trainer.run,)), [state], inputs).job(slice(0, trainer.run.cohort_size))
            seen = cls(job.init.counts_Y)
            with seen:
                executor.first_step(job)
        except Exception:
            return None
        return seen

    def allows(self, clients: int, counts_NY: Tensor) -> bool:
        """Return whether a run of this layout keeps its bits in a stack with others.

        Args:
            clients: participants of a round.
            counts_NY: training samples of each class, of all clients.
        """
        return (
            not self.shared
            and clients >= self.fewest
            and clients % self.period == 0
            and all(clients * rest % AT_ONCE == 0 for rest in self.rests)
            and all(_is_one_function(function, counts_NY.unique()) for function in self.of_counts)
        )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in SHARED:
            self.shared = True
        elif name in STACKED:
            for factor in _tensors([*args, out]):
                size = factor.stride(0) * factor.itemsize * factor.shape[0] // self._clients
                self.period = max(self.period, ALIGNED // math.gcd(ALIGNED, size))
        elif name == "convolution" and args[1].shape[0] // self._clients % BLOCK == 0:
            of_client = args[0].shape[1] // self._clients
            if 2 * of_client < BLOCK:  # no stack has fewer than two clients
                self.fewest = max(self.fewest, -(-BLOCK // of_client))
        elif name in PLACED and not (name.startswith("pow") and args[1:2] and args[1] in EXACT_POWERS):
            self._note(func, args, out)
        return out

    def _note(self, func: Any, args: Any, out: Tensor) -> None:
        """Record a function whose result depends, in its last bits, on the position of the client in the stack."""
        first, *others = args
        if self._are_class_counts(first) and not _tensors(others):
            self.of_counts.append(lambda values: func(values.to(first.dtype), *others))
        elif out.numel() % self._clients:  # it cannot be cut into equal parts, one a client
            self.shared = True
        else:
            self.rests.add(out.numel() // self._clients * out.itemsize)

    def _are_class_counts(self, value: Any) -> bool:
        if not isinstance(value, Tensor):
            return False
        counts = self._counts_NY, self._counts_NY.mT  # as elementwise hooks see them
        return any(value.shape == each.shape and torch.equal(value, each.to(value.dtype)) for each in counts)


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    return [value for value in values if isinstance(value, Tensor)]


def _is_one_function(function: Callable[[Tensor], Tensor], values: Tensor) -> bool:
    """Return whether the scalar and the vectorized form of a function agree on these values."""
    vectorized = function(values.repeat(AT_ONCE))[: len(values)]
    return torch.equal(vectorized, torch.cat([function(value) for value in values.split(1)]))
