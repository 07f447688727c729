"""What the pages say of FedYogi's local steps with one class, recomputed."""

from __future__ import annotations

import pandas as pd
import pytest

from tests.audit import pages
from tests.audit.planned import WITHIN, judge
from tests.audit.runs import federated
from tests.audit.tables import values

#: The data sets with the learning rate that is best for ten local steps, and the file and column that says so.
BEST = {"digits": ("skew", ("classes:1", 10)), "fashion_mnist": ("constants", ("classes:1",))}

SECTION = "FedYogi: one local step"


def accuracies(dataset: str) -> pd.DataFrame:
    """Return the accuracy of each seed (rows) by local steps, the mean of the last five evaluations."""
    return federated("fedyogi_steps").query("dataset == @dataset").pivot(index="seed", columns="E", values="value")


@pytest.mark.slow
def test_one_and_two_steps_end_where_ten_do() -> None:
    text = []
    for dataset in BEST:
        of = accuracies(dataset)
        assert len(of) == 10
        found = pages.planned(pages.section(pages.details("fedyogi-steps"), f"{dataset}, mlp(widths=[64, 64])"))
        for steps, one in zip((1, 2), judge([of[steps] - of[10] for steps in (1, 2)]), strict=True):
            numbers, verdict, *_ = found[f"E {steps} against 10", "accuracy"].split("<br>")
            # Means of multiples of 0.01 % may lie between two rounded numbers.
            expected = pytest.approx([one.mean, one.half_width], rel=0, abs=0.005 + 1e-9)
            assert [float(number) for number in numbers.split(" ± ")] == expected
            assert one.verdict == WITHIN and verdict == f"<sub>{WITHIN}</sub>"
            text.append(numbers.removeprefix("+"))
    of_digits, of_fashion = text[:2], text[2:]
    assert (
        f"one step differs from ten by {of_digits[0]} points on digits and {of_fashion[0]} on Fashion-MNIST, two steps "
        f"by {of_digits[1]} and {of_fashion[1]}; all four"
    ) in pages.plain(pages.section(pages.details("README"), SECTION))


@pytest.mark.slow
def test_the_rates_are_the_best_of_ten_steps() -> None:
    said = pages.plain(pages.section(pages.details("README"), SECTION))
    means, last = [], []
    for dataset, at in BEST.items():
        best = values(at).loc["fedyogi", "none", "linear"]
        means.append(f"{best['mean']:.1f} ± {best['half_width']:.1f}")
        last.append(f"{best['last']:.1f}")
        assert 100 * accuracies(dataset)[10].mean() == pytest.approx(best["mean"], abs=0.1)
    assert (
        f"it is after 100 rounds at {means[0]} and {means[1]} % (last {last[0]} and {last[1]}) with ten local steps a "
        "round"
    ) in said


@pytest.mark.slow
def test_where_such_rates_fail() -> None:
    runs = federated("skew").query("method == 'fedyogi' and norm == 'none' and E == 10 and partition != 'classes:1'")
    none, ln = (values(("skew", ("classes:1", 1))).loc[("fedavg", norm, "linear"), "mean"] for norm in ("none", "ln"))
    large = runs[runs.lr > 3]
    said = pages.plain(pages.section(pages.details("README"), SECTION))
    assert f"(digits after 100 rounds: {none:.1f} % without, {ln:.1f} % with layer normalization)" in said
    assert f"from {large.lr.min():.1f} on" in said
    assert large.value.fillna(0).max() < 0.17
    best = runs.groupby(["partition", "lr"]).score.mean().unstack().idxmax(axis=1)
    assert sorted({f"{rate:.1g}" for rate in best}) == ["0.3", "1"] and "the best rates are 0.3 and 1." in said
