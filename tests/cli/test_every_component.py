"""Every named component in a run of two rounds from the command line, on digits; data that are no images as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import flbench
from flbench.cli import app
from flbench.config import parse_experiment
from flbench.data.datasets import load
from flbench.models.norms.base import Norm
from flbench.registry import HEADS, METHODS, MODELS, NORMS, PARTITIONS, PROBES, SAMPLERS, Registry
from flbench.store import Store
from tests.samples import fast

SHORT = ("partition=classes:4", "rounds=2", "E=2", "clients=5", "batch_size=8", "eval_every=1")
SMALL = ("model.name=resnet18", "model.width=2", "model.blocks=[1]")

#: The field of each kind of component.
KINDS: dict[str, Registry[Any]] = {
    "method": METHODS, "norm": NORMS, "head": HEADS, "model": MODELS, "partition": PARTITIONS, "cohort": SAMPLERS,
    "probes": PROBES,
}  # fmt: skip

#: Components that need more than their name, or another name for a small network.
WORDS: dict[str, tuple[str, ...]] = {
    "model resnet18": SMALL,
    "model simple-vit": ("model.name=simple-vit", "model.width=8", "model.depth=1"),
    "model torchvision": ("model.name=torchvision", "model.arch=resnet18", "model.small=true", "rounds=1", "E=1"),
    "partition classes": ("partition=classes:2",),
    "partition dirichlet": ("partition=dirichlet:0.5",),
    "partition balanced-dirichlet": ("partition=balanced-dirichlet:0.5",),
    "partition quantity": ("partition=quantity:0.5",),
    "partition shards": ("partition=shards:2",),
    "cohort cyclic": ("cohort=cyclic:2", "participation=0.4"),
    "cohort bernoulli": ("cohort=bernoulli", "participation=0.4"),
    "cohort skewed": ("cohort=skewed:2", "participation=0.4"),
}

#: Components that digits cannot have, and why.
ELSEWHERE = {
    "model text": "tokens: below",
    "model cnn": "larger images",
    "model lenet": "larger images",
    "model cnn-table7": "larger images",
    "partition by": "a column: below",
    "partition given": "rows of one's own: below",
    "partition domain-classes": "domains: tests/data/test_paper_sets.py",
    "partition domain-dirichlet": "domains: tests/data/test_paper_sets.py",
}

#: Other settings of training.
SETTINGS = {
    "train head": ("train=head",),
    "train norm": ("train=norm", "norm=ln"),
    "train head+norm": ("train=head+norm", "norm=ln"),
    "train lora": ("train=lora:2",),
    "train pattern": ("train=trunk.*",),
    "steps drawn": ("local_steps=uniform:1:3",),
    "stragglers": ("local_steps=stragglers:3:0.5",),
    "kept momentum": ("momentum=0.9", "keep_momentum=true"),
    "fine-tuning": ("finetune=2", "method=fedbabu"),
    "adam": ("optimizer=adam", "lr=0.01"),
    "server data": ("server_fraction=0.05",),
    "loop": ("--executor", "loop"),
}


def words_of(kind: str, name: str) -> tuple[str, ...]:
    """Return the words of the command line for a component."""
    if kind == "norm":
        norm: Norm = NORMS.parse(name)
        fits = norm.problem(tuple(MODELS.parse("mlp").sites((1, 8, 8)))) is None
        return (f"norm={name}", *(() if fits else SMALL))
    return WORDS.get(f"{kind} {name}", (f"{kind}=[{name}]" if kind == "probes" else f"{kind}={name}",))


CASES = {
    f"{kind} {name}": words_of(kind, name)
    for kind, registry in KINDS.items()
    for name in registry.classes
    if f"{kind} {name}" not in ELSEWHERE
} | SETTINGS


def finished(store: Path, *words: str) -> str:
    """Run an experiment in this process and return its id."""
    fields, options = [word for word in words if "=" in word], [word for word in words if "=" not in word]
    given = {field.partition("=")[0] for field in fields}
    short = [field for field in SHORT if field.partition("=")[0] not in given]
    if "local_steps" in given:
        short.remove("E=2")
    command = ["run", "--store", str(store), "--device", "cpu", "--json", *options, *short, *fields]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, (result.output, result.exception)
    found = json.loads(result.stdout)
    assert found["status"] == "done" and found["rounds"] == int("rounds=1" not in fields) + 1
    assert 0 <= found["final"]["acc"] <= 1
    return str(found["run_id"])


@pytest.mark.parametrize("case", fast(CASES, "method fedavg", "train lora"))
def test_a_component_runs_from_the_command_line(case: str, tmp_path: Path) -> None:
    finished(tmp_path, *CASES[case])


def test_the_lists_name_components_that_exist() -> None:
    known = {f"{kind} {name}" for kind, registry in KINDS.items() for name in registry.classes}
    assert WORDS.keys() | ELSEWHERE.keys() <= known


@pytest.mark.slow
def test_a_run_starts_from_a_run_and_from_a_file(tmp_path: Path) -> None:
    first = finished(tmp_path, "norm=ln")
    finished(tmp_path, "norm=ln", f"init=run:{first}", "train=head")
    import torch

    torch.save(flbench.model(first, store=tmp_path).state_dict(), tmp_path / "weights.pt")
    finished(tmp_path, "norm=ln", f"init=file:{tmp_path / 'weights.pt'}")
    assert len([*Store(tmp_path).run_ids()]) == 3


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits as features, as tokens, as a table and as rows of clients."""
    folder = tmp_path_factory.mktemp("files")
    data = load(parse_experiment({}).dataset)  # type: ignore[attr-defined]
    flat = {
        half: part.images.reshape(len(part.images), -1) for half, part in (("train", data.train), ("test", data.test))
    }
    labels = {"y_train": data.train.labels, "y_test": data.test.labels}
    for name, dtype in (("features", np.float32), ("tokens", np.int64)):
        np.savez(folder / f"{name}.npz", **{f"x_{half}": x.astype(dtype) for half, x in flat.items()}, **labels)
    columns = ",".join([*(f"p{n}" for n in range(64)), "label", "writer"])
    table = np.column_stack([flat["train"], data.train.labels, np.arange(len(data.train.labels)) % 4])
    np.savetxt(folder / "table.csv", table, "%d", ",", header=columns, comments="")
    rows = {"train": [list(range(n, 600, 3)) for n in range(3)]}
    (folder / "rows.json").write_text(json.dumps(rows))
    return folder


#: Words of the command line, with the folder of the files as ``{}``.
FILES = {
    "features": ("dataset=arrays:{}/features.npz",),
    "features, linear": ("dataset=arrays:{}/features.npz", "model.name=mlp", "model.widths=[]"),
    "tokens": ("dataset=arrays:{}/tokens.npz", "model=text"),
    "tokens, convolution": ("dataset=arrays:{}/tokens.npz", "model.name=text", "model.kernel=3"),
    "a table": ("dataset.name=table", "dataset.path={}/table.csv", "dataset.target=label", "dataset.test_fraction=0.2"),
    "natural clients": (
        "dataset.name=table", "dataset.path={}/table.csv", "dataset.target=label", "dataset.test_fraction=0.2",
        "dataset.groups=[writer]", "partition=by:writer", "clients=4",
    ),
    "given rows": ("partition=given:{}/rows.json", "clients=3"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", FILES)
def test_data_of_ones_own_run_from_the_command_line(case: str, files: Path, tmp_path: Path) -> None:
    finished(tmp_path, *(word.replace("{}", str(files)) for word in FILES[case]))
