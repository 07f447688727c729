"""Which parameters train (the field ``train``), in the form that is hashed: ``all``, ``head+norm``, ``lora:4``."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator

from flbench.messages import did_you_mean

ALL = "all"
HEAD, NORM, LORA = "head", "norm", "lora"

_EXPECTED = (
    "expected all, head, norm, lora:RANK or a pattern of parameter names such as body.*, or several of them joined "
    "by +, such as head+norm"
)


def parse_trained(raw: Any) -> str:
    """Return the one spelling of trained parts: each once, in the order of the alphabet.

    >>> parse_trained("norm+head"), parse_trained("lora:04"), parse_trained(["head", "body.*"])
    ('head+norm', 'lora:4', 'body.*+head')

    Raises:
        ValueError: a part is neither a word nor a pattern, ``all`` is joined with others, or two ranks are given.
    """
    given = raw.split("+") if isinstance(raw, str) else raw
    if not isinstance(given, (list, tuple)) or not given or not all(isinstance(part, str) for part in given):
        raise ValueError(f"{_EXPECTED}; got {raw!r}")
    parts = sorted({_part(part.strip()) for part in given})
    if ALL in parts and len(parts) > 1:
        raise ValueError(f"all is every parameter, and nothing can be joined with it; got {raw!r}")
    if sum(part.startswith(f"{LORA}:") for part in parts) > 1:
        raise ValueError(f"give one rank of lora; got {raw!r}")
    return "+".join(parts)


def _part(text: str) -> str:
    name, colon, number = text.partition(":")
    if text in (ALL, HEAD, NORM):
        return text
    if name == LORA:
        if colon and number.isdecimal() and int(number) > 0:
            return f"{LORA}:{int(number)}"
        raise ValueError(f"expected lora:RANK with a whole RANK from 1, such as lora:4; got {text!r}")
    if text and not colon and any(sign in text for sign in ".*?["):
        return text
    raise ValueError(f"{_EXPECTED}; got {text!r}{did_you_mean(text, (ALL, HEAD, NORM, 'lora:4'))}")


def leaves_head(train: str) -> bool:
    """Return whether the parts leave the head's own parameters constant; of a pattern only the network knows it."""
    return all(part == NORM or part.startswith(f"{LORA}:") for part in train.split("+"))


#: The field's type.
TrainedParts = Annotated[str, BeforeValidator(parse_trained)]
