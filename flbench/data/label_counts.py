"""How many samples of each class each client holds. Shapes: K clients, C classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flbench.data.arrays import Data, Ints
from flbench.data.shards import Shards


@dataclass(frozen=True)
class LabelCounts:
    """Samples per client and class; of a data set with domains, also the domains of each client's training samples."""

    class_names: tuple[str, ...]
    train_KC: Ints
    test_KC: Ints
    domains_K: tuple[tuple[str, ...], ...] = ()

    def client_names(self) -> tuple[str, ...]:
        """Return each client's number, followed by the name of its domain where it has exactly one."""
        single = [f" {names[0]}" if len(names) == 1 else "" for names in self.domains_K] or [""] * len(self.train_KC)
        return tuple(f"{client}{domain}" for client, domain in enumerate(single))


def count_labels(data: Data, shards: Shards) -> LabelCounts:
    """Count the classes of each client's training rows and test rows."""
    train, test = (
        np.stack([np.bincount(np.asarray(labels)[mine], minlength=data.classes) for mine in rows])
        for labels, rows in ((data.train.labels, shards.train), (data.test.labels, shards.test))
    )
    domains: list[tuple[str, ...]] = []
    if data.train.domains is not None:
        held = (np.unique(data.train.domains[mine]) for mine in shards.train)
        domains = [tuple(data.domain_names[number] for number in numbers) for numbers in held]
    return LabelCounts(data.class_names, train, test, tuple(domains))
