"""Policies of batch statistics against a numpy program: features V p, batch normalization, logits H a."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flbench.engine.federated import FederatedTrainer
from flbench.models.layers import Dense, StackableLayer
from flbench.registry import NORMS
from tests.conformance.problem import (
    CLIENTS,
    H0,
    LR,
    PIXELS,
    ROUNDS,
    SHARE,
    SIZES,
    STEPS,
    V0,
    Array,
    Labels,
    assert_close,
    batches,
    both_executors,
    mean,
    softmax_error,
    trained,
    trainer_of,
)
from tests.toys import train

EPS, FIXED_FROM, FBN_RATE = 1e-5, 1, 0.3
Weights = dict[str, Array]


class Normalized(StackableLayer):
    """Features V p, normalized, and logits H a."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.hidden, self.head = Dense(2, 3, bias=False), Dense(3, 3, bias=False)
        self.norm = NORMS.parse(norm).module((3,))  # type: ignore[attr-defined]
        self.double()
        with torch.no_grad():
            for layer, value in ((self.hidden, V0), (self.head, H0)):
                layer.weight.copy_(torch.from_numpy(value))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.norm(self.hidden(images.flatten(-3)))
        return features, self.head(features)


@dataclass
class Statistics:
    """Running mean and variance, and the moments of the batches that a client saw in a round."""

    mean: Array = field(default_factory=lambda: np.zeros(3))
    var: Array = field(default_factory=lambda: np.ones(3))
    means: list[Array] = field(default_factory=list)
    squares: list[Array] = field(default_factory=list)


def local_round(start: Weights, own: Statistics, client: int, round: int, policy: str) -> Weights:
    """A client's weights after a round; ``own`` holds its statistics after it."""
    weights = {name: leaf.copy() for name, leaf in start.items()}
    fixed = policy == "fbn" or (policy == "fixbn" and round >= FIXED_FROM)
    for pixels, labels in batches(client, round):
        hidden = pixels @ weights["hidden.weight"].T
        centre, var = (own.mean, own.var) if fixed else (hidden.mean(0), hidden.var(0))
        for name, leaf in gradients(weights, pixels, labels, centre, var, fixed).items():
            weights[name] = weights[name] - LR * leaf
        own.means.append(hidden.mean(0))
        own.squares.append((hidden**2).mean(0))
        if not fixed:
            own.mean = 0.9 * own.mean + 0.1 * centre
            own.var = 0.9 * own.var + 0.1 * hidden.var(0, ddof=1)
    return weights


def gradients(weights: Weights, pixels: Array, labels: Labels, centre: Array, var: Array, fixed: bool) -> Weights:
    unit = (pixels @ weights["hidden.weight"].T - centre) / np.sqrt(var + EPS)
    out = weights["norm.weight"] * unit + weights["norm.bias"]
    error = softmax_error(out @ weights["head.weight"].T, labels)
    of_out = error @ weights["head.weight"]
    of_unit = of_out * weights["norm.weight"]
    if not fixed:  # the batch's statistics move with the features
        of_unit = of_unit - of_unit.mean(0) - unit * (of_unit * unit).mean(0)
    return {
        "hidden.weight": (of_unit / np.sqrt(var + EPS)).T @ pixels,
        "norm.weight": (of_out * unit).sum(0),
        "norm.bias": of_out.sum(0),
        "head.weight": error.T @ out,
    }


def rounds_of(policy: str) -> tuple[Weights, list[Statistics]]:
    """The weights after all rounds, and the statistics: of the server, or of each client."""
    x: Weights = {"hidden.weight": V0, "norm.weight": np.ones(3), "norm.bias": np.zeros(3), "head.weight": H0}
    kept = [Statistics() for _ in SHARE]
    for round in range(ROUNDS):
        every = [Statistics(own.mean, own.var) for own in kept]
        ends = [local_round(x, own, client, round, policy) for client, own in enumerate(every)]
        x = {name: mean(SHARE, [end[name] for end in ends]) for name in x}
        if policy == "silobn":
            kept = every
        elif policy == "fbn":
            first = mean(SHARE, [np.mean(own.means, 0) for own in every])
            second = mean(SHARE, [np.mean(own.squares, 0) for own in every])
            new = kept[0].mean + FBN_RATE * (first - kept[0].mean)
            kept = [Statistics(new, kept[0].var + FBN_RATE * (second - first**2 - kept[0].var))] * len(SHARE)
        else:
            averaged = (mean(SHARE, [getattr(own, name) for own in every]) for name in ("mean", "var"))
            kept = [Statistics(*averaged)] * len(SHARE)
    return x, kept


def check(trainer: FederatedTrainer, x: Weights, kept: list[Statistics]) -> None:
    assert trainer.x.keys() == x.keys()
    for name, leaf in trainer.x.items():
        assert_close(leaf, x[name])
    for client, own in enumerate(kept):
        _, buffers = trainer.model(client)
        assert_close(buffers["norm.running_mean"], own.mean)
        assert_close(buffers["norm.running_var"], own.var)


@both_executors
@pytest.mark.parametrize(
    "norm", ["bn", "silobn", {"name": "fixbn", "rounds": FIXED_FROM}, {"name": "fbn", "momentum": FBN_RATE}], ids=str
)
def test_golden_numbers(norm: Any, executor: str) -> None:
    policy = norm if isinstance(norm, str) else norm["name"]
    check(trained("fedavg", executor, network=Normalized(norm)), *rounds_of(policy))


def lock_step(x: Weights, of_server: Statistics, round: int, synchronized: int) -> tuple[list[Weights], Statistics]:
    """All clients' weights after a round whose first steps share statistics, and the averaged running ones."""
    ends = [{name: leaf.copy() for name, leaf in x.items()} for _ in SHARE]
    running = [Statistics(of_server.mean, of_server.var) for _ in SHARE]
    for step, drawn in enumerate(zip(*(batches(client, round) for client in range(3)), strict=True)):
        mixing = np.tile(SHARE, (3, 1)) if step < synchronized else np.eye(3)  # row k: what client k averages over
        hidden = [pixels @ end["hidden.weight"].T for end, (pixels, _) in zip(ends, drawn, strict=True)]
        centres = mixing @ [one.mean(0) for one in hidden]
        spreads = mixing @ [((one - centre) ** 2).mean(0) for one, centre in zip(hidden, centres, strict=True)]
        outputs, grads = [], []
        for end, one, centre, var, (_, labels) in zip(ends, hidden, centres, spreads, drawn, strict=True):
            unit = (one - centre) / np.sqrt(var + EPS)
            out = end["norm.weight"] * unit + end["norm.bias"]
            error = softmax_error(out @ end["head.weight"].T, labels)
            of_out = error @ end["head.weight"]
            outputs.append(of_out * end["norm.weight"] / np.sqrt(var + EPS))  # dF_k/dx at fixed statistics
            own = {"norm.weight": (of_out * unit).sum(0), "norm.bias": of_out.sum(0), "head.weight": error.T @ out}
            grads.append(own)
        shifts = [one - centre for one, centre in zip(hidden, centres, strict=True)]
        of_centre = mixing @ [-direct.sum(0) for direct in outputs]
        of_var = mixing @ [
            -0.5 * (direct * shift).sum(0) / (var + EPS)
            for direct, shift, var in zip(outputs, shifts, spreads, strict=True)
        ]
        for client, (pixels, _) in enumerate(drawn):
            total = outputs[client] + (of_centre[client] + 2 * of_var[client] * shifts[client]) / len(pixels)
            grads[client]["hidden.weight"] = total.T @ pixels
            for name, leaf in grads[client].items():
                ends[client][name] = ends[client][name] - LR * leaf
            unbiased = spreads[client] * len(pixels) / (len(pixels) - 1)
            running[client].mean = 0.9 * running[client].mean + 0.1 * centres[client]
            running[client].var = 0.9 * running[client].var + 0.1 * unbiased
    averaged = (mean(SHARE, [getattr(one, name) for one in running]) for name in ("mean", "var"))
    return ends, Statistics(*averaged)


@pytest.mark.parametrize(("steps", "synchronized"), [("first", 1), ("all", STEPS)])
def test_golden_numbers_in_lock_step(steps: str, synchronized: int) -> None:
    x: Weights = {"hidden.weight": V0, "norm.weight": np.ones(3), "norm.bias": np.zeros(3), "head.weight": H0}
    kept = Statistics()
    for round in range(ROUNDS):
        ends, kept = lock_step(x, kept, round, synchronized)
        x = {name: mean(SHARE, [end[name] for end in ends]) for name in x}
    check(trained("fedavg", "stacked", network=Normalized({"name": "fedtan", "steps": steps})), x, [kept])


HBN_RATE, FIRST_MIX = 0.3, np.array([0.4, -0.8, 1.5])


def mixture(hidden: Array, of_all: Statistics, share: Array) -> tuple[Array, Array]:
    mean, var = hidden.mean(0), hidden.var(0)
    return (1 - share) * of_all.mean + share * mean, (1 - share) * of_all.var + share * var


def sigmoid(z: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-z)))


def hybrid_gradients(weights: Weights, pixels: Array, labels: Labels, of_all: Statistics) -> Weights:
    """With m = (1-a) M + a c and v = (1-a) V + a s: the gradient passes c, s (the batch's) and a, but not M and V."""
    hidden, share = pixels @ weights["hidden.weight"].T, sigmoid(weights["norm.mix"])
    mean, var = mixture(hidden, of_all, share)
    deviation = np.sqrt(var + EPS)
    unit = (hidden - mean) / deviation
    out = weights["norm.weight"] * unit + weights["norm.bias"]
    error = softmax_error(out @ weights["head.weight"].T, labels)
    of_out = error @ weights["head.weight"]
    of_unit = of_out * weights["norm.weight"]
    of_mean, of_var = -of_unit.sum(0) / deviation, -0.5 * (of_unit * unit).sum(0) / deviation**2
    of_batch = share * (of_mean + 2 * of_var * (hidden - hidden.mean(0))) / len(pixels)
    of_share = of_mean * (hidden.mean(0) - of_all.mean) + of_var * (hidden.var(0) - of_all.var)
    return {
        "hidden.weight": (of_unit / deviation + of_batch).T @ pixels,
        "norm.weight": (of_out * unit).sum(0),
        "norm.bias": of_out.sum(0),
        "norm.mix": of_share * share * (1 - share),
        "head.weight": error.T @ out,
    }


def pooled(x: Weights, mixes: Array, cohort: list[int], of_all: Statistics) -> Statistics:
    """Mean and variance of the mixtures by which the clients' own samples are normalized, sample by sample."""
    sizes, moments = np.array([SIZES[client] for client in cohort]), []
    for client in cohort:
        pixels = PIXELS[CLIENTS.train[client]] / 16
        moments.append(mixture(pixels @ x["hidden.weight"].T, of_all, sigmoid(mixes[client])))
    centre = mean(sizes / sizes.sum(), [own for own, _ in moments])
    return Statistics(centre, mean(sizes / sizes.sum(), [var + (own - centre) ** 2 for own, var in moments]))


@both_executors
def test_golden_numbers_of_a_learned_mixture(executor: str) -> None:
    """HBN with two of three clients in a round: the others keep their mixtures."""
    network = Normalized({"name": "hbn", "momentum": HBN_RATE})
    with torch.no_grad():
        network.norm.mix.copy_(torch.from_numpy(FIRST_MIX))
    trainer = trainer_of("fedavg", executor, network=network, participation=0.67)
    x: Weights = {"hidden.weight": V0, "norm.weight": np.ones(3), "norm.bias": np.zeros(3), "head.weight": H0}
    mixes, of_all = np.tile(FIRST_MIX, (3, 1)), Statistics()
    for round in range(ROUNDS):
        cohort = [int(client) for client in trainer.run.cohort(round)]
        found = pooled(x, mixes, cohort, of_all)
        ends = [{**x, "norm.mix": mixes[client]} for client in cohort]
        for client, end in zip(cohort, ends, strict=True):
            for pixels, labels in batches(client, round):
                for name, leaf in hybrid_gradients(end, pixels, labels, of_all).items():
                    end[name] = end[name] - LR * leaf
            mixes[client] = end["norm.mix"]
        x = {name: mean(SHARE[cohort] / SHARE[cohort].sum(), [end[name] for end in ends]) for name in x}
        new = (own + HBN_RATE * (seen - own) for own, seen in ((of_all.mean, found.mean), (of_all.var, found.var)))
        of_all = Statistics(*new)
        train(1, trainer)
        check(trainer, x, [pooled(x, mixes, cohort, of_all)])  # evaluated at the new weights
        assert_close(trainer.local["norm.mix"], mixes)
        assert_close(trainer.buffers["norm.global_mean"], of_all.mean)
        assert_close(trainer.buffers["norm.global_var"], of_all.var)
