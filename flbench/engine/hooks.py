"""The hooks of a method, lifted from one client to a stack of clients.

Shape suffixes: N clients (absent for one), B batch, Y classes, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from flbench.engine.clients import ClientInit, ClientTask
from flbench.engine.phases import Factor, Phase
from flbench.errors import UserError
from flbench.messages import by_similarity, hook_at
from flbench.methods.base import Batch, Batches, Context, Forward, Method, Outputs, Tree, overrides
from flbench.models.layers import at_least_float
from flbench.tensor_streams import Random

#: Turns a function of one client's tensors into one of a client's, or of a stack's.
Lift = Callable[[Callable[..., Any]], Callable[..., Any]]


def cross_entropy(logits_BY: Tensor, labels_B: Tensor, sizes: Tensor | None = None) -> Tensor:
    """Return the mean cross-entropy over the batch: 0-d for one client, (N,) for a stack.

    ``sizes`` (N,): the mean is over the first ``sizes[n]`` samples of client n's batch; None: over all samples.
    """
    batch = labels_B.shape[-1]
    # Classes before samples: with the few classes last, torch takes three times as long.
    each = F.cross_entropy(logits_BY.view(-1, *logits_BY.shape[-2:]).mT, labels_B.view(-1, batch), reduction="none")
    return mean_over_batch(each, sizes).view(labels_B.shape[:-1])


def mean_over_batch(each_NB: Tensor, sizes: Tensor | None) -> Tensor:
    """Return each client's mean (N,) over the first ``sizes[n]`` samples of its batch; None: over all samples."""
    if sizes is None:
        return each_NB.mean(-1)
    there = torch.arange(each_NB.shape[-1], device=sizes.device) < sizes[:, None]
    return torch.where(there, each_NB, 0).sum(-1) / sizes.clamp(min=1)


#: The hooks that are applied to one client or mapped over a stack.
CLIENT_HOOKS = (
    "teachers", "logits", "loss", "loss_gradient", "penalty", "penalty_gradient", "perturbed", "direction", "step",
    "rates", "train", "finish", "upload",
)  # fmt: skip


def own_hooks(method: type[Method]) -> frozenset[str]:
    """Return which of ``CLIENT_HOOKS`` a method has its own form of."""
    return frozenset(hook for hook in CLIENT_HOOKS if overrides(method, hook))


#: Terms of the loss whose gradient a method may give by hand, in the hook ``<term>_gradient``.
TERMS = ("loss", "penalty")


def derives_terms(method: type[Method]) -> bool:
    """Return whether a method gives the gradients of all terms that it has its own form of."""
    own = own_hooks(method)
    return all(term not in own or f"{term}_gradient" in own for term in TERMS)


class _StackContext(Context):
    """The context of a stack of clients, which are the last axis of all leaves."""

    def norm(self, tree: Tree) -> Any:
        flat = [leaf.reshape(-1, leaf.shape[-1]) for leaf in tree.values()]
        squares: Any = sum(torch.linalg.vector_norm(leaf, dim=0) ** 2 for leaf in flat)  # exact: tensors
        return squares.sqrt()


class LiftedHooks:
    """The method's hooks, applied to one client or a stack; default hooks are skipped.

    Attributes:
        teachers: the parameters and buffers of each teacher by its name.
        perturbs: whether a step takes a second gradient, at other weights; ``moves``: whether its only one is there.
        trains: whether it replaces the steps. ``has_rates``: whether it changes the rate of parameters.
        active: whether it changes anything of the local training.
        changes_logits: whether others than the network's logits enter the cross-entropy; ``shifts_logits``: these plus
            a constant.
        by_hand: whether the gradient of the penalty is derived by hand; ``loss_by_hand``: that of another data term
            than the mean cross-entropy.
        has_terms: whether the loss is another one than the cross-entropy.
        own_loss: whether autograd derives the loss: it has a term without a gradient by hand, or other parameters.
    """

    def __init__(self, method: Method, lift: Lift, task: ClientTask, start: ClientInit) -> None:
        self._method, self._lift = method, lift
        #: The part of the context that differs between clients.
        self._own_context: dict[str, Any] = {
            "client": start.state,
            "counts_Y": start.counts_Y,
            "relative_size": start.relative_size,
            "buffers": {name: leaf for name, leaf in start.buffers.items() if name not in task.frozen},
            **task.each,
        }
        random = Random() if start.keys is None else Random(start.keys)
        shared = {"x": task.x, "server": task.server, "lr": task.sgd.lr, "round": task.round}
        numbers: dict[str, Any] = {"steps": start.steps, "head": task.head, "random": random}
        self._step = -1
        self._last_context = Context(**{**shared, **self._own_context, **numbers})
        self._hyperparameters: dict[str, Any] = dict(task.hyperparameters)
        if isinstance(start.steps, Tensor):
            self._own_context["steps"] = start.steps
        if start.keys is not None:
            self._own_context["key"] = start.keys
        self._stacked = start.relative_size.dim() == 1
        self._all_clients: tuple[Method, Context] | None = None
        self._viewed: tuple[Tree, Tree] = {}, {}
        self._own = own_hooks(type(method))
        self._extra, self._unshared = task.extra, task.unshared
        self.perturbs, self.trains, self.has_rates = method.perturbs, "train" in self._own, "rates" in self._own
        self.active = bool(self._own)
        self.moves = "perturbed" in self._own and not method.perturbs
        self.changes_logits, self.by_hand = "logits" in self._own, "penalty_gradient" in self._own
        self.shifts_logits = method.shifts_logits
        self.loss_by_hand = "loss_gradient" in self._own
        self.has_terms = bool(self._own & set(TERMS)) or bool(self._extra)
        self.own_loss = not derives_terms(type(method)) or bool(self._extra)
        self.teachers = self._teachers(start) if "teachers" in self._own else {}

    def of_network(self, tree: Tree) -> Tree:
        """Return the network's own leaves of a tree of parameters."""
        return {name: leaf for name, leaf in tree.items() if name not in self._extra} if self._extra else tree

    @property
    def _context(self) -> Context:
        """The context in this step."""
        if self._last_context.step != self._step:
            self._last_context = _at(self._last_context, self._step)
        return self._last_context

    def _shared(self, tree: Tree) -> Tree:
        """A tree of parameters without those of layers that no hook of the steps sees."""
        return {name: leaf for name, leaf in tree.items() if name not in self._unshared} if self._unshared else tree

    def _apply(self, hook: str, *trees: Any) -> Any:
        """``hook(*trees, ctx)`` with each client's own context and hyperparameters."""
        if not self._stacked:
            return getattr(self._method, hook)(*trees, self._context)

        def one_client(own: dict[str, Any], hyperparameters: dict[str, Any], *mine: Any) -> Any:
            method = replace(self._method, **hyperparameters)
            return getattr(method, hook)(*mine, self._context_of(own))

        return self._lift(one_client)(self._own_context, self._hyperparameters, *trees)

    def _context_of(self, own: Mapping[str, Any]) -> Context:
        """The context of one client of a stack, from what is its own."""
        numbers = {name: value for name, value in own.items() if name != "key"}
        return replace(self._context, **numbers, random=Random(own.get("key", 0), self._context.step))

    def _apply_to_batch(self, hook: str, leaves: Tree, batch: Batch) -> Any:
        """The same for a loss term; vmap takes tensors only, and trees of them."""
        if not self._stacked:
            return getattr(self._method, hook)(leaves, batch, self._context)

        def one_client(own: dict[str, Any], hyperparameters: dict[str, Any], w: Tree, plain: Any, taught: Any) -> Any:
            method = replace(self._method, **hyperparameters)
            mine = Batch(**plain, teachers={name: Outputs(*each) for name, each in taught.items()})
            value = getattr(method, hook)(w, mine, self._context_of(own))
            return mine.logits_BY.new_full((), value) if isinstance(value, float | int) else value

        plain = {"labels_B": batch.labels_B, "features_BD": batch.features_BD, "logits_BY": batch.logits_BY}
        taught = {name: (each.features_BD, each.logits_BY) for name, each in batch.teachers.items()}
        return self._lift(one_client)(self._own_context, self._hyperparameters, leaves, plain, taught)

    def _apply_to_trees(self, hook: str, first: Tree, *others: Tree) -> Any:
        """The same for a hook that may be elementwise: of a stack it sees all clients, along the last axis."""
        if not (self._method.elementwise and self._stacked):
            return self._apply(hook, first, *others)
        method, context = self._of_all()
        out = getattr(method, hook)(self._views(first), *map(_clients_last, others), context)
        return _clients_first(out) if isinstance(out, dict) else tuple(map(_clients_first, out))

    def _of_all(self) -> tuple[Method, Context]:
        """Method and context of a whole stack: numbers of each client (N,) broadcast along the last axis of leaves."""
        if self._all_clients is not None:
            method, last = self._all_clients
            if last.step != self._step:
                self._all_clients = method, _at(last, self._step)
            return self._all_clients
        context = {each.name: getattr(self._context, each.name) for each in fields(Context)}
        context["counts_Y"] = context["counts_Y"].movedim(0, -1)
        for name in ("x", "server", "client", "buffers"):
            shared = {key: leaf.unsqueeze(-1) for key, leaf in context[name].items()}
            context[name] = _clients_last(context[name]) if name in self._own_context else shared
        self._all_clients = replace(self._method, **self._hyperparameters), _StackContext(**context)
        return self._all_clients

    def _views(self, weights: Tree) -> Tree:
        """The weights with the clients last; most steps have the same tensors, which change in place."""
        if self._viewed[0] is not weights:
            self._viewed = weights, _clients_last(weights)
        return dict(self._viewed[1])

    def begin(self, step: int) -> None:
        """Set the number of the local step that the hooks see; -1 after the last."""
        self._step = step

    def _teachers(self, start: ClientInit) -> dict[str, tuple[Tree, Tree]]:
        given: dict[str, Tree] = self._apply("teachers")
        params = self.of_network(start.params)
        known = params.keys() | start.buffers.keys()
        for teacher, tree in given.items():
            if unknown := sorted(tree.keys() - known):
                raise UserError(
                    f"{hook_at(type(self._method), 'teachers', 'method')} returned {unknown[0]!r} in {teacher!r}; "
                    f"expected some of the names {', '.join(map(repr, by_similarity(unknown[0], known)[:6]))}"
                )

        def part(tree: Tree, own: Tree) -> Tree:
            whole = {**own, **tree}
            return {name: _laid_out(whole[name], leaf) for name, leaf in own.items()}

        return {teacher: (part(tree, params), part(tree, start.buffers)) for teacher, tree in given.items()}

    def loss_terms(
        self,
        leaves: Tree,
        target: tuple[Tensor, Tensor | None],
        features: Tensor,
        logits: Tensor,
        teachers: Mapping[str, Outputs],
    ) -> tuple[Tensor, Tensor]:
        """Return the data term and the whole loss; ``target`` are the labels and the sizes of a stack's batches."""
        z = at_least_float(logits)
        if not self._own & {"loss", "penalty"}:
            loss = self._cross_entropy(z, *target)
            return loss, loss
        batch, leaves = Batch(target[0], at_least_float(features), z, teachers), self._shared(leaves)
        loss = self._apply_to_batch("loss", leaves, batch) if "loss" in self._own else self._cross_entropy(z, *target)
        return loss, loss + self._apply_to_batch("penalty", leaves, batch) if "penalty" in self._own else loss

    def _cross_entropy(self, z: Tensor, labels: Tensor, sizes: Tensor | None) -> Tensor:
        return cross_entropy(self.logits(z) if self.changes_logits else z, labels, sizes)

    def logits(self, z: Tensor) -> Tensor:
        """Return what enters the cross-entropy."""
        if not (self._method.elementwise and self._stacked):
            out: Tensor = self._apply("logits", z)
            return out
        method, context = self._of_all()
        return method.logits(z.movedim(0, -1), context).movedim(-1, 0)

    def loss_gradient(self, params: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        """Return the data term and its gradient, as ``Method.loss_gradient`` does, on the batch of a stack."""
        loss, grads = self._apply_to_stack("loss_gradient", params, batch)
        return loss, grads

    def penalty_gradient(self, params: Tree, batch: Batch) -> Tree:
        """Return the gradient of the penalty, as ``Method.penalty_gradient`` names it, on the batch of a stack."""
        out: Tree = self._apply_to_stack("penalty_gradient", params, batch)
        return out

    def _apply_to_stack(self, hook: str, params: Tree, batch: Batch) -> Any:
        """``hook(params, batch, ctx)`` of a stack: mapped, or called once if it is elementwise."""
        params = self._shared(params)
        if not self._method.elementwise:
            return self._apply_to_batch(hook, params, batch)
        method, context = self._of_all()
        taught = {name: _clients_last(vars(each)) for name, each in batch.teachers.items()}
        own = _clients_last({name: leaf for name, leaf in vars(batch).items() if name != "teachers"})
        last = Batch(**own, teachers={name: Outputs(**each) for name, each in taught.items()})
        out = getattr(method, hook)(self._views(params), last, context)
        return _clients_first(out) if isinstance(out, dict) else (out[0], _clients_first(out[1]))

    def perturbed(self, params: Tree, grads: Tree) -> Tree:
        """Return the weights at which the step takes its gradient, from that at ``params``, empty if none is needed."""
        out = self._moved("perturbed", params, params, grads)
        return {name: out[name] for name in params}  # a method may give them another order

    def direction(self, params: Tree, grads: Tree) -> Tree:
        """Return the direction of descent, by default the gradient."""
        if "direction" not in self._own:
            return grads
        return self._moved("direction", grads, params, grads)

    def step(self, params: Tree, moved: Tree) -> Tree:
        """Return what is subtracted from the weights, by default the direction after momentum."""
        if "step" not in self._own:
            return moved
        return self._moved("step", moved, params, moved)

    def _moved(self, hook: str, default: Tree, *trees: Tree) -> Tree:
        """What a hook makes of trees, and ``default`` for the parameters that it does not see."""
        out: Tree = self._apply_to_trees(hook, *map(self._shared, trees))
        return {**default, **out} if self._unshared else out

    def phase(self, names: Sequence[str]) -> Phase:
        """Return how far each parameter moves in this step."""
        if self._stacked and not self._method.elementwise:
            return Phase(self._mapped_rates(names))
        method, context = (self._method, self._context) if not self._stacked else self._of_all()
        return Phase({name: method.rates(name, context) for name in names})

    def _mapped_rates(self, names: Sequence[str]) -> dict[str, Factor]:
        """The factors of a stack: numbers stay numbers, which vmap would make tensors."""
        numbers: dict[str, Factor] = {}

        def one_client(own: dict[str, Any], hyperparameters: dict[str, Any]) -> Tree:
            method, context = replace(self._method, **hyperparameters), self._context_of(own)
            every = {name: method.rates(name, context) for name in names}
            numbers.update({name: value for name, value in every.items() if not isinstance(value, Tensor)})
            return {name: value for name, value in every.items() if isinstance(value, Tensor)}

        return {**self._lift(one_client)(self._own_context, self._hyperparameters), **numbers}

    def train(self, params: Tree, batches: Batches, forward: Forward) -> tuple[Tree, Tensor]:
        """Return the weights after the training of one client, and its mean loss, as the method computes them."""
        w, state, loss = self._method.train(params, batches, self._context, forward)
        self._replace(client=state)
        return {name: w[name].detach() for name in params}, loss.detach()

    def finish(self, params: Tree, buffers: Tree, statistics: Tree) -> tuple[Tree, Tree]:
        """Return the next state and the message, after the last step."""
        if not self._own & {"finish", "upload"}:
            return self._context.client, {}
        self._replace(buffers=buffers, **statistics)
        if "finish" not in self._own:
            return self._context.client, {}
        out: tuple[Tree, Tree] = self._apply_to_trees("finish", self._shared(params))
        return out

    def upload(self, start: Tree, params: Tree, state: Tree) -> tuple[Tree, Tree]:
        """Return what is sent in place of the change from ``start``, empty for the change itself, and the next state.

        Args:
            start: the weights before the first step.
            params: those after the last.
            state: the client's after ``finish``.
        """
        if "upload" not in self._own:
            return {}, state
        self._replace(client=state)
        change = {name: params[name] - start[name] for name in self._context.x}
        sent, after = self._apply_to_trees("upload", change)
        return {name: sent[name] for name in change}, after  # a method may give them another order

    def _replace(self, **own: Any) -> None:
        """Put other trees of each client into the context."""
        self._own_context |= own
        self._last_context = replace(self._context, **own)
        self._all_clients = None


def _at(context: Context, step: int) -> Context:
    """The context in another step; ``dataclasses.replace`` takes longer than the operations of some hooks."""
    other = object.__new__(type(context))
    vars(other).update(vars(context), step=step, random=Random(context.random.key, step))
    return other


def _clients_last(tree: Tree) -> Tree:
    return {name: leaf.movedim(0, -1) for name, leaf in tree.items()}


def _clients_first(tree: Tree) -> Tree:
    return {name: leaf.movedim(-1, 0) for name, leaf in tree.items()}


def _laid_out(leaf: Tensor, like: Tensor) -> Tensor:
    """The leaf in the memory layout of another one, for the speed of convolutions."""
    last = like.dim() == 4 and like.is_contiguous(memory_format=torch.channels_last)
    return leaf.detach().contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
