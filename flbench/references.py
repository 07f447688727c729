"""The sources of components and papers: BibTeX entries, each in ``references.bib`` alone.

A ``source`` is text that names entries: ``@mcmahan2017fedavg, Algorithm 1``. Entries can be used from other packages,
too; a source without an entry is plain text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

#: ``@key`` in a source.
_NAMED = re.compile(r"@([a-z]+\d{4}[a-z]+)")

#: An entry of the file: its kind, its key, and a field a line.
_ENTRY = re.compile(r"^@(\w+)\{(\w+),\n((?:  \w+ = \{.*\},\n)+)\}\n", re.MULTILINE)


@dataclass(frozen=True)
class Reference:
    """An entry of ``references.bib``."""

    key: str
    bibtex: str  # the entry, with the end of its last line
    fields: Mapping[str, str]

    @property
    def text(self) -> str:
        """``McMahan et al. 2017, Communication-Efficient Learning of Deep Networks from Decentralized Data``."""
        names = [name.partition(",")[0] for name in self.fields["author"].split(" and ")]
        authors = " & ".join(names) if len(names) < 3 else f"{names[0]} et al."
        return f"{authors} {self.fields['year']}, {re.sub('[{}]', '', self.fields['title'])}"


@cache
def references() -> Mapping[str, Reference]:
    """Return the entries by key, in the order of the file."""
    text = files("flbench").joinpath("references.bib").read_text(encoding="utf-8")
    found = (match for match in _ENTRY.finditer(text))
    return {one[2]: Reference(one[2], one[0], dict(re.findall(r"  (\w+) = \{(.*)\},\n", one[3]))) for one in found}


def keys_of(source: str) -> list[str]:
    """Return the keys that a source names, in its order.

    >>> keys_of("@brock2021ws; with agc FedWon: @zhuang2024fedwon, eq. 1")
    ['brock2021ws', 'zhuang2024fedwon']
    """
    return [key for key in dict.fromkeys(_NAMED.findall(source)) if key in references()]


def spelled_out(source: str) -> str:
    """Return a source with authors, year and title in place of keys.

    >>> spelled_out("@ba2016ln, eq. 3")
    'Ba et al. 2016, Layer Normalization, eq. 3'
    """
    known = references()
    return _NAMED.sub(lambda found: known[found[1]].text if found[1] in known else found[0], source)
