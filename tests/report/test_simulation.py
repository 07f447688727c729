"""How often the statistics are right, by simulation: 10,000 draws of three and of five seeds.

Seeds have an effect of their own that all cells share, as paired runs do; it is twice as large as the noise of a cell.
"""

from __future__ import annotations

import numpy as np
import pytest

from flbench.report.cells import summarize
from flbench.report.stats import LEVEL, bootstrap_interval, holm, paired
from flbench.streams import stream

DRAWS = 10_000

#: Four standard errors of a share near 5 % of so many draws.
MARGIN = 4 * (0.05 * 0.95 / DRAWS) ** 0.5


def runs(cells: int, seeds: int, worse: float = 0.0) -> np.ndarray:
    """Accuracies (draw, cell, seed); all cells but the first are ``worse`` on average, in sd of the noise."""
    draw = stream(0, "simulated seeds", cells, seeds)
    shared = 2 * draw.standard_normal((DRAWS, 1, seeds))
    own = draw.standard_normal((DRAWS, cells, seeds))
    own[:, 1:] -= worse
    return 70 + shared + own


def marked(accs: np.ndarray) -> list[bool]:
    """Which cells of one draw (cell, seed) are the best or tied with it, as in a leaderboard's column."""
    cells = [dict(enumerate(values.tolist())) for values in accs]
    best = int(accs.mean(axis=1).argmax())
    p_values = [paired(cell, cells[best]) for index, cell in enumerate(cells) if index != best]
    corrected = iter(holm([found.p for found in p_values if found is not None and found.p is not None]))
    return [index == best or next(corrected) >= LEVEL for index in range(len(cells))]


@pytest.mark.parametrize("seeds", [3, 5])
def test_the_t_interval_covers_the_mean_in_95_of_100_cases(seeds: int) -> None:
    covered = 0
    for values in runs(1, seeds)[:, 0].tolist():
        summary = summarize(values)
        assert summary is not None and summary.half_width is not None
        covered += abs(summary.mean - 70) <= summary.half_width
    assert covered / DRAWS == pytest.approx(0.95, abs=MARGIN)


@pytest.mark.parametrize("seeds", [3, 5])
def test_the_paired_test_gives_a_false_alarm_in_5_of_100_cases(seeds: int) -> None:
    alarms = 0
    for first, second in runs(2, seeds).tolist():
        found = paired(dict(enumerate(first)), dict(enumerate(second)))
        assert found is not None and found.p is not None
        alarms += found.p < LEVEL
    assert alarms / DRAWS == pytest.approx(0.05, abs=MARGIN)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("cells", [2, 6, 12])
def test_equal_cells_are_marked(cells: int, seeds: int) -> None:
    """Of equally good cells, each is marked as best or tied in 97 of 100 cases, and all of them in 88 at least."""
    found = np.array([marked(accs) for accs in runs(cells, seeds)])
    assert found.mean(axis=0).min() >= 0.97 - MARGIN
    assert found.all(axis=1).mean() >= 0.88 - MARGIN


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "most"), [(3, 0.75), (5, 0.06)])
def test_worse_cells_are_significant_with_five_seeds(seeds: int, most: float) -> None:
    """Six cells, five of them four sd of the noise worse: with three seeds most tie, with five few do."""
    shares = np.mean([marked(accs) for accs in runs(6, seeds, worse=4.0)], axis=0)
    assert shares[0] >= 0.95
    assert shares[1:].max() <= most


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cells", "seeds", "least"), [(2, 3, 0.82), (6, 3, 0.91), (12, 3, 0.92), (12, 5, 0.92), (40, 3, 0.93)]
)
def test_the_bootstrap_covers_across_many_cells(cells: int, seeds: int, least: float) -> None:
    """About 85 of 100 with two cells, 93 with six, 95 with twelve or more."""
    draw = stream(0, "simulated strata", cells, seeds)
    covered = 0
    for values in draw.standard_normal((1000, cells, seeds)).tolist():
        interval = bootstrap_interval(values)
        assert interval is not None
        covered += interval[0] <= 0 <= interval[1]
    assert covered / 1000 >= least
