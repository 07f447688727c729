"""Golden numbers, invariants and mutations of Ditto, and of second sets of weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flbench.errors import UserError
from flbench.methods.base import Method
from flbench.methods.feddyn import FedDyn
from flbench.registry import METHODS
from tests.conformance.methods.cases import Case, values
from tests.conformance.problem import (
    LABELS,
    LR,
    NAMES,
    PIXELS,
    ROUNDS,
    SHARE,
    SIZES,
    UNEQUAL,
    W0,
    Array,
    Labels,
    Normed,
    SoftmaxRegression,
    assert_close,
    batches,
    both_executors,
    evaluated_features,
    gradient,
    local_sgd,
    mean,
    softmax_error,
    trained,
)
from tests.mutation.mutations import mutations_of
from tests.toys import largest_difference, record_of, toy_clients, toy_trainer, train

#: Its shared model is FedAvg's, whatever lam is.
CASES = {"ditto": Case([{}], values("lam", 1.0, 0.0, 0.1, 3.0), has_effect=False)}


@both_executors
def test_ditto(executor: str) -> None:
    """With momentum and unequal steps; both sets of weights see the same batches."""
    x, own = W0.copy(), [W0.copy() for _ in SIZES]
    for round in range(ROUNDS):
        start = x

        def pulled(weights: Array, pixels: Array, labels: Labels, to: Array = start) -> Array:
            return gradient(weights, pixels, labels) + 0.3 * (weights - to)

        same = [{"client": k, "round": round, "steps": UNEQUAL[k], "momentum": 0.5} for k in range(3)]
        own = [local_sgd(own[k], of=pulled, **same[k]) for k in range(3)]
        x = mean(SHARE, [local_sgd(x, **same[k]) for k in range(3)])
    trainer = trained({"name": "ditto", "lam": 0.3}, executor, steps=UNEQUAL, momentum=0.5)
    assert trainer.local.keys() == {"twin/head.weight"}
    assert_close(trainer.x["head.weight"], x)
    assert_close(trainer.local["twin/head.weight"], np.stack(own))


@both_executors
def test_dittos_models_have_their_own_batch_statistics_and_are_evaluated(executor: str) -> None:
    def step(model: Normed, pixels: Array, labels: Labels, lam: float, to: Normed) -> Normed:
        scale, shift, weights, centre, spread = model
        unit = (pixels - pixels.mean(axis=0)) / np.sqrt(pixels.var(axis=0) + 1e-5)
        features = unit * scale + shift
        error = softmax_error(features @ weights.T, labels)
        back = error @ weights
        moved = (back * unit).sum(axis=0), back.sum(axis=0), error.T @ features
        params = (p - LR * (g + lam * (p - x)) for p, g, x in zip((scale, shift, weights), moved, to[:3], strict=True))
        statistics = 0.9 * centre + 0.1 * pixels.mean(axis=0), 0.9 * spread + 0.1 * pixels.var(axis=0, ddof=1)
        return (*params, *statistics)  # type: ignore[return-value]

    server: Normed = (np.ones(2), np.zeros(2), W0.copy(), np.zeros(2), np.ones(2))
    own = [server for _ in SIZES]
    for round in range(ROUNDS):
        sent = [server for _ in SIZES]
        for client in range(3):
            for pixels, labels in batches(client, round):
                own[client] = step(own[client], pixels, labels, 0.8, server)
                sent[client] = step(sent[client], pixels, labels, 0.0, server)
        server = tuple(mean(SHARE, leaves) for leaves in zip(*sent, strict=True))  # type: ignore[assignment]
    trainer = trained({"name": "ditto", "lam": 0.8}, executor, network=SoftmaxRegression(batch_norm=True))
    for leaf, name in enumerate(NAMES):
        assert_close({**trainer.x, **trainer.buffers}[name], server[leaf])
        assert_close(trainer.local[f"twin/{name}"], np.stack([model[leaf] for model in own]))
    logits = [evaluated_features(model, PIXELS[:6] / 16) @ model[2].T for model in own]
    right = [each.argmax(axis=1) == LABELS[:6] for each in logits]
    record = record_of(trainer)
    assert record["clients"] == [float(each.mean()) for each in right]
    assert record["clients_personal"] == [float(each[client::3].mean()) for client, each in enumerate(right)]


def test_dittos_shared_model_is_fedavgs_and_without_lam_its_own_are_trained_alone() -> None:
    ditto, fedavg, alone = (
        toy_trainer(METHODS.parse(method), norm="bn", participation=0.67)
        for method in ({"name": "ditto", "lam": 0}, "fedavg", "local-only")
    )
    train(3, ditto, fedavg, alone)
    assert largest_difference(ditto.x, fedavg.x) == largest_difference(ditto.buffers, fedavg.buffers) == 0
    own = {name.removeprefix("twin/"): leaf for name, leaf in ditto.local.items()}
    assert largest_difference(own, alone.local) == 0
    assert ditto.bytes_up == fedavg.bytes_up and ditto.bytes_down == fedavg.bytes_down
    chosen: Method = METHODS.parse("ditto")
    assert chosen.is_personal and chosen.keeps_statistics and chosen == METHODS.parse({"name": "ditto", "lam": 1.0})


def test_a_diverged_second_model_is_detected() -> None:
    trainer = toy_trainer(METHODS.parse("ditto"), clients=toy_clients((20, 14)))
    trainer.step()
    trainer.local["twin/head.weight"][1, 0, 0] = float("nan")
    trainer.step()
    assert trainer.diverged_in() == 2 and bool(torch.isfinite(trainer.x["head.weight"]).all())


class OfFedDyn(Method):
    def twin(self) -> Method:
        return FedDyn()


class OfNothing(Method):
    def twin(self) -> Method:
        return 1.0  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (OfFedDyn(), "returned feddyn, whose hook delta_weights a second set of weights cannot have"),
        (OfNothing(), "returned 1.0; expected a method, or None"),
    ],
)
def test_a_wrong_twin_is_refused(method: Method, message: str) -> None:
    with pytest.raises(UserError, match=message):
        toy_trainer(method)


MUTATIONS = mutations_of(
    "ditto",
    ("no pull", "+ self.lam * (leaf - x)", "+ 0.0 * (leaf - x)"),
    ("twice the pull", "lam=self.lam", "lam=2 * self.lam"),
    ("half the pull", "+ self.lam * (leaf - x)", "+ self.lam / 2 * (leaf - x)"),
    ("pushed away", "(leaf - x)", "(x - leaf)"),
    ("the pull alone", "gradient + self.lam", "self.lam"),
    ("always the default", "lam=self.lam", ""),
    ("lam by default", "Field(ge=0)] = 1.0", "Field(ge=0)] = 0.1"),
    ("no model of the client's own", "return Pulled(lam=self.lam)", "return None"),
    ("statistics of a policy", "keeps_statistics: ClassVar[bool] = True", "keeps_statistics: ClassVar[bool] = False"),
)
