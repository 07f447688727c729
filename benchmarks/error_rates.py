"""Simulate how often the report is wrong about curves: where they rise, where seeds collapse, where peaks hide.

    python -m benchmarks.error_rates [--write]

Runs are drawn from curves whose truth is known, with the same random numbers every time, and judged by the functions of
the report. ``--write`` writes the table into docs/error-rates.md; a nightly test recomputes it.

A seed's curve is end - (end - 0.1) exp(-round / time) with 100 evaluations in 1,000 rounds and an error of half a point
in each. Its end varies by a point and its time by 35 %; most of both is shared by all rows of the seed.

Shape suffixes: S seeds, R evaluations, L learning rates, M measures, F flips of signs.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from scipy.stats import rankdata

from benchmarks.tables import ROOT, replaced
from flbench.choices import TAIL
from flbench.report.cells import COLLAPSE
from flbench.report.measures import SHARE, Point, first_at, is_flat
from flbench.report.stats import LEVEL, Contrast, Difference, corrected, paired, paired_ranks
from flbench.report.trust import WINDOWS, Checks, Grid, grid_cost, improves, over_last, rise_of, slopes
from flbench.report.tuning import unbroken
from flbench.streams import stream

#: Numbers of seeds, each a column of the table, and how many pairs of rows are drawn for each.
SEEDS, DRAWS = (3, 5, 10), 2000

#: The margin of a plateau and of an equivalence.
MARGIN = 0.01

#: Rounds of the evaluations.
ROUNDS_R = np.arange(10, 1001, 10)

#: Learning rates, in decades: half a decade apart.
RATES_L = np.arange(7) / 2

Array = np.ndarray[Any, Any]
Draw = np.random.Generator

#: A row of the table: its name, and the shares of its draws by number of seeds.
Shares = dict[str, dict[int, float]]


def measure(draws: int = DRAWS) -> Shares:
    """Return the share of draws in which each thing happens, by its name and the number of seeds."""
    found: Shares = {}
    for number, simulate in enumerate((plateaus, unequal_times, collapses, peaks, narrow_peaks, speeds, measures)):
        for seeds in SEEDS:
            draw = stream(0, "error rates", number, seeds)
            shares = sum_of([simulate(draw, seeds) for _ in range(draws)])
            for name, count in shares.items():
                found.setdefault(name, {})[seeds] = count / draws
    return found


def sum_of(counts: Sequence[Mapping[str, bool]]) -> dict[str, int]:
    return {name: sum(one[name] for one in counts) for name in counts[0]}


class Row:
    """What a row of a column has in a draw: a curve for each seed, of which rows of a seed share the larger part."""

    def __init__(self, draw: Draw, shared_S: Array, end: float = 0.9, time: float = 50.0) -> None:
        own_S = draw.standard_normal(len(shared_S))
        ends_S1 = (end + 0.01 * shared_S + 0.005 * own_S)[:, None]
        times_S1 = (time * np.exp(0.3 * shared_S + 0.2 * draw.standard_normal(len(shared_S))))[:, None]
        noise_SR = 0.005 * draw.standard_normal((len(shared_S), len(ROUNDS_R)))
        self.accs_SR = ends_S1 - (ends_S1 - 0.1) * np.exp(-ROUNDS_R / times_S1) + noise_SR

    @property
    def ends(self) -> dict[int, tuple[tuple[int, float], ...]]:
        """The second half of each seed's curve, as the report has it."""
        half = len(ROUNDS_R) // 2
        rounds, accs_SR = ROUNDS_R[half:].tolist(), self.accs_SR[:, half:].tolist()
        return {seed: tuple(zip(rounds, accs_R, strict=True)) for seed, accs_R in enumerate(accs_SR)}

    @property
    def values(self) -> dict[int, float]:
        """The mean of the last evaluations of each seed."""
        return over_last(self.ends, TAIL)

    def rounds_to(self, level: float) -> dict[int, float]:
        """Return the rounds that each seed takes to a level; infinite for one that does not get there."""
        found = {}
        for seed, accs in enumerate(self.accs_SR.tolist()):
            point = first_at((Point(*at, None) for at in zip(ROUNDS_R.tolist(), accs, strict=True)), "acc", level)
            found[seed] = math.inf if point is None else float(point.round)
        return found


def judged(name: str, truth: float, rows: tuple[Row, Row], grids: tuple[Grid, Grid] | None = None) -> dict[str, bool]:
    """Return what the planned comparison of two rows shows, by itself, before and after the checks of the report.

    Args:
        name: of the draw, in the results.
        truth: the difference that it is to find.
        rows: the compared row and its reference.
        grids: what is known of their learning rates; by default that no rate is better.
    """
    first, second = rows
    ends = [row.ends for row in (first, second)]

    def contrast(sides: Sequence[Mapping[int, float]]) -> Contrast:
        gap = paired(*sides)
        assert gap is not None
        return corrected({0: gap}, MARGIN)[0]

    found = contrast([over_last(one, TAIL) for one in ends])
    collapsed = [int((row.accs_SR[:, -1] < np.median(row.accs_SR[:, -1]) - COLLAPSE).sum()) for row in rows]
    a, b = grids or (Grid(7, cost=0.0), Grid(7, cost=0.0))
    checks = Checks(
        rising=any(improves(rise_of(one), "acc") for one in ends),
        change=paired(*map(slopes, ends)),
        grids=((a,), (b,)),
        windows=tuple(contrast([over_last(one, window) for one in ends]).verdict for window in WINDOWS),
        collapsed=(collapsed[0], collapsed[1]),
        varied=True,
        pairs=1,
    )
    gap, passes = found.difference, not checks.doubts(found, "acc", MARGIN)
    wrong = found.is_different and (gap.mean > 0) != (truth > 0) if truth else found.is_different
    return {
        f"{name}: covered": abs(gap.mean - truth) <= (gap.half_width or 0.0),
        f"{name}: wrong": wrong,
        f"{name}: shown": wrong and passes,
        f"{name}: right": found.is_different and not wrong,
        f"{name}: right and shown": found.is_different and not wrong and passes,
    }


def plateaus(draw: Draw, seeds: int) -> dict[str, bool]:
    """A curve that is flat, and ones that rise by a part of the margin, and by the margin, per doubling of rounds."""
    found = {}
    for name, slope in (("flat", 0.0), ("half", MARGIN / 2), ("margin", MARGIN)):
        row = Row(draw, draw.standard_normal(seeds), time=20)
        row.accs_SR = row.accs_SR + slope * np.log2(ROUNDS_R)
        rise = rise_of(row.ends)
        found[f"{name}: plateau"] = bool(is_flat(rise, MARGIN))
        found[f"{name}: rising"] = bool(improves(rise, "acc"))
    return found


def unequal_times(draw: Draw, seeds: int) -> dict[str, bool]:
    """Two rows that end alike, one of which takes four times as long and is still three points below."""
    shared_S = draw.standard_normal(seeds)
    return judged("slow", 0.0, (Row(draw, shared_S, time=75), Row(draw, shared_S, time=300)))


def collapses(draw: Draw, seeds: int) -> dict[str, bool]:
    """A row two points above another one, without and with collapses: a seed in ten of it ends at 10 %."""
    shared_S = draw.standard_normal(seeds)
    first, second = Row(draw, shared_S, end=0.92), Row(draw, shared_S)
    found = judged("no collapse", 0.02, (first, second))
    first.accs_SR[draw.random(seeds) < 0.1] = 0.1
    return {**found, **judged("collapse", 0.9 * 0.02 - 0.1 * 0.8, (first, second))}


def peaks(draw: Draw, seeds: int) -> dict[str, bool]:
    """Two rows with equal peaks at different places between the rates: accuracy rises concavely and then fails."""

    def accuracy(gap_L: Array) -> Array:
        return np.where(gap_L <= 0, 0.95 - 0.2 * gap_L**2, np.where(gap_L < 0.25, 0.95 - gap_L, 0.1))

    return _between_rates(draw, seeds, "peak", accuracy)


def narrow_peaks(draw: Draw, seeds: int) -> dict[str, bool]:
    """The same with peaks of eight points that are narrower than the grid: no rise leads to them."""

    def accuracy(gap_L: Array) -> Array:
        return 0.87 - 0.05 * np.abs(gap_L) + 0.08 * np.exp(-((gap_L / 0.1) ** 2))

    return _between_rates(draw, seeds, "narrow peak", accuracy)


def _between_rates(draw: Draw, seeds: int, name: str, accuracy: Callable[[Array], Array]) -> dict[str, bool]:
    """Compare two rows, each at the best of its rates, of which none is where the row is best."""
    shared_S, rows, grids = draw.standard_normal(seeds), [], []
    for _ in range(2):
        means_L = accuracy(RATES_L - (1.25 + 0.5 * draw.random())) + 0.002 * draw.standard_normal(len(RATES_L))
        best = int(means_L.argmax())
        rows.append(Row(draw, shared_S, end=float(means_L[best])))
        grids.append(Grid(len(RATES_L), cost=grid_cost(RATES_L.tolist(), means_L.tolist(), best)))
    return judged(name, 0.0, (rows[0], rows[1]), (grids[0], grids[1]))


def speeds(draw: Draw, seeds: int) -> dict[str, bool]:
    """Rows that are equally fast, and one that is half as fast; also where about half of the seeds are censored."""
    found: dict[str, bool] = {}
    for name, level in (("all get there", 0.8), ("half are censored", 0.9)):
        shared_S = draw.standard_normal(seeds)
        rounds = [Row(draw, shared_S, time=time).rounds_to(level) for time in (100, 100, 200)]
        found[f"fast, {name}: equal"] = _is_found(paired_ranks([(rounds[0], rounds[1])]))
        found[f"fast, {name}: half"] = _is_found(paired_ranks([(rounds[0], rounds[2])]))
    return found


def _is_found(found: Difference | None) -> bool:
    return found is not None and found.p is not None and found.p < LEVEL


def measures(draw: Draw, seeds: int) -> dict[str, bool]:
    """Three measures of two rows: alike in all, or one takes 1.3 times as long, or ends 0.7 points below."""
    found: dict[str, bool] = {}
    for name, (time, end) in (("alike", (50, 0.9)), ("slower", (65, 0.9)), ("below", (50, 0.893))):
        shared_S = draw.standard_normal(seeds)
        rows = [Row(draw, shared_S), Row(draw, shared_S, time=time, end=end)]
        widths = [_widths(draw, shared_S) for _ in rows]
        far, fast = [row.values for row in rows], [row.rounds_to(SHARE * 0.885) for row in rows]
        gaps = [paired(*far), paired_ranks([(fast[0], fast[1])]), paired_ranks([(widths[0], widths[1])])]
        p = [1.0 if gap is None or gap.p is None else gap.p for gap in gaps]
        by_holm = corrected({m: gap for m, gap in enumerate(gaps) if gap is not None})
        holm = [by_holm[m].is_different for m in range(3)]
        by_max = _by_max([*_differences(far), *_ranks(fast), *_ranks(widths)], seeds)
        if name == "alike":
            found |= {"alike: any": min(p) < LEVEL, "alike: holm": any(holm), "alike: max": min(by_max) < LEVEL}
        else:
            of = 1 if name == "slower" else 0
            found |= {
                f"{name}: alone": p[of] < LEVEL,
                f"{name}: holm": holm[of],
                f"{name}: max": by_max[of] < LEVEL,
            }
    return found


def _widths(draw: Draw, shared_S: Array) -> dict[int, float]:
    """Return the decades of rates that work by each seed: those around a peak whose place varies."""
    found = {}
    for seed, shared in enumerate(shared_S.tolist()):
        peak = 1.5 + 0.2 * shared + 0.1 * draw.standard_normal()
        accs_L = 0.9 - 0.03 * (RATES_L - peak) ** 2 + 0.005 * draw.standard_normal(len(RATES_L))
        _, first, last = unbroken(accs_L.tolist())
        found[seed] = float(RATES_L[last] - RATES_L[first])
    return found


def _differences(sides: Sequence[Mapping[int, float]]) -> list[Array]:
    return [np.array([*sides[0].values()]) - np.array([*sides[1].values()])]


def _ranks(sides: Sequence[Mapping[int, float]]) -> list[Array]:
    ranks = rankdata([[*side.values()] for side in sides]).reshape(2, -1)
    return [ranks[0] - ranks[1]]


def _by_max(gaps: Sequence[Array], seeds: int) -> list[float]:
    """Return p-values of several differences by seed, corrected by their largest t under all flips of the seeds' signs.

    This is the single-step method of Westfall and Young (1993): a seed's differences change their sign together.
    """
    flips_FS = np.array([*product((1, -1), repeat=seeds)])
    gaps_SM = np.array(gaps).T
    means_FM = flips_FS @ gaps_SM / seeds
    squares_M = (gaps_SM**2).mean(axis=0)
    variances_FM = np.maximum(squares_M - means_FM**2, 1e-12 * squares_M + 1e-30)
    t_FM = np.abs(means_FM) / np.sqrt(variances_FM)
    return [float((t_FM.max(axis=1) >= t_FM[0, m] - 1e-9).mean()) for m in range(len(gaps))]


#: The rows of the table: what happens, and the name of its share above.
TABLE: Sequence[tuple[str, str]] = (
    ("**Plateaus.** A flat curve: plateau", "flat: plateau"),
    ("the same: rising (**wrong**)", "flat: rising"),
    ("a curve that rises by half of the margin per doubling: plateau", "half: plateau"),
    ("a curve that rises by the margin per doubling: plateau (**wrong**)", "margin: plateau"),
    ("**Rising.** Rows that end alike, one takes four times as long: the interval covers 0", "slow: covered"),
    ("the test finds a difference of where they end (**wrong**)", "slow: wrong"),
    ("it does, and passes the checks (**wrong**)", "slow: shown"),
    ("**Collapses.** A row is two points better: shown", "no collapse: right and shown"),
    ("a seed in ten of it ends at 10 %, so that it is 6.2 points worse: the interval covers this", "collapse: covered"),
    ("the test finds it better (**wrong**)", "collapse: wrong"),
    ("it does, and passes the checks (**wrong**)", "collapse: shown"),
    ("**Peaks between rates.** Equal peaks, a concave rise to each: the interval covers 0", "peak: covered"),
    ("the test finds a difference of the peaks (**wrong**)", "peak: wrong"),
    ("it does, and passes the checks (**wrong**)", "peak: shown"),
    ("equal peaks, narrower than the grid: a difference passes the checks (**wrong**)", "narrow peak: shown"),
    ("**How fast.** Equally fast, all seeds get there: a difference (**wrong**)", "fast, all get there: equal"),
    ("equally fast, half of the seeds are censored: a difference (**wrong**)", "fast, half are censored: equal"),
    ("half as fast, all seeds get there: found", "fast, all get there: half"),
    ("half as fast, half of the seeds are censored: found", "fast, half are censored: half"),
    ("**Three measures.** Rows alike in all: any of three found, not corrected (**wrong**)", "alike: any"),
    ("the same, Holm's correction over the three (**wrong**)", "alike: holm"),
    ("the same, corrected by seed-paired resampling (**wrong**)", "alike: max"),
    ("a row takes 1.3 times as long: found, this measure alone", "slower: alone"),
    ("the same, Holm's correction over the three", "slower: holm"),
    ("the same, corrected by seed-paired resampling", "slower: max"),
    ("a row ends 0.7 points below: found, this measure alone", "below: alone"),
    ("the same, Holm's correction over the three", "below: holm"),
    ("the same, corrected by seed-paired resampling", "below: max"),
)


def table(shares: Shares) -> str:
    """Return the shares as Markdown."""
    lines = [["", *(f"{seeds} seeds" for seeds in SEEDS)], ["---", *len(SEEDS) * ["---:"]]]
    lines += [[words, *(f"{100 * shares[name][seeds]:.1f} %" for seeds in SEEDS)] for words, name in TABLE]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


#: The page with the table.
PAGE = ROOT / "docs/error-rates.md"


def main() -> None:
    """Print the table, or write it into the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the table into docs/error-rates.md")
    is_written, text = parser.parse_args().write, table(measure())
    if is_written:
        PAGE.write_text(replaced(PAGE, "error_rates", text), encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
