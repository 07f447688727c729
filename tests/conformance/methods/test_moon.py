"""Golden numbers, invariants and mutations of MOON."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flbench.methods.base import Method, Outputs
from tests.conformance.methods.cases import Case, after, assert_penalty_gradient, batch_of, context_of, parsed
from tests.conformance.problem import (
    H0,
    LR,
    NAMES,
    ROUNDS,
    SHARE,
    SIZES,
    V0,
    Array,
    Labels,
    Normed,
    SoftmaxRegression,
    TwoLayers,
    assert_close,
    batches,
    both_executors,
    evaluated_features,
    mean,
    normed_rounds,
    softmax_error,
    trained,
)
from tests.mutation.mutations import mutations_of
from tests.toys import largest_difference, toy_trainer

CASES = {"moon": Case([{"mu": 0.0}], [{"mu": mu, "tau": 0.5 + mu} for mu in (1.0, 5.0, 0.0, 0.3)])}


def cosine(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the cosine of each row of a with that of b, and its derivative with respect to a."""
    length = np.sqrt((a * a).sum(axis=1, keepdims=True))
    unit, other = a / length, b / np.sqrt((b * b).sum(axis=1, keepdims=True))
    value = (unit * other).sum(axis=1, keepdims=True)
    return value[:, 0], (other - value * unit) / length


def contrast(features: Array, server: Array, previous: Array, mu: float, tau: float) -> Array:
    """Return d/df of mu/B sum -log(e^(s/tau) / (e^(s/tau) + e^(p/tau))), from the softmax over the two cosines."""
    s, into_s = cosine(features, server)
    p, into_p = cosine(features, previous)
    wrong = np.exp(p / tau) / (np.exp(s / tau) + np.exp(p / tau))  # the softmax's probability of "previous"
    return np.asarray(mu / tau / len(features) * wrong[:, None] * (into_p - into_s))


MOON_SETTINGS: list[dict[str, float]] = [{}, {"mu": 3.0, "tau": 0.2}]


@both_executors
@pytest.mark.parametrize("settings", MOON_SETTINGS)
def test_moon(executor: str, settings: dict[str, float]) -> None:
    """Features V p and logits H V p; the previous weights of a client are those it ended its last round with."""
    mu, tau = settings.get("mu", 1.0), settings.get("tau", 0.5)
    hidden, head, last = V0.copy(), H0.copy(), [V0.copy() for _ in SIZES]
    for round in range(ROUNDS):
        ends = []
        for client in range(3):
            v, h = hidden.copy(), head.copy()
            for pixels, labels in batches(client, round):
                features = pixels @ v.T
                error = softmax_error(features @ h.T, labels)
                into = error @ h + contrast(features, pixels @ hidden.T, pixels @ last[client].T, mu, tau)
                v, h = v - LR * into.T @ pixels, h - LR * error.T @ features
            ends.append((v, h))
        last = [v for v, _ in ends]
        hidden, head = mean(SHARE, last), mean(SHARE, [h for _, h in ends])
    trainer = trained({"name": "moon", **settings}, executor, network=TwoLayers())
    assert_close(trainer.x["hidden.weight"], hidden)
    assert_close(trainer.x["head.weight"], head)
    assert_close(trainer.states["hidden.weight"], np.stack(last))


@both_executors
def test_moon_compares_with_teachers_in_evaluation_mode(executor: str) -> None:
    """The previous model has the client's own running statistics, the server's has the server's."""

    def term(
        features: Array, logits: Array, labels: Labels, pixels: Array, server: Normed, last: Normed
    ) -> tuple[Array, Array]:
        teachers = evaluated_features(server, pixels), evaluated_features(last, pixels)
        return contrast(features, *teachers, mu=2.0, tau=0.5), np.zeros_like(logits)

    server, last = normed_rounds(term)
    trainer = trained({"name": "moon", "mu": 2.0}, executor, network=SoftmaxRegression(batch_norm=True))
    for leaf, name in enumerate(NAMES):
        assert_close({**trainer.x, **trainer.buffers}[name], server[leaf])
        assert_close(trainer.states[name], np.stack([own[leaf] for own in last]))


def test_moons_first_round_is_fedavgs() -> None:
    """Both teachers are the initial model, so that pulling and pushing cancel."""
    for norm in ("none", "bn"):
        assert largest_difference(after(parsed("moon"), 1, norm=norm), after(Method(), 1, norm=norm)) < 1e-14
    assert largest_difference(after(parsed("moon"), 2), after(Method(), 2)) > 1e-4


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_moon_keeps_the_weights_and_statistics_of_a_clients_own_last_round(executor: str) -> None:
    trainer = toy_trainer(parsed("moon"), norm="bn", participation=1 / 3, executor=executor)
    start = {name: leaf.clone() for name, leaf in trainer.states.items()}
    (client,) = trainer.run.cohort(trainer.round)
    trainer.step()
    own = {name: leaf[int(client)] for name, leaf in trainer.states.items()}
    assert largest_difference(own, {**trainer.x, **trainer.buffers}) < 1e-14  # alone, its weights are the average
    for name, leaf in trainer.states.items():
        others = [k for k in range(3) if k != client]
        assert torch.equal(leaf[others], start[name][others])


def test_moons_loss_is_log_2_between_equal_teachers_and_vanishes_near_the_server() -> None:
    f, z = torch.tensor([[1.0, 0.0], [0.0, 3.0]], dtype=torch.float64), torch.zeros(2, 3, dtype=torch.float64)
    same, opposite = Outputs(2 * f, z), Outputs(-f, z)
    moon = parsed("moon", mu=2.0, tau=0.1)

    def penalty(server: Outputs, previous: Outputs) -> float:
        return float(moon.penalty({}, batch_of(f, z, [0, 1], server=server, previous=previous), context_of({})))

    assert penalty(same, same) == pytest.approx(2 * np.log(2), rel=1e-12)
    assert penalty(same, opposite) == pytest.approx(2 * np.log1p(np.exp(-20)), rel=1e-7)
    assert penalty(opposite, same) == pytest.approx(40, rel=1e-7)


@pytest.mark.parametrize("settings", MOON_SETTINGS)
def test_moons_gradient_by_hand(settings: dict[str, float]) -> None:
    """Also of features 0, and of some that are shorter than the least length."""
    f = torch.tensor([[1.0, -0.2], [0.5, 3.0], [0.0, 0.0], [3e-9, -4e-9]], dtype=torch.float64)
    z = torch.zeros(4, 3, dtype=torch.float64)
    batch = batch_of(f, z, [0, 1, 2, 0], server=Outputs(f.flip(0) + 1, z), previous=Outputs(f - 2, z))
    assert_penalty_gradient(parsed("moon", **settings), {}, batch, context_of({}), rtol=1e-9)


_UNIT = "normalize(each.features_BD, dim=-1, eps=EPS)"
MUTATIONS = mutations_of(
    "moon",
    ("pulled to the previous", "(previous_BD - server_BD)", "(server_BD - previous_BD)"),
    ("tau multiplied", "/ self.tau", "* self.tau"),
    ("tau ignored", "difference_B / self.tau", "difference_B"),
    ("mu ignored", "self.mu * softplus", "softplus"),
    ("sum for mean", ".mean()", ".sum()"),
    ("mu by default", "= 1.0", "= 5.0"),
    ("tau by default", "Field(gt=0)] = 0.5", "Field(gt=0)] = 1.0"),
    ("logits for features", "each.features_BD", "each.logits_BY", 0),
    ("normalized over the batch", "dim=-1", "dim=0"),
    ("product over the batch", ".sum(-1)", ".sum(0)"),
    ("inner product", _UNIT, "each.features_BD"),
    ("by hand: pulled to the previous", "server_NB1.clamp_min(EPS), value=-1)", "server_NB1.clamp_min(EPS), value=1)"),
    ("by hand: inner product", "keepdim=True).mul_(scale_NB1)", "keepdim=True)"),
    ("by hand: tau multiplied", "/ -self.tau", "* -self.tau"),
    ("by hand: the other share", "/ -self.tau", "/ self.tau"),
    ("by hand: sum for mean", ".mul_(1 / len(share_B1))", ""),
    ("by hand: mu ignored", ".mul_(self.mu)", ""),
    ("by hand: tau ignored", ".div_(self.tau)", ""),
    ("by hand: short features", " * (length_NB1 >= EPS)", ""),
    ("by hand: length has no gradient", ".addcmul_(own_NBD, along_NB1, value=-1)", ""),
    ("by hand: unit vectors' gradient", "(share_B1.movedim(-1, 0) * scale_NB1)", "(share_B1.movedim(-1, 0))"),
    ("no push", "previous_BD - server_BD)", "-server_BD)"),
    ("no pull", "previous_BD - server_BD)", "previous_BD)"),
    ("previous never moves", "return {**w, **ctx.buffers}, {}", "return ctx.client, {}"),
    ("previous is the start of the round", "return {**w, **ctx.buffers}, {}", "return {**ctx.x, **ctx.buffers}, {}"),
    ("previous has its first statistics", "return {**w, **ctx.buffers}, {}", "return {**ctx.client, **w}, {}"),
    ("previous has the server's statistics", '"previous": ctx.client', '"previous": {n: ctx.client[n] for n in ctx.x}'),
    ("both are the previous", '"server": ctx.x', '"server": ctx.client'),
)
