"""Golden numbers, invariants and mutations of SCAFFOLD and its variants."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flbench.engine.optimizers import Sgd
from flbench.methods.base import Context, Method, Tree
from flbench.methods.scaffold import Scaffold
from flbench.registry import METHODS
from tests.conformance.methods.cases import Case, after
from tests.conformance.problem import (
    EQUAL,
    LR,
    ROUNDS,
    SHARE,
    SIZES,
    STEPS,
    UNEQUAL,
    W0,
    Array,
    assert_close,
    batches,
    both_executors,
    gradient,
    local_sgd,
    mean,
    plus,
    trained,
    trainer_of,
)
from tests.mutation.mutations import mutations_of
from tests.toys import largest_difference, toy_clients, toy_trainer, train

CASES = {"scaffold": Case(sends=(0, 1))}


@both_executors
@pytest.mark.parametrize(
    ("variant", "of_delta", "of_controls"),
    [("original", EQUAL, EQUAL), ("text", SHARE, EQUAL), ("code", SHARE, SHARE)],
)
@pytest.mark.parametrize("steps", [(STEPS,) * 3, UNEQUAL])
def test_scaffold(executor: str, variant: str, of_delta: Array, of_controls: Array, steps: tuple[int, ...]) -> None:
    x, c, controls = W0.copy(), np.zeros_like(W0), [np.zeros_like(W0) for _ in SIZES]
    for round in range(ROUNDS):
        ends = [local_sgd(x, k, round, plus(c - controls[k]), steps=steps[k]) for k in range(3)]
        fresh = [controls[k] - c + (x - ends[k]) / (steps[k] * LR) for k in range(3)]
        c = c + mean(of_controls, [fresh[k] - controls[k] for k in range(3)])
        controls = fresh
        x = x + 0.8 * (mean(of_delta, ends) - x)
    method = {"name": "scaffold", "server_lr": 0.8, "variant": variant}
    trainer = trained(method, executor, steps=steps)
    assert_close(trainer.x["head.weight"], x)
    assert_close(trainer.server["head.weight"], c)
    assert_close(trainer.states["head.weight"], np.stack(controls))
    assert np.abs(c).max() > 0.01  # with constant controls the method would equal FedAvg


@both_executors
def test_scaffold_is_the_original_by_default(executor: str) -> None:
    original = trained({"name": "scaffold", "variant": "original"}, executor)
    assert_close(trained("scaffold", executor).x["head.weight"], original.x["head.weight"].numpy())


@both_executors
def test_scaffold_corrects_before_momentum(executor: str) -> None:
    x, c, controls = W0.copy(), np.zeros_like(W0), [np.zeros_like(W0) for _ in SIZES]
    for round in range(ROUNDS):
        ends = [local_sgd(x, k, round, plus(c - controls[k]), momentum=0.5) for k in range(3)]
        fresh = [controls[k] - c + (x - ends[k]) / (STEPS * LR) for k in range(3)]
        c = c + mean(EQUAL, [fresh[k] - controls[k] for k in range(3)])
        controls = fresh
        x = mean(EQUAL, ends)
    assert_close(trained("scaffold", executor, momentum=0.5).x["head.weight"], x)


@both_executors
@pytest.mark.parametrize(("variant", "of_controls"), [("niid-bench", EQUAL), ("flower", SHARE)])
def test_scaffold_corrects_after_momentum_as_niid_bench_does(executor: str, variant: str, of_controls: Array) -> None:
    x, c, controls = W0.copy(), np.zeros_like(W0), [np.zeros_like(W0) for _ in SIZES]
    for round in range(ROUNDS):
        ends = []
        for k in range(3):
            weights, velocity = x.copy(), np.zeros_like(x)
            for pixels, labels in batches(k, round, UNEQUAL[k]):
                velocity = 0.9 * velocity + gradient(weights, pixels, labels)
                weights = weights - LR * velocity
                weights = weights - LR * (c - controls[k])
            ends.append(weights)
        fresh = [controls[k] - c + (x - ends[k]) / (UNEQUAL[k] * LR) for k in range(3)]
        c = c + mean(of_controls, [fresh[k] - controls[k] for k in range(3)])
        controls = fresh
        x = mean(SHARE, ends)
    trainer = trained({"name": "scaffold", "variant": variant}, executor, steps=UNEQUAL, momentum=0.9)
    assert_close(trainer.x["head.weight"], x)
    assert_close(trainer.server["head.weight"], c)
    assert_close(trainer.states["head.weight"], np.stack(controls))


@both_executors
def test_scaffold_with_two_of_three_clients(executor: str) -> None:
    trainer = trainer_of("scaffold", executor, participation=2 / 3)
    x, c, controls = W0.copy(), np.zeros_like(W0), [np.zeros_like(W0) for _ in SIZES]
    seen = set()
    for round in range(5):
        cohort = [int(client) for client in trainer.run.cohort(trainer.round)]
        seen.add(tuple(cohort))
        trainer.step()
        ends = {i: local_sgd(x, i, round, plus(c - controls[i])) for i in cohort}
        fresh = {i: controls[i] - c + (x - ends[i]) / (STEPS * LR) for i in cohort}
        c = c + sum(fresh[i] - controls[i] for i in cohort) / 3  # |S|/N times the mean over S
        for i in cohort:
            controls[i] = fresh[i]
        x = sum(ends.values()) / 2
    assert len(seen) > 1, "the cohort must change for this test to say something"
    assert_close(trainer.x["head.weight"], x)
    assert_close(trainer.server["head.weight"], c)
    assert_close(trainer.states["head.weight"], np.stack(controls))


@pytest.mark.parametrize("variant", ["text", "code", "niid-bench", "flower"])
def test_scaffold_is_fedavg_in_round_one_and_never_again(variant: str) -> None:
    scaffold = METHODS.parse({"name": "scaffold", "variant": variant})
    assert largest_difference(after(scaffold, rounds=1), after(Method(), rounds=1)) == 0
    assert largest_difference(after(scaffold, rounds=2), after(Method(), rounds=2)) > 1e-4


def test_the_original_scaffold_is_fedavg_in_round_one_if_clients_are_equal() -> None:
    equal = toy_clients((20, 20, 20))
    assert largest_difference(after(Scaffold(), 1, clients=equal), after(Method(), 1, clients=equal)) < 1e-15
    assert largest_difference(after(Scaffold(), 1), after(Method(), 1)) > 1e-4


def test_scaffold_controls_average_to_the_servers() -> None:
    trainer = toy_trainer(Scaffold(), norm="ln")
    for _ in range(4):
        trainer.step()
        means = {name: leaf.mean(0) for name, leaf in trainer.states.items()}
        assert largest_difference(means, trainer.server) < 1e-14
    assert max(float(leaf.abs().max()) for leaf in trainer.server.values()) > 1e-3


def test_scaffold_with_momentum_is_stable_only_with_the_correction_after_it() -> None:
    """A control is about 1 / (1 - momentum) gradients: before momentum each round multiplies it by that again."""

    def largest_control(variant: str) -> float:
        method = METHODS.parse({"name": "scaffold", "variant": variant})
        trainer = toy_trainer(method, model="square", executor="stacked", sgd=Sgd(0.001, 0.9), steps=60)
        train(4, trainer)
        return max(float(leaf.abs().max()) for leaf in trainer.states.values())

    assert largest_control("niid-bench") < 1 < 20 < largest_control("original")


def test_scaffold_control_is_the_mean_gradient_along_the_path() -> None:
    """Without momentum (x - w) / (K lr) is the mean corrected direction, so c_i' is the mean raw gradient."""
    seen: list[Tree] = []

    class Recording(Scaffold):
        def direction(self, w: Tree, g: Tree, ctx: Context) -> Tree:
            seen.append({name: leaf.clone() for name, leaf in g.items()})
            return super().direction(w, g, ctx)

    trainer = toy_trainer(Recording(), clients=toy_clients((20,)), steps=4)
    for _ in range(3):
        seen.clear()
        trainer.step()
        mean = {name: torch.stack([g[name] for g in seen]).mean(0) for name in seen[0]}
        assert largest_difference(mean, {name: leaf[0] for name, leaf in trainer.states.items()}) < 1e-12


_CONTROL = "ci - c + (x - w) / ctx.steps / ctx.lr"
MUTATIONS = mutations_of(
    "scaffold",
    ("correction's sign", "g - ci + c\n", "g + ci - c\n"),
    ("without the server's control", "g - ci + c\n", "g - ci\n"),
    ("without the client's control", "g - ci + c\n", "g + c\n"),
    ("no correction", "g - ci + c\n", "g\n"),
    ("always before momentum", "return g if self.variant in AFTER_MOMENTUM else tmap", "return tmap"),
    ("never after momentum", "ctx.server) if self.variant in AFTER_MOMENTUM else moved", "ctx.server) if 0 else moved"),
    ("NIID-Bench before momentum", '("niid-bench", "flower")\n', '("flower",)\n'),
    ("Flower before momentum", '("niid-bench", "flower")\n', '("niid-bench",)\n'),
    ("control: sign of c", _CONTROL, _CONTROL.replace("- c", "+ c")),
    ("control: without c", _CONTROL, _CONTROL.replace("- c ", "")),
    ("control: without c_i", _CONTROL, _CONTROL.replace("ci - c", "-c")),
    ("control: the other way", _CONTROL, _CONTROL.replace("(x - w)", "(w - x)")),
    ("control: not divided by lr", _CONTROL, _CONTROL.replace(" / ctx.lr", "")),
    ("control: not divided by steps", _CONTROL, _CONTROL.replace(" / ctx.steps", "")),
    ("control: multiplied by lr", _CONTROL, _CONTROL.replace("/ ctx.lr", "* ctx.lr")),
    ("c_i never moves, as published", "return new, tmap(", "return ctx.client, tmap("),
    (
        "controls stay 0, as published",
        "return new, tmap(lambda",
        "return ctx.client, tmap(lambda after, before: 0 * after, new, new)\n        return new, tmap(lambda",
    ),
    ("message's sign", "after - before", "before - after"),
    ("message is the control", "after - before", "after"),
    ("c moves by the whole mean", "c + ctx.participation * change", "c + change"),
    ("c moves backwards", "c + ctx.participation * change", "c - ctx.participation * change"),
    ("c forgets", "c + ctx.participation * change", "ctx.participation * change"),
    ("c never moves", "c + ctx.participation * change", "c"),
    ("server's step dropped", "x, _ = super().server_step", "_, _ = super().server_step"),
    (
        "original by samples",
        'if self.variant == "original" else cohort.share',
        'if self.variant == "" else cohort.share',
    ),
    (
        "clients are summed",
        "return [1 / len(cohort.share)] * len(cohort.share) if",
        "return [1.0] * len(cohort.share) if",
    ),
    ("text for original", 'if self.variant == "original"', 'if self.variant == "text"'),
    ("code's messages in text", 'if self.variant in ("code",', 'if self.variant in ("text",'),
    ("Flower's messages equal", 'in ("code", "flower")', 'in ("code",)'),
    ("NIID-Bench's messages by samples", 'in ("code", "flower")', 'in ("code", "flower", "niid-bench")'),
    (
        "code's messages equal",
        'return cohort.share if self.variant in ("code", "flower") else super()',
        "return super()",
    ),
    ("text by default", '"flower"] = "original"', '"flower"] = "text"'),
    ("c starts at x", "        return tmap(lambda a: 0 * a, x)", "        return tmap(lambda a: a, x)", 0),
    ("c_i starts at x", "        return tmap(lambda a: 0 * a, x)", "        return tmap(lambda a: a, x)", 1),
)
