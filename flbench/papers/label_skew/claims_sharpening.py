"""The claim that lr x lambda_max / 2 of the global model moves to 1 along training: the edge of stability.

Gradient descent is stable below 1. Cohen et al. 2021 (arXiv 2103.00065) find that the sharpness of networks rises in
training until this ratio is about 1, whatever the learning rate, and stays there: descent makes it grow, instability
makes it shrink. They train on the whole data set; here clients take local steps on their own data, which are averaged.

The unit is a run. The claim is judged in each cell that works, from the logarithm of the ratio before training and its
mean over the last five evaluations. What refutes it: ratios that stay away from 1, leave it, or follow the rate.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from flbench.choices import TAIL
from flbench.papers.evidence import Outcome, combined, three_digits
from flbench.papers.label_skew.claims_learning_rate import OVER_CHANCE, chance
from flbench.papers.label_skew.frames import number, probes_of
from flbench.report.cells import Cell, tick_of
from flbench.report.claims import Claim
from flbench.report.runs import Collection
from flbench.report.stats import Contrast, Difference, corrected, paired

if TYPE_CHECKING:
    import pandas as pd

TEXT = "Along training lr x lambda_max / 2 of the global model moves to 1 and stays there"
SOURCE = "after Cohen et al. 2021"

#: A ratio is at 1 if it is shown to be between 1 / 2 and 2.
NEAR = 2.0

#: The order in tables.
AXES = ("partition", "local_steps", "norm", "lr")

#: A number of each seed.
BySeed = Mapping[int, float]

At = TypeVar("At", bound=Hashable)


@dataclass(frozen=True)
class Path:
    """What tests over seeds show of a cell's ratio, by logarithms."""

    end: Contrast  # the ratio at the end; equivalent: to 1
    moved: Contrast  # its distance from 1 at the end less that before training

    @property
    def is_at_one(self) -> bool:
        """Whether the ratio is shown to end within the factor ``NEAR`` of 1."""
        return self.end.is_equivalent

    @property
    def outcome(self) -> Outcome:
        """What the cell says of the claim: a ratio that comes nearer to 1 without being there holds in part."""
        if self.is_at_one:
            return True
        if self.moved.verdict == "less":
            return "in part"
        found = self.end.difference
        is_outside = found.half_width is not None and abs(found.mean) - found.half_width > math.log(NEAR)
        return False if is_outside or self.moved.verdict == "more" else None


def claims(cells: pd.DataFrame, collection: Collection) -> Iterator[Claim]:
    """Yield the claim where runs were probed along training."""
    followed = [one for one in cells.cell if is_followed(one)]
    if not followed:
        return
    working = sorted((one for one in followed if _works(one)), key=lambda one: [tick_of(one, axis) for axis in AXES])
    settings = _settings(working, collection)
    evidence = _evidence(settings) if len(settings) else "No cell works in every seed."
    yield Claim(TEXT, SOURCE, combined(path.outcome for path in settings.path), evidence)


def _settings(working: list[Cell], collection: Collection) -> pd.DataFrame:
    """Return a row a cell that works: its column (``classes:1, E 10``) and norm, how many seeds, and what tests show.

    ``start`` and ``end`` are means over seeds of the logarithm of the ratio.
    """
    import pandas as pd

    ends = {at: _ends(ratios(cell, collection)) for at, cell in enumerate(working)}
    found = []
    for at, path in paths(ends).items():
        partition, steps, norm, _ = (tick_of(working[at], axis).label for axis in AXES)
        start, end = (statistics.fmean(seeds.values()) for seeds in ends[at])
        found.append((f"{partition}, E {steps}", norm, len(ends[at][1]), start, end, path))
    return pd.DataFrame(found, columns=["column", "norm", "seeds", "start", "end", "path"])


def is_followed(cell: Cell) -> bool:
    """Return whether the runs of a cell measure the sharpness often enough for a mean over the last evaluations."""
    probes = getattr(cell.experiment, "probes", ())
    return any(probe.name == "sharpness" and TAIL * probe.every <= cell.rounds for probe in probes)


def ratios(cell: Cell, collection: Collection) -> dict[int, dict[int, float]]:
    """Return lr x lambda_max / 2 of each finished seed by round; without rounds where it is zero or not finite."""
    found: dict[int, dict[int, float]] = {}
    for run in cell.runs:
        if run.state != "done":
            continue
        seen = {record["round"]: probes_of(record) for record in collection.records(run)}
        values = {
            at: (number(one, "sharpness", "lr") or 0) * (number(one, "sharpness", "lambda_max") or 0) / 2
            for at, one in seen.items()
        }
        found[run.experiment.seed] = {at: value for at, value in sorted(values.items()) if value > 0}
    return found


def paths(ends: Mapping[At, tuple[BySeed, BySeed]]) -> dict[At, Path]:
    """Return the paths of cells from the logarithms before training and at the end, tested over seeds.

    Of 100 sets of cells at most 5 have a wrong "at 1", and at most 5 a wrong "nearer" or "farther" (Holm's correction).
    """
    last: dict[At, Difference] = {}
    moved: dict[At, Difference] = {}
    for at, (start, end) in ends.items():
        away, before = ({seed: abs(value) for seed, value in some.items()} for some in (end, start))
        one, other = paired(end, dict.fromkeys(end, 0.0)), paired(away, before)
        if one is not None and other is not None:
            last[at], moved[at] = one, other
    shown, nearer = corrected(last, math.log(NEAR)), corrected(moved)
    return {at: Path(shown[at], nearer[at]) for at in shown}


def _ends(seeds: Mapping[int, Mapping[int, float]]) -> tuple[BySeed, BySeed]:
    """The logarithms before training and, as means, over the last evaluations, of the seeds that have both."""
    known = {seed: values for seed, values in seeds.items() if 0 in values and len(values) > TAIL}
    start = {seed: math.log(values[0]) for seed, values in known.items()}
    end = {seed: statistics.fmean(map(math.log, list(values.values())[-TAIL:])) for seed, values in known.items()}
    return start, end


def _works(cell: Cell) -> bool:
    """Whether every seed is at least ``OVER_CHANCE`` times better than guessing."""
    return cell.complete and min(cell.values) >= OVER_CHANCE * chance(cell)


def _evidence(settings: pd.DataFrame) -> str:
    """How many cells end at 1, come nearer and go farther, by column and by norm, and typical ratios."""

    def each(by: str, text: Callable[[pd.DataFrame], str]) -> str:
        """``iid, E 1: 3 of 14; iid, E 10: 0 of 12``."""
        return "; ".join(f"{name}: {text(own)}" for name, own in settings.groupby(by, sort=False))

    def at_one(some: pd.DataFrame) -> str:
        return f"{sum(path.is_at_one for path in some.path)} of {len(some)}"

    def moved(verdict: str) -> Callable[[pd.DataFrame], str]:
        return lambda some: f"{sum(path.moved.verdict == verdict for path in some.path)} of {len(some)}"

    def medians(some: pd.DataFrame) -> str:
        """``0.37 and 1.2``: geometric means over seeds, medians over cells."""
        return " and ".join(three_digits(math.exp(some[name].median())) for name in ("start", "end"))

    return (
        f"It ends within a factor of {NEAR:g} of 1 in {at_one(settings)} cells ({each('column', at_one)}). "
        f"By norm: {each('norm', at_one)}. "
        f"Nearer to 1 than before training: {each('column', moved('less'))}. "
        f"Farther: {each('column', moved('more'))}. "
        f"Before training and at the end, medians of cells: {each('column', medians)}. "
        f"(Cells with twice the accuracy of guessing in every seed. Logarithms; the end is "
        f"the mean of the last {TAIL} evaluations; n = {', '.join(map(str, sorted({*settings.seeds})))} runs a cell, "
        "paired by seed; t-tests at 5 %, Holm's correction over the cells.)"
    )
