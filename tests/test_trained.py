"""Networks of stored runs with their trained weights."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import flbench
from flbench.config import parse_experiment
from flbench.data.datasets import Dataset, load
from flbench.errors import UserError
from flbench.store import Store
from tests.report.stores import experiment

TINY = {"model": {"name": "mlp", "widths": [4]}, "clients": 2, "partition": "classes:5", "E": 1, "rounds": 3}


def trained(store: Path, **fields: object) -> tuple[str, dict[str, float]]:
    """Train a run; return its id and its last record."""
    curve = flbench.run(store=store, device="cpu", **{**TINY, "eval_every": 1, **fields})
    return str(curve["run_id"].iloc[-1]), curve.iloc[-1].to_dict()


def test_the_network_has_the_recorded_accuracy(tmp_path: Path) -> None:
    run_id, last = trained(tmp_path, norm="bn", lr=0.1)
    dataset = parse_experiment({}).dataset  # type: ignore[attr-defined]
    assert isinstance(dataset, Dataset)
    test = load(dataset).test
    found = flbench.predict(run_id[:8], test.images, store=tmp_path)
    assert (found.idxmax(axis=1).astype(int) == test.labels).mean() == last["acc_global"]
    assert np.allclose(found.sum(axis=1), 1)
    floats = flbench.predict(run_id, test.images[:, 0] / load(dataset).white, round=3, store=tmp_path)
    assert np.allclose(floats, found, atol=1e-6)
    features, logits = flbench.model(run_id, store=tmp_path)(torch.zeros(2, 1, 8, 8))
    assert (features.shape, logits.shape) == ((2, 4), (2, 10))


def test_clients_have_their_own_parts(tmp_path: Path) -> None:
    run_id, _ = trained(tmp_path, norm="bn", method="fedbn", lr=0.1)
    first, second = (flbench.model(run_id, client=client, store=tmp_path).state_dict() for client in (0, 1))
    differing = {name for name in first if not (first[name] == second[name]).all()}
    assert differing and all(name.startswith("trunk.after1.") for name in differing)
    with pytest.raises(UserError, match="client 2: expected 0 to 1"):
        flbench.model(run_id, client=2, store=tmp_path)


def test_what_is_not_saved_is_said(tmp_path: Path) -> None:
    run_id, _ = trained(tmp_path)
    with pytest.raises(UserError, match="after round 2 are saved; saved rounds: 3"):
        flbench.model(run_id, 2, store=tmp_path)
    with pytest.raises(UserError, match=r"expected an array of shape \(M, 1, 8, 8\), got \(2, 3\)"):
        flbench.predict(run_id, np.zeros((2, 3)), store=tmp_path)
    with pytest.raises(UserError, match=r"0123: no run of .* has this id"):
        flbench.model("0123", store=tmp_path)
    (attempt,) = Store(tmp_path).run(run_id).attempts()
    shutil.rmtree(attempt.path / "checkpoint")
    with pytest.raises(UserError, match=r"no weights of run .* are saved: .*--rerun"):
        flbench.model(run_id, store=tmp_path)


def test_a_study_has_no_network(tmp_path: Path) -> None:
    study = experiment(kind="rank", rounds=20)
    filled_store = Store(tmp_path)
    filled_store.run(study.run_id).path.mkdir(parents=True)
    filled_store.run(study.run_id).write_experiment(study)
    with pytest.raises(UserError, match=r"is a study \(rank\): only training leaves a network"):
        flbench.model(study.run_id, store=tmp_path)


@pytest.mark.slow
def test_a_type_checker_sees_the_types(tmp_path: Path) -> None:
    program, cache = tmp_path / "notebook.py", Path(__file__).parents[1] / ".mypy_cache/notebook"
    program.write_text('import flbench\nreveal_type(flbench.model("3fa2"))\nflbench.predict(1, [])\n')
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--follow-imports=silent", f"--cache-dir={cache}", str(program)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert 'Revealed type is "torch.nn.modules.module.Module"' in checked.stdout, checked.stdout
    assert '"predict" has incompatible type "int"; expected "str"' in checked.stdout
    assert "py.typed" not in checked.stdout


@pytest.mark.parametrize("method", ["fedavg", "fedyogi"])
def test_a_large_step_on_one_class_ends_local_training(method: str, tmp_path: Path) -> None:
    """docs/answers/fedyogi.md: after a round of one, two or ten local steps the network is the same to the last bit."""

    def weights(lr: float, steps: int) -> torch.Tensor:
        model = {"name": "mlp", "widths": [64, 64]}
        setting = {"method": method, "partition": "classes:1", "clients": 10, "val_fraction": 0.2, "rounds": 1}
        run_id, _ = trained(tmp_path, model=model, lr=lr, E=steps, **setting)
        return torch.nn.utils.parameters_to_vector(flbench.model(run_id, store=tmp_path).parameters())

    after_one, after_two, after_ten = (weights(31.6227766017, steps) for steps in (1, 2, 10))
    assert torch.equal(after_one, after_two) and torch.equal(after_one, after_ten)
    assert not torch.equal(weights(0.1, 1), weights(0.1, 10))
