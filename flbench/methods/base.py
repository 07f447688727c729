"""The contract of a federated method, whose defaults are FedAvg.

A method is written for ONE client, as pure functions over trees (dicts of tensors by parameter name); the engine maps
it over clients, in a loop or stacked. Its dataclass fields are its YAML hyperparameters. Those that are numbers may
arrive as 0-d tensors (one per run trained together) unless the method names them in ``static``, so no Python branch may
depend on the values of the others.

One round (x: server parameters, m_k: training samples of client k, S: the participants)::

    the server:    x0, server tree = broadcast(x, server state)
    every k in S:  w = x0, then K steps of  g = grad [loss(w) + penalty(w)], or the same at perturbed(w, g)
                                            w <- w - lr step(w, momentum(direction(w, g + weight_decay w)))
                   client state, message = finish(w),   d_k, client state = upload(w - x0) = w - x0
    the server:    delta = aggregate(d_k) = sum_k p_k d_k,   message = sum_k q_k message_k
                   x, server state <- server_step(x, delta, message, server state)
    reported:      evaluated(x, server state)

With ``clip_norm`` or ``agc`` g is clipped before weight decay is added; with ``optimizer: adam`` Adam's step takes the
place of momentum. loss = CE(logits(z)); p = ``delta_weights``, by default the shares of the samples, m_k / sum_j m_j;
q = ``message_weights``, by default uniform. Buffers (running statistics) are always averaged by the shares, and bypass
``server_step``. The engine skips hooks that a method does not override: they cost nothing.

This module does not import torch: trees are only combined by their own arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from flbench.methods.personal_hooks import PersonalHooks
from flbench.methods.values import Batch as Batch
from flbench.methods.values import Cohort as Cohort
from flbench.methods.values import Outputs as Outputs
from flbench.methods.values import ServerData as ServerData
from flbench.methods.values import Tree as Tree
from flbench.registry import METHODS, Component
from flbench.tensor_streams import Random

if TYPE_CHECKING:
    from torch import Tensor, nn

    from flbench.config import Federated

Batches = Iterable["tuple[Tensor, Tensor]"]
Forward = Callable[[Tree, "Tensor"], "Outputs"]

#: Whose form of a method: its own paper's, the label-skew paper's text, or the label-skew paper's code.
Variant = Literal["original", "text", "code"]


def tmap(function: Callable[..., Any], *trees: Tree) -> Tree:
    """Apply ``function`` to the leaves of the same name of one or more trees."""
    return {name: function(leaf, *(tree[name] for tree in trees[1:])) for name, leaf in trees[0].items()}


@dataclass(frozen=True)
class Context:
    """What a client has during its round.

    Attributes:
        x: shared parameters at the start of the round, as broadcast.
        server: what else the server broadcasts.
        client: this client's own state.
        counts_Y: its number of training samples a class.
        lr: local learning rate.
        steps: its own number of local steps K.
        relative_size: its number of training samples over the mean of all N clients, N m_k / sum_j m_j.
        round: number of the round, from 0; a 0-d tensor where the round is recorded or shared with other runs.
        head: name of the head's weight (Y, D); empty if the network has no head that flbench can find.
        buffers: the client's buffers at the start of the round; in ``finish`` after the last local step.
        step: number of the local step, from 0; -1 outside of the steps (``teachers``, ``finish``, ``upload``).
        random: random numbers of the client, the round and the step; elementwise hooks may use it.
        means_YD, covariances_YDD: in ``finish`` the features of its training data, if the method has ``statistics``.
    """

    x: Tree
    server: Tree
    client: Tree
    counts_Y: Tensor
    lr: Any
    steps: Any
    relative_size: Any
    round: Any
    head: str
    buffers: Tree
    step: int = -1
    random: Random = field(default_factory=Random)
    means_YD: Any = None
    covariances_YDD: Any = None

    def norm(self, tree: Tree) -> Any:
        """Return the Euclidean norm of a tree of this client, over all of its leaves; elementwise hooks may use it."""
        squares: Any = sum((leaf**2).sum() for leaf in tree.values())  # exact: tensors
        return squares.sqrt()


@dataclass(frozen=True)
class ServerContext:
    """What the server has at the end of a round.

    Attributes:
        participation: |S| / N. ``clients``: N.
        round, head: as in ``Context``. ``x``: where clients started, as broadcast.
        random: random numbers of the round.
        data: the server's part of the training set; None without ``server_fraction``.
        losses_n, counts_nY, messages_n: for a method with its own ``aggregate``, the participants' mean training
            losses, label counts, and messages of ``finish`` along the first axis; all in the order of ``changes_n``.
    """

    participation: float
    round: Any
    head: str
    random: Random = field(default_factory=Random)
    clients: int = 1
    x: Any = None
    data: ServerData | None = None
    losses_n: Any = None
    counts_nY: Any = None
    messages_n: Any = None


@METHODS.register("fedavg")
@dataclass(frozen=True)
class Method(Component, PersonalHooks):
    """FedAvg: x <- x + server_lr * delta (McMahan et al. 2017, Algorithm 1, at server_lr = 1)."""

    #: What the method computes and where that is written, for programs (``flbench show methods --json``).
    equation: ClassVar[str] = "x <- x + server_lr sum_k m_k/m (w_k - x)"
    source: ClassVar[str] = "@mcmahan2017fedavg, Algorithm 1"

    #: Whether ``perturbed``, ``direction``, ``step``, ``rates``, ``finish`` and ``upload`` combine leaves element by
    #: element only, with ``ctx.norm``, ``ctx.counts_Y`` and numbers of the context. They are then called once for a
    #: stack of clients, which is the last axis of all leaves. Anything else is mapped, which costs more. ``logits``,
    #: ``loss_gradient`` and ``penalty_gradient`` then see a stack, too, and may use all axes but the last.
    elementwise: ClassVar[bool] = False

    #: Whether ``logits`` adds to its argument what does not depend on it, so that its gradient is known.
    shifts_logits: ClassVar[bool] = False

    #: Whether ``loss_gradient`` and ``penalty_gradient`` round as autograd does. If not, the numerics of runs that use
    #: them say ``gradient by hand``, because runs that were trained before have other bits.
    rounds_as_autograd: ClassVar[bool] = False

    #: Whether ``perturbed`` reads the gradient. If not, it gets an empty tree, and a step takes one pass, there.
    perturbs_by_gradient: ClassVar[bool] = True

    #: Fields that hooks need as Python numbers, such as a count. Runs that differ in one are not trained as one stack.
    static: ClassVar[frozenset[str]] = frozenset()

    #: Whether its hooks read or move the head's weight among the parameters, so that a fixed head is refused.
    trains_head: ClassVar[bool] = False

    #: Whether batch statistics stay on the clients, so that norms with another policy for them are refused.
    keeps_statistics: ClassVar[bool] = False

    #: Statistics of each class's features (the head's input, in evaluation mode) over all of a client's training data,
    #: which the engine computes after the last local step for ``finish``: one more forward pass over these data. Means
    #: of absent classes are zero; covariances, with the means, are divided by n - 1, and zero for fewer than 2 samples.
    #: ``received`` statistics are those of the network with which the client started.
    statistics: ClassVar[Literal["", "mean", "covariance"]] = ""
    statistics_of: ClassVar[Literal["trained", "received"]] = "trained"

    #: Whether its hooks read ``ctx.data`` of the server, so that an experiment without ``server_fraction`` is refused.
    needs_server_data: ClassVar[bool] = False

    #: Fewest samples in a training batch that the method can work with.
    smallest_batch: ClassVar[int] = 1

    #: Whether ``delta_weights`` is derived for SGD with plain momentum; other optimizers are then refused.
    assumes_plain_momentum: ClassVar[bool] = False

    server_lr: Annotated[float, Field(gt=0)] = 1.0

    @property
    def is_personal(self) -> bool:
        """Whether clients are evaluated with models of their own."""
        return any(overrides(type(self), hook) for hook in ("local_names", "twin", "predict", "personal"))

    @property
    def perturbs(self) -> bool:
        """Whether a step takes a second gradient, at other weights."""
        return overrides(type(self), "perturbed") and self.perturbs_by_gradient

    @property
    def trains(self) -> bool:
        """Whether it replaces the local steps by its own, so that clients are trained one by one."""
        return overrides(type(self), "train")

    def same_as(self, experiment: Federated) -> Method:
        """Return the method that trains the same model in an experiment with this one: itself, unless overridden.

        Reports merge the rows of methods that are the same. The declaration is about the arithmetic; the run ids stay
        apart. ``tests/test_same_methods.py`` compares runs to the bit.
        """
        return self

    def init_server(self, x: Tree) -> Tree:
        """Return the server's state before the first round; ``x`` has all parameters if none is shared."""
        return {}

    def init_client(self, x: Tree, buffers: Tree) -> Tree:
        """Return a client's state before its first round, from the shared parameters and buffers."""
        return {}

    def broadcast(self, x: Tree, state: Tree) -> tuple[Tree, Tree]:
        """Return where clients start, and what else they receive each round (it then counts as bytes down)."""
        return x, {}

    def teachers(self, ctx: Context) -> dict[str, Tree]:
        """Return the weights whose outputs on every batch the loss terms see, by a name for each.

        Returns:
            For each teacher its parameters and buffers; missing ones are the client's at the start of the round.
        """
        return {}

    def logits(self, z_BY: Tensor, ctx: Context) -> Tensor:
        """Return what enters the cross-entropy, from the network's logits."""
        return z_BY

    def loss(self, w: Tree, batch: Batch, ctx: Context) -> Tensor:
        """Return the data term of the loss, 0-d: by default the mean cross-entropy."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(self.logits(batch.logits_BY, ctx), batch.labels_B)

    def loss_gradient(self, w: Tree, batch: Batch, ctx: Context) -> tuple[Tensor, Tree]:
        """Return the value of ``loss`` and its gradient, as ``penalty_gradient`` does of the penalty."""
        raise NotImplementedError(f"{type(self).__name__} must define loss_gradient()")

    def penalty(self, w: Tree, batch: Batch, ctx: Context) -> Tensor | float:
        """Return a 0-d term added to the loss."""
        return 0.0

    def penalty_gradient(self, w: Tree, batch: Batch, ctx: Context) -> Tree:
        """Return the gradient of ``penalty``, derived by hand, for speed: stacks of small networks use it in its place.

        Returns:
            ``features_BD``, ``logits_BY`` and names of ``w``; what is missing is zero. A subclass with another
            ``penalty`` and no gradient of its own is derived by autograd.
        """
        return {}

    def perturbed(self, w: Tree, g: Tree, ctx: Context) -> Tree:
        """Return other weights, at which the gradient of the step is computed instead, on the same batch.

        Args:
            w: the weights of the step. The first pass, at these, updates the batch statistics.
            g: the gradient at ``w``, without weight decay; empty if not ``perturbs_by_gradient``.
            ctx: the client's.
        """
        return w

    def direction(self, w: Tree, g: Tree, ctx: Context) -> Tree:
        """Return the descent direction at ``w`` from the gradient (weight decay included), before momentum."""
        return g

    def step(self, w: Tree, moved: Tree, ctx: Context) -> Tree:
        """Return what is subtracted from ``w`` at the learning rate 1, from the direction after momentum or Adam."""
        return moved

    def rates(self, name: str, ctx: Context) -> float | Tensor:
        """Return the factor of the learning rate of a parameter in this step; at 0 its optimizer stands still, too."""
        return 1.0

    def train(self, w: Tree, batches: Batches, ctx: Context, forward: Forward) -> tuple[Tree, Tree, Tensor]:
        """Train a client in the method's own way, in place of all steps; by the loop only.

        ``batches`` are images and labels of each step, and ``forward(w, images)`` runs the network in training mode.
        Returns the weights, the client's state (``ctx.client`` of ``finish``) and the mean loss, 0-d.
        """
        raise NotImplementedError(f"{type(self).__name__} must define train()")

    def finish(self, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
        """Return the client's next state and its message to the server, after the last local step at ``w``."""
        return ctx.client, {}

    def upload(self, change: Tree, ctx: Context) -> tuple[Tree, Tree]:
        """Return what is sent in place of the change w_k - x0, and the client's next state, after ``finish``."""
        return change, ctx.client

    def upload_bytes(self, x: Tree) -> int:
        """Return the bytes of one client's change as it is sent; 0 if the message takes its place."""
        return sum(leaf.numel() * leaf.element_size() for leaf in x.values())  # exact: whole numbers

    def delta_weights(self, cohort: Cohort) -> Sequence[float]:
        """Return the weight of each participant's change; they need not add up to 1."""
        return cohort.share

    def message_weights(self, cohort: Cohort) -> Sequence[float]:
        """Return the weight of each participant's message."""
        return [1 / len(cohort.share)] * len(cohort.share)

    def aggregate(self, changes_n: Tree, weights_n: Tensor, ctx: ServerContext) -> Tree:
        """Return delta, by default the weighted sum, which the engine computes without holding all changes in memory.

        Args:
            changes_n: what ``upload`` returns of all participants, along the first axis, ascending.
            weights_n: their ``delta_weights``.
            ctx: with their losses, label counts and messages.

        Returns:
            A tree like one participant's change.
        """
        return tmap(lambda leaf: (weights_n.view(-1, *[1] * (leaf.dim() - 1)) * leaf).sum(0), changes_n)

    def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, ctx: ServerContext) -> tuple[Tree, Tree]:
        """Return the next server parameters and state; ``x`` are the server's own, also if others were broadcast."""
        if self.server_lr == 1:  # with the same bits, and without a pass over all weights
            return tmap(lambda a, d: a + d, x, delta), state
        return tmap(lambda a, d: a + self.server_lr * d, x, delta), state

    def evaluated(self, x: Tree, state: Tree) -> Tree:
        """Return the shared parameters that are evaluated and reported."""
        return x

    def local_names(self, model: nn.Module) -> frozenset[str]:
        """Return parameters and buffers that stay on the client: never sent, never averaged."""
        return frozenset()


def overrides(method: type[Method], hook: str) -> bool:
    """Return whether a method has its own form of a hook."""
    return getattr(method, hook) is not getattr(Method, hook)
