from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from flbench.cli import app
from flbench.config import fields_of_all_kinds
from flbench.registry import METHODS, NORMS
from flbench.sweeps.source import Source

ROOT = Path(__file__).parent.parent.parent
HEAD = {"version": 1, "name": "test"}


@pytest.fixture(scope="module")
def check() -> jsonschema.Draft202012Validator:
    done = CliRunner().invoke(app, ["show", "schema"])
    assert done.exit_code == 0
    schema = json.loads(done.stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


#: All but those whose method or model is in a plug-in.
PLUGGED = {ROOT / "sweeps" / name for name in ("head_scale.yaml", "fl_simulator/cifar10.yaml")}
SWEEPS = sorted(set((ROOT / "sweeps").rglob("*.yaml")) - PLUGGED)


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_the_sweeps_of_the_repository_are_accepted(check: jsonschema.Draft202012Validator, path: Path) -> None:
    assert [error.message for error in check.iter_errors(Source.open(path).data)] == []


@pytest.mark.parametrize(
    "good",
    [
        {"base": {"E": 3, "norm": {"name": "gn", "groups": 4}, "partition": "dirichlet:0.1"}},
        {"base": {"norm.groups": 4, "partition": "iid", "partition.beta": 0.1, "probes": []}},
        {"base": {"probes": {"features": 10, "drift": None, "overfit": {"every": 50, "steps": 3}}}},
        {"axes": {"lr": {"logspace": [0.001, 1, 4]}, "method": ["fedavg", {"name": "fedyogi", "tau": 0.1}]}},
        {"grids": [{"set": {"lr": 1}, "axes": {"norm": ["ln"]}, "zip": {"E": [1, 2], "rounds": [3, 4]}}]},
        {"exclude": {"norm": ["ln", "none"], "lr": 0.1}, "overrides": [{"if": {"norm": "ln"}, "set": {"lr": 1}}]},
        {"base": {"kind": "rank", "normalized": "bn-rms", "rounds": 0}, "axes": {"normalized": ["bn-rms", "ln-all"]}},
        {"grids": [{"set": {"kind": "sharpness", "lr": None}}, {"set": {"normalized": "bn-rms"}}]},
        {"seeds": {"range": [0, 3]}, "resources": {"cpus": 2, "gpus": 0.5, "mem": "2G", "time": "30m"}},
        {"report": {"contrasts": {"norm": "ln", "against": "fn", "between": {"partition": ["classes:1", "iid"]}}}},
        {"report": {"contrasts": [{"norm": ["ln"], "against": "fn", "if": {"method": "fedavg"}}]}},
        {"report": {"contrasts": [{"norm": "ln", "against": "fn", "measure": "fast"}]}},
        {"backend": {"kind": "slurm", "profile": "a.yaml"}, "report": {"rows": "method", "cols": ["E", "norm.groups"]}},
    ],
)
def test_valid_files_are_accepted(check: jsonschema.Draft202012Validator, good: dict[str, Any]) -> None:
    assert [error.message for error in check.iter_errors({**HEAD, **good})] == []


@pytest.mark.parametrize(
    "bad",
    [
        {"axs": {}},
        {"version": 2},
        {"base": {"lrr": 1}},
        {"base": {"lr": "fast"}},
        {"base": {"lr": 0}},
        {"base": {"clients": 2.5}},
        {"base": {"method": "fedavgg"}},
        {"base": {"method": {"name": "fedavg", "tau": 1}}},
        {"base": {"method": {"tau": 1}}},
        {"base": {"partition": "dirichle:1"}},
        {"base": {"seed": 1}},
        {"base": {"kind": "sharpnes"}},
        {"base": {"kind": "sharpness", "normalized": "bn-rms"}},
        {"base": {"normalized": "none-of-these"}},
        {"grids": [{"set": {"kind": "federated", "rounds": 0}}]},
        {"grids": [{"set": {"kind": "federated", "lr": None}}]},
        {"axes": {"lr": []}},
        {"axes": {"lr": 0.1}},
        {"axes": {"lr": {"logspace": [0, 1, 3]}}},
        {"axes": {"lr": {"range": [1, 2, 3]}}},
        {"grids": [{"axis": {}}]},
        {"overrides": [{"set": {"lr": 1}}]},
        {"seeds": [-1]},
        {"resources": {"cpus": 0}},
        {"backend": {"kind": "slrum"}},
        {"report": {"rows": ["metod"]}},
        {"report": {"contrasts": {"norm": "ln", "against": "fn", "between": {"partition": ["iid"]}}}},
    ],
)
def test_invalid_files_are_rejected(check: jsonschema.Draft202012Validator, bad: dict[str, Any]) -> None:
    assert list(check.iter_errors({**HEAD, **bad}))


def test_fields_and_components_have_their_documentation(check: jsonschema.Draft202012Validator) -> None:
    definitions = check.schema["$defs"]
    for field in fields_of_all_kinds():
        assert definitions[f"field.{field}"]["description"], field
    for key, value in check.schema["properties"].items():
        assert value["description"], key
    for field, registry in (("norm", NORMS), ("method", METHODS)):
        forms = [form for form in definitions[f"field.{field}"]["anyOf"] if "const" in form]
        assert [form["const"] for form in forms] == list(registry.classes)
        assert all(form["description"] for form in forms)
    assert definitions["field.norm.groups"]["minimum"] == 1
