"""Claims of papers with our verdicts, and the chapters of a report about studies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from flbench.report.blocks import Block
from flbench.report.runs import Run

#: What our runs say of a claim. ``in part``: of some of the settings that it is about.
Holding = Literal["holds", "in part", "does not hold", "inconclusive", "not run"]


@dataclass(frozen=True)
class Claim:
    """A statement of a paper, and what our runs say of it.

    Attributes:
        text: the statement, in a sentence.
        source: where it stands: paper, theorem or figure.
        holding: the verdict.
        evidence: the numbers behind the verdict, with their spread or interval and n.
    """

    text: str
    source: str
    holding: Holding
    evidence: str


@dataclass(frozen=True)
class Chapter:
    """What runs of one kind of study say.

    Attributes:
        kind: of the experiments.
        title: its heading.
        introduction: what was done, in a sentence or two.
        claims: of the papers, each with our verdict.
        blocks: tables of the measurements.
        runs: what it rests on.
    """

    kind: str
    title: str
    introduction: str
    claims: tuple[Claim, ...]
    blocks: tuple[Block, ...]
    runs: tuple[Run, ...]

    @property
    def place(self) -> tuple[str, str]:
        """What its pictures belong to."""
        return ("study", self.kind)


def unfinished(runs: Sequence[Run]) -> int:
    """Runs without a result; diverged ones have one."""
    return sum(run.result is None for run in runs)
