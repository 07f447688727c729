"""A mutation is a mistake made by replacing ``old`` by ``new`` in the code; those of methods are beside their tests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """One plausible mistake.

    Attributes:
        file: the module in ``flbench.methods``, or the module in ``flbench`` with its folder.
        what: the mistake in words.
        old: source text. It occurs once in the file, or ``nth`` selects one occurrence.
        new: its replacement.
        nth: the occurrence, counted from 0.
        equivalent: why the mutation changes no number, so that no test can kill it.
    """

    file: str
    what: str
    old: str
    new: str
    nth: int | None = None
    equivalent: str = ""

    def apply(self, source: str) -> str:
        """Return the mutated source."""
        parts = source.split(self.old)
        expected = 1 if self.nth is None else max(self.nth + 1, 2)
        if len(parts) - 1 < expected or (self.nth is None and len(parts) != 2):
            raise ValueError(f"{self.file}: {self.old!r} occurs {len(parts) - 1} times")
        cut = (self.nth or 0) + 1
        return self.old.join(parts[:cut]) + self.new + self.old.join(parts[cut:])


def mutations_of(file: str, *mutations: tuple[str, str, str] | tuple[str, str, str, int]) -> tuple[Mutation, ...]:
    """Return the mutations of one module."""
    return tuple(Mutation(file, *mutation) for mutation in mutations)
