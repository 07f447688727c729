"""Golden numbers, invariants and mutations of FedBABU, and of the fine-tuning that its evaluation needs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flbench.engine.finetuning import finetuned
from flbench.engine.optimizers import Adam, Sgd
from flbench.registry import METHODS
from tests.conformance.problem import (
    H0,
    LABELS,
    LR,
    PIXELS,
    ROUNDS,
    SHARE,
    V0,
    Array,
    TwoLayers,
    assert_close,
    batches,
    both_executors,
    mean,
    softmax_error,
    trained,
)
from tests.mutation.mutations import mutations_of
from tests.toys import everything, record_of, toy_network, toy_trainer, train

STEPS = 2


def descended(hidden: Array, head: Array, client: int, round: int, steps: int, head_lr: float) -> tuple[Array, Array]:
    """Return both layers after local SGD: with dz the softmax error, dH = dz^T (V p) and dV = (dz H)^T p."""
    for pixels, labels in batches(client, round, steps):
        error = softmax_error(pixels @ hidden.T @ head.T, labels)
        of_head, of_hidden = error.T @ (pixels @ hidden.T), (error @ head).T @ pixels
        hidden, head = hidden - LR * of_hidden, head - head_lr * of_head
    return hidden, head


@both_executors
def test_fedbabu_and_fine_tuning(executor: str) -> None:
    """The whole network is fine-tuned, from the server's, on the batches of the coming round."""
    hidden = V0.copy()
    for round in range(ROUNDS):
        hidden = mean(SHARE, [descended(hidden, H0, client, round, 3, 0.0)[0] for client in range(3)])
    trainer = trained("fedbabu", executor, network=TwoLayers(), finetune=STEPS)
    assert_close(trainer.x["hidden.weight"], hidden)
    assert torch.equal(trainer.x["head.weight"], torch.from_numpy(H0))
    tuned = list(finetuned(trainer.run, trainer.model, STEPS, trainer.round))
    accuracies = []
    for client, (params, _) in enumerate(tuned):
        own_hidden, own_head = descended(hidden, H0, client, ROUNDS, STEPS, LR)
        assert_close(params["hidden.weight"], own_hidden)
        assert_close(params["head.weight"], own_head)
        rows = np.arange(client, 6, 3)
        answers = (PIXELS[rows] / 16 @ own_hidden.T @ own_head.T).argmax(axis=1)
        accuracies.append(float((answers == LABELS[rows]).mean()))
    record = record_of(trainer)
    assert record["clients_finetuned"] == accuracies
    assert record["acc_finetuned"] == pytest.approx(sum(accuracies) / 3)
    assert record["acc_finetuned_worst"] == min(accuracies)


@pytest.mark.parametrize("sgd", [Sgd(0.1, 0.9, 0.01), Adam(0.01, weight_decay=0.1, decoupled=True)])
def test_no_part_of_the_head_moves(sgd: Sgd) -> None:
    network = toy_network(bias=True, head={"name": "cosine", "learned": True})
    trainer = toy_trainer(METHODS.parse("fedbabu"), network=network, sgd=sgd)
    before = trainer.x
    train(2, trainer)
    for name, leaf in trainer.x.items():
        assert torch.equal(leaf, before[name]) == name.startswith("head."), name
    assert sum(name.startswith("head.") for name in before) > 1


@both_executors
@pytest.mark.parametrize("norm", ["none", "bn"])
@pytest.mark.parametrize("method", ["scaffold", "fedbn", "fedper"])
def test_fine_tuning_changes_no_training(executor: str, norm: str, method: str) -> None:
    trainers = [toy_trainer(METHODS.parse(method), executor=executor, norm=norm, finetune=n) for n in (0, 3)]
    for _ in range(2):
        train(1, *trainers)
        plain, tuned = (record_of(trainer) for trainer in trainers)
        assert plain == {name: value for name, value in tuned.items() if "finetuned" not in name}
        assert tuned.keys() - plain.keys() == {"acc_finetuned", "acc_finetuned_worst", "clients_finetuned"}
    one, other = map(everything, trainers)
    assert all(torch.equal(leaf, other[name]) for name, leaf in one.items())


MUTATIONS = mutations_of(
    "fedbabu",
    ("the head is trained", "leaf.new_zeros(leaf.shape)", "leaf"),
    ("the body is fixed", "if is_of_head(name)", "if not is_of_head(name)"),
    ("the head's weight alone is fixed", "is_of_head(name)", "name == ctx.head"),
)
