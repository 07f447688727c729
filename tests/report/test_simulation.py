"""How often the statistics are right, by simulation: 10,000 draws of three and of five seeds.

Seeds have an effect of their own that all cells share, as paired runs do; it is twice as large as the noise of a cell.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from flbench.config import Experiment
from flbench.data.datasets import load
from flbench.data.shards import shards_of
from flbench.report.cells import Cell, cells_of, rows_of
from flbench.report.runs import Run
from flbench.report.stats import LEVEL, contrasts, corrected, interval_across, paired, summarize
from flbench.report.tuning import expected
from flbench.streams import stream
from tests.report.stores import experiment

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


def marked(accs: np.ndarray, margin: float) -> list[bool]:
    """Which cells of one draw (cell, seed) are the best or tied with it, as in a leaderboard's column."""
    cells = [dict(enumerate(values.tolist())) for values in accs]
    best = int(accs.mean(axis=1).argmax())
    gaps = [paired(cell, cells[best]) for cell in cells]
    return [index == best or (gap is not None and gap.is_above(-margin)) for index, gap in enumerate(gaps)]


def covered(samples: np.ndarray, truth: float) -> float:
    """The share of samples (draw, seed) whose interval over seeds covers the mean."""
    found = map(summarize, samples.tolist())
    return float(np.mean([one is not None and abs(one.mean - truth) <= (one.half_width or 0.0) for one in found]))


@pytest.mark.parametrize("seeds", [3, 5])
def test_the_t_interval_covers_the_mean_in_95_of_100_cases(seeds: int) -> None:
    assert covered(runs(1, seeds)[:, 0], 70) == pytest.approx(0.95, abs=MARGIN)


@pytest.mark.parametrize("seeds", [3, 5])
def test_the_paired_test_gives_a_false_alarm_in_5_of_100_cases(seeds: int) -> None:
    alarms = 0
    for first, second in runs(2, seeds).tolist():
        found = paired(dict(enumerate(first)), dict(enumerate(second)))
        assert found is not None and found.p is not None
        alarms += found.p < LEVEL
    assert alarms / DRAWS == pytest.approx(0.05, abs=MARGIN)


@pytest.mark.nightly
@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("cells", [2, 12])
def test_cells_that_are_worse_by_the_margin_rarely_tie(cells: int, seeds: int) -> None:
    """A cell that is worse by the margin ties in at most 5 of 100 cases, also if it is one of many."""
    found = np.array([marked(accs, margin=2.0) for accs in runs(cells, seeds, worse=2.0)[:3000]])
    assert found[:, 1:].mean(axis=0).max() <= 0.05 + 2 * MARGIN


@pytest.mark.nightly
@pytest.mark.parametrize(("seeds", "margin", "least"), [(3, 4.0, 0.4), (5, 4.0, 0.9), (10, 2.0, 0.85)])
def test_equal_cells_tie(seeds: int, margin: float, least: float) -> None:
    """Six equal cells; the margin is in sd of a cell's noise, a point where this is half a point or a quarter."""
    found = np.array([marked(accs, margin) for accs in runs(6, seeds)[:3000]])
    assert found.mean() >= least


@pytest.mark.nightly
@pytest.mark.parametrize(("seeds", "spread"), [(3, 0.0), (5, 0.01), (10, 0.03)])
def test_the_interval_covers_the_accuracy_in_the_population(seeds: int, spread: float) -> None:
    """Of 355 images some are hard for all seeds: the interval over seeds alone covers 62 to 67 of 100 times.

    Image i is right with probability p_i over seeds, drawn from a Beta distribution with mean 0.95; a seed's own
    accuracy differs by ``spread``.
    """
    draw, images, p, times = stream(0, "simulated images", seeds), 355, 0.95, 1000
    population = draw.beta(0.3 * p, 0.3 * (1 - p), size=(200_000, 1)) + spread * draw.standard_normal((200_000, 1))
    truth = np.clip(population, 0, 1).mean()
    shares = {"population": 0, "seeds": 0}
    for _ in range(times):
        p_i = draw.beta(0.3 * p, 0.3 * (1 - p), size=images)
        shift_s = spread * draw.standard_normal((seeds, 1))
        values = (draw.random((seeds, images)) < np.clip(p_i + shift_s, 0, 1)).mean(axis=1)
        cell = _cell(values.tolist())
        assert cell.summary is not None and cell.half_width is not None and cell.summary.half_width is not None
        shares["population"] += abs(cell.summary.mean - truth) <= cell.half_width
        shares["seeds"] += abs(cell.summary.mean - truth) <= cell.summary.half_width
    assert shares["population"] / times >= 0.94, shares
    assert shares["seeds"] / times <= (0.75 if spread < 0.02 else 0.95), shares


@pytest.mark.nightly
@pytest.mark.parametrize("seeds", [3, 10])
def test_unequal_shards_of_each_seed_are_covered_and_those_that_all_seeds_share_are_not(seeds: int) -> None:
    """Test shards of dirichlet:0.1 on digits, where ``acc`` weighs clients equally; all seeds fail on the same images.

    A seed's own accuracy differs by a point. The control gives each image the same weight.
    """
    draw, p, times = stream(0, "simulated shards", seeds), 0.95, 4000
    weights_PM = dirichlet_weights(partitions=200)
    right_TM = draw.random((times, weights_PM.shape[1])) < p
    accs_TP = right_TM @ weights_PM.T
    own_TS = draw.integers(len(weights_PM), size=(times, seeds))
    noise_TS = 0.01 * draw.standard_normal((times, seeds))
    accs = {
        "equal": right_TM.mean(axis=1, keepdims=True),
        "of each seed": np.take_along_axis(accs_TP, own_TS, axis=1),
        "shared": np.take_along_axis(accs_TP, own_TS[:, :1], axis=1),
    }
    shares = {name: np.mean([covers(values, p) for values in found + noise_TS]) for name, found in accs.items()}
    assert shares["of each seed"] >= max(0.94, shares["equal"] - 0.01), shares
    assert shares["shared"] <= 0.93, shares


def dirichlet_weights(partitions: int) -> np.ndarray:
    """The weight of each test image of digits in ``acc``, for the partitions of some seeds: (partition, image)."""
    requests = [experiment(partition="dirichlet:0.1", seed=seed) for seed in range(partitions)]
    data = load(requests[0].dataset, None)  # type: ignore[attr-defined]
    weights_PM = np.zeros((partitions, len(data.test.labels)))
    for weights_M, request in zip(weights_PM, requests, strict=True):
        tested = [rows for rows in shards_of(request, data).test if len(rows)]  # type: ignore[arg-type]
        for rows in tested:
            weights_M[rows] = 1 / len(tested) / len(rows)
    return weights_PM


def covers(values: np.ndarray, truth: float) -> bool:
    cell = _cell(values.tolist())
    assert cell.summary is not None and cell.half_width is not None
    return abs(cell.summary.mean - truth) <= cell.half_width


@pytest.mark.nightly
@pytest.mark.parametrize(("seeds", "most"), [(3, 0.3), (5, 0.12), (10, 0.05)])
def test_seeds_of_one_normal_distribution_rarely_collapse(seeds: int, most: float) -> None:
    """The rule's worst case: so wide a distribution that ten points are no bound. Below 2 points nothing collapses."""
    draw = stream(0, "simulated collapses", seeds)
    for sd, bound in ((1.0, most), (0.02, 0.0)):
        values = 0.7 + sd * draw.standard_normal((3000, seeds))
        assert np.mean([bool(_cell(of.tolist()).collapsed) for of in values]) <= bound


def _cell(values: list[float]) -> Cell:
    runs = [Run(request(seed), 20, "done", record={"acc": value}) for seed, value in enumerate(values)]
    return rows_of(cells_of(runs, "acc"))[0]


@cache
def request(seed: int) -> Experiment:
    return experiment(seed=seed)


@pytest.mark.nightly
@pytest.mark.parametrize(("cells", "seeds"), [(2, 3), (6, 3), (12, 5), (40, 10)])
def test_the_interval_across_cells_covers_their_mean(cells: int, seeds: int) -> None:
    """In 95 of 100 cases, also where a third of the variance is that of the seed, which all cells share."""
    draw, times = stream(0, "simulated cells", cells, seeds), 2000
    shared, own = draw.standard_normal((times, 1, seeds)), draw.standard_normal((times, cells, seeds))
    values = np.sqrt(1 / 3) * shared + np.sqrt(2 / 3) * own
    found = [interval_across([dict(enumerate(cell)) for cell in one]) or (1, -1) for one in values.tolist()]
    share = np.mean([low <= 0 <= high for low, high in found])
    assert abs(share - 0.95) <= 4 * (0.05 * 0.95 / times) ** 0.5


@pytest.mark.nightly
@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_families_of_planned_comparisons_are_rarely_wrong(seeds: int) -> None:
    """Twelve comparisons with differences of an sd of half a point: 0, just the margin of a point, and 3 points.

    Of 100 families at most 5 have a "more" or "less" where there is no difference, or in the wrong direction, and at
    most 5 an "equivalent" where the difference is as large as the margin.
    """
    draw, families, margin = stream(0, "simulated families", seeds), 2000, 0.01
    truth = np.repeat([0.0, margin, 3 * margin], 4)
    wrong, counts = {"difference": 0, "equivalence": 0}, {"equivalent": 0, "more": 0}
    for values in truth + 0.005 * draw.standard_normal((families, seeds, 12)):
        zero = dict.fromkeys(range(seeds), 0.0)
        gaps = {at: paired(dict(enumerate(values[:, at].tolist())), zero) for at in range(12)}
        words = [one.verdict for one in corrected({at: gap for at, gap in gaps.items() if gap}, margin).values()]
        wrong["difference"] += any(word.startswith(("more", "less")) for word in words[:4]) or any(
            word.startswith("less") for word in words[4:]
        )
        wrong["equivalence"] += any("equivalent" in word for word in words[4:])
        counts["equivalent"] += sum("equivalent" in word for word in words[:4])
        counts["more"] += sum(word.startswith("more") for word in words[8:])
    if seeds == 10:
        assert min(counts.values()) / 4 / families > 0.95, "ten seeds find what is there"
    assert all(n / families <= 0.05 + 4 * (0.05 * 0.95 / families) ** 0.5 for n in wrong.values()), wrong


@pytest.mark.nightly
@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_a_column_of_equal_cells_rarely_differs_from_the_baseline(seeds: int) -> None:
    """Eleven cells against the baseline, which all comparisons share: Holm's correction is over the column."""
    alarms, times = 0, 1000
    for values in runs(12, seeds)[:times]:
        cells = {at: dict(enumerate((of / 100).tolist())) for at, of in enumerate(values)}
        alarms += any(one.p is not None and one.p < LEVEL for one in contrasts(cells, 0).values())
    assert alarms / times <= 0.05 + 4 * (0.05 * 0.95 / times) ** 0.5


@pytest.mark.nightly
@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_interactions_of_cells_that_share_a_reference(seeds: int) -> None:
    """Gains of three norms over none with one class, minus those with iid data, which vary a third as much.

    Of 100 families without an interaction at most 5 find one; each interval covers in 95 of 100 cases.
    """
    draw, times = stream(0, "simulated interactions", seeds), 2000
    alarms, inside = 0, 0
    for skewed, iid in draw.standard_normal((times, 2, 4, seeds)) * np.array([0.03, 0.01])[:, None, None]:
        gains = skewed[1:] - skewed[0] - (iid[1:] - iid[0])
        zero = dict.fromkeys(range(seeds), 0.0)
        gaps = {at: paired(dict(enumerate(of.tolist())), zero) for at, of in enumerate(gains)}
        known = {at: gap for at, gap in gaps.items() if gap is not None and gap.half_width is not None}
        alarms += any(one.is_different for one in corrected(known, 0.01).values())
        inside += sum(abs(gap.mean) <= (gap.half_width or 0.0) for gap in known.values())
    assert alarms / times <= 0.05 + 4 * (0.05 * 0.95 / times) ** 0.5
    assert inside / 3 / times == pytest.approx(0.95, abs=0.015)


#: Four standard errors of a share near 95 % of 4,000 draws.
REACH = 4 * (0.05 * 0.95 / 4000) ** 0.5


@pytest.mark.parametrize(("seeds", "least"), [(3, 0.93), (5, 0.92), (10, 0.92)])
@pytest.mark.parametrize("centre", [-4.6, 4.6])
def test_the_t_interval_near_0_and_100_percent(seeds: int, least: float, centre: float) -> None:
    """Accuracies around 1 and 99 %, normal as logits with an sd of 0.5: half of what is missing to the end."""
    draw = stream(0, "simulated ends", seeds, int(centre > 0))
    logits = centre + 0.5 * draw.standard_normal((4000, seeds))
    truth = (1 / (1 + np.exp(-(centre + 0.5 * draw.standard_normal(1_000_000))))).mean()
    assert least - REACH <= covered(1 / (1 + np.exp(-logits)), truth) <= 0.95 + REACH


@pytest.mark.parametrize(("seeds", "most"), [(3, 0.80), (5, 0.75), (10, 0.75)])
def test_the_t_interval_does_not_cover_the_mean_where_seeds_collapse(seeds: int, most: float) -> None:
    """One seed in ten ends at 10 % instead of 90 %: why collapses are reported as a rate with the worst seed."""
    draw = stream(0, "simulated collapse of the mean", seeds)
    values = 0.9 + 0.01 * draw.standard_normal((4000, seeds))
    values[draw.random((4000, seeds)) < 0.1] = 0.1
    assert covered(values, 0.82) <= most


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_small_test_sets_make_no_more_false_alarms(seeds: int) -> None:
    """355 images, on which two equal cells differ by one image at times: steps are coarse, differences often equal."""
    draw, times = stream(0, "simulated steps", seeds), 4000
    for sd in (0.3, 1.0, 5.0):
        counts = np.round(sd * draw.standard_normal((times, 2, seeds)) + 340) / 355
        found = [paired(dict(enumerate(a)), dict(enumerate(b))) for a, b in counts.tolist()]
        assert np.mean([one is not None and one.p is not None and one.p < LEVEL for one in found]) <= 0.05 + REACH


@pytest.mark.nightly
@pytest.mark.parametrize(("rule", "low", "high"), [("val-tail", 0.93, 0.96), ("tail", 0.85, 0.95)])
def test_the_interval_at_the_chosen_setting(rule: str, low: float, high: float) -> None:
    """Nine settings a point apart, ten seeds; accuracies on validation data share half of the variance of a seed.

    The interval is for the mean of the chosen setting. The choice on the test data itself costs some of its coverage.
    """
    draw, times = stream(0, "simulated choices"), 4000
    truth = 0.9 - 0.01 * np.abs(np.arange(9) - 4) / 2
    own, test, val = (0.01 * draw.standard_normal((times, 10, 9)) for _ in range(3))
    tests, vals = truth + np.sqrt(0.5) * (own + test), truth + np.sqrt(0.5) * (own + val)
    chosen = (vals if rule == "val-tail" else tests).mean(axis=1).argmax(axis=1)
    gaps = np.take_along_axis(tests - truth, chosen[:, None, None], axis=2)[:, :, 0]
    assert low <= covered(gaps, 0.0) <= high


@pytest.mark.nightly
@pytest.mark.parametrize("seeds", [3, 10])
def test_the_interval_of_a_tuning_budget_covers_its_expectation(seeds: int) -> None:
    """Five settings ranked as they are; settings of a seed share half of its variance."""
    draw, times = stream(0, "simulated budgets", seeds), 500
    truth = np.array([0.95, 0.94, 0.9, 0.8, 0.3])
    shares = [[1 / 5] * 5, [2 / 5, 3 / 10, 2 / 10, 1 / 10, 0]]
    inside = np.zeros(2)
    for noise in 0.01 * draw.standard_normal((times, 6, seeds)):
        curve = expected([_cell((mean + noise[5] + of).tolist()) for mean, of in zip(truth, noise, strict=False)])
        inside += [abs(curve[k].mean - np.dot(shares[k], truth)) <= (curve[k].half_width or 0.0) for k in (0, 1)]
    assert inside / times == pytest.approx(0.95, abs=4 * (0.05 * 0.95 / times) ** 0.5)
