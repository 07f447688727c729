"""The random numbers of hooks (``flbench.tensor_streams``) in whole numbers of Python, for the programs of tests."""

from __future__ import annotations

import math
from hashlib import sha256

ALL, STEP, ROUND = 2**64, 0x9E3779B97F4A7C15, 0xD1B54A32D192ED03


def splitmix(key: int, count: int) -> list[int]:
    """Return numbers of the generator as its authors write it, seeded with the mixed key."""

    def mix(bits: int) -> int:
        bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 % ALL
        bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB % ALL
        return bits ^ (bits >> 31)

    return [mix((mix(key) + number * STEP) % ALL) for number in range(1, count + 1)]


def code(purpose: str) -> int:
    return int.from_bytes(sha256(purpose.encode()).digest()[:8], "little")


def key_of(seed: int, client: int | None, round: int, purpose: str, step: int) -> int:
    """Return the key of a client, or, without one, of the server."""
    start = code(f"{'server' if client is None else 'client'} of seed {seed}") + STEP * (client or 0) + ROUND * round
    return start % ALL ^ code(f"{purpose}, step {step}")


def uniforms(key: int, count: int, digits: int = 53) -> list[float]:
    return [(number >> (64 - digits)) / 2**digits for number in splitmix(key, count)]


def normals(key: int, count: int, digits: int = 53) -> list[float]:
    drawn = uniforms(key, 2 * count, digits)
    pairs = zip(drawn[:count], drawn[count:], strict=True)
    return [math.sqrt(-2 * math.log(1 - u)) * math.cos(2 * math.pi * v) for u, v in pairs]
