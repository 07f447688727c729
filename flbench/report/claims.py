"""Claims with their verdicts, and the chapters about studies that hold them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from flbench.report.blocks import Block
from flbench.report.runs import Run

#: What our runs say of a claim; ``in part``: it holds in some of the settings that it is about.
Verdict = Literal["holds", "in part", "does not hold", "inconclusive", "not run"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


@dataclass(frozen=True)
class Claim:
    """A statement, and what our runs say of it.

    Attributes:
        text: the statement, in a sentence.
        source: paper, and theorem, figure or table.
        verdict: what our runs say.
        evidence: the numbers behind the verdict, with their spread or interval and n, or why there is none.
    """

    text: str
    source: str
    verdict: Verdict
    evidence: str

    def fields(self) -> dict[str, str]:
        """Return the fields of the JSON form, in which the verdict is called ``holding``."""
        return {"text": self.text, "source": self.source, "holding": self.verdict, "evidence": self.evidence}


@dataclass(frozen=True)
class Chapter:
    """What runs of one kind of study say.

    Attributes:
        kind: of the experiments.
        title: its heading.
        introduction: what was done, in a sentence or two.
        claims: of the papers, each with our verdict.
        blocks: tables of the measurements.
        runs: the runs that it is about.
    """

    kind: str
    title: str
    introduction: str
    claims: tuple[Claim, ...]
    blocks: tuple[Block, ...]
    runs: tuple[Run, ...]

    @property
    def place(self) -> tuple[str, str]:
        """The place of its pictures."""
        return ("study", self.kind)


def unfinished(runs: Sequence[Run]) -> int:
    """Return the number of runs without a result; diverged ones have one."""
    return sum(run.result is None for run in runs)
