"""Golden numbers, invariants and mutations of FedExP."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from flbench.methods.base import Method, ServerContext, tmap
from flbench.registry import METHODS
from tests.conformance.methods.cases import Case, after, parsed, values
from tests.conformance.problem import (
    SHARE,
    W0,
    assert_close,
    both_executors,
    local_sgd,
    mean,
    trainer_of,
)
from tests.mutation.mutations import mutations_of
from tests.toys import largest_difference, toy_clients, toy_images, toy_trainer

#: The step stays 1 if eps is large, and on clients that agree.
CASES = {"fedexp": Case([{"eps": 1e9}], values("eps", 1e-3, 1e-6, 0.1, 1e-3), sends=(1, 0), has_effect=False)}


@both_executors
@pytest.mark.parametrize("settings", [{}, {"eps": 0.02}])
def test_fedexp(executor: str, settings: dict[str, float]) -> None:
    """Clients without a common class pull apart, so that the step exceeds 1 in some rounds."""
    eps = settings.get("eps", 1e-3)
    x, before, steps = W0.copy(), W0.copy(), []
    for round in range(6):
        changes = [local_sgd(x, k, round) - x for k in range(3)]
        delta = mean(SHARE, changes)
        lengths = [np.linalg.norm(change) ** 2 for change in changes]
        steps.append(max(1.0, float(SHARE @ lengths) / (2 * (np.linalg.norm(delta) ** 2 + eps))))
        before, x = x, x + steps[-1] * delta
    assert max(steps) > 1.05, steps
    trainer = trainer_of({"name": "fedexp", **settings}, executor)
    for _ in range(6):
        trainer.step()
    assert_close(trainer.x["head.weight"], x)
    method = METHODS.parse({"name": "fedexp", **settings})
    assert_close(method.evaluated(trainer.x, trainer.server)["head.weight"], (x + before) / 2)


def test_fedexp_is_not_fedavg_on_clients_with_one_class_each() -> None:
    """Their changes cancel in part; where clients agree more, its step stays 1."""
    images = replace(toy_images(), train_labels_M=torch.arange(60) // 20)
    clients, fedexp = toy_clients((20, 20, 20)), METHODS.parse("fedexp")
    found = after(fedexp, images=images, clients=clients)
    assert largest_difference(found, after(Method(), images=images, clients=clients)) > 1e-3
    assert largest_difference(after(fedexp), after(Method())) == 0


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


MUTATIONS = mutations_of(
    "fedexp",
    ("not halved", "(2 * (of_mean + self.eps))", "(of_mean + self.eps)"),
    ("doubled for halved", "(2 * (of_mean + self.eps))", "(of_mean + self.eps) * 2"),
    ("eps outside", "(2 * (of_mean + self.eps))", "(2 * of_mean + self.eps)"),
    ("eps ignored", "of_mean + self.eps", "of_mean + 1e-3"),
    ("eps by default", "Field(gt=0)] = 1e-3", "Field(gt=0)] = 1e-4"),
    ("below 1", ".clamp_min(1)", ""),
    ("never above 1", ".clamp_min(1)", ".clamp(1, 1)"),
    ("lengths not squared", "((w[name] - x) ** 2).sum()", "(w[name] - x).abs().sum()"),
    ("lengths of the weights", "((w[name] - x) ** 2).sum()", "(w[name] ** 2).sum()"),
    ("length of the mean not squared", "(d**2).sum()", "d.abs().sum()"),
    ("lengths weighed equally", "        return cohort.share\n", "        return super().message_weights(cohort)\n"),
    ("lengths are summed", "        return cohort.share\n", "        return [1.0] * len(cohort.share)\n"),
    ("steps backwards", "a + step * d", "a - step * d"),
    ("no extrapolation", "a + step * d", "a + d"),
    ("previous is the next", "delta), self.init_server(x)", "delta), tmap(lambda a, d: a + step * d, x, delta)"),
    ("the first for ever", "delta), self.init_server(x)", "delta), state"),
    ("the last is evaluated", "(a + before) / 2", "a"),
    ("the one before is evaluated", "(a + before) / 2", "before"),
    ("sum is evaluated", "(a + before) / 2", "a + before"),
)
