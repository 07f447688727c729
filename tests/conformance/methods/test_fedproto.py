"""Golden numbers, invariants and mutations of FedProto."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flbench.methods.base import Method, Outputs
from flbench.registry import METHODS
from flbench.testing import check_method
from tests.conformance.methods.cases import Case, assert_penalty_gradient, batch_of, context_of, values
from tests.conformance.problem import (
    COUNTS,
    H0,
    LABELS,
    LR,
    PIXELS,
    ROUNDS,
    SIZES,
    V0,
    TwoLayers,
    assert_close,
    batches,
    both_executors,
    softmax_error,
    trained,
)
from tests.mutation.mutations import mutations_of
from tests.toys import largest_difference, record_of, toy_trainer, train

#: There are no shared parameters to compare. Clients send a mean of 6 features and a weight for each of 3 classes.
CASES = {"fedproto": Case(values=values("lam", 1.0, 0.0, 0.1, 3.0), sends=(3 * 6 + 3, 0), has_effect=False)}


@both_executors
@pytest.mark.parametrize("variant", ["original", "code"])
def test_fedproto(executor: str, variant: str) -> None:
    """Features f = V p: the penalty adds 2 lam (f - C_y) / (B D) to df. The third client is absent in no round."""
    lam, models = 0.7, [(V0.copy(), H0.copy()) for _ in SIZES]
    prototypes, known = np.zeros((3, 3)), np.zeros(3)
    ends = np.cumsum(SIZES)
    for round in range(ROUNDS):
        sums, weights = np.zeros((3, 3)), np.zeros(3)
        for client in range(3):
            v, h = models[client]
            for pixels, labels in batches(client, round):
                features = pixels @ v.T
                error = softmax_error(features @ h.T, labels)
                apart = known[labels, None] * (features - prototypes[labels])
                of_features = error @ h + 2 * lam * apart / apart.size
                v, h = v - LR * of_features.T @ pixels, h - LR * error.T @ features
            models[client] = v, h
            own = slice(ends[client] - SIZES[client], ends[client])
            features = PIXELS[own] / 16 @ v.T
            for label in set(LABELS[own]):
                weight = COUNTS[client, label] if variant == "original" else 1
                sums[label] += weight * features[LABELS[own] == label].mean(axis=0)
                weights[label] += weight
        prototypes, known = sums / weights[:, None], np.ones(3)
    method = {"name": "fedproto", "lam": lam, "variant": variant}
    trainer = trained(method, executor, network=TwoLayers())
    assert trainer.x == trainer.buffers == {}
    for name, leaf in (("hidden.weight", 0), ("head.weight", 1)):
        assert_close(trainer.local[name], np.stack([model[leaf] for model in models]))
    assert_close(trainer.server["prototypes"], prototypes)
    assert_close(trainer.server["known"], known)
    right = []
    for v, _ in models:
        apart = (PIXELS[:6] / 16 @ v.T)[:, None] - prototypes
        right.append((apart**2).sum(axis=2).argmin(axis=1) == LABELS[:6])
    record = record_of(trainer)
    assert record["clients"] == [float(each.mean()) for each in right]
    assert record["clients_personal"] == [float(each[client::3].mean()) for client, each in enumerate(right)]
    sent = 8 * 3 * ROUNDS * (9 + 3)
    assert trainer.bytes_up == sent and trainer.bytes_down == sent


def test_without_lam_clients_train_alone_and_prototypes_of_absent_classes_stay() -> None:
    fedproto, alone = (toy_trainer(METHODS.parse(one)) for one in ({"name": "fedproto", "lam": 0}, "local-only"))
    before = record_of(fedproto)
    assert before == record_of(alone), "without prototypes the network's own logits count"
    train(2, fedproto, alone)
    assert largest_difference(fedproto.local, alone.local) == 0
    chosen: Method = METHODS.parse("fedproto")
    assert chosen.is_personal and chosen.keeps_statistics and chosen.trains_head
    assert chosen == METHODS.parse({"name": "fedproto", "lam": 1.0, "variant": "original"})
    old = {"prototypes": torch.tensor([[1.0, 2.0], [3.0, 4.0], [0.0, 0.0]]), "known": torch.tensor([1.0, 1.0, 0.0])}
    message = {"sum": torch.tensor([[0.0, 0.0], [4.0, 8.0], [0.0, 0.0]]), "weight": torch.tensor([0.0, 2.0, 0.0])}
    _, new = chosen.server_step({}, {}, message, old, None)  # type: ignore[arg-type]
    assert new["prototypes"].tolist() == [[1, 2], [2, 4], [0, 0]] and new["known"].tolist() == [1, 1, 0]
    features = torch.tensor([[0.0, 0.0], [9.0, 9.0]])
    found = chosen.predict(Outputs(features, torch.zeros(2, 3)), {}, {}, new)
    assert found.tolist() == [[-5, -20, -21], [-113, -74, -114]]


def test_fedproto_is_trained_alike_in_every_way() -> None:
    check_method(METHODS.parse("fedproto"))


def test_the_gradient_by_hand() -> None:
    """Class 1 has no prototype yet."""
    features, logits = torch.linspace(-1, 2, 6, dtype=torch.float64).view(3, 2), torch.zeros(3, 3, dtype=torch.float64)
    server = {"prototypes": features.flip(1), "known": torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)}
    method = METHODS.parse({"name": "fedproto", "lam": 0.3})
    assert_penalty_gradient(method, {}, batch_of(features, logits, [2, 1, 0]), context_of({}, server=server))


MUTATIONS = mutations_of(
    "fedproto",
    ("no pull", "return self.lam * distance", "return 0.0 * distance"),
    ("sum for mean", "** 2).mean()", "** 2).sum()"),
    ("by hand: sum for mean", "(2 / batch.features_BD.numel()) * self.lam", "2 * self.lam"),
    ("by hand: halved", "(2 / batch", "(1 / batch"),
    ("by hand: lam ignored", ".numel()) * self.lam", ".numel())"),
    ("by hand: pulled to zero", "known_B.unsqueeze(1) * (2", "(2"),
    ("by hand: pushes", "(batch.features_BD - prototypes_BD).mul_", "(prototypes_BD - batch.features_BD).mul_"),
    ("pulled to zero", "known_B.unsqueeze(1) * (batch", "(batch"),
    ("clients alike", 'if self.variant == "original"', 'if self.variant == "code"'),
    ("means are not weighed", "weights_Y.unsqueeze(1) * ctx.means_YD", "ctx.means_YD"),
    ("sums in place of means", "(message[\"weight\"] + 1 - held_Y)", "(1 + 0 * held_Y)"),
    ("absent classes are forgotten", "held_Y.unsqueeze(1) * (mean_YD", "(mean_YD"),
    ("absent classes become unknown", 'state["known"] + held_Y - state["known"] * held_Y', "held_Y"),
    ("farthest first", "-squared_BY.where", "squared_BY.where"),
    ("unknown classes are near", "amax(1, keepdim=True) + 1", "amin(1, keepdim=True)"),
    ("the network's own logits", "near_BY.where(known_Y.any(), outputs.logits_BY)", "outputs.logits_BY"),
    ("no logits at first", "near_BY.where(known_Y.any(), outputs.logits_BY)", "near_BY"),
    ("the body is shared", "return head_names(model) |", "return head_names(model) or"),
    ("lam by default", "= 1.0\n    variant", "= 0.1\n    variant"),
    ("variant by default", '"code"] = "original"', '"code"] = "code"'),
    ("statistics of a policy", "keeps_statistics: ClassVar[bool] = True", "keeps_statistics: ClassVar[bool] = False"),
    ("a fixed head", "trains_head: ClassVar[bool] = True", "trains_head: ClassVar[bool] = False"),
)  # fmt: skip
