"""What the comparisons of all papers' published numbers share: verdicts, obstacles to them, tallies, table entries."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, Self, TypeVar, get_args

from flbench.config import Training
from flbench.papers.evidence import number_entry
from flbench.papers.prediction import Prediction
from flbench.report.blocks import Entry
from flbench.report.cells import Cell
from flbench.report.claims import VERDICTS, Claim, Verdict
from flbench.report.stats import Summary
from flbench.report.wording import mean_text

#: Why our number cannot be compared with a published one: it is of fewer rounds, or of other data or settings.
Obstacle = Literal["", "not comparable", "shorter"]
OBSTACLES: tuple[Obstacle, ...] = get_args(Obstacle)


#: Percentage points: an interval that reaches further to either side does not show agreement.
WIDEST = 5.0


class Judgement(NamedTuple):
    """The verdict on a published number, why, the obstacle to it if any, and what our runs predict for it if tested."""

    verdict: Verdict
    why: str = ""
    obstacle: Obstacle = ""
    prediction: Prediction | None = None

    @property
    def order(self) -> tuple[int, int]:
        """The position among judgements, the most decisive first."""
        return VERDICTS.index(self.verdict), OBSTACLES.index(self.obstacle)


@dataclass(frozen=True)
class PublishedNumber:
    """One published number, in percent.

    Attributes:
        label: what it is the number of, as printed.
        text: the number as printed; ``sd``: its standard deviation over seeds likewise, or nothing.
        seeds: how many were run; ``rounds``: how long.
        note: what is to be known of it, or nothing.
    """

    label: str
    text: str
    sd: str
    seeds: int
    rounds: int
    note: str

    @property
    def source(self) -> str:
        """Where it is printed."""
        raise NotImplementedError(f"{type(self).__name__} must define source")

    @property
    def value(self) -> float:
        """The number, in percent."""
        return float(self.text)

    @classmethod
    def of_line(cls, line: Mapping[str, str], *, seeds: int, rounds: int, **own: Any) -> Self:
        """Return the number of a line of ``published.csv``; ``own`` are the fields of the paper's class."""
        label, text, sd, note = (line[column] for column in ("label", "value", "std", "note"))
        return cls(label=label, text=text, sd=sd, seeds=seeds, rounds=rounds, note=note, **own)


def published_lines(module: str) -> list[dict[str, str]]:
    """Return the lines of the file ``published.csv`` beside a module, whose ``__file__`` is given."""
    with Path(module).with_name("published.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


Row = TypeVar("Row", bound=PublishedNumber)


@dataclass(frozen=True)
class Comparison(Generic[Row]):
    """A published number, and one of our cells of its configuration if there is any."""

    row: Row
    cell: Cell | None
    judgement: Judgement

    @property
    def claim(self) -> Claim:
        """The number as a claim with its verdict."""
        verdict, why, obstacle, _ = self.judgement
        evidence = f"{obstacle}: {why}" if obstacle else why
        return Claim(f"{self.row.label}: {self.row.text} %", self.row.source, verdict, evidence)

    @property
    def ours(self) -> Summary | None:
        """Our accuracy, a fraction; None where no seed has one."""
        return self.cell.summary if self.cell else None

    @property
    def difference(self) -> float | None:
        """Ours minus published, in percentage points."""
        return 100 * self.ours.mean - self.row.value if self.ours else None

    def entries(self) -> tuple[Entry, ...]:
        """Return the cells of a table: published, mean, rounds, difference, verdict."""
        row, cell, ours, claim = self.row, self.cell, self.ours, self.claim
        return (
            Entry(f"{row.text} ± {row.sd}" if row.sd else row.text, order=row.value),
            Entry(mean_text(cell), (f"n={ours.n}",), order=ours.mean) if cell and ours else Entry("–"),
            number_entry(cell.runs[0].rounds if cell else None, "{:,}".format),
            number_entry(self.difference, "{:+z.2f}".format),
            Entry(f"{claim.verdict} ({claim.evidence})" if claim.evidence else claim.verdict),
        )

    def fields(self) -> dict[str, Any]:
        """Return the JSON form of the numbers and the verdict, values in percent."""
        row, cell, ours, claim, prediction = self.row, self.cell, self.ours, self.claim, self.judgement.prediction
        half_width = ours.half_width if ours else None
        return {
            "published": row.value,
            "published_sd": float(row.sd) if row.sd else None,
            "published_seeds": row.seeds,
            "published_rounds": row.rounds,
            "cell_id": cell.experiment.cell_id if cell else None,
            "rounds": cell.runs[0].rounds if cell else None,
            "ours": 100 * ours.mean if ours else None,
            "ci_half_width": None if half_width is None else 100 * half_width,
            "n": len(cell.values) if cell else 0,
            "difference": self.difference,
            "verdict": claim.verdict,
            "why": claim.evidence,
            "prediction": None if prediction is None else [100 * prediction.low, 100 * prediction.high],
            "p": None if prediction is None else prediction.p,
        }


#: The heads of ``Comparison.entries``.
HEADS = ("published", "mean", "rounds", "difference", "verdict")

#: What the marks of ``Comparison.entries`` mean.
MARKS = {"±": "published: standard deviation over seeds; mean and verdict: half-width of the 95 % interval"}


def judgements(comparisons: Iterable[Comparison[Any]]) -> Sequence[Judgement]:
    """Return a judgement for each published number, by the most decisive of our cells."""
    best: dict[int, Judgement] = {}
    for one in comparisons:
        known = best.get(id(one.row), one.judgement)
        best[id(one.row)] = min(known, one.judgement, key=lambda found: found.order)
    return list(best.values())


def tally(judgements: Iterable[Judgement]) -> str:
    """Return the number of judgements of each verdict: ``holds 3, inconclusive 70 (shorter 66), not run 96``."""
    known = list(judgements)
    verdicts, obstacles = Counter(one.verdict for one in known), Counter(one.obstacle for one in known)
    reasons = ", ".join(f"{one} {obstacles[one]}" for one in OBSTACLES if one and obstacles[one])
    return ", ".join(
        f"{verdict} {verdicts[verdict]}" + (f" ({reasons})" if verdict == "inconclusive" and reasons else "")
        for verdict in VERDICTS
        if verdicts[verdict]
    )


def without_comparison(cell: Cell, rounds: int, other_data: str | None) -> Judgement | None:
    """Return the judgement of a cell that cannot be compared with a published number; None where it can.

    Args:
        cell: ours.
        rounds: of the published number.
        other_data: why the cell's data are not those of the paper, if they are not.
    """
    gap = "" if cell.complete else ", ".join(f"{count} {why}" for why, count in cell.gaps.items())
    if not cell.values and cell.gaps.keys() != {"diverged"}:
        return Judgement("not run", "" if cell.gaps.keys() == {"pending"} else gap)
    if other_data:
        return Judgement("inconclusive", other_data, "not comparable")
    if (ours := cell.runs[0].rounds) != rounds:
        obstacle: Obstacle = "shorter" if ours < rounds else "not comparable"
        return Judgement("inconclusive", f"{ours:,} of {rounds:,} rounds", obstacle)
    if not cell.values:
        return Judgement("does not hold", gap)
    return Judgement("inconclusive", gap) if gap else None


def other_content(experiment: Training, fingerprint: str | None, samples: str | None) -> str | None:
    """Return why an experiment's data are not the official content of the data set, or None.

    Args:
        experiment: of the run.
        fingerprint: of its data.
        samples: the images in train and test, as the result has them (``50000/10000``); None: not recorded.
    """
    dataset: Any = experiment.dataset
    if dataset.test_fraction is not None:
        return f"training and test set split again, {dataset.test_fraction:g} for the test"
    if dataset.mean:
        return "normalized images"
    if known := dataset.parts.get(fingerprint):
        return str(known)
    if fingerprint == dataset.official or dataset.counts is None:
        return None
    whole = "/".join(map(str, dataset.counts))
    if samples is None and dataset.official is None:
        return "how many images there were is not recorded"
    if samples not in (None, whole):
        return f"{samples} images in train and test, not {whole}"
    return "not the official images" if dataset.official and dataset.content else None
