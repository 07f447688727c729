"""Prediction intervals of published numbers: by hand, by simulation, and on the committed runs of digits."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.special import expit, logit

from flbench.papers.prediction import Seeds, pool, predict
from flbench.report.stats import welch_half_width
from flbench.streams import stream

#: Data sets of a simulation.
DRAWS = 2000

#: Repeated cells that a level has, as the one-class CNN in the label-skew paper's table 14; seeds of each.
CELLS, REPEATS = 4, 3


def test_by_hand() -> None:
    """Accuracies 0.5 and 0.8 with sd 0.01 and 0.008: logits' sd 0.04 and 0.05, 2 and 4 degrees of freedom."""
    spread = pool([Seeds(0.5, 0.01, 3), Seeds(0.8, 0.008, 5), Seeds(0.6, 0.3, 1)])
    assert spread is not None
    assert (spread.df, spread.cells) == (6, 2)
    assert spread.sd == pytest.approx(((2 * 0.04**2 + 4 * 0.05**2) / 6) ** 0.5)
    found = predict(0.7, 2, spread, published=0.72, seeds=1)
    half_width = stats.t.ppf(0.975, 6) * spread.sd * 1.5**0.5
    assert (found.low, found.high) == pytest.approx((expit(logit(0.7) - half_width), expit(logit(0.7) + half_width)))
    assert found.p == pytest.approx(2 * stats.t.sf((logit(0.72) - logit(0.7)) / (spread.sd * 1.5**0.5), 6))
    assert predict(0.7, 2, spread, published=found.high, seeds=1).p == pytest.approx(0.05)


def test_without_repetitions_that_differ_there_is_no_spread() -> None:
    assert pool([]) is None
    assert pool([Seeds(0.5, 0.0, 1), Seeds(0.1, 0.0, 3)]) is None


def test_accuracies_of_0_and_1_have_finite_intervals() -> None:
    spread = pool([Seeds(1.0, 0.0, 3), Seeds(0.99, 0.001, 3)])
    assert spread is not None
    for accuracy in (0.0, 1.0):
        found = predict(accuracy, 1, spread, published=accuracy, seeds=1)
        assert 0 < found.low < found.high < 1 and found.p == 1


def simulated(n: int, factor: float, shift: float = 0.0) -> tuple[float, float]:
    """Shares of published numbers, single runs, that lie outside their interval: pooled as logits, and as they are.

    Args:
        n: our seeds of the cell.
        factor: by which the logits' sd of a typical cell differs from the median one: exp of the sd of its logarithm.
        shift: the published cell's true logit minus ours, in median sds.
    """
    draw = stream(0, "simulated published numbers", n, round(10 * factor), round(shift))
    centre = logit(draw.uniform(0.15, 0.95, (DRAWS, CELLS + 1, 1)))
    sd = 0.03 * np.exp(np.log(factor) * draw.standard_normal((DRAWS, CELLS + 1, 1)))
    runs = expit(centre + sd * draw.standard_normal((DRAWS, CELLS + 1, max(REPEATS, n))))
    single = expit(centre[:, 0, 0] + 0.03 * shift + sd[:, 0, 0] * draw.standard_normal(DRAWS))
    outside = np.zeros(2)
    for accs, published in zip(runs, single, strict=True):
        ours, others = accs[0, :n], accs[1:, :REPEATS]
        repeated = [*others, ours] if n > 1 else [*others]
        spread = pool(Seeds(one.mean(), one.std(ddof=1), len(one)) for one in repeated)
        assert spread is not None
        outside[0] += predict(float(ours.mean()), n, spread, published=float(published), seeds=1).p < 0.05
        variance = np.average([one.var(ddof=1) for one in repeated], weights=[len(one) - 1 for one in repeated])
        quantile = stats.t.ppf(0.975, spread.df)
        outside[1] += abs(ours.mean() - published) > quantile * np.sqrt(variance * (1 + 1 / n))
    return tuple(outside / DRAWS)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("n", "factor", "low", "high"),
    [
        (1, 1.0, 0.035, 0.065), (3, 1.0, 0.035, 0.065), (5, 1.0, 0.035, 0.065),
        (1, 1.5, 0.04, 0.09), (3, 1.5, 0.04, 0.09), (5, 1.5, 0.04, 0.09),
        (1, 2.0, 0.07, 0.12), (3, 2.0, 0.05, 0.10), (5, 2.0, 0.04, 0.09),
    ],
)  # fmt: skip
def test_false_alarms(n: int, factor: float, low: float, high: float) -> None:
    """5 of 100 where cells scatter alike as logits; more where they do not, and more on the scale of accuracies."""
    as_logits, as_they_are = simulated(n, factor)
    assert low <= as_logits <= high
    assert as_they_are > as_logits - 0.01


@pytest.mark.nightly
@pytest.mark.parametrize(("n", "least"), [(1, 0.6), (3, 0.8), (5, 0.85)])
def test_other_numbers_are_found(n: int, least: float) -> None:
    """Numbers that are 4 sd of a run away, 3 points at an accuracy of 50 %."""
    assert simulated(n, 1.0, 4.0)[0] >= least


@pytest.mark.nightly
def test_welchs_interval_of_three_and_three_seeds_covers() -> None:
    """NIID-Bench's rule: 95 of 100 or more, also where one side scatters ten times as much."""
    draw = stream(0, "simulated NIID-Bench")
    for ratio in (1.0, 3.0, 10.0):
        first, second = draw.standard_normal((2, DRAWS, 3)) * np.array([1.0, ratio]).reshape(2, 1, 1)
        covered = [
            abs(a.mean() - b.mean()) <= welch_half_width([(a.var(ddof=1) / 3, 2), (b.var(ddof=1) / 3, 2)])
            for a, b in zip(first, second, strict=True)
        ]
        assert 0.935 <= np.mean(covered) <= 0.99


@pytest.mark.nightly
@pytest.mark.parametrize(("n", "least"), [(1, 0.90), (3, 0.92)])
def test_a_seed_of_digits_that_is_left_out_lies_inside_its_interval(n: int, least: float) -> None:
    """On 2,700 cells of five seeds: one seed as if published, ``n`` of the others, and three seeds of 8 other cells."""
    runs = pd.read_parquet(Path(__file__).parents[2] / "results" / "digits.parquet")
    fields = pd.json_normalize([json.loads(one) for one in runs["experiment"]], max_level=0).astype(str)
    last = [json.loads(lines.splitlines()[-1]).get("acc", np.nan) for lines in runs["metrics"]]
    done = [json.loads(one)["status"] == "done" for one in runs["result"]]
    fields["acc"] = np.where(done, last, np.nan)
    others = [name for name in fields if name not in ("seed", "acc", "partition")]
    draw, inside, tested = stream(0, "left out", n), 0, 0
    for _, level in fields.dropna(subset="acc").groupby("partition", dropna=False):
        cells = [draw.permutation(one) for _, one in level.groupby(others, dropna=False)["acc"] if len(one) == 5]
        for place, values in enumerate(cells):
            some = draw.choice(len(cells) - 1, 8, replace=False)
            known = [cells[index + (index >= place)][:3] for index in some] + [values[1 : n + 1]]
            spread = pool(Seeds(one.mean(), one.std(ddof=1), len(one)) for one in known if len(one) > 1)
            assert spread is not None
            tested += 1
            inside += predict(values[1 : n + 1].mean(), n, spread, published=values[0], seeds=1).p >= 0.05
    assert tested > 2000
    assert inside / tested >= least
    print(n, inside / tested, tested)
