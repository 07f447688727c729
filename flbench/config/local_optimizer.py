"""Rules between the fields of the local optimizer, and between these and the method."""

from __future__ import annotations

from typing import Any

#: The fields of the local optimizer, with their defaults.
OPTIMIZER = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "clip_norm": None, "agc": None}


def nesterov_has_momentum(nesterov: bool, momentum: float) -> str | None:
    """Return why Nesterov's form is refused, or None."""
    return "needs momentum above 0" if nesterov and not momentum else None


def clipped_one_way(clip_norm: float | None, agc: float | None) -> str | None:
    """Return why gradients cannot be clipped so, or None."""
    return None if clip_norm is None or agc is None else "give either clip_norm or agc"


def adam_has_no_momentum(optimizer: str, momentum: float) -> str | None:
    """Return why Adam is refused, or None."""
    if optimizer == "sgd" or not momentum:
        return None
    return f"{optimizer} has its own momentum; expected 0, got {momentum}"


def momentum_is_there_to_keep(keep_momentum: bool, optimizer: str, momentum: float) -> str | None:
    """Return why no state can be kept, or None."""
    if not keep_momentum or momentum or optimizer != "sgd":
        return None
    return "true needs momentum above 0, or optimizer: adam or adamw"


def one_set_of_weights_keeps_its_state(method: Any, keep_momentum: bool) -> str | None:
    """Return why no state can be kept with a method, or None."""
    if not keep_momentum or method.twin() is None:
        return None
    return f"a client keeps the state of one set of weights, and {method.label()} trains two"


def weights_know_the_optimizer(method: Any, optimizer: str, nesterov: bool, keep_momentum: bool) -> str | None:
    """Return why a method that weighs by local steps is refused, or None."""
    if not method.assumes_plain_momentum or (optimizer == "sgd" and not nesterov and not keep_momentum):
        return None
    kept = "keep_momentum" if keep_momentum else "nesterov"
    found = kept if optimizer == "sgd" else f"optimizer: {optimizer}"
    return f"{method.label()} weighs the changes by the steps of SGD with plain momentum, not with {found}"


def own_steps_have_no_optimizer(method: Any, *values: Any) -> str | None:
    """Return why a method with local steps of its own is refused, or None; ``values`` are those of ``OPTIMIZER``."""
    if not method.trains:
        return None
    for (name, plain), value in zip(OPTIMIZER.items(), values, strict=True):
        if value != plain:
            return f"{method.label()} takes its own local steps, which {name}: {value} does not reach; leave it out"
    return None
