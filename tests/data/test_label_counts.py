from __future__ import annotations

import numpy as np

from flbench.data.arrays import Arrays, Data
from flbench.data.shards import LabelCounts, count_labels, split
from flbench.registry import PARTITIONS


def test_rows_are_counted_by_client_and_class() -> None:
    half = Arrays(np.zeros((30, 1, 2, 2), np.uint8), np.arange(30) % 3)
    data = Data(half, half, 3, ("a", "b", "c"), 255, "0" * 16)
    shards = split(PARTITIONS.parse("classes:1"), data, clients=3, min_size=1, val_fraction=0, seed=0)
    counts = count_labels(data, shards)
    assert (np.sort(counts.train_KC, axis=1) == [[0, 0, 10]] * 3).all()
    assert (counts.test_KC == counts.train_KC).all()
    assert counts.class_names == ("a", "b", "c")
    assert counts.client_names() == ("0", "1", "2")


def test_clients_are_named_after_their_one_domain() -> None:
    domains = np.repeat(np.arange(2), 15)
    half = Arrays(np.zeros((30, 1, 2, 2), np.uint8), np.arange(30) % 3, domains)
    data = Data(half, half, 3, ("a", "b", "c"), 255, "0" * 16, ("photo", "sketch"))

    def counts(text: str) -> LabelCounts:
        return count_labels(data, split(PARTITIONS.parse(text), data, clients=4, min_size=1, val_fraction=0, seed=0))

    by_domain = counts("domain-classes:1-2")
    assert by_domain.client_names() == ("0 photo", "1 photo", "2 sketch", "3 sketch")
    assert counts("iid").client_names() == ("0", "1", "2", "3")
    assert counts("iid").domains_K == (("photo", "sketch"),) * 4
