"""The chapter "Why": accuracy beside what probes measured, and the claims that this decides."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flbench.literal import literal
from flbench.metric_specs import METRICS
from flbench.papers.evidence import number_entry
from flbench.papers.label_skew.claims_by_seed import one_class, rank_doses, sharpening
from flbench.papers.label_skew.correlations import READING, Mechanism, RankCorrelation
from flbench.papers.label_skew.frames import Births, at_best_rate, has_probes, probed, rows_of
from flbench.papers.label_skew.mechanisms import bounded_norms, feature_rank, learning_rates
from flbench.report.blocks import Block, Entry, Figure, Fold, Grid, Heading, Paragraph, words
from flbench.report.board import Section
from flbench.report.cells import distinct, tick_of
from flbench.report.claims import Claim, claims_grid
from flbench.report.correlation import Mean
from flbench.report.runs import Collection

if TYPE_CHECKING:
    import pandas as pd

#: Kinds of figures that stand in the chapter where a report has one.
KINDS = ("sharpening", "features")

TURN_ON = (
    "Turn them on and run the sweep again, each with its interval in rounds, a multiple of `eval_every`: "
    "`flbench sweep SPEC --set 'probes={features: 50, drift: 50, sharpness: 100}'`."
)
NO_PROBES = f"No finished run recorded probes. {TURN_ON}"
NO_ACCURACY = "The claims are about accuracies, and this report's metric is none: they are not judged."

#: What the columns of the table of cells are.
COLUMNS = (
    "Per cell, mean over seeds: *rank*: effective rank of the features, *1st*: share of the first singular value's "
    "square in percent, *growth*: mean feature norm over what it was before the first round, *agreement* of the "
    "clients' updates (1: all pull one way), *λ start, λ end*: lambda_max of the Fisher information of the global "
    "model's softmax before the first round and at the end (geometric means, as for growth), *2/λ end* beside the *lr* "
    "in use, and *lr λ/2*, below 1 where gradient descent is stable."
)


@dataclass(frozen=True)
class Synthesis:
    """One section: a data set and model."""

    title: str
    place: tuple[str, str]
    cells: pd.DataFrame  # every cell with probes (``frames.probed``)
    tuned: pd.DataFrame  # those of the section's detailed tables, at the chosen learning rates where these vary
    mechanisms: tuple[Mechanism, ...]  # claims about why accuracies differ
    claims: tuple[Claim, ...]  # about one-class training, doses of rank and sharpness, where such runs were probed
    seen: int  # runs with probes, of the ``finished`` ones
    finished: int


def synthesize(sections: Sequence[Section], collection: Collection) -> tuple[Synthesis, ...]:
    """Return a synthesis of each section, with the records of round 0 where probes have them."""
    births, syntheses = Births(collection), []
    for section in sections:
        everything = [cell for table in section.tables for cell in table.cells.values()]
        cells = probed(distinct(everything), births)
        tuned = probed(distinct(cell for table in section.details for cell in table.cells.values()), births)
        shared, shown = (some[some.shared] for some in (cells, tuned))
        best = at_best_rate(shown)
        metric = METRICS[cells.cell[0].metric] if len(cells) else None
        mechanisms = (
            learning_rates(section.ranges, shared, shown),
            feature_rank(shared, best),
            bounded_norms(shared, best),
        )
        counted = (one for cell in everything for one in (cell, *cell.copies))
        runs = [run for cell in counted for run in cell.runs if run.state == "done"]
        is_accuracy = metric is not None and metric.percent and not metric.lower_is_better
        synthesis = Synthesis(
            title=section.title,
            place=section.place,
            cells=cells,
            tuned=tuned,
            mechanisms=mechanisms if is_accuracy else (),
            claims=(
                *one_class(cells),
                *rank_doses(shared, section.tables[0].margin),
                *(sharpening(shared, collection) if is_accuracy else ()),
            ),
            seen=sum(map(has_probes, runs)),
            finished=len(runs),
        )
        syntheses.append(synthesis)
    return tuple(syntheses)


def blocks(found: Sequence[Synthesis], pictures: Mapping[tuple[str, str], Sequence[Figure]]) -> Iterator[Block]:
    """Yield the chapter; the pictures of a data set and model stand with the last synthesis on it."""
    yield Heading(2, "Why")
    seen = [one for one in found if one.seen]
    if not seen:
        yield Paragraph(NO_PROBES)
        return
    yield Paragraph(READING)
    last = {one.place: one for one in seen}
    for one in seen:
        if len(found) > 1:
            yield Heading(3, f"Why: {one.title}")
        yield from _synthesis_blocks(one, pictures.get(one.place, ()) if last[one.place] is one else ())
    if others := "; ".join(one.title for one in found if not one.seen):
        yield Paragraph(f"No finished run of the other sections recorded probes ({literal(others)}). {TURN_ON}")


def _synthesis_blocks(found: Synthesis, pictures: Sequence[Figure]) -> Iterator[Block]:
    if found.seen < found.finished:
        yield Paragraph(f"{found.seen} of {found.finished} finished runs recorded probes; only these are read.")
    if not found.mechanisms:
        yield Paragraph(NO_ACCURACY)
    for claim in (one.claim for one in found.mechanisms):
        yield Paragraph(f"**{claim.text}: {claim.verdict}.** {literal(claim.evidence)}")
    if found.claims:
        yield claims_grid(found.claims)
    yield from pictures
    for one in found.mechanisms:
        tables: list[Block] = [_correlation_table(one.correlations)] if one.correlations else []
        for means in one.means:
            rows = [(*words(*row.names), *map(_mean_entry, row.means)) for row in means.lines]
            tables += [Paragraph(f"{means.title}:"), Grid(means.head, tuple(rows), len(means.lines[0].names))]
        if tables:
            yield Fold(f"{one.claim.text}: the numbers", tuple(tables))
    yield Fold(f"{len(found.tuned)} cells with probes", (Paragraph(COLUMNS), _cell_table(found.tuned)))


def _correlation_table(correlations: Sequence[RankCorrelation]) -> Grid:
    rows = []
    for one in correlations:
        found = one.correlation
        interval = "none" if found.interval is None else f"{found.interval[0]:+z.2f} to {found.interval[1]:+z.2f}"
        size = (Entry(str(found.n), order=found.n), Entry(one.units, order=found.groups))
        rho = number_entry(found.rho, "{:+z.2f}".format)
        rows.append((*words(one.what, one.where), rho, Entry(interval), *size))
    return Grid(("of", "where", "rho", "95 % interval", "n", "units"), tuple(rows), names=2)


def _mean_entry(found: Mean | None) -> Entry:
    if found is None:
        return Entry("–")
    interval = f"{100 * found.interval[0]:+z.1f} to {100 * found.interval[1]:+z.1f}, " if found.interval else ""
    return Entry(f"{100 * found.mean:+z.1f}", (f"{interval}n={found.n}",), order=found.mean)


def _cell_table(cells: pd.DataFrame) -> Grid:
    """Accuracy beside all probes, a row a cell."""
    axes = _axes(cells)
    metric = METRICS[cells.cell.iloc[0].metric]
    heads = (*axes, "lr", metric.title, "rank", "1st", "growth", "agreement", "λ start", "λ end", "2/λ end", "lr λ/2")
    rows = [
        (
            *words(*(tick_of(one["cell"], axis).label for axis in axes)),
            number_entry(one["lr"]),
            number_entry(one["acc"], metric.text),
            number_entry(one["rank"]),
            number_entry(one["share"], lambda value: f"{100 * value:.1f}"),
            *(number_entry(one[name]) for name in ("growth", "agreement", "first_lambda", "last_lambda")),
            number_entry(2 / one["last_lambda"] if one["last_lambda"] else None),
            number_entry(one["used"]),
        )
        for one in sorted(rows_of(cells), key=lambda one: [tick_of(one["cell"], axis) for axis in axes])
    ]
    return Grid(heads, tuple(rows), len(axes))


def _axes(cells: pd.DataFrame) -> tuple[str, ...]:
    """Return the columns: the partition and others first, so that cells that may be compared stand together.

    A field that centralized training lacks is a column only if federated cells differ in it.
    """
    names = dict.fromkeys(name for place in cells.place for name in place if name != "data")
    differing = [name for name in names if len({place[name] for place in cells.place if name in place}) > 1]
    return (*differing, *(["method"] if cells.is_federated.any() else []), "norm")


def fields(found: Sequence[Synthesis]) -> list[dict[str, Any]]:
    """Return the JSON form; shares and accuracies are fractions."""
    return [
        {
            "section": one.title,
            "runs_with_probes": one.seen,
            "finished": one.finished,
            "answers": [_mechanism_fields(mechanism) for mechanism in one.mechanisms],
            "claims": [claim.fields() for claim in one.claims],
            "cells": [_cell_fields(cell) for cell in rows_of(one.cells)],
        }
        for one in found
    ]


def _mechanism_fields(one: Mechanism) -> dict[str, Any]:
    return {
        "name": one.name,
        "question": one.claim.text,
        "verdict": one.claim.verdict,
        "text": one.claim.evidence,
        "findings": [
            {
                "what": found.what,
                "where": found.where,
                "rho": found.correlation.rho,
                "interval": list(found.correlation.interval) if found.correlation.interval else None,
                "n": found.correlation.n,
                "groups": found.correlation.groups,
                "unit": found.unit,
                "crossed_groups": found.correlation.crossed,
                "crossed": found.crossed or None,
            }
            for found in one.correlations
        ],
        "means": [dataclasses.asdict(means) for means in one.means],
    }


def _cell_fields(one: Mapping[str, Any]) -> dict[str, Any]:
    cell = one["cell"]
    numbers = {
        **{"lr": "lr", "acc": "acc", "rank": "rank", "first_share": "share", "norm": "length", "growth": "growth"},
        **{"agreement": "agreement", "lambda_start": "first_lambda", "lambda_start_local": "first_local_lambda"},
        **{"lambda_end": "last_lambda", "lambda_end_local": "last_local_lambda"},
    }
    return {
        "cell_id": cell.experiment.cell_id,
        "fingerprint": cell.fingerprint,
        "rounds": cell.runs[0].rounds,
        **{name: one[column] for name, column in numbers.items()},
    }


def lines(found: Sequence[Synthesis]) -> list[str]:
    """Return the claims about mechanisms as lines for a terminal."""
    if not any(one.seen for one in found):
        return [f"why: {NO_PROBES}"]
    return [
        f"{f'{one.title}: ' if len(found) > 1 else ''}{claim.text}: {claim.verdict}. {claim.evidence}"
        for one in found
        for claim in (mechanism.claim for mechanism in one.mechanisms)
    ]
