"""Personal evaluation of every method that has models of its own on clients, and of FedAvg after fine-tuning.

Own test shard, its mean over clients and its worst client, before and after fine-tuning, computed in numpy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flbench.engine.federated import FederatedTrainer
from flbench.methods.base import Method
from flbench.registry import METHODS
from tests.conformance.problem import (
    LABELS,
    LR,
    PIXELS,
    ROUNDS,
    SIZES,
    Array,
    TwoLayers,
    batches,
    images,
    softmax_error,
    trained,
)
from tests.plugins.loading import method_of
from tests.toys import record_of, toy_clients

PLUGINS = Path(__file__).parents[1] / "plugins/methods"
STEPS = 2

#: The answers (M,) of a client, from features (M, D), its head (Y, D) and the trainer.
Answers = Callable[[Array, Array, FederatedTrainer, int], Array]


def by_logits(features: Array, head: Array, trainer: FederatedTrainer, client: int) -> Array:
    return np.asarray((features @ head.T).argmax(axis=1))


def by_both_heads(features: Array, head: Array, trainer: FederatedTrainer, client: int) -> Array:
    own = trainer.local["personal"][client].numpy()
    return by_logits(features, head + own, trainer, client)


def by_prototypes(features: Array, head: Array, trainer: FederatedTrainer, client: int) -> Array:
    apart = features[:, None] - trainer.server["prototypes"].numpy()
    return np.asarray((apart**2).sum(axis=2).argmin(axis=1))


#: How each method answers, and whether clients have models of their own before fine-tuning.
CASES: dict[str, tuple[Method, Answers, bool]] = {
    "fedavg": (Method(), by_logits, False),
    "fedbabu": (METHODS.parse("fedbabu"), by_logits, False),
    "fedper": (METHODS.parse("fedper"), by_logits, True),
    "fedrep": (METHODS.parse("fedrep"), by_logits, True),
    "ditto": (METHODS.parse("ditto"), by_logits, True),
    "fedproto": (METHODS.parse("fedproto"), by_prototypes, True),
    "fedrod": (method_of(PLUGINS / "fedrod.py")(), by_both_heads, True),
    "fedala": (method_of(PLUGINS / "fedala.py")(eta=3.0), by_logits, True),
}


@pytest.mark.parametrize("name", CASES)
def test_own_shards_before_and_after_fine_tuning(name: str) -> None:
    method, answers, is_personal = CASES[name]
    everything = images()
    given = {
        "images": replace(everything, test_MCHW=everything.train_MCHW, test_labels_M=everything.train_labels_M),
        "clients": toy_clients(SIZES, test=len(LABELS)),
        "network": TwoLayers(),
        "finetune": STEPS,
    }
    trainer = trained(method, "loop" if method.trains else "stacked", **given)
    record = record_of(trainer)
    models = [trainer.model(client)[0] for client in range(3)]
    assert any((models[0][leaf] != models[1][leaf]).any() for leaf in models[0]) == (is_personal and name != "fedrod")
    own: dict[str, list[float]] = {"before": [], "after": []}
    for client, model in enumerate(models):
        v, h = model["hidden.weight"].numpy(), model["head.weight"].numpy()
        rows = np.arange(client, len(LABELS), 3)
        own["before"].append(float((answers(PIXELS[rows] / 16 @ v.T, h, trainer, client) == LABELS[rows]).mean()))
        for pixels, labels in batches(client, ROUNDS, STEPS):
            error = softmax_error(pixels @ v.T @ h.T, labels)
            v, h = v - LR * (error @ h).T @ pixels, h - LR * error.T @ (pixels @ v.T)
        own["after"].append(float((answers(PIXELS[rows] / 16 @ v.T, h, trainer, client) == LABELS[rows]).mean()))
    names = {"before": "personal", "after": "finetuned"} if is_personal else {"after": "finetuned"}
    for when, found in names.items():
        assert record[f"clients_{found}"] == own[when]
        assert record[f"acc_{found}"] == pytest.approx(sum(own[when]) / 3)
        assert record[f"acc_{found}_worst"] == min(own[when])
    if not is_personal:  # one model for all: its accuracy on own shards is ``acc``
        assert "acc_personal" not in record
        assert (record["clients"], record["acc_worst"]) == (own["before"], min(own["before"]))
    if name in ("fedavg", "fedbabu", "fedrod", "fedala"):
        assert own["before"] != own["after"], "fine-tuning changes some answers of this small problem"
