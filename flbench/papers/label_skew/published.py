"""The label-skew paper's published numbers, and which configurations of flbench they belong to.

``published.csv`` beside this file holds every accuracy of tables 1-6 and 10-14 of Zhang et al. 2024 (arXiv
2308.09565v2) in percent, with the settings that the paper gives, in flbench's names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from flbench.config import Federated, Training
from flbench.papers.published_numbers import PublishedNumber, other_content, published_lines
from flbench.registry import PARTITIONS

#: Fields that may differ from the paper's; all others that are not in ``Configuration`` must be its defaults.
_FREE = frozenset({"kind", "seed", "rounds", "eval_every", "probes", "precision", "min_size", "augment"})


class Configuration(NamedTuple):
    """The settings of a published number; ``groups`` belongs to the norm."""

    dataset: str
    model: str
    partition: str
    clients: int
    local_steps: int
    bias: bool
    lr: float
    batch_size: int
    method: str
    norm: str
    groups: int | None

    @property
    def place(self) -> tuple[str, str]:
        """Data set and model."""
        return self.dataset, self.model

    @property
    def column(self) -> tuple[Any, ...]:
        """Everything but method and norm: the settings that a column of a table shares."""
        return self[:-3]


@dataclass(frozen=True)
class PublishedRow(PublishedNumber):
    """One number of the paper's tables."""

    table: str
    configuration: Configuration

    @property
    def source(self) -> str:
        """The paper's table."""
        return f"table {self.table}"


@cache
def published_rows() -> tuple[PublishedRow, ...]:
    """Return every published number, in the order of the paper's tables."""
    return tuple(_row(line) for line in published_lines(__file__))


def _row(line: dict[str, str]) -> PublishedRow:
    configuration = Configuration(
        dataset=line["dataset"],
        model=line["model"],
        partition=PARTITIONS.parse(line["partition"]).label(),
        clients=int(line["clients"]),
        local_steps=int(line["local_steps"]),
        bias=line["bias"] == "true",
        lr=float(line["lr"]),
        batch_size=int(line["batch_size"]),
        method=line["method"],
        norm=line["norm"],
        groups=int(line["groups"]) if line["groups"] else None,
    )
    seeds, rounds = int(line["seeds"]), int(line["rounds"])
    return PublishedRow.of_line(line, seeds=seeds, rounds=rounds, table=line["table"], configuration=configuration)


def configuration_of(experiment: Training) -> Configuration | None:
    """Return the published configuration that an experiment may be, or None where some setting is not the paper's.

    Hyperparameters must be their defaults, which are the paper's; ``variant`` is free: it chooses between sources.
    """
    if not isinstance(experiment, Federated) or not isinstance(experiment.local_steps, int):
        return None
    known = {*Configuration._fields, *_FREE}
    dataset: Any = experiment.dataset
    others = (experiment.has_default(name) for name in type(experiment).model_fields if name not in known)
    components = [experiment.dataset, experiment.model, experiment.method, experiment.norm]
    if experiment.augment != dataset.augment or not all(others):
        return None
    if any(component.settings().keys() - {"variant", "groups", "content"} for component in components):
        return None
    return Configuration(
        dataset=experiment.dataset.name,
        model=experiment.model.name,
        partition=experiment.partition.label(),
        clients=experiment.clients,
        local_steps=experiment.local_steps,
        bias=experiment.bias,
        lr=experiment.lr,
        batch_size=experiment.batch_size,
        method=experiment.method.name,
        norm=experiment.norm.name,
        groups=getattr(experiment.norm, "groups", None),
    )


#: Data sets that differ from the paper's, with the difference.
OTHER_DATA: dict[str, str] = {"pacs": "64 pixels, the paper's code has 224"}


def other_data(experiment: Training, fingerprint: str | None, samples: str | None) -> str | None:
    """Return why an experiment's data are not those of the paper, or None; arguments as for ``other_content``."""
    dataset: Any = experiment.dataset
    return OTHER_DATA.get(dataset.name) or other_content(experiment, fingerprint, samples)


#: Remarks, each with the published numbers that it concerns.
_REMARKS: tuple[tuple[Callable[[Configuration], bool], str], ...] = (
    (
        lambda c: c.method == "scaffold",
        "the published code's control variates stay 0 by a mistake, so that its SCAFFOLD is FedAvg; here they work",
    ),
    (
        lambda c: c.norm == "bn" and c.model == "cnn",
        "the published code shares one BatchNorm among all clients, which uses the statistics of the batch at hand in "
        "tests too, so that FedAvg + BN and FedBN are one computation; here each client has its own",
    ),
    (
        lambda c: c.method == "fedbn",
        "there is no shared model; ours is the mean over clients of the client's own model on the whole test set",
    ),
    (
        lambda c: c.method == "fedlc" and c.partition == "classes:1",
        "with one class the local loss is 0 whatever the weights, so this is the accuracy of the untrained network",
    ),
    (
        lambda c: c.method == "feddecorr",
        "the paper's text has the coefficient 0.5 (variant: text), its code 0.1 (variant: code)",
    ),
    (
        lambda c: c.norm == "ln" and c.model == "cnn",
        "in the published code the CNN's affine maps are never trained; here they are",
    ),
)


def remarks(row: PublishedRow) -> list[str]:
    """Return the remarks on a published number: contradictions in the paper, mistakes in its code."""
    known = [text for concerns, text in _REMARKS if concerns(row.configuration)]
    return [*known, *filter(None, row.note.split("; "))]
