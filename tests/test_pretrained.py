"""The field ``init`` in stored runs: where weights come from, what enters the id, what is refused before the run."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import flbench
from flbench.config import InvalidExperiment, parse_experiment
from flbench.errors import UserError
from flbench.models.weight_files import safetensors
from flbench.planning import resolve_data
from flbench.store import Store
from tests.toys import toy_network

BASE: dict[str, Any] = {"dataset": "digits", "model": {"name": "mlp", "widths": [16]}, "lr": 0.1, "eval_every": 1}
#: One local step with a learning rate that changes nothing: the run's network is its initial one.
FROZEN: dict[str, Any] = {**BASE, "rounds": 1, "E": 1, "lr": 1e-30, "partition": "classes:3", "clients": 4}
PRETRAINING = """
version: 1
name: pretraining
seeds: {seeds}
base: {{kind: centralized, model: {{name: mlp, widths: [16]}}, rounds: 2, lr: 0.1, momentum: {momentum}}}
axes: {{norm: [none, ln]}}
"""


def run(store: Path, **fields: Any) -> str:
    return str(flbench.run(store=store, device="cpu", **fields)["run_id"].iloc[-1])


def weights(store: Path, run_id: str) -> dict[str, Tensor]:
    return dict(flbench.model(run_id, store=store).state_dict())


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], leaf) for name, leaf in other.items())


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a sweep of two finished runs, and its file beside it."""
    folder = tmp_path_factory.mktemp("pretrained")
    (folder / "pretraining.yaml").write_text(PRETRAINING.format(seeds=[0], momentum=0))
    for norm in ("none", "ln"):
        run(folder / "store", **{**BASE, "kind": "centralized", "rounds": 2, "eval_every": 10, "norm": norm})
    return folder


def ids(pretrained: Path) -> dict[str, str]:
    store = Store(pretrained / "store", create=False)
    every = {run_id: store.run(run_id).experiment() for run_id in store.run_ids()}
    return {str(one.norm.label()): run_id for run_id, one in every.items() if one.kind == "centralized"}


def test_the_same_weights_from_elsewhere_are_one_run(pretrained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, trained = pretrained / "store", ids(pretrained)
    monkeypatch.chdir(pretrained)
    own = weights(store, trained["ln"])
    by_sweep = run(store, **FROZEN, norm="ln", init={"sweep": "pretraining.yaml", "match": ["model", "norm"]})
    assert same(weights(store, by_sweep), own)
    assert run(store, **FROZEN, norm="ln", init=f"run:{trained['ln'][:6]}") == by_sweep
    (path,) = (store / "weights").iterdir()
    assert path.stem == hashlib.sha256(path.read_bytes()).hexdigest()
    assert run(store, **FROZEN, norm="ln", init=f"file:{path}") == by_sweep
    moved = shutil.copy(path, pretrained / "elsewhere.safetensors")
    assert run(store, **FROZEN, norm="ln", init=f"file:{moved}") == by_sweep
    experiment = Store(store).run(by_sweep).experiment()
    assert experiment.identity()["init"] == {"name": "weights", "version": 1, "content": path.stem}
    assert experiment.init.label() == "sweep:pretraining.yaml"  # type: ignore[attr-defined]
    assert parse_experiment(experiment.to_json()).run_id == by_sweep == experiment.run_id
    random = run(store, **FROZEN, norm="ln")
    assert random != by_sweep and not same(weights(store, random), own)


def test_other_weights_are_another_run_and_a_finished_run_needs_none(tmp_path: Path) -> None:
    path, store = tmp_path / "w.safetensors", tmp_path / "store"
    first = {name: leaf.float() for name, leaf in toy_network("mlp").state_dict().items()}
    fields = {**FROZEN, "model": {"name": "mlp", "widths": [8, 6]}, "init": f"file:{path}"}
    found = []
    for factor in (1, 2):
        tree = {name: factor * leaf for name, leaf in first.items() if not name.startswith("head.")}
        path.write_bytes(safetensors(tree))
        found.append(run(store, **fields))
        assert torch.equal(weights(store, found[-1])["trunk.dense1.weight"], tree["trunk.dense1.weight"])
    assert len({*found}) == 2
    path.unlink()
    assert not torch.equal(*(weights(store, one)["trunk.dense1.weight"] for one in found))


def test_what_is_measured_or_trained_starts_from_the_weights(pretrained: Path) -> None:
    """The factor of scale is that of the pretrained network, and adapters leave the pretrained body as it is."""
    store, trained = pretrained / "store", ids(pretrained)
    init, own = f"run:{trained['none']}", weights(store, trained["none"])
    scaled = weights(store, run(store, **FROZEN, norm="scale", init=init))
    assert torch.equal(scaled["head.weight"], own["head.weight"])
    assert scaled["feature.factor"] != weights(store, run(store, **FROZEN, norm="scale"))["feature.factor"]
    of_adapters = run(store, **{**FROZEN, "lr": 0.1}, init=init, train="lora:2")
    adapted = weights(store, of_adapters)
    assert all(torch.equal(adapted[name], leaf) for name, leaf in own.items())
    assert adapted["trunk.dense1.lora_B"].any()
    again = weights(store, run(store, **FROZEN, init=f"run:{of_adapters}"))
    change = adapted["trunk.dense1.lora_B"] @ adapted["trunk.dense1.lora_A"]
    torch.testing.assert_close(again["trunk.dense1.weight"], own["trunk.dense1.weight"] + change)


@pytest.mark.parametrize(
    "init, fields, message",
    [
        ("run:abcdef", {}, "init: run:abcdef: there is no run abcdef in"),
        ("run:{none}", {"norm": "ln"}, r"weights do not fit the network: missing trunk\.after1\.weight"),
        ({"sweep": "{folder}/pretraining.yaml"}, {"norm": "gn"}, r"no run of the sweep has model: mlp.*, norm: gn"),
        ({"sweep": "{folder}/pretraining.yaml", "match": ["model"]}, {}, "2 runs of the sweep .* differ in norm"),
        ({"sweep": "{folder}/other.yaml"}, {}, r"its run [0-9a-f]{16} \(.*\) is not finished; run flbench sweep"),
        ({"sweep": "{folder}/none.yaml"}, {}, r"none\.yaml: no such file"),
        ("torchvision", {}, "torchvision has no weights for model mlp.*; use model: torchvision:ARCH"),
    ],
)  # fmt: skip
def test_what_cannot_be_found_is_one_error_before_the_run(
    init: Any, fields: dict[str, Any], message: str, pretrained: Path
) -> None:
    (pretrained / "other.yaml").write_text(PRETRAINING.format(seeds=[0, 1], momentum=0.5))
    store = pretrained / "store"

    def filled(value: Any) -> Any:
        return value.format(folder=pretrained, **ids(pretrained)) if isinstance(value, str) else value

    init = {name: filled(value) for name, value in init.items()} if isinstance(init, dict) else filled(init)
    before = [*Store(store).run_ids()]
    with pytest.raises(UserError, match=message):
        run(store, **{**FROZEN, **fields}, init=init)
    assert [*Store(store).run_ids()] == before


@pytest.mark.parametrize(
    "init, message",
    [
        ("radnom", "unknown init 'radnom'; did you mean 'random'"),
        ("file:nowhere.pt", r"init: the weights: there is no file .*nowhere\.pt"),
        ("file", "init: path"),
        ("run:12", "expected a run id, or at least 4 of its 16 hexadecimal digits, got '12'"),
        ({"sweep": "a", "match": ["normm"]}, "match: unknown field 'normm'; did you mean 'norm'"),
        ({"sweep": "a", "mach": ["norm"]}, "unknown field 'mach' of init 'sweep'; did you mean 'match'"),
        ({"sweep": "a", "match": []}, "match"),
        (3, "expected a init as a name"),
    ],
)
def test_what_is_no_start_is_refused_where_it_is_given(init: Any, message: str) -> None:
    with pytest.raises(InvalidExperiment, match=message):
        parse_experiment({"init": init})


def test_ids_without_a_start_stay_and_digits_alone_are_a_run() -> None:
    assert parse_experiment({"init": "random"}).run_id == parse_experiment({}).run_id
    assert parse_experiment({"init": "run:12345678"}).init.run == "12345678"  # type: ignore[attr-defined]
    assert parse_experiment({"init": "run:1e10"}).init.label() == "run:1e10"  # type: ignore[attr-defined]


def test_personal_networks_and_unfinished_runs_are_no_start(tmp_path: Path) -> None:
    personal = run(tmp_path, **{**FROZEN, "norm": "bn"}, method="fedbn")
    with pytest.raises(UserError, match=r"has no shared network: .* stays on the clients"):
        run(tmp_path, **FROZEN, norm="bn", init=f"run:{personal}")


def test_a_plan_without_the_weights_is_read_as_it_was_planned(pretrained: Path) -> None:
    init = {"sweep": str(pretrained / "pretraining.yaml")}
    planned = run(pretrained / "store", **FROZEN, norm="none", init=init)
    (pretrained / "pretraining.yaml").rename(pretrained / "gone.yaml")
    try:
        given = parse_experiment({**FROZEN, "norm": "none", "init": init})
        (found,), _ = resolve_data([given], pretrained / "store", None, "data")
        assert found.run_id == planned
        with pytest.raises(UserError, match="no such file"):
            resolve_data([parse_experiment({**FROZEN, "seed": 1, "init": init})], pretrained / "store", None, "data")
    finally:
        (pretrained / "gone.yaml").rename(pretrained / "pretraining.yaml")
