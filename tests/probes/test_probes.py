"""Probes on small federated models: numbers by hand, and looking changes nothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from flbench.config import InvalidExperiment, parse_experiment
from flbench.data.datasets import load
from flbench.engine.federated import FederatedTrainer
from flbench.engine.model_access import ModelAccess
from flbench.engine.setup import make_network, make_trainer
from flbench.probes import Observation
from flbench.probes.drift import Drift
from flbench.probes.features import Features
from flbench.probes.overfit import Overfit
from flbench.probes.sharpness import Sharpness
from flbench.probes.training_set import TrainingSet
from flbench.store import Store
from flbench.theory import rank
from tests.test_execution import run

SMALL: dict[str, Any] = {"model": {"name": "mlp", "widths": [12]}, "clients": 10, "E": 3, "lr": 0.1, "rounds": 4}


def access_of(*, executor: str = "stacked", rounds: int = 2, **fields: Any) -> ModelAccess:
    experiment = parse_experiment({**SMALL, "precision": "fp64", **fields})
    data = load(experiment.dataset)  # type: ignore[arg-type]
    trainer, _ = make_trainer(experiment, data, device="cpu", executor=executor, pool=1)  # type: ignore[arg-type]
    for _ in range(rounds):
        trainer.step()
    return ModelAccess(trainer, make_network(experiment, data, "cpu"), experiment.lr)


def seen(access: ModelAccess) -> Observation:
    return Observation(access.trainer.round, access.trainer.x, access.trainer.x, None, None, access)


def test_mixed_samples_have_all_classes_alike() -> None:
    images, labels = access_of().mixed_test_samples(57)
    assert labels.bincount().tolist() == [5] * 10
    again, _ = access_of(rounds=0).mixed_test_samples(57)
    assert torch.equal(images, again), "the same ones in every round"


def test_local_sharpness_uses_the_clients_own_samples() -> None:
    access = access_of(partition="classes:1")
    own = access.train_samples(20, client=3)
    rows = access.trainer.run.rows[3] if isinstance(access.trainer, FederatedTrainer) else []
    everything = access.trainer.images.prepare(access.trainer.images.train_MCHW[torch.from_numpy(rows)])
    assert len(own) == 20
    assert all(any(torch.equal(one, other) for other in everything) for one in own)


def test_the_training_set_is_every_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flbench.probes.training_set.BATCH", 500)
    access = access_of(partition="classes:2")
    images = access.trainer.images
    _, logits = access.forward(*access.model(), images.prepare(images.train_MCHW), training=False)
    found = TrainingSet().measure(seen(access))
    assert found["acc"] == pytest.approx(float((logits.argmax(1) == images.train_labels_M).double().mean()))
    assert found["loss"] == pytest.approx(F.cross_entropy(logits, images.train_labels_M).item())


def test_features_are_those_of_the_network() -> None:
    access = access_of()
    found = Features(samples=40, values=3).measure(seen(access))
    images, _ = access.mixed_test_samples(40)
    hidden = torch.relu(images.flatten(1) @ access.trainer.x["trunk.dense1.weight"].T)
    gram = (hidden.T @ hidden / len(hidden)).numpy()
    spectrum = torch.linalg.eigvalsh(torch.from_numpy(gram)).numpy()
    assert found["norm"] == pytest.approx(float(hidden.norm(dim=1).mean()))
    assert found["norm_sd"] == pytest.approx(float(hidden.norm(dim=1).std()))
    assert found["rank"] == pytest.approx(rank.effective_rank(spectrum))
    assert found["soft_rank"] == rank.soft_rank(spectrum)
    assert found["first_share"] == pytest.approx(float(spectrum[-1] / spectrum.sum()))
    assert found["singular"] == pytest.approx(torch.linalg.svdvals(hidden)[:3].tolist())
    assert found["head_norms"] == pytest.approx(access.trainer.x["head.weight"].norm(dim=1).tolist())


def test_sharpness_is_the_gauss_newton_part_of_the_hessian() -> None:
    """Of the mean cross-entropy: J^T (diag p - p p^T) J / T, built here sample by sample."""
    access = access_of(bias=True)
    found = Sharpness(samples=12, clients=2).measure(seen(access))
    images = access.train_samples(12)
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in access.trainer.x.items()}
    logits = access.forward(leaves, {}, images, training=True)[1]
    total = 0.0
    for row in logits:
        gradients = [torch.autograd.grad(z, list(leaves.values()), retain_graph=True) for z in row]
        jacobian = torch.stack([torch.cat([part.flatten() for part in parts]) for parts in gradients])
        p = row.detach().softmax(0)
        total = total + jacobian.T @ (torch.diag(p) - torch.outer(p, p)) @ jacobian / 12
    assert isinstance(total, torch.Tensor)
    assert found["lambda_max"] == pytest.approx(float(torch.linalg.eigvalsh(total)[-1]), rel=1e-5)
    assert found["rate"] == pytest.approx(2 / found["lambda_max"])
    assert found["lr"] == 0.1
    assert len(found["local"]) == 2


def test_local_steps_are_plain_steps_on_the_clients_batches() -> None:
    access = access_of(partition="classes:1")
    trainer = access.trainer
    assert isinstance(trainer, FederatedTrainer)
    params, _ = access.after_local_steps(4, 2)
    weights = {name: leaf.clone().requires_grad_() for name, leaf in trainer.x.items()}
    batch = trainer.run.batch(4, trainer.round)
    for rows in torch.from_numpy(batch.rows_EB[:2]):
        images = trainer.images.prepare(trainer.images.train_MCHW[rows])
        logits = torch.relu(images.flatten(1) @ weights["trunk.dense1.weight"].T) @ weights["head.weight"].T
        loss = F.cross_entropy(logits, trainer.images.train_labels_M[rows])
        gradients = torch.autograd.grad(loss, list(weights.values()))
        with torch.no_grad():
            for leaf, gradient in zip(weights.values(), gradients, strict=True):
                leaf -= 0.1 * gradient
    for name, leaf in weights.items():
        torch.testing.assert_close(params[name], leaf.detach(), rtol=0, atol=1e-12)


def test_one_class_clients_forget_the_other_classes() -> None:
    access = access_of(partition="classes:1", rounds=60, executor="stacked")
    found = Overfit(steps=20, clients=3).measure(seen(access))
    assert found["mean_after"] < found["mean_before"]
    assert [len(row) for row in found["after"]] == [10] * 3
    for client, row in enumerate(found["after"]):
        rows = access.trainer.run.rows[client] if isinstance(access.trainer, FederatedTrainer) else []
        (own,) = set(access.trainer.images.train_labels_M[torch.from_numpy(rows)].tolist())
        assert row[own] == 1


@pytest.mark.parametrize(
    ("method", "norm"),
    [("fedavg", "none"), ("scaffold", "ln"), ("fedbn", "bn"), ("local-only", "bn")],
)
def test_probes_do_not_change_training(method: str, norm: str) -> None:
    looked_at, left_alone = (access_of(method=method, norm=norm, rounds=1) for _ in range(2))
    for _ in range(2):
        for probe in (Features(samples=20), Sharpness(samples=5, clients=1), Overfit(steps=2, clients=2, samples=20)):
            probe.measure(seen(looked_at))
        looked_at.trainer.step()
        left_alone.trainer.step()
    trees = [access.trainer.state()["trees"] for access in (looked_at, left_alone)]
    for name, tree in trees[0].items():
        assert all(torch.equal(leaf, trees[1][name][key]) for key, leaf in tree.items())


def test_measurements_that_overflow_are_null() -> None:
    access = access_of(rounds=1)
    assert isinstance(access.trainer, FederatedTrainer)
    access.trainer.x = {name: leaf.sign() * 1e300 for name, leaf in access.trainer.x.items()}
    assert Features().measure(seen(access))["rank"] >= 1, "squares that overflow do not matter"
    found = Sharpness(samples=5, clients=1).measure(seen(access))
    assert {name: found[name] for name in found if name != "lr"} == {
        "lambda_max": None,
        "rate": None,
        "local": [None],
    }
    access.trainer.x = {name: leaf.sign() * math.inf for name, leaf in access.trainer.x.items()}
    assert Features().measure(seen(access)) == {}
    access.trainer.x = {name: leaf * 0 for name, leaf in access_of(rounds=0).trainer.x.items()}
    assert Features().measure(seen(access)) == {"norm": 0.0}


def test_centralized_training_has_no_clients_to_overfit() -> None:
    experiment = parse_experiment({"kind": "centralized", "model": SMALL["model"], "rounds": 2, "precision": "fp64"})
    data = load(experiment.dataset)  # type: ignore[arg-type]
    trainer, _ = make_trainer(experiment, data, device="cpu", executor="auto", pool=1)
    trainer.step()
    access = ModelAccess(trainer, make_network(experiment, data, "cpu"), experiment.lr)
    assert Overfit().measure(seen(access)) == {}
    found = Sharpness(samples=5).measure(seen(access))
    assert found["local"] == []
    assert found["lambda_max"] > 0
    assert Features().measure(seen(access))["rank"] > 1


@pytest.mark.parametrize(
    "form",
    [
        {"features": 2, "drift": None, "overfit": {"every": 4, "steps": 1, "clients": 2}},
        [{"name": "features", "every": 2}, "drift", {"name": "overfit", "every": 4, "steps": 1, "clients": 2}],
    ],
)
def test_probes_measure_when_they_are_due(form: Any, tmp_path: Path) -> None:
    experiment = parse_experiment({**SMALL, "rounds": 5, "eval_every": 2, "probes": form})
    assert experiment.run_id == parse_experiment({**SMALL, "rounds": 5}).run_id
    _, records = run(Store(tmp_path), experiment)
    taken = {record["round"]: sorted(record["probes"]) for record in records}
    everything = ["drift", "features", "overfit"]
    assert taken == {0: ["features", "overfit"], 2: ["drift", "features"], 4: everything, 5: everything}


@pytest.mark.parametrize(
    ("probes", "message"),
    [
        ({"features": 3}, "every 3 rounds is not among the evaluations, every 2"),
        (["drift", {"name": "drift", "every": 2}], "drift is given twice"),
        ({"feature": 2}, "did you mean 'features'"),
        ({"features": 0}, "at least 1"),
        ({"features": {"sample": 3}}, "sample"),
        (7, "expected a list of probes, or a mapping"),
    ],
)
def test_wrong_probe_settings_are_refused(probes: Any, message: str) -> None:
    with pytest.raises(InvalidExperiment, match=message):
        parse_experiment({**SMALL, "eval_every": 2, "probes": probes})


def test_the_drift_of_two_updates_by_hand() -> None:
    """From x = (1, 1): (3, 0) and (0, 4), weighed 1/4 and 3/4; their mean is (3/4, 3)."""
    clients = {"w": torch.tensor([[4.0, 1.0], [1.0, 5.0]])}
    x = {"w": torch.ones(2)}
    found = Drift().measure(Observation(1, x, x, clients, torch.tensor([0.25, 0.75]), None))
    assert found["update_norm"] == pytest.approx(3.5)
    assert found["mean_norm"] == pytest.approx((0.75**2 + 3**2) ** 0.5)
    assert found["agreement"] == pytest.approx((0.75**2 + 3**2) ** 0.5 / (0.25 * 3 + 0.75 * 4))
    assert found["cosine"] == pytest.approx(0.0)


def test_there_is_no_drift_without_messages() -> None:
    assert Drift().measure(Observation(1, {}, {}, {}, torch.tensor([0.5, 0.5]), None)) == {}
