"""Find entries of a sweep file without effect on its cells, and what replaces them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from flbench.config import GivenValue, Layer, Where
from flbench.messages import unknown
from flbench.sweeps.source import Source, dotted

#: Entries that a message lists.
_MOST_NAMED = 3


@dataclass(frozen=True)
class Entry:
    """An entry of the file at one path: a value, or all values of an axis; ``rank`` orders the layers."""

    path: str
    where: Where
    rank: int
    values: tuple[GivenValue, ...]


class Effects:
    """Records which values reach a cell, and refuses entries that reach none."""

    def __init__(self, source: Source, entries: Iterable[Entry]) -> None:
        self.source = source
        self._entries = list(entries)
        self._used: set[GivenValue] = set()
        self._selected: set[GivenValue] = set()
        self._fields: dict[str, Collection[str]] = {}

    def note(self, layer: Layer, kind: str, fields: Collection[str], *, selected: bool) -> None:
        """Record the values of a cell, whose kind has ``fields``; ``selected``: whether every ``--only`` keeps it."""
        self._fields[kind] = fields
        values = [value for path, value in layer.items() if path.partition(".")[0] in fields]
        self._used.update(values)
        if selected:
            self._selected.update(values)

    def refuse_idle(self) -> None:
        """Raise SpecError for an entry without effect, and for an option without effect on the selected cells."""
        names = {value.where: value for entry in self._entries for value in entry.values}
        for entry in self._entries:
            used = self._selected if self.source.is_option(entry.where) else self._used
            component = names.get(entry.where[:-1])
            if component is not None and component not in used:
                continue  # a setting inside a component, which is checked as a separate entry
            if used.isdisjoint(entry.values):
                raise self.source.error(entry.where, self._why(entry, used))

    def _why(self, entry: Entry, used: set[GivenValue]) -> str:
        field, _, _ = entry.path.partition(".")
        known = dict.fromkeys(name for fields in self._fields.values() for name in fields)
        if field not in known:
            return unknown("field", field, known, f"a {' or '.join(sorted(self._fields))} experiment")
        found = [
            dotted(other.where)
            for other in self._entries
            if other.rank > entry.rank and other.path in (entry.path, field) and not used.isdisjoint(other.values)
        ]
        if not found:
            return "has no effect on any cell: none that it would reach is left"
        named = " and ".join(found[:_MOST_NAMED]) + (" and others" if len(found) > _MOST_NAMED else "")
        verb = "replaces" if len(found) == 1 else "replace"
        return f"has no effect on any cell: {named} {verb} it; change that, or drop this"
