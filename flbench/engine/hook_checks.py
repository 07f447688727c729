"""Checks of what a method's hooks return, made at the first call of each; an error names hook, file and line.

Checks read types, names, shapes and dtypes, never a value, so they need no synchronization with the device and work on
every client of a stack.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import fields
from difflib import get_close_matches
from functools import wraps
from numbers import Integral, Real
from threading import RLock
from typing import Any

from torch import Tensor

from flbench.engine.changed_inputs import tensors_of, versions
from flbench.engine.hooks import TERMS
from flbench.engine.randomness import generator_states, moved
from flbench.errors import PROCESS_ENDS, UserError, out_of_memory
from flbench.messages import hook_at, reason
from flbench.methods.base import (
    Batch,
    Batches,
    Cohort,
    Context,
    Forward,
    Method,
    Outputs,
    ServerContext,
    Tree,
    overrides,
)

_TREE = "a dict of tensors by name"

#: What to do instead of drawing random numbers from a default generator.
ADVICE = "two runs of one id would differ; draw with ctx.random.normal(purpose, like) or ctx.random.uniform instead"

#: What a method may ask for, by class attribute.
CHOICES = {"statistics": ("", "mean", "covariance"), "statistics_of": ("trained", "received")}

#: The start of torch's messages when a hook that is mapped over clients reads a value.
_READS_A_VALUE = "vmap: It looks like"


def checked(method: Method) -> Method:
    """Return the method with a check around every hook that it overrides.

    Raises:
        UserError: a class attribute has an unknown value. From the returned method's hooks: a hook raised an error, or
            returned a value that the engine cannot use.
    """
    cls = type(method)
    for field, known in CHOICES.items():
        if (found := getattr(cls, field)) not in known:
            raise UserError(f"{method.label()}: {field} is {found!r}; expected {', '.join(map(repr, known))}")
    own = [hook for hook in _CHECKS if overrides(cls, hook)]
    _check_names(cls, own)
    for term in TERMS:
        if f"{term}_gradient" in own and _definer(cls, term) is Method:
            raise UserError(f"{hook_at(cls, f'{term}_gradient', 'method')} is never called: define the {term}, too")
    seen: set[str] = set()
    names = {name: vars(cls)[name] for name in ("__module__", "__qualname__", "__doc__", "name") if name in vars(cls)}
    first_calls = RLock()  # one at a time, so that the hook that draws is the one that is named
    hooks: dict[str, Any] = {hook: _checked(cls, hook, seen, first_calls) for hook in own}
    for term in TERMS:
        if not issubclass(_definer(cls, f"{term}_gradient"), _definer(cls, term)):  # the gradient of a base's term
            hooks[f"{term}_gradient"] = getattr(Method, f"{term}_gradient")
    guarded: type[Method] = type(cls.__name__, (cls,), {**names, **hooks})
    return guarded(**{field.name: getattr(method, field.name) for field in fields(method)})


def _definer(cls: type[Method], name: str) -> type[Any]:
    """The class that has the hook, of those from which a method inherits."""
    return next(one for one in cls.__mro__ if name in vars(one))


#: Hooks of a local step, which ``train`` takes the place of.
OF_STEPS = frozenset(
    {
        "teachers", "logits", "loss", "loss_gradient", "penalty", "penalty_gradient", "perturbed", "direction", "step",
        "rates",
    }
)  # fmt: skip


def _check_names(cls: type[Method], own: Sequence[str]) -> None:
    """Refuse hooks that nothing would call: misspelt ones, and those of steps beside ``train``."""
    if "train" in own and (idle := sorted(OF_STEPS & set(own))):
        raise UserError(f"{hook_at(cls, idle[0], 'method')} is never called: train takes the place of all steps")
    for one in cls.__mro__[: cls.__mro__.index(Method)]:
        for name in vars(one):
            if name.startswith("_") or hasattr(Method, name) or not inspect.isfunction(vars(one)[name]):
                continue
            if near := get_close_matches(name, CHECKED, 1, 0.8):
                raise UserError(
                    f"{hook_at(cls, name, 'method')} is none that flbench calls; did you mean {near[0]!r}? "
                    "(the name of a function of your own begins with '_')"
                )


def _checked(
    cls: type[Method], hook: str, seen: set[str], first_calls: AbstractContextManager[Any]
) -> Callable[..., Any]:
    """The hook as a function that names the hook in errors and checks its first value."""
    original, check = inspect.getattr_static(cls, hook), _CHECKS[hook]

    @wraps(original)  # so that file and line of the checked method's hook are those of the original
    def call(self: Method, *given: Any) -> Any:
        try:
            if hook in seen:
                return original.__get__(self)(*given)
            with first_calls:
                before, seen_by_hook = generator_states(), tensors_of(hook, given)
                given_versions = versions(seen_by_hook)
                value = original.__get__(self)(*given)
                generator, after = moved(before), versions(seen_by_hook)
        except UserError:
            raise
        except (Exception, *PROCESS_ENDS) as error:
            if out_of_memory(error):
                raise
            raise UserError(f"{hook_at(cls, hook, 'method', error)} raised {_reason(error)}") from error
        if generator is not None:
            raise UserError(f"{hook_at(cls, hook, 'method')} draws random numbers from {generator}: {ADVICE}")
        if changed := [name for name, version in given_versions.items() if after[name] != version]:
            raise UserError(f"{hook_at(cls, hook, 'method')} changes {changed[0]} in place; return new tensors")
        if problem := check(value, *given):
            raise UserError(f"{hook_at(cls, hook, 'method')} returned {problem}")
        seen.add(hook)
        return value

    return call


def _reason(error: BaseException) -> str:
    if str(error).startswith(_READS_A_VALUE):
        return (
            f"{type(error).__name__}: it reads the value of a tensor (.item(), float(...) or a branch), but is mapped "
            "over the clients of a stack; use tensor operations such as torch.where"
        )
    if "randomness error mode" in str(error):
        return f"{type(error).__name__}: it draws random numbers from torch's default generator: {ADVICE}"
    return reason(error)


def _what(value: Any) -> str:
    """A value in a few words."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"{value!r:.40}" if isinstance(value, str | Real) else type(value).__name__


def _tree(value: Any, what: str = "") -> str | None:
    if not isinstance(value, dict):
        return f"{_what(value)}{what}; expected {_TREE}"
    for name, leaf in value.items():
        if not isinstance(leaf, Tensor):
            return f"{_what(leaf)} as {name!r}{what}; expected {_TREE}"
    return None


def _like(value: Any, expected: Tree, what: str = "") -> str | None:
    """The same names, shapes and dtypes as another tree."""
    if problem := _tree(value, what):
        return problem
    if missing := sorted(expected.keys() - value.keys()):
        return f"no {missing[0]!r}{what}; expected {_names(expected)}"
    if unknown := sorted(value.keys() - expected.keys()):
        return f"{unknown[0]!r}{what}; expected {_names(expected)}"
    for name, leaf in expected.items():
        new = value[name]
        if (new.shape, new.dtype) != (leaf.shape, leaf.dtype):
            return f"{_leaf(new)} as {name!r}{what}; expected {_leaf(leaf)}"
        if new.requires_grad:
            return f"a tensor with a gradient as {name!r}{what}; expected a detached one"
    return None


def _names(tree: Tree) -> str:
    return f"the names {', '.join(map(repr, list(tree)[:6]))}{', ...' if len(tree) > 6 else ''}" if tree else "no names"


def _leaf(leaf: Tensor) -> str:
    return f"{_what(leaf)} and {leaf.dtype}"


def _pair(value: Any, first: str, second: str) -> str | None:
    if isinstance(value, tuple | list) and len(value) == 2:
        return None
    return f"{_what(value)}; expected a pair: (the {first}, the {second})"


def _state(value: Any, x: Tree, buffers: Tree | None = None) -> str | None:
    return _tree(value)


def _broadcast(value: Any, x: Tree, state: Tree) -> str | None:
    return (
        _pair(value, "clients' initial parameters", "tree of what else they receive")
        or _like(value[0], x, " in the parameters")
        or _tree(value[1], " in what else is sent")
    )


def _teachers(value: Any, ctx: Context) -> str | None:
    if not isinstance(value, dict):
        return f"{_what(value)}; expected a dict of trees by name"
    for teacher, tree in value.items():
        where = f" in {teacher!r}"
        if problem := _tree(tree, where):
            return problem
        for name, leaf in {**ctx.x, **ctx.buffers}.items():
            if name in tree and (problem := _like({name: tree[name]}, {name: leaf}, where)):
                return problem
    return None


def _logits(value: Any, z_BY: Tensor, ctx: Context) -> str | None:
    if isinstance(value, Tensor) and value.shape == z_BY.shape:
        return None
    return f"{_what(value)}; expected {_what(z_BY)}, that of its first argument"


def _loss(value: Any, w: Tree, batch: Batch, ctx: Context) -> str | None:
    if isinstance(value, Tensor) and value.dim() == 0:
        return None
    return f"{_what(value)}; expected a tensor of shape ()"


def _penalty(value: Any, w: Tree, batch: Batch, ctx: Context) -> str | None:
    if isinstance(value, Real) or (isinstance(value, Tensor) and value.dim() == 0):
        return None
    return f"{_what(value)}; expected a number or a tensor of shape ()"


def _loss_gradient(value: Any, w: Tree, batch: Batch, ctx: Context) -> str | None:
    if problem := _pair(value, "value", "gradient"):
        return problem
    loss, size = value[0], ctx.relative_size
    shape = size.shape if isinstance(size, Tensor) else ()
    if not isinstance(loss, Tensor) or loss.shape != shape:
        return f"{_what(loss)} as the loss; expected a tensor of shape {tuple(shape)}"
    return _penalty_gradient(value[1], w, batch, ctx)


def _penalty_gradient(value: Any, w: Tree, batch: Batch, ctx: Context) -> str | None:
    known = {"features_BD": batch.features_BD, "logits_BY": batch.logits_BY, **w}
    if problem := _tree(value):
        return problem
    if unknown := sorted(value.keys() - known.keys()):
        return f"{unknown[0]!r}; expected some of {_names(known)}"
    return _like(value, {name: known[name] for name in value})


def _like_first(value: Any, first: Tree, *_: Any) -> str | None:
    return _like(value, first)


def _aggregate(value: Any, changes_n: Tree, weights_n: Tensor, ctx: ServerContext) -> str | None:
    return _like(value, {name: leaf[0] for name, leaf in changes_n.items()})


def _rates(value: Any, name: str, ctx: Context) -> str | None:
    size = ctx.relative_size
    shapes = ((), size.shape) if isinstance(size, Tensor) else ((),)
    if value.shape in shapes if isinstance(value, Tensor) else isinstance(value, Real) and float(value) >= 0:
        return None
    return f"{_what(value)}; expected a factor of the rate of {name!r}, a number from 0 or a tensor of shape ()"


def _finish(value: Any, w: Tree, ctx: Context) -> str | None:
    if problem := _pair(value, "client's next state", "message to the server"):
        return problem
    state, message = value
    if problem := _like(state, ctx.client, " in the client's state") or _tree(message, " in the message"):
        return problem
    size = ctx.relative_size
    stacked = len(size) if isinstance(size, Tensor) and size.dim() else None
    for name, leaf in message.items():
        if not leaf.is_floating_point():
            return (
                f"{_leaf(leaf)} as {name!r} in the message; expected floating-point numbers, which the server averages"
            )
        if stacked is not None and leaf.shape[-1:] != (stacked,):
            return (
                f"{_what(leaf)} as {name!r} in the message of a stack of {stacked} clients; expected (..., {stacked}): "
                "with elementwise = True every value must depend on the client's own"
            )
    return None


def _train(value: Any, w: Tree, batches: Batches, ctx: Context, forward: Forward) -> str | None:
    if not isinstance(value, tuple | list) or len(value) != 3:
        return f"{_what(value)}; expected three values: the weights, the client's next state, the mean loss"
    after, state, loss = value
    if problem := _like(after, w, " in the weights") or _like(state, ctx.client, " in the client's state"):
        return problem
    valid = isinstance(loss, Tensor) and loss.dim() == 0
    return None if valid else f"{_what(loss)} as the loss; expected a tensor of shape ()"


def _upload(value: Any, change: Tree, ctx: Context) -> str | None:
    return (
        _pair(value, "change as it is sent", "client's next state")
        or _like(value[0], change, " in what is sent")
        or _like(value[1], ctx.client, " in the client's state")
    )


def _upload_bytes(value: Any, x: Tree) -> str | None:
    return (
        None if isinstance(value, Integral) and int(value) >= 0 else f"{_what(value)}; expected a whole number of bytes"
    )


def _server_step(value: Any, x: Tree, delta: Tree, message: Tree, state: Tree, ctx: ServerContext) -> str | None:
    return (
        _pair(value, "server's next parameters", "server's next state")
        or _like(value[0], x, " in the parameters")
        or _like(value[1], state, " in the server's state")
    )


def _weights(value: Any, cohort: Cohort) -> str | None:
    count = len(cohort.share)
    expected = f"{count} numbers, one for each participant"
    if not hasattr(value, "__len__") or not hasattr(value, "__iter__"):
        return f"{_what(value)}; expected {expected}"
    if len(value) != count:
        return f"{len(value)} values; expected {expected}"
    wrong = [each for each in value if not isinstance(each, Real)]
    return f"{_what(wrong[0])} among its values; expected {expected}" if wrong else None


def _local_names(value: Any, model: Any) -> str | None:
    known = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    if not isinstance(value, Set):
        return f"{_what(value)}; expected a frozenset of names of parameters and buffers"
    unknown = sorted(map(str, value - known.keys()))
    return f"{unknown[0]!r}; expected some of {_names(known)}" if unknown else None


def _extra(value: Any, x: Tree, head: str) -> str | None:
    if problem := _tree(value):
        return problem
    same = sorted(value.keys() & x.keys())
    return f"{same[0]!r}, the name of a parameter of the network; expected other names" if same else None


def _twin(value: Any) -> str | None:
    return None if value is None or isinstance(value, Method) else f"{_what(value)}; expected a method, or None"


def _predict(value: Any, outputs: Outputs, *_: Any) -> str | None:
    if isinstance(value, Tensor) and value.shape == outputs.logits_BY.shape:
        return None
    return f"{_what(value)}; expected {_what(outputs.logits_BY)}, that of the logits"


#: For each hook: what is wrong with a value, given the arguments of the call; None if it is valid.
_CHECKS: dict[str, Callable[..., str | None]] = {
    "local_names": _local_names,
    "init_server": _state,
    "init_client": _state,
    "broadcast": _broadcast,
    "teachers": _teachers,
    "logits": _logits,
    "loss": _loss,
    "penalty": _penalty,
    "loss_gradient": _loss_gradient,
    "penalty_gradient": _penalty_gradient,
    "perturbed": _like_first,
    "direction": _like_first,
    "step": _like_first,
    "rates": _rates,
    "train": _train,
    "finish": _finish,
    "upload": _upload,
    "upload_bytes": _upload_bytes,
    "delta_weights": _weights,
    "message_weights": _weights,
    "aggregate": _aggregate,
    "server_step": _server_step,
    "evaluated": _like_first,
    "extra": _extra,
    "twin": _twin,
    "personal": _like_first,
    "predict": _predict,
}

#: The names of all hooks.
CHECKED = frozenset(_CHECKS)
