"""Methods of papers as plug-ins (``tests/plugins/methods``), each against a numpy program that shares only the rows.

They show that changes before they are sent, noise, error feedback and a training of one's own can be written.
"""

from __future__ import annotations

import math
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flbench.methods.base import Method
from flbench.testing import check_method
from tests.conformance.problem import (
    H0,
    LABELS,
    LR,
    PIXELS,
    SHARE,
    V0,
    W0,
    Array,
    TwoLayers,
    assert_close,
    batches,
    both_executors,
    local_sgd,
    mean,
    softmax_error,
    trained,
)
from tests.plugins.loading import method_of, module_of
from tests.splitmix import key_of, normals
from tests.toys import record_of, toy_trainer, train
from tests.warm import warm_python

FOLDER = Path(__file__).parents[1] / "plugins/methods"


DpFedAvg, TopK, FedALA = (method_of(FOLDER / f"{stem}.py") for stem in ("dp_fedavg", "top_k", "fedala"))


@pytest.mark.parametrize("method", [DpFedAvg, TopK, FedALA])
def test_each_passes_the_checks(method: type[Method]) -> None:
    check_method(method)


@both_executors
def test_dp_fedavg(executor: str) -> None:
    clip, noise, x = 0.4, 0.5, W0.copy()
    norms = []
    for round in range(3):
        changes = [local_sgd(x, client, round) - x for client in range(3)]
        norms += [float(np.linalg.norm(change)) for change in changes]
        clipped = [change * min(1.0, clip / np.linalg.norm(change)) for change in changes]
        drawn = np.array(normals(key_of(0, None, round, "head.weight", -1), 6)).reshape(3, 2)
        x = x + (sum(clipped) + noise * clip * drawn) / 3
    assert min(norms) < clip < max(norms), "some changes are clipped, others are not"
    assert_close(trained(DpFedAvg(clip=clip, noise=noise), executor).x["head.weight"], x)


def test_without_noise_and_limit_dp_fedavg_is_the_plain_mean() -> None:
    x = W0.copy()
    for round in range(3):
        x = x + mean([1 / 3] * 3, [local_sgd(x, client, round) - x for client in range(3)])
    assert_close(trained(DpFedAvg(clip=1e6, noise=0.0), "stacked").x["head.weight"], x)


@pytest.mark.parametrize(("noise", "share", "rounds"), [(8.0, 1.0, 20), (2.0, 0.1, 200)])
def test_epsilon_follows_from_renyi_differential_privacy(noise: float, share: float, rounds: int) -> None:
    """Mironov et al. 2019, eq. 30 at whole orders, and the conversion of Balle et al. 2020, Theorem 21."""
    pytest.importorskip("opacus")  # uv run --with opacus pytest ...; its wheel has a package ``benchmarks``, as we have
    delta, found = 1e-5, []
    for order in range(2, 64):
        terms = [
            math.comb(order, k) * (1 - share) ** (order - k) * share**k * math.exp((k * k - k) / (2 * noise**2))
            for k in range(order + 1)
        ]
        renyi = rounds * math.log(sum(terms)) / (order - 1)
        found.append(renyi + math.log1p(-1 / order) - math.log(delta * order) / (order - 1))
    assert module_of(FOLDER / "dp_fedavg.py").epsilon(noise, share, rounds, delta) == pytest.approx(
        min(found), rel=0.02
    )


@both_executors
def test_top_k_with_error_feedback(executor: str) -> None:
    v, h, rest = V0.copy(), H0.copy(), [np.zeros(15) for _ in range(3)]
    for round in range(3):
        sent = []
        for client in range(3):
            end_v, end_h = two_layers(v, h, client, round)
            whole = np.concatenate([(end_v - v).ravel(), (end_h - h).ravel()]) + rest[client]
            kept = np.zeros(15)
            largest = np.argsort(-np.abs(whole))[:4]
            kept[largest] = whole[largest]
            rest[client] = whole - kept
            sent.append(kept)
        step = mean(SHARE, sent)
        v, h = v + step[:6].reshape(3, 2), h + step[6:].reshape(3, 3)
    trainer = trained(TopK(share=0.3), executor, network=TwoLayers())
    assert_close(trainer.x["hidden.weight"], v)
    assert_close(trainer.x["head.weight"], h)
    assert_close(trainer.states["hidden.weight"].flatten(1), np.stack(rest)[:, :6])
    assert trainer.bytes_up == 3 * 3 * 4 * (8 + 4), "rounds, clients, k, and a value and an index each"
    assert trainer.bytes_down == 3 * 3 * 15 * 8


def two_layers(v: Array, h: Array, client: int, round: int) -> tuple[Array, Array]:
    """Return a client's weights after a round of SGD on logits H V p."""
    for pixels, labels in batches(client, round):
        of_v, of_h = gradients(v, h, pixels, labels)
        v, h = v - LR * of_v, h - LR * of_h
    return v, h


def gradients(v: Array, h: Array, pixels: Array, labels: Any) -> tuple[Array, Array]:
    error = softmax_error(pixels @ v.T @ h.T, labels)
    return np.asarray((error @ h).T @ pixels), np.asarray(error.T @ (pixels @ v.T))


def test_fedala() -> None:
    eta, v, h = 3.0, V0.copy(), H0.copy()
    own, shares = [H0.copy() for _ in range(3)], [np.ones((3, 3)) for _ in range(3)]
    for round in range(3):
        ends = []
        for k in range(3):
            gap = h - own[k]
            for pixels, labels in batches(k, round):
                of_h = gradients(v, own[k] + gap * shares[k], pixels, labels)[1]
                shares[k] = np.clip(shares[k] - eta * of_h * gap, 0, 1)
            ends.append(two_layers(v, own[k] + gap * shares[k], k, round))
            own[k] = ends[k][1]
        v, h = mean(SHARE, [end[0] for end in ends]), mean(SHARE, [end[1] for end in ends])
    trainer = trained(FedALA(eta=eta), "loop", network=TwoLayers())
    assert_close(trainer.x["hidden.weight"], v)
    assert_close(trainer.x["head.weight"], h)
    assert_close(trainer.states["w/head.weight"], np.stack(own))
    learned = trainer.states["W/head.weight"]
    assert_close(learned, np.stack(shares))
    assert int((learned < 1).sum()) > 0 and bool((learned > 0).any())
    mixed = [own[k] + (h - own[k]) * shares[k] for k in range(3)]
    right = [((PIXELS[:6] / 16 @ v.T @ head.T).argmax(axis=1) == LABELS[:6]) for head in mixed]
    record = record_of(trainer)
    assert record["clients"] == [float(each.mean()) for each in right]
    assert record["clients_personal"] == [float(each[k::3].mean()) for k, each in enumerate(right)]
    assert record["acc_personal_worst"] == min(record["clients_personal"]) < record["acc_personal"]
    for k in range(3):
        assert_close(trainer.model(k)[0]["head.weight"], mixed[k])


def test_fedala_that_keeps_to_the_server_is_fedavg() -> None:
    found, plain = (toy_trainer(method) for method in (FedALA(eta=0.0), Method()))
    train(2, found, plain)
    for name, leaf in plain.x.items():
        assert_close(found.x[name], leaf.numpy())


@pytest.mark.slow
def test_the_plug_ins_on_digits(tmp_path: Path) -> None:
    for stem, name in (("dp_fedavg", "dp-fedavg"), ("top_k", "top-k"), ("fedala", "fedala")):
        where = ["--plugin", str(FOLDER / f"{stem}.py"), "run", f"method={name}", "rounds=2", "eval_every=2"]
        command = [warm_python(), "-c", "from flbench.cli import main; main()", *where, "--store", str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
