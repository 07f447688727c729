"""The claim that a higher rank raises accuracy, on synthetic doses of FedDecorr's penalty with known effects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flbench.papers.label_skew.claims_by_seed import RANK_DOSES
from flbench.report.claims import Claim
from tests.papers.label_skew.probed_sweeps import Measured, board, probed_runs, syntheses_of

Effect = Callable[[float], float]

DOSES = [{"name": "feddecorr", "coefficient": dose} for dose in (0, 0.3, 1)]


def claim(rank: Effect, acc: Effect) -> Claim:
    """The claim where a dose adds to the rank and to accuracy what the functions say."""

    def measure(request: Any) -> Measured:
        dose = request.method.coefficient
        shake = 0.0003 * ((7 * request.seed + 3) * (1 + round(10 * dose)) % 13)
        return Measured(0.8 + acc(dose) + shake, rank=5 + rank(dose) + 10 * shake)

    axes: dict[str, Any] = {"methods": DOSES, "norms": ["none", "fn"], "rates": (0.1,), "seeds": range(6)}
    (found,) = syntheses_of(board(probed_runs(measure, **axes)))
    return next(one for one in found.claims if one.text == RANK_DOSES[0])


@pytest.mark.parametrize(
    ("rank", "acc", "verdict"),
    [
        (lambda dose: dose, lambda dose: 0.1 * dose, "holds"),
        (lambda dose: dose, lambda dose: 0.1 * (dose == 1), "in part"),
        (lambda dose: dose, lambda dose: 0.0, "does not hold"),
        (lambda dose: dose, lambda dose: -0.1 * dose, "does not hold"),
        (lambda dose: -dose, lambda dose: 0.1 * dose, "inconclusive"),
        (lambda dose: 0.0, lambda dose: 0.1 * dose, "inconclusive"),
    ],
)
def test_accuracy_is_judged_at_the_doses_that_raise_the_rank(rank: Effect, acc: Effect, verdict: str) -> None:
    assert claim(rank, acc).verdict == verdict


def test_the_evidence_counts_doses_and_says_by_how_much() -> None:
    found = claim(lambda dose: dose, lambda dose: 0.1 * (dose == 1))
    assert found.evidence.startswith(
        "4 doses, each at a fixed normalization and learning rate, paired by seed. 4 raise"
    )
    assert "shown to be more in 2, less in 0, equivalent within 1 point in 2." in found.evidence


def test_other_methods_with_a_coefficient_make_no_doses() -> None:
    (found,) = syntheses_of(
        board(probed_runs(lambda request: Measured(0.8), methods=["fedavg", "fedprox"], norms=["none"]))
    )
    assert RANK_DOSES[0] not in [one.text for one in found.claims]
