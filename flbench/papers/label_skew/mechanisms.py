"""The synthesis: what probes saw, beside accuracy, and three questions that it answers or does not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from flbench.metric_specs import METRICS
from flbench.papers.label_skew import bounded_norms as norms
from flbench.papers.label_skew import feature_collapse as collapse
from flbench.papers.label_skew import feature_rank as ranks
from flbench.papers.label_skew import learning_rates as rates
from flbench.papers.label_skew.answers import Answer, Finding
from flbench.papers.label_skew.probe_cells import Births, Probed, has_probes, probed
from flbench.report.cells import Cell
from flbench.report.claims import Claim
from flbench.report.runs import Collection

if TYPE_CHECKING:
    from flbench.report.board import Section

__all__ = ["KINDS", "Answer", "Finding", "Probed", "Synthesis", "synthesize"]

#: Kinds of figures that stand with the synthesis where a report has one.
KINDS = ("why", "overfit", "features")


@dataclass(frozen=True)
class Synthesis:
    """One data set and model.

    Attributes:
        title, place: of its section.
        cells: every cell with probes.
        tuned: those of the section's detailed tables, which have the chosen learning rates where these vary.
        answers: to the questions.
        claims: of the label-skew paper about one-class training, where such runs were probed.
        seen: finished runs with probes, of ``finished``.
    """

    title: str
    place: tuple[str, str]
    cells: tuple[Probed, ...]
    tuned: tuple[Probed, ...]
    answers: tuple[Answer, ...]
    claims: tuple[Claim, ...]
    seen: int
    finished: int

    @cached_property
    def by_cell(self) -> Mapping[int, Probed]:
        """The cells with probes by the identity of their cells."""
        return {id(one.cell): one for one in (*self.cells, *self.tuned)}


def synthesize(sections: Sequence[Section], collection: Collection) -> tuple[Synthesis, ...]:
    """A synthesis of each section; records of round 0 are read where probes looked then."""
    births = Births(collection)
    return tuple(_synthesis(section, births) for section in sections)


def _synthesis(section: Section, births: Births) -> Synthesis:
    everything = [cell for table in section.tables for cell in _cells(table.cells)]
    cells = probed(everything, births)
    tuned = probed((cell for details in section.details for cell in _cells(details.table.cells)), births)
    runs = [run for cell in everything for run in cell.runs if run.state == "done"]
    shared = [one for one in cells if not one.cell.personal and one.cell.experiment.kind == "federated"]
    best = [one for one in tuned if not one.cell.personal and one.cell.experiment.kind == "federated"]
    judged = bool(cells) and not METRICS[cells[0].cell.metric].lower_is_better and METRICS[cells[0].cell.metric].percent
    answers = (rates.answer(section.ranges, shared, best), ranks.answer(shared, best), norms.answer(shared, best))
    return Synthesis(
        title=section.title,
        place=section.place,
        cells=tuple(cells),
        tuned=tuple(tuned),
        answers=answers if judged else (),
        claims=tuple(collapse.claims(cells)),
        seen=sum(map(has_probes, runs)),
        finished=len(runs),
    )


def _cells(placed: Mapping[tuple[int, int], Cell]) -> Iterator[Cell]:
    return (cell for _, cell in sorted(placed.items(), key=lambda item: item[0]))
