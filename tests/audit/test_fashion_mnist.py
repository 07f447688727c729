"""The table of Fashion-MNIST's planned comparisons in docs/results/README.md."""

from __future__ import annotations

import pytest

from tests.audit import pages
from tests.audit.leaderboard import planned_table
from tests.audit.planned import comparisons

#: The columns, by skew.
HEADS = ["iid", "dirichlet:0.1", "classes:2", "classes:1"]


@pytest.mark.slow
def test_the_planned_comparisons_of_fashion_mnist() -> None:
    gains = [one for one in comparisons("skew_fashion_mnist") if not one.between]
    assert planned_table(gains, HEADS) in pages.tables(pages.details("README"))


@pytest.mark.slow
def test_the_part_of_the_gains_that_skew_adds() -> None:
    added = {one.value: one for one in comparisons("skew_fashion_mnist") if one.between}
    said = ", ".join(f"{norm} {one.mean:+.2f} ± {one.half_width:.2f} ({one.verdict})" for norm, one in added.items())
    assert f"Gain with one class minus gain with iid data: {said}" in pages.plain(pages.details("README"))
