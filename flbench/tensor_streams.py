"""Random numbers of tensors as pure functions of a key: the counterpart of ``streams`` within a round.

The generator is SplitMix64 (Steele et al. 2014) in tensor operations on int64, whose sums and products wrap around. One
client alone, a stack of clients, ``vmap``, a recorded graph and a resumed run draw the same numbers.

Shape suffixes: N clients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flbench.codes import code

if TYPE_CHECKING:
    from torch import Tensor


def signed(number: int) -> int:
    """Return the int64 with the same bits as a whole number modulo 2**64."""
    return (number + 2**63) % 2**64 - 2**63


#: Odd number next to 2**64 over the golden ratio, and the factors of SplitMix64.
_STEP, _FIRST, _SECOND = map(signed, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))

#: Another odd number: the sums of multiples up to 2**24 of it and of the first differ.
_ROUND = 0xD1B54A32D192ED03


def shifted(bits: Tensor, by: int) -> Tensor:
    """Return the logical shift to the right; that of int64 keeps the sign."""
    return (bits >> by) & ((1 << (64 - by)) - 1)


def mixed(bits: Tensor) -> Tensor:
    """Return SplitMix64's bijection of the 64-bit numbers."""
    bits = (bits ^ shifted(bits, 30)) * _FIRST
    bits = (bits ^ shifted(bits, 27)) * _SECOND
    return bits ^ shifted(bits, 31)


def generated(key: Tensor, count: int) -> Tensor:
    """Return the first numbers (count, *key.shape) of the generators whose seeds are the mixed keys; int64."""
    import torch

    counter = torch.arange(1, count + 1, device=key.device).view(-1, *[1] * key.dim())
    return mixed(mixed(key) + _STEP * counter)


def server_key(seed: int, round: int | Tensor) -> Any:
    """Return the key of a server's random numbers in a round: a number, or 0-d like the round."""
    return _of_round("server", seed, round)


def client_keys(seed: int, clients_N: Tensor, round: int | Tensor) -> Tensor:
    """Return the keys (N,) of the random numbers of clients in a round; ``clients_N`` are their numbers in the run."""
    keys_N: Tensor = clients_N * _STEP + _of_round("client", seed, round)
    return keys_N


def _of_round(who: str, seed: int, round: int | Tensor) -> Any:
    start = code(f"{who} of seed {seed}")
    if isinstance(round, int):
        return signed(start + _ROUND * round)
    return round.long() * signed(_ROUND) + signed(start)


@dataclass(frozen=True)
class Random:
    """Draws random numbers from (seed, client, round, step, purpose), or without client and step on the server.

    Two draws of one purpose are equal: give each its own, with the parameter's name in it where leaves must differ.

    A draw raises TypeError unless the purpose is a string and ``like`` a tensor of floating-point numbers.

    Attributes:
        key: ``client_keys`` or ``server_key``. (N,) for a stack, whose clients are the last axis of what is drawn.
        step: as in ``Context``.
    """

    key: Any = 0
    step: int = -1

    def uniform(self, purpose: str, like: Tensor) -> Tensor:
        """Return numbers in [0, 1) of the shape, dtype and device of ``like``."""
        return self._uniform(purpose, like, 1)[0]

    def normal(self, purpose: str, like: Tensor) -> Tensor:
        """Return numbers of mean 0 and variance 1 of the shape, dtype and device of ``like``, by Box and Muller."""
        length, angle = self._uniform(purpose, like, 2)
        drawn: Tensor = (-2 * (1 - length).log()).sqrt() * (2 * math.pi * angle).cos()
        return drawn

    def _uniform(self, purpose: str, like: Tensor, parts: int) -> Tensor:
        import torch

        _check(purpose, like)
        key = torch.as_tensor(self.key, device=like.device) ^ signed(code(f"{purpose}, step {self.step}"))
        # A leaf that the clients of a stack share has one place on the axis of the clients.
        shape = (*like.shape[:-1], *key.shape) if key.dim() else tuple(like.shape)
        each = math.prod(shape[: len(shape) - key.dim()])
        # As many digits as the numbers below 1 have: with more, rounding would reach 1.
        digits = 1 - round(math.log2(torch.finfo(like.dtype).eps))
        bits = shifted(generated(key, parts * each), 64 - digits)
        return (bits.to(like.dtype) * 2.0**-digits).view(parts, *shape)


def _check(purpose: Any, like: Any) -> None:
    """Raise TypeError for a purpose that is no string, or what no random numbers can be like."""
    import torch

    if not isinstance(purpose, str):
        raise TypeError(
            f"the purpose of random numbers is a string such as 'noise', got {_type(purpose)}: "
            "ctx.random.normal(purpose, like)"
        )
    if not (isinstance(like, torch.Tensor) and like.is_floating_point()):
        raise TypeError(f"random numbers are drawn like a tensor of floating-point numbers, got {_type(like)}")


def _type(value: Any) -> str:
    dtype = getattr(value, "dtype", None)
    return f"{type(value).__name__}{f' of {dtype}' if dtype else ''}"
