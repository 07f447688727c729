"""Methods of papers as plug-in files, compared with numpy programs that share only the rows of each batch with them.

Shape suffixes: K clients, C classes, D features, M samples.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flbench.engine.optimizers import Sgd
from flbench.testing import check_method
from tests.conformance.problem import (
    CLIENTS,
    COUNTS,
    H0,
    LABELS,
    LR,
    PIXELS,
    SHARE,
    V0,
    W0,
    Array,
    SoftmaxRegression,
    TwoLayers,
    assert_close,
    batches,
    both_executors,
    images,
    local_sgd,
    softmax_error,
)
from tests.plugins.loading import method_of
from tests.toys import toy_trainer, train
from tests.warm import warm_python

HERE = Path(__file__).parent / "papers"


@cache
def plugin(name: str) -> Any:
    """Return the method of a file."""
    return method_of(HERE / f"{name}.py")


def trained(method: Any, executor: str, rounds: int = 3, **given: Any) -> Any:
    settings: dict[str, Any] = {"network": SoftmaxRegression(), "images": images(), "steps": 3, "batch_size": 2}
    trainer = toy_trainer(
        method, executor=executor, sgd=Sgd(LR), clients=replace(CLIENTS, server=SERVER), **{**settings, **given}
    )
    train(rounds, trainer)
    return trainer


#: Rows that the server holds; that clients hold some of them, too, changes no number of this problem.
SERVER = np.array([1, 2, 5, 9, 12])


def disco_weights(a: float, b: float, measure: str, present: list[int]) -> Array:
    weights = []
    distances = []
    for k in present:
        parts = [count / sum(COUNTS[k]) for count in COUNTS[k]]
        if measure == "l2":
            distances.append(sum((part - 1 / 3) ** 2 for part in parts) ** 0.5)
        else:
            distances.append(sum(part * np.log(3 * part) for part in parts if part))
    if measure == "kl":
        distances = [distance / sum(distances) for distance in distances]
    sizes = [sum(COUNTS[k]) for k in present]
    for size, distance in zip(sizes, distances, strict=True):
        weights.append(max(0.0, size / sum(sizes) - a * distance + b))
    return np.array(weights) / sum(weights)


@both_executors
@pytest.mark.parametrize(
    ("a", "b", "measure"), [(0.5, 0.1, "kl"), (1.0, 0.1, "kl"), (0.4, 0.2, "l2"), (0.9, 0.0, "l2")]
)
def test_feddisco(executor: str, a: float, b: float, measure: str) -> None:
    x, weights = W0.copy(), disco_weights(a, b, measure, [0, 1, 2])
    for round in range(3):
        x = sum(weight * local_sgd(x, k, round) for k, weight in enumerate(weights))
    found = trained(plugin("feddisco")(a=a, b=b, measure=measure), executor)
    assert_close(found.x["head.weight"], x)
    assert np.abs(weights - SHARE).max() > 0.05


def test_feddisco_weighs_those_who_take_part() -> None:
    found = trained(plugin("feddisco")(), "stacked", participation=0.67, rounds=2)
    x = W0.copy()
    for round in range(2):
        present = [int(k) for k in found.run.cohort(round)]
        weights = disco_weights(0.5, 0.1, "kl", present)
        x = sum(weight * local_sgd(x, k, round) for k, weight in zip(present, weights, strict=True))
    assert_close(found.x["head.weight"], x)


def law(x: Array, round: int, variant: str, epochs: int, batch: int, rate: float) -> Array:
    """Gradients by hand: dL/dW = G, so dL/dp_k = gamma <G, w_k>, and dL/dgamma = <G, sum_k p_k w_k>."""
    models = [local_sgd(x, k, round) for k in range(3)]
    theta = np.array([*np.log(SHARE), 0.0]) if variant == "exp" else np.ones(4)
    first, second, step = np.zeros(4), np.zeros(4), 0

    def mixed() -> tuple[float, Array, Array]:
        if variant == "exp":
            parts, gamma = np.exp(theta[:3]) / np.exp(theta[:3]).sum(), float(np.exp(theta[3]))
        else:
            parts, gamma = theta[:3] ** 2 / (theta[:3] ** 2).sum(), float(theta[3] ** 2)
        return gamma, parts, np.asarray(sum(part * model for part, model in zip(parts, models, strict=True)))

    for _ in range(epochs):
        for begin in range(0, len(SERVER), batch):
            rows, step = SERVER[begin : begin + batch], step + 1
            gamma, parts, mean = mixed()
            pixels = PIXELS[rows] / 16.0
            g = softmax_error(gamma * pixels @ mean.T, LABELS[rows]).T @ pixels
            of_parts = np.array([gamma * (g * model).sum() for model in models])
            if variant == "exp":
                of_theta = parts * (of_parts - (parts * of_parts).sum())
                of_gamma = gamma * (g * mean).sum()
            else:
                of_theta = 2 * theta[:3] / (theta[:3] ** 2).sum() * (of_parts - (parts * of_parts).sum())
                of_gamma = 2 * theta[3] * (g * mean).sum()
            gradient = np.array([*of_theta, of_gamma])
            first, second = 0.5 * first + 0.5 * gradient, 0.999 * second + 0.001 * gradient**2
            theta = theta - rate * first / (1 - 0.5**step) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
    gamma, _, mean = mixed()
    return gamma * mean


@both_executors
@pytest.mark.parametrize("variant", ["exp", "quad"])
def test_fedlaw(executor: str, variant: str) -> None:
    x = W0.copy()
    for round in range(3):
        x = law(x, round, variant, epochs=4, batch=3, rate=0.1)
    method = plugin("fedlaw")(epochs=4, batch=3, rate=0.1, variant=variant)
    assert_close(trained(method, executor).x["head.weight"], x)


def test_fedlaw_without_epochs_is_fedavg() -> None:
    x = W0.copy()
    for round in range(3):
        x = sum(share * local_sgd(x, k, round) for k, share in enumerate(SHARE))
    assert_close(trained(plugin("fedlaw")(epochs=0), "stacked").x["head.weight"], x)


def two_layers_sgd(v: Array, h: Array, client: int, round: int) -> tuple[Array, Array]:
    for pixels, labels in batches(client, round):
        error = softmax_error(pixels @ v.T @ h.T, labels)
        v, h = v - LR * (error @ h).T @ pixels, h - LR * error.T @ (pixels @ v.T)
    return v, h


@both_executors
def test_ccvr(executor: str) -> None:
    """The statistics of all samples together, of the parameters before the last round; CCVR is FedAvg apart from it."""
    v, h, rounds = V0.copy(), H0.copy(), []
    for round in range(2):
        rounds.append((v, h))
        ends = [two_layers_sgd(v, h, k, round) for k in range(3)]
        v, h = (sum(share * end[part] for share, end in zip(SHARE, ends, strict=True)) for part in (0, 1))
    found = trained(plugin("ccvr")(samples=7, steps=5, rate=0.2), executor, rounds=2, network=TwoLayers())
    assert_close(found.x["hidden.weight"], v)
    v, h = rounds[-1]
    features, drawn, targets = PIXELS / 16.0 @ v.T, [], []
    draws = torch.randn(3, 7, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).numpy()
    for label in range(3):
        of_class = features[label == LABELS]
        values, vectors = np.linalg.eigh(np.cov(of_class, rowvar=False))
        root = vectors @ np.diag(np.sqrt(np.maximum(values, 0))) @ vectors.T
        drawn.append(of_class.mean(0) + draws[label] @ root)
        targets += [label] * 7
    for _ in range(5):
        h = h - 0.2 * softmax_error(np.concatenate(drawn) @ h.T, np.array(targets)).T @ np.concatenate(drawn)
    params, _ = found.model(0)
    np.testing.assert_allclose(params["hidden.weight"].numpy(), v, rtol=0, atol=1e-12)
    np.testing.assert_allclose(params["head.weight"].numpy(), h, rtol=0, atol=1e-7)  # the root of a rank-2 covariance


@pytest.mark.parametrize("method", [("feddisco", {}), ("fedlaw", {"epochs": 2, "batch": 5}), ("ccvr", {"steps": 2})])
def test_loop_stack_chunks_fused_and_resumed_runs_agree(method: tuple[str, dict[str, Any]]) -> None:
    name, settings = method
    check_method(plugin(name)(**settings))


@pytest.mark.slow
def test_from_the_command_line(tmp_path: Path) -> None:
    plugins = [part for file in sorted(HERE.glob("*.py")) for part in ("--plugin", str(file))]
    run = [
        warm_python(),
        "-c",
        "from flbench.cli import main; main()",
        *plugins,
        "run",
        "E=2",
        "rounds=2",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def call(*fields: str) -> subprocess.CompletedProcess[str]:
        command = [*run, *fields, "--json", "--store", str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)

    for fields in (["method=feddisco"], ["method=fedlaw", "server_fraction=0.05"], ["method=ccvr"]):
        done = call(*fields)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)
    refused = call("method=fedlaw")
    assert refused.returncode == 2 and "fedlaw needs server_fraction: the share" in refused.stderr
    refused = call("method=fedlaw", "server_fraction=0.05", "norm=silobn")
    assert refused.returncode == 2 and "with silobn the batch statistics stay on the clients" in refused.stderr
