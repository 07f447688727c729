"""The plug-in FedRoD against a program that shares nothing with it but the rows of the batches."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import numpy as np

from flbench.testing import check_method
from tests.conformance.problem import (
    COUNTS,
    H0,
    LABELS,
    LR,
    PIXELS,
    ROUNDS,
    SHARE,
    V0,
    TwoLayers,
    assert_close,
    batches,
    both_executors,
    mean,
    softmax_error,
    trained,
)
from tests.plugins.loading import method_of
from tests.toys import record_of

FedRoD = method_of(Path(__file__).parent / "methods/fedrod.py")


@both_executors
def test_fedrod(executor: str) -> None:
    """Generic: dz = softmax(z + log counts) - onehot(y), for H and V. Personal: of z + f P^T, for P alone."""
    hidden, head, own = V0.copy(), H0.copy(), [H0.copy() for _ in SHARE]
    with np.errstate(divide="ignore"):
        prior = np.log(COUNTS)
    for round in range(ROUNDS):
        ends = []
        for client in range(3):
            v, h = hidden.copy(), head.copy()
            for pixels, labels in batches(client, round):
                features = pixels @ v.T
                logits = features @ h.T
                generic = softmax_error(logits + prior[client], labels)
                personal = softmax_error(logits + features @ own[client].T, labels)
                v, h = v - LR * (generic @ h).T @ pixels, h - LR * generic.T @ features
                own[client] = own[client] - LR * personal.T @ features
            ends.append((v, h))
        hidden, head = (mean(SHARE, leaves) for leaves in zip(*ends, strict=True))
    trainer = trained(FedRoD(), executor, network=TwoLayers())
    assert_close(trainer.x["hidden.weight"], hidden)
    assert_close(trainer.x["head.weight"], head)
    assert_close(trainer.local["personal"], np.stack(own))
    features = PIXELS[:6] / 16 @ hidden.T
    right = [(features @ (head + p).T).argmax(axis=1) == LABELS[:6] for p in own]
    record = record_of(trainer)
    assert record["clients"] == [float(each.mean()) for each in right]
    assert record["acc_personal_worst"] == min(float(each[client::3].mean()) for client, each in enumerate(right))
    weights = trainer.x["hidden.weight"].numel() + trainer.x["head.weight"].numel()
    assert trainer.bytes_up == 8 * 3 * ROUNDS * weights, "the personal heads are not sent"


def test_fedrod_is_trained_alike_in_every_way() -> None:
    check_method(FedRoD())


def test_the_page_shows_the_hooks_of_the_plug_in() -> None:
    page = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
    shown = page.partition("<!-- part of tests/plugins/methods/fedrod.py -->\n```text\n")[2].partition("```")[0]
    source = (Path(__file__).parent / "methods/fedrod.py").read_text(encoding="utf-8")
    assert shown and indent(shown, "    ").strip() in source
