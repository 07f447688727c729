"""Claims with their verdicts, and the chapters about studies that hold them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from flbench.report.blocks import BOLD, Block, Entry, Grid
from flbench.report.runs import Run

#: What our runs say of a claim; ``in part``: it holds in some of the settings that it is about.
Verdict = Literal["holds", "in part", "does not hold", "inconclusive", "not run"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

#: Those that say nothing of the statement.
UNDECIDED: tuple[Verdict, ...] = ("inconclusive", "not run")

#: What the others say of it.
MEANINGS = "holds: in every setting; in part: in some; inconclusive: not decided"


@dataclass(frozen=True)
class Claim:
    """A statement with its verdict on our runs."""

    text: str  # the statement, in a sentence
    source: str  # paper, and theorem, figure or table
    verdict: Verdict  # what our runs say
    evidence: str  # the numbers behind the verdict, with their spread or interval and n, or why there is none

    @property
    def gist(self) -> str:
        """The first sentence of the evidence, without its full stop."""
        return re.split(r"\.(?=\s+[A-Z])", self.evidence)[0].removesuffix(".")

    def fields(self) -> dict[str, str]:
        """Return the fields of the JSON form, in which the verdict is called ``holding``."""
        return {"text": self.text, "source": self.source, "holding": self.verdict, "evidence": self.evidence}


@dataclass(frozen=True)
class Chapter:
    """What the runs of one kind of study show."""

    kind: str  # of the experiments
    title: str  # its heading
    introduction: str  # what was done, in a sentence or two
    claims: tuple[Claim, ...]  # of the papers, each with our verdict
    blocks: tuple[Block, ...]  # tables of the measurements
    runs: tuple[Run, ...]  # the runs that it is about
    source: str = ""  # the paper: text that may name entries of references.bib (@key)

    @property
    def place(self) -> tuple[str, str]:
        """The place of its pictures."""
        return ("study", self.kind)


def claims_grid(claims: Sequence[Claim]) -> Grid:
    """Return a table of claims with their sources, verdicts and evidence."""
    rows = [
        (Entry(claim.text, (claim.source,)), Entry(claim.verdict, bold=True), Entry(claim.evidence)) for claim in claims
    ]
    return Grid(
        ("claim", "verdict", "our measurement"),
        tuple(rows),
        names=3,
        marks={BOLD: f"the verdict on these runs ({MEANINGS})"},
    )
