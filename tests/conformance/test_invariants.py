"""Invariants of methods that correct the drift of clients: fixed points, teachers, perturbations, steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from flbench.methods.base import Batch, Context, Method, Outputs, ServerContext, Tree, tmap
from flbench.registry import METHODS
from tests.conformance.test_conformance import after, toy_skewed_images
from tests.toys import largest_difference, toy_clients, toy_trainer


def parsed(name: str, **settings: float | str) -> Method:
    """Return a method with these settings, as registered at the moment."""
    method: Method = METHODS.parse({"name": name, **settings})
    return method


SAMPLES = np.array([4.0, 6.0, 14.0])
CURVATURES = torch.tensor([[1.0, 0.2], [0.3, 2.0], [0.6, 0.5]], dtype=torch.float64)
CENTRES = torch.tensor([[1.0, -2.0], [-3.0, 0.5], [2.0, 4.0]], dtype=torch.float64)


def quadratic_optimum(weights: np.ndarray) -> torch.Tensor:
    """Return the minimum of sum_k weight_k/2 (x - centre_k)^T diag(curvature_k) (x - centre_k)."""
    weighted = torch.from_numpy(weights)[:, None] * CURVATURES
    return (weighted * CENTRES).sum(0) / weighted.sum(0)


def on_quadratics(method: Method, rounds: int, cohort: int, decay: float = 0.0) -> torch.Tensor:
    """Return x after rounds of 3 gradient steps on quadratics, with ``cohort`` of the 3 clients in each round."""
    x: Tree = {"w": torch.zeros(2, dtype=torch.float64)}
    server, clients = method.init_server(x), [method.init_client(x, {}) for _ in SAMPLES]
    context = context_of(x, lr=0.2, steps=3)
    draw = np.random.default_rng(0)
    for round in range(rounds):
        present = np.sort(draw.permutation(3)[:cohort])
        changes = []
        start, sent = method.broadcast(x, server)
        for k in present:
            own = replace(
                context,
                x=start,
                server=sent,
                client=clients[k],
                relative_size=float(SAMPLES[k] / SAMPLES.mean()),
                round=round,
            )
            w = start
            for _ in range(3):
                g = {"w": CURVATURES[k] * (w["w"] - CENTRES[k]) + decay * w["w"]}
                w = tmap(lambda w, d: w - 0.2 * d, w, method.direction(w, g, own))
            clients[k], _ = method.finish(w, own)
            changes.append(w["w"] - start["w"])
        share = SAMPLES[present] / SAMPLES[present].sum()
        weights = method.delta_weights(list(share), [3] * cohort, 0.0)
        delta = {"w": sum(weight * change for weight, change in zip(weights, changes, strict=True))}
        seen = ServerContext(participation=cohort / 3, round=round, head="w")
        x, server = method.server_step(x, delta, {}, server, seen)
    return x["w"]


def context_of(x: Tree, **given: Any) -> Context:
    """Return a context of a client with all classes."""
    defaults: dict[str, Any] = {"server": {}, "client": {}, "counts_Y": torch.ones(3), "lr": 0.1, "steps": 1}
    others: dict[str, Any] = {"relative_size": 1.0, "round": 0, "head": "head.weight", "buffers": {}}
    return Context(x=x, **{**defaults, **others, **given})


@pytest.mark.slow
@pytest.mark.parametrize("cohort", [3, 2, 1])
@pytest.mark.parametrize("alpha", [0.1, 1.0])
def test_feddyn_ends_at_the_optimum_of_the_global_loss(cohort: int, alpha: float) -> None:
    """With samples that differ, curvatures that differ, 3 local steps, and any participation."""
    feddyn = parsed("feddyn", alpha=alpha)
    rounds = 4000 if alpha == 0.1 else 1500
    assert (on_quadratics(feddyn, rounds, cohort) - quadratic_optimum(SAMPLES)).abs().max() < 1e-8


def test_the_weighting_of_feddyn_is_that_of_its_loss() -> None:
    """FedAvg, and FedDyn that weighs clients otherwise, end elsewhere."""
    optimum, of_equal = quadratic_optimum(SAMPLES), quadratic_optimum(np.ones(3))
    assert (optimum - of_equal).abs().max() > 0.5
    equal = parsed("feddyn", alpha=0.3, weighting="equal")
    assert (on_quadratics(equal, 2000, 2) - of_equal).abs().max() < 1e-8
    assert (on_quadratics(Method(), 2000, 3) - optimum).abs().max() > 0.1


def test_weight_decay_is_part_of_feddyns_loss() -> None:
    """It is in the gradient that the regularizer cancels."""
    weighted = torch.from_numpy(SAMPLES / SAMPLES.sum())[:, None] * CURVATURES
    optimum = (weighted * CENTRES).sum(0) / (weighted.sum(0) + 0.1)
    feddyn = parsed("feddyn", alpha=0.3)
    assert (on_quadratics(feddyn, 2000, 2, decay=0.1) - optimum).abs().max() < 1e-8


def test_feddyns_server_keeps_the_mean_of_all_clients() -> None:
    trainer = toy_trainer(parsed("feddyn"), participation=2 / 3)
    for _ in range(4):
        trainer.step()
        means = {name: leaf.mean(0) for name, leaf in trainer.states.items()}
        assert largest_difference(means, trainer.server) < 1e-14
    assert max(float(leaf.abs().max()) for leaf in trainer.server.values()) > 1e-3


def test_fedcms_direction_is_the_mean_step_of_a_round() -> None:
    """Without momentum, and with equal steps, D is -delta / (K lr)."""
    trainer = toy_trainer(parsed("fedcm"))
    for _ in range(3):
        before = {name: leaf.clone() for name, leaf in trainer.x.items()}
        trainer.step()
        moved = tmap(lambda a, b: (a - b) / (4 * 0.1), before, trainer.x)
        assert largest_difference(moved, trainer.server) < 1e-13


def test_mofedsam_joins_fedcm_and_fedsam() -> None:
    images = toy_skewed_images()
    both, cm, sam = (
        after(parsed("mofedsam", **settings), images=images)
        for settings in ({}, {"rho": 0.0}, {"alpha": 1.0, "rho": 0.05})
    )
    assert largest_difference(cm, after(parsed("fedcm"), images=images)) == 0
    assert largest_difference(sam, after(parsed("fedsam"), images=images)) == 0
    assert min(largest_difference(both, cm), largest_difference(both, sam)) > 1e-6


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e3])
def test_fedsam_perturbs_by_rho_over_all_leaves(scale: float) -> None:
    w = {"a": torch.randn(3, 4, dtype=torch.float64), "b": torch.randn(5, dtype=torch.float64)}
    g = {name: scale * torch.randn_like(leaf) for name, leaf in w.items()}
    moved = tmap(lambda after, before: after - before, parsed("fedsam", rho=0.3).perturbed(w, g, context_of({})), w)
    length = sum(float((leaf**2).sum()) for leaf in moved.values()) ** 0.5
    assert length == pytest.approx(0.3, rel=1e-12)
    assert float((moved["a"] / g["a"]).std()) < 1e-6 / scale  # along the gradient
    assert min(float(leaf.norm()) for leaf in moved.values()) < 0.3


def test_fedsam_does_not_move_without_a_gradient() -> None:
    w = {"a": torch.ones(3)}
    assert torch.equal(parsed("fedsam").perturbed(w, tmap(torch.zeros_like, w), context_of({}))["a"], w["a"])


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_fedsam_has_one_norm_for_each_client(executor: str) -> None:
    """A client's weights do not depend on the other clients that are trained with it."""
    together = toy_trainer(parsed("fedsam", rho=0.3), clients=toy_clients((20, 20, 20)), executor=executor)
    alone = toy_trainer(parsed("fedsam", rho=0.3), clients=toy_clients((20,)), executor=executor)
    seen: list[Tree] = []

    class Recording(METHODS["fedsam"]):  # type: ignore[misc]
        def finish(self, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
            return ctx.client, w

        def server_step(
            self, x: Tree, delta: Tree, message: Tree, state: Tree, ctx: ServerContext
        ) -> tuple[Tree, Tree]:
            seen.append({name: leaf.clone() for name, leaf in message.items()})
            return super().server_step(x, delta, message, state, ctx)

        def message_weights(self, share: Any) -> Any:
            return [1.0] + [0.0] * (len(share) - 1)

    for clients in ((20, 20, 20), (20,)):
        toy_trainer(Recording(rho=0.3), clients=toy_clients(clients), executor=executor).step()
    assert largest_difference(seen[0], seen[1]) < 1e-14
    together.step()
    alone.step()
    assert largest_difference(together.x, alone.x) > 1e-4


def test_moons_first_round_is_fedavgs() -> None:
    """Both teachers are the initial model, so that pulling and pushing cancel."""
    for norm in ("none", "bn"):
        assert largest_difference(after(parsed("moon"), 1, norm=norm), after(Method(), 1, norm=norm)) < 1e-14
    assert largest_difference(after(parsed("moon"), 2), after(Method(), 2)) > 1e-4


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_teachers_do_not_move(executor: str) -> None:
    """Two teachers, of the same weights, give the same outputs at every step; batch statistics move as FedAvg's do."""
    twice: list[float] = []

    class Twins(Method):
        def teachers(self, ctx: Context) -> dict[str, Tree]:
            return {"first": ctx.x, "second": {**ctx.x, **ctx.buffers}}

        def penalty(self, w: Tree, batch: Batch, ctx: Context) -> Any:
            apart = batch.teachers["first"].features_BD - batch.teachers["second"].features_BD
            return 1e3 * apart.abs().sum() + 0 * batch.teachers["first"].logits_BY.sum()

    found = toy_trainer(Twins(), norm="bn", executor=executor)
    plain = toy_trainer(Method(), norm="bn", executor=executor)
    for _ in range(3):
        twice.append(float(found.step().loss))
        assert twice[-1] == pytest.approx(float(plain.step().loss), abs=1e-12)
    assert largest_difference(found.x, plain.x) == 0
    assert largest_difference(found.buffers, plain.buffers) == 0


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


def batch_of(features: torch.Tensor, logits: torch.Tensor, labels: list[int], **teachers: Outputs) -> Batch:
    return Batch(torch.tensor(labels), features, logits, teachers)


def test_moons_loss_is_log_2_between_equal_teachers_and_vanishes_near_the_server() -> None:
    f, z = torch.tensor([[1.0, 0.0], [0.0, 3.0]], dtype=torch.float64), torch.zeros(2, 3, dtype=torch.float64)
    same, opposite = Outputs(2 * f, z), Outputs(-f, z)
    moon = parsed("moon", mu=2.0, tau=0.1)

    def penalty(server: Outputs, previous: Outputs) -> float:
        return float(moon.penalty({}, batch_of(f, z, [0, 1], server=server, previous=previous), context_of({})))

    assert penalty(same, same) == pytest.approx(2 * np.log(2), rel=1e-12)
    assert penalty(same, opposite) == pytest.approx(2 * np.log1p(np.exp(-20)), rel=1e-7)
    assert penalty(opposite, same) == pytest.approx(40, rel=1e-7)


def test_fedntd_ignores_the_true_class() -> None:
    """It is 0 where only the true logits differ, and has no gradient with respect to the true logit."""
    z = torch.tensor([[1.0, -2.0, 0.5], [0.3, 0.2, 4.0]], dtype=torch.float64, requires_grad=True)
    moved = z.detach() + torch.tensor([[9.0, 0.0, 0.0], [0.0, 0.0, -7.0]], dtype=torch.float64)
    f = torch.zeros(2, 2, dtype=torch.float64)
    ntd = parsed("fedntd")
    assert ntd.penalty({}, batch_of(f, z, [0, 2], server=Outputs(f, moved)), context_of({})).item() < 1e-15
    value = ntd.penalty({}, batch_of(f, z, [0, 1], server=Outputs(f, moved)), context_of({}))
    (g,) = torch.autograd.grad(value, z)
    assert value.item() > 0
    assert g[0, 0] == g[1, 1] == 0
    assert g.sum(1).abs().max() < 1e-15
    assert g.isfinite().all()


@pytest.mark.parametrize("eps", [1e-9, 1e-3])
def test_fedexps_step_is_never_below_1(eps: float) -> None:
    """Equal changes have the step 1; changes that cancel are extrapolated."""
    method, x = parsed("fedexp", eps=eps), {"a": torch.zeros(2, dtype=torch.float64)}
    seen = ServerContext(participation=1.0, round=0, head="a")

    def step(first: list[float], second: list[float]) -> float:
        changes = torch.tensor([first, second], dtype=torch.float64)
        delta, squared = {"a": changes.mean(0)}, (changes**2).sum(1).mean()
        after, before = method.server_step(x, delta, {"squared": squared}, method.init_server(x), seen)
        assert torch.equal(before["a"], x["a"])
        return float(after["a"][0] / delta["a"][0])

    assert step([1.0, 1.0], [1.0, 1.0]) == 1
    assert step([0.1, 0.0], [0.2, 0.0]) == 1
    assert step([1.0, 3.0], [1.0, -3.0]) == pytest.approx(10 / (2 * (1 + eps)), rel=1e-12)


def test_fedexp_is_evaluated_at_the_mean_of_two_iterates() -> None:
    trainer = toy_trainer(parsed("fedexp"))
    assert largest_difference(trainer.model(0)[0], trainer.x) == 0
    for _ in range(2):
        before = {name: leaf.clone() for name, leaf in trainer.x.items()}
        trainer.step()
    middle = tmap(lambda a, b: (a + b) / 2, trainer.x, before)
    assert largest_difference(trainer.model(0)[0], middle) < 1e-15
    assert largest_difference(middle, trainer.x) > 1e-4


def test_fedaws_moves_rows_of_held_classes_only() -> None:
    """Before the server spreads the rows out: client 0 of the skewed problem lacks class 2."""
    images, alone = toy_skewed_images(), toy_clients((20,))
    trainer = toy_trainer(parsed("fedaws", spread=0.0), images=images, clients=alone)
    before = torch.nn.functional.normalize(trainer.x["head.weight"])
    trainer.step()
    turned = (trainer.x["head.weight"] - before).abs().sum(1)
    assert turned[2] < 1e-15
    assert turned[:2].min() > 1e-3


def test_fedaws_separates_rows_that_collapse() -> None:
    """Every step lowers the largest cosine of rows that are close, and leaves rows that are far apart as they are."""
    generator = torch.Generator().manual_seed(0)
    near = 1 + 0.1 * torch.randn(5, 8, generator=generator, dtype=torch.float64)
    seen = ServerContext(participation=1.0, round=0, head="head.weight")
    zero, held = {"head.weight": 0 * near}, {"held": torch.ones(5, dtype=torch.float64)}

    def largest_cosine(rows: torch.Tensor) -> float:
        return float((rows @ rows.T).fill_diagonal_(-1).max())

    x = {"head.weight": torch.nn.functional.normalize(near)}
    cosines = [largest_cosine(x["head.weight"])]
    for _ in range(60):
        x, _ = parsed("fedaws").server_step(x, zero, held, {}, seen)
        cosines.append(largest_cosine(x["head.weight"]))
    assert cosines[0] > 0.95
    assert cosines[-1] < 0.15  # nu = 0.9 leaves cosines up to 0.1 alone
    assert float((x["head.weight"].norm(dim=1) - 1).abs().max()) < 1e-14
    apart = {"head.weight": torch.eye(5, 8, dtype=torch.float64)}
    assert largest_difference(parsed("fedaws").server_step(apart, zero, held, {}, seen)[0], apart) < 1e-15


def test_fedaws_has_no_bias() -> None:
    x = {"head.weight": torch.eye(3), "head.bias": torch.ones(3)}
    seen = ServerContext(participation=1.0, round=0, head="head.weight")
    after, _ = parsed("fedaws").server_step(x, tmap(torch.zeros_like, x), {"held": torch.ones(3)}, {}, seen)
    assert torch.equal(after["head.bias"], torch.zeros(3))


def test_a_class_without_a_holder_keeps_its_row() -> None:
    x = {"head.weight": torch.eye(3)}
    seen = ServerContext(participation=0.5, round=0, head="head.weight")
    after, _ = parsed("fedaws").server_step(
        x, {"head.weight": 0 * x["head.weight"]}, {"held": torch.zeros(3)}, {}, seen
    )
    assert torch.equal(after["head.weight"], x["head.weight"])
