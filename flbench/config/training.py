"""Training on a data set: federated, and centralized for comparison."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import Field

from flbench.choices import Augmentation, LocalOptimizer, Precision
from flbench.config import network_checks
from flbench.config.base import Check, Derived, Experiment, Rounds, Spelling, Whole
from flbench.config.cohorts import cohort_in_effect, cohort_problem, cohort_size, participation_in_effect
from flbench.config.components import InitField
from flbench.config.kinds import KINDS
from flbench.config.local_optimizer import (
    OPTIMIZER,
    adam_has_no_momentum,
    clipped_one_way,
    momentum_is_there_to_keep,
    nesterov_has_momentum,
    one_set_of_weights_keeps_its_state,
    own_steps_have_no_optimizer,
    weights_know_the_optimizer,
)
from flbench.config.local_steps import LocalSteps, one_length, partial_batches_end_epochs, steps_have_clients
from flbench.config.schedules import CONSTANT, LrSchedule, schedule_problem
from flbench.config.trained_parts import ALL, TrainedParts, leaves_head
from flbench.messages import counted
from flbench.metric_specs import Metric
from flbench.registry import Component

#: Fields in which runs that are trained together may differ, apart from request fields and the method's numbers.
FUSABLE = frozenset({"seed", "lr", "lr_schedule", "partition", "min_size", "clients", "participation"})

#: Components of fields that came later, with which earlier runs were trained: their ids stay.
_LATER = {"head": "linear", "cohort": "uniform", "init": "random"}


def _head_is_trained(method: Any, head: Any) -> str | None:
    if head.trained or not method.trains_head:
        return None
    return f"{method.label()} has a rule for the rows of the head, and those of head: {head.label()} are fixed"


def _method_has_its_head(method: Any, train: str) -> str | None:
    if not method.trains_head or not leaves_head(train):
        return None
    rule = f"{method.label()} has a rule for the rows of the head"
    return f"{rule}, and with train: {train} every method leaves them constant; use head+{train}"


def _server_has_data(method: Any, server_fraction: float) -> str | None:
    if server_fraction or not method.needs_server_data:
        return None
    return f"{method.label()} needs server_fraction: the share of the training set that the server holds, such as 0.01"


def _server_has_the_network(method: Any, norm: Any) -> str | None:
    if not (method.needs_server_data and norm.keeps_statistics):
        return None
    needs = f"{method.label()} evaluates the network on data of the server"
    return f"{needs}, and with {norm.label()} the batch statistics stay on the clients; use another norm, such as bn"


def _policy_has_clients(norm: Any) -> str | None:
    return f"{norm.label()} is bn among clients; use bn for centralized training" if norm.is_policy else None


def _statistics_are_left_to_the_norm(method: Any, norm: Any) -> str | None:
    if not (norm.is_policy and method.keeps_statistics):
        return None
    return f"{method.label()} keeps batch statistics on the clients, {norm.label()} has another policy for them; use bn"


def _lock_step_is_possible(
    norm: Any, method: Any, local_steps: int | str | None, local_epochs: int | str | None
) -> str | None:
    if not norm.lock_step:
        return None
    if isinstance(local_steps, str):
        return f"the clients of {norm.label()} take each step together; give one number of local_steps"
    if local_epochs is not None:
        return f"the clients of {norm.label()} take each step together; give local_steps in place of local_epochs"
    if method.trains:
        return f"the clients of {norm.label()} take each step together, and {method.label()} trains each by itself"
    if method.perturbs:
        return f"the clients of {norm.label()} share one pass of a step, and {method.label()} takes two"
    return None


def _lock_step_is_not_finetuned(norm: Any, finetune: int) -> str | None:
    if not (norm.lock_step and finetune):
        return None
    return f"the clients of {norm.label()} take each step together, and fine-tuning is each client's own; drop it here"


def _batch_fits(component: Any, batch_size: int) -> str | None:
    smallest = component.smallest_batch
    return (
        f"{component.label()} needs at least {smallest} samples in a batch, got {batch_size}"
        if batch_size < smallest
        else None
    )


def _probes_meet_evaluations(probes: tuple[Any, ...], eval_every: int) -> str | None:
    for probe in probes:
        if probe.every is not None and probe.every % eval_every:
            between = f"every {probe.every} rounds is not among the evaluations, every {eval_every}"
            return f"{probe.label()}: {between}; use a multiple, or another eval_every"
    return None


def _partition_fits(dataset: Any, partition: Any, clients: int) -> str | None:
    if dataset.classes is None:
        return None
    problem = partition.misfit(dataset.classes, clients, len(dataset.domains))
    return (
        f"{partition.label()} of {dataset.label()} among {counted(clients, 'client')}: {problem}" if problem else None
    )


def _samples_suffice(dataset: Any, partition: Any, clients: int, min_size: int) -> str | None:
    # ``counts`` are those of the whole set; where only the files tell, or have fewer, the run itself finds out.
    problem = partition.shortage(dataset.counts[0], clients, min_size) if dataset.counts is not None else None
    return f"{dataset.label()}: {problem}" if problem else None


def _min_size_is_reached(partition: Any, min_size: int) -> str | None:
    if min_size == 1 or partition.draws > 1:
        return None
    return (
        f"{partition.label()} is drawn once, so that min_size cannot change the size of any client; drop it here "
        "(only partitions that are drawn again until every client is large enough take it, such as dirichlet:BETA)"
    )


class _Training(Experiment):
    """What federated and centralized training share: the data, the network, plain SGD, and the requests."""

    checks: ClassVar[tuple[Check, ...]] = (
        *Experiment.checks,
        Check(("dataset", "model"), "model", network_checks.image_fits),
        Check(("dataset", "augment"), "augment", network_checks.augmented_are_images),
        Check(("dataset", "model", "norm"), "norm", network_checks.norm_fits),
        Check(("dataset", "model", "head"), "head", network_checks.head_fits),
        Check(("norm", "head"), "norm", network_checks.head_sees_lengths),
        Check(("norm", "batch_size"), "batch_size", _batch_fits),
        Check(("local_steps", "local_epochs"), "local_epochs", one_length),
        Check(("probes", "eval_every"), "probes", _probes_meet_evaluations),
        Check(("nesterov", "momentum"), "nesterov", nesterov_has_momentum),
        Check(("clip_norm", "agc"), "agc", clipped_one_way),
        Check(("dataset", "model", "norm", "head", "bias", "train"), "train", network_checks.trained_parts_exist),
    )

    problem: ClassVar[frozenset[str]] = frozenset(
        {*Experiment.problem, "dataset", "model", "val_fraction", "local_steps", "local_epochs"}
    )

    spellings: ClassVar[tuple[Spelling, ...]] = (
        Spelling("norm", ("dataset", "model", "norm"), network_checks.norm_in_network),
    )

    derived: ClassVar[tuple[Derived, ...]] = (
        # The augmentation that is really used, so that it enters the run id.
        Derived("augment", "dataset", lambda dataset: dataset.augment),
        Derived("local_steps", "local_epochs", lambda epochs: None),
    )

    dataset: Component = Field(default="digits", validate_default=True, description="data set")
    model: Component = Field(default="mlp", validate_default=True, description="network")
    norm: Component = Field(default="none", validate_default=True, description="normalization")
    head: Component = Field(
        default="linear", validate_default=True, description="what leads from the features to the logits"
    )
    init: InitField = Field(
        default="random",
        validate_default=True,
        description="where training starts: random, file:PATH, package, torchvision, run:ID, {sweep: NAME, match: ...}",
    )
    bias: bool = Field(default=False, description="bias terms in dense and convolution layers")
    train: TrainedParts = Field(
        default=ALL,
        description="which parameters train: all, head, norm, lora:RANK (adapters of low rank on dense and "
        "convolution layers), patterns of names (body.*), or several joined by +; the rest is constant, neither sent "
        "nor averaged",
    )
    lr: float = Field(default=0.01, gt=0, description="learning rate of local steps, in the first round of lr_schedule")
    momentum: float = Field(default=0.0, ge=0, lt=1, description="momentum of local SGD")
    nesterov: bool = Field(default=False, description="Nesterov's form of the momentum, as in torch.optim.SGD")
    clip_norm: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="largest norm of a client's gradient over all parameters, before weight decay, the method's "
        "correction and momentum, as torch.nn.utils.clip_grad_norm_ has it; default: not clipped",
    )
    agc: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="adaptive gradient clipping, in place of clip_norm: largest norm of the gradient of a unit (the "
        "weights of one output) over the norm of its weights, in all layers but the head; default: not clipped",
    )
    weight_decay: float = Field(default=0.0, ge=0, description="L2 coefficient added to the gradient")
    batch_size: Whole = Field(default=32, ge=1, description="samples in a mini-batch")
    local_steps: LocalSteps | None = Field(
        default=10,
        description="mini-batch steps in a round (alias: E); not together with local_epochs. uniform:LOW:HIGH: drawn "
        "by each client in each round; stragglers:FULL:SHARE: FULL, but fewer for a share of the participants; with "
        ":fixed at the end drawn once for the run",
    )
    local_epochs: LocalSteps | None = Field(
        default=None,
        description="passes through a client's own data in a round, in place of local_steps and in its forms: full "
        "batches, the remainder dropped; smaller clients fill batches from pass after pass, the last one rounded up",
    )
    rounds: Rounds = Field(default=200, ge=1, description="how many rounds to run; raising it extends finished runs")
    augment: Augmentation = Field(default="none", description="training augmentation; default: the data set's own")
    precision: Precision = Field(default="fp32", description="arithmetic of training and evaluation")
    val_fraction: float = Field(default=0.0, ge=0, lt=1, description="share of each client's training data held out")
    probes: tuple[Component, ...] = Field(
        default=(), description="measurements at evaluations: a list, or a mapping such as {features: 10, drift: 50}"
    )

    @classmethod
    def identity_of(cls, field: str, value: Any) -> dict[str, Any]:
        """Return the identity of a field; epochs and bf16 have a version, raised when the numbers of their runs change.

        Version 1 of epochs gave a client smaller than a batch a single step. Version 1 of bf16 rounded statistics of
        normalizations and penalties of methods to it.
        """
        if field in _LATER and value.identity() == {"name": _LATER[field], "version": 1}:
            return {}
        own = super().identity_of(field, value)
        if field == "precision" and value == "bf16":
            return {field: {"name": value, "version": 2}}
        return {field: {"epochs": value, "version": 2}} if own and field == "local_epochs" else own

    def records(self, metric: Metric) -> bool:
        """Return whether its runs record a metric."""
        if metric.recorded == "with held-out data":
            return self.val_fraction > 0
        return metric.recorded == "always"


@KINDS.register
class Federated(_Training):
    """Clients train locally, the server combines their updates."""

    checks: ClassVar[tuple[Check, ...]] = (
        *_Training.checks,
        Check(("dataset", "partition", "clients"), "partition", _partition_fits),
        Check(("dataset", "partition", "clients", "min_size"), "clients", _samples_suffice),
        Check(("partition", "min_size"), "min_size", _min_size_is_reached),
        Check(("cohort", "clients", "participation"), "participation", cohort_problem),
        Check(("method", "batch_size"), "batch_size", _batch_fits),
        Check(("drop_last", "local_epochs"), "drop_last", partial_batches_end_epochs),
        Check(("rounds", "lr_schedule"), "lr_schedule", schedule_problem),
        Check(("optimizer", "momentum"), "momentum", adam_has_no_momentum),
        Check(("keep_momentum", "optimizer", "momentum"), "keep_momentum", momentum_is_there_to_keep),
        Check(("method", "keep_momentum"), "keep_momentum", one_set_of_weights_keeps_its_state),
        Check(("method", "optimizer", "nesterov", "keep_momentum"), "method", weights_know_the_optimizer),
        Check(("method", *OPTIMIZER), "method", own_steps_have_no_optimizer),
        Check(("method", "head"), "head", _head_is_trained),
        Check(("method", "train"), "train", _method_has_its_head),
        Check(("method", "norm"), "norm", _statistics_are_left_to_the_norm),
        Check(("norm", "method", "local_steps", "local_epochs"), "norm", _lock_step_is_possible),
        Check(("norm", "finetune"), "finetune", _lock_step_is_not_finetuned),
        Check(("method", "server_fraction"), "server_fraction", _server_has_data),
        Check(("method", "norm"), "norm", _server_has_the_network),
    )
    spellings: ClassVar[tuple[Spelling, ...]] = (
        *_Training.spellings,
        Spelling("participation", ("cohort", "clients", "participation"), participation_in_effect),
        Spelling("cohort", ("cohort", "clients", "participation"), cohort_in_effect),
    )

    problem: ClassVar[frozenset[str]] = _Training.problem | {
        "partition",
        "min_size",
        "clients",
        "participation",
        "cohort",
        "server_fraction",
    }

    kind: Literal["federated"] = "federated"
    method: Component = Field(default="fedavg", validate_default=True, description="federated algorithm")
    partition: Component = Field(
        default="classes:1", validate_default=True, description="how the data are split across clients"
    )
    min_size: Whole = Field(
        default=1,
        ge=1,
        description="fewest training samples a client may have; dirichlet and quantity: redrawn until it holds",
    )
    clients: Whole = Field(default=10, ge=1, description="number of clients")
    participation: float = Field(
        default=1.0, gt=0, le=1, description="share of the clients that train in a round, to a whole number of them"
    )
    cohort: Component = Field(default="uniform", validate_default=True, description="how a round's clients are drawn")
    server_fraction: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="share of the training set that the server holds, for methods that learn from it; drawn before the "
        "rest is split across clients",
    )
    lr_schedule: LrSchedule = Field(
        default=CONSTANT,
        description="learning rate over rounds: constant, decay:FACTOR (times FACTOR after every round), or "
        "cosine:ROUNDS (half a cosine to zero; of its own length, because rounds can be extended)",
    )
    optimizer: LocalOptimizer = Field(
        default="sgd",
        description="optimizer of local steps; adam and adamw are torch's, with its betas and eps; weight_decay is "
        "decoupled for adamw",
    )
    keep_momentum: bool = Field(
        default=False,
        description="whether a client keeps its optimizer's state (momentum, or adam's moments) from one round in "
        "which it takes part to the next, and never sends it; false: every round starts with none",
    )
    drop_last: bool = Field(
        default=True,
        description="whether local epochs drop the samples that do not fill a batch; false: they are a partial batch, "
        "as in torch's DataLoader, and a client smaller than a batch takes one step an epoch",
    )
    finetune: Whole = Field(
        default=0,
        ge=0,
        description="steps of plain SGD on each client's own data after which evaluations measure its accuracy on its "
        "own test shard as well (acc_finetuned); training does not change; 0: not measured",
    )

    def records(self, metric: Metric) -> bool:
        """Return whether its runs record a metric."""
        if metric.recorded == "without a shared model":
            method, norm = cast(Any, self.method), cast(Any, self.norm)
            return bool(method.same_as(self).is_personal or norm.keeps_statistics)
        if metric.recorded == "after fine-tuning":
            return self.finetune > 0
        return super().records(metric)

    @property
    def cohort_varies(self) -> bool:
        """Whether the number of clients that train in a round varies."""
        return bool(cast(Any, self.cohort).varies)

    @property
    def cohort_size(self) -> int:
        """Clients that train in a round; about their mean number where it varies."""
        return cohort_size(self.clients, self.participation)


@KINDS.register
class Centralized(_Training):
    """One model on all the data: the upper bound for federated training.

    A round is ``local_steps`` consecutive steps of SGD through ever new permutations of the whole training set;
    momentum is carried from round to round.
    """

    checks: ClassVar[tuple[Check, ...]] = (
        *_Training.checks,
        Check(("norm",), "norm", _policy_has_clients),
        Check(("local_epochs", "local_steps"), "local_steps", steps_have_clients),
    )

    kind: Literal["centralized"] = "centralized"

    def held_out(self, samples: int) -> int:
        """Return how many of this number of training samples are held out."""
        return round(samples * self.val_fraction)


#: The kinds that train on a data set.
Training = Federated | Centralized
