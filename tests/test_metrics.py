"""Metrics compared with numbers computed by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from flbench import metrics
from flbench.metric_specs import METRICS


def logits_for(predicted: list[int], classes: int = 3) -> Tensor:
    return torch.nn.functional.one_hot(torch.tensor(predicted), classes).double() * 4


LABELS = torch.tensor([0, 0, 0, 1, 1, 2])
PREDICTED = [0, 0, 1, 1, 0, 2]  # right: rows 0, 1, 3, 5
SHARDS = [torch.tensor([0, 1, 2]), torch.tensor([4]), torch.tensor([], dtype=torch.int64), torch.tensor([3, 5])]


def test_shared_model() -> None:
    record = metrics.shared_model(logits_for(PREDICTED), LABELS, SHARDS)
    assert record["clients"] == [pytest.approx(2 / 3), 0.0, None, 1.0]
    assert record["clients_tested"] == 3
    assert record["acc"] == pytest.approx((2 / 3 + 0 + 1) / 3)
    assert record["acc_weighted"] == pytest.approx((2 + 0 + 2) / 6)
    assert record["acc_worst"] == 0.0
    mean = 5 / 9
    assert record["acc_sd"] == pytest.approx(math.sqrt(((2 / 3 - mean) ** 2 + mean**2 + (1 - mean) ** 2) / 3))
    assert record["acc_global"] == pytest.approx(4 / 6)
    assert record["recall"] == [pytest.approx(2 / 3), 0.5, 1.0]
    right, wrong = -math.log(math.e**4 / (math.e**4 + 2)), -math.log(1 / (math.e**4 + 2))
    assert record["loss"] == pytest.approx((4 * right + 2 * wrong) / 6)


def test_a_class_without_test_samples_has_no_recall() -> None:
    assert metrics.whole_set(logits_for([0, 1]), torch.tensor([0, 1]))["recall"] == [1.0, 1.0, None]


def test_personal_models_rank_by_the_whole_test_set() -> None:
    """A client that always predicts its own class scores 1 on its shard and the class's share on the whole set."""
    constant = torch.stack([logits_for([0] * 6), logits_for([1] * 6)])
    own = [torch.tensor([0, 1, 2]), torch.tensor([3, 4])]
    record = metrics.personal_models(constant, LABELS, own)
    assert record["acc_personal"] == 1.0
    assert record["acc"] == record["acc_global"] == pytest.approx((3 / 6 + 2 / 6) / 2)
    assert record["acc_worst"] == pytest.approx(2 / 6)
    assert record["recall"] == [0.5, 0.5, 0.0]


def test_whole_set_has_no_client_keys() -> None:
    record = metrics.whole_set(logits_for(PREDICTED), LABELS)
    assert record["acc"] == record["acc_global"] == pytest.approx(4 / 6)
    assert not {"clients", "acc_worst", "acc_weighted"} & record.keys()


def test_a_metric_of_the_logits_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    def margin(logits_MY: Tensor, labels_M: Tensor) -> float:
        return float((logits_MY[torch.arange(len(labels_M)), labels_M]).mean())

    monkeypatch.setattr(METRICS, "_entries", dict(METRICS))
    METRICS.register("margin", "margin", "mean logit of the true class", percent=False)(margin)
    logits = logits_for(PREDICTED)
    assert metrics.shared_model(logits, LABELS, SHARDS)["margin"] == metrics.whole_set(logits, LABELS)["margin"]
    personal = metrics.personal_models(torch.stack([logits, 2 * logits]), LABELS, SHARDS[:2])
    assert personal["margin"] == pytest.approx(1.5 * 4 * 4 / 6)


def test_no_client_has_test_data() -> None:
    empty = [torch.tensor([], dtype=torch.int64)] * 2
    record = metrics.shared_model(logits_for(PREDICTED), LABELS, empty)
    assert record["acc"] is None
    assert record["clients_tested"] == 0
    assert record["acc_global"] == pytest.approx(4 / 6)


def test_a_difference_of_nearly_nothing_has_no_minus() -> None:
    assert METRICS["acc"].change(-0.00001) == METRICS["acc"].change(0.0) == "+0.00"
    assert METRICS["acc"].change(-0.0001) == "-0.01"


def test_means_have_the_bits_of_python_3_11() -> None:
    """Ten clients with one of ten samples right: ``sum`` makes 1.0 of their accuracies since Python 3.12."""
    shards = list(torch.arange(100).view(10, 10))
    labels = torch.zeros(100, dtype=torch.int64)
    logits = logits_for([0 if row % 10 == 0 else 1 for row in range(100)])
    shared = metrics.shared_model(logits, labels, shards)
    assert shared["clients"] == [0.1] * 10
    assert shared["acc"] == 0.09999999999999999
    assert shared["acc_sd"] == 1.3877787807814457e-17
    assert metrics.personal_models(logits.expand(10, -1, -1), labels, shards)["acc_personal"] == 0.09999999999999999
