from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field, TypeAdapter
from typer.testing import CliRunner

from flbench.cli import app
from flbench.cli.component_tables import _type, components
from flbench.config import KINDS as EXPERIMENTS
from flbench.errors import UserError
from flbench.methods import Method
from flbench.metric_specs import METRICS
from flbench.registry import DATASETS, HEADS, METHODS, MODELS, NORMS, PARTITIONS, PROBES, Registry

KINDS = {"methods": METHODS, "norms": NORMS, "heads": HEADS, "models": MODELS, "datasets": DATASETS}
KINDS |= {"partitions": PARTITIONS, "probes": PROBES}


def flbench(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["show", *arguments], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize(("what", "registry"), KINDS.items())
def test_every_component_with_its_fields_and_documentation(what: str, registry: Registry[object]) -> None:
    rows = json.loads(flbench(what, "--json"))
    assert [row["name"] for row in rows] == list(registry.classes)
    for row in rows:
        assert set(row) == {"name", "shorthand", "version", "fields", "doc", "equation", "source", "module"}
        assert row["doc"] and row["module"].startswith("flbench."), row["name"]
        assert all(set(field) == {"name", "type", "default", "required"} for field in row["fields"])
    table = flbench(what)
    assert all(row["name"] in table for row in rows)
    narrow = CliRunner().invoke(app, ["show", what], env={"COLUMNS": "80"}).stdout
    families = len({row["module"] for row in rows}) - 1 if what == "norms" else 0
    assert len(narrow.splitlines()) == len(rows) + families + 3, "one line for each"
    assert json.loads(flbench(registry.kind, rows[-1]["name"], "--json")) == rows[-1]


def test_kinds_with_their_fields(tmp_path: Path) -> None:
    rows = {row["name"]: row for row in json.loads(flbench("kinds", "--json"))}
    assert list(rows) == list(EXPERIMENTS)
    assert {name: row["headline"] for name, row in rows.items()} == {
        "federated": "acc",
        "centralized": "acc",
        "sharpness": "lambda_max",
        "rank": "rank",
        "deep": "rank",
    }
    for name, row in rows.items():
        assert row["doc"]
        assert [field["name"] for field in row["fields"]] == [f for f in EXPERIMENTS[name].model_fields if f != "kind"]
        assert all(field["doc"] and field["type"] != "any" for field in row["fields"])
    fields = {field["name"]: field for field in rows["rank"]["fields"]}
    assert (fields["normalized"]["type"], fields["rounds"]["default"]) == ("none | bn-rms | bn", 32)
    table = flbench("kinds")
    assert "kind: sharpness" in table and "bn-last" in table and "classes:1" in table


def test_methods_and_norms_show_their_equation_and_source() -> None:
    methods = {row["name"]: row for row in json.loads(flbench("methods", "--json"))}
    assert methods["fedavg"]["equation"].startswith("x <- x + server_lr")
    assert "McMahan" in methods["fedavg"]["source"]
    shown = flbench("method", "fedavg")
    assert methods["fedavg"]["equation"] in shown and methods["fedavg"]["source"] in shown
    norms = {row["name"]: row for row in json.loads(flbench("norms", "--json"))}
    heads = {row["name"]: row for row in json.loads(flbench("heads", "--json"))}
    assert norms["ln-before"]["equation"] == norms["ln"]["equation"]  # a variation of it
    assert [
        name for name, row in {**methods, **norms, **heads}.items() if not (row["equation"] and row["source"])
    ] == []


def test_components_do_not_inherit_the_source_of_their_base() -> None:
    class Silent(Method):
        """A method of another package."""

    class Family(Method):
        """A family."""

        equation = "x <- 2 x"

    class Member(Family):
        """One of it."""

    for cls in (Silent, Family, Member):
        cls.name = cls.__name__.lower()
    rows = components((Silent, Family, Member))
    assert [row["equation"] for row in rows] == [None, "x <- 2 x", "x <- 2 x"]
    assert [row["source"] for row in rows] == [None, None, None]


def test_fields_show_types_limits_and_defaults() -> None:
    fields = json.loads(flbench("norm", "gn", "--json"))["fields"]
    assert {"name": "groups", "type": "integer >= 1", "default": 2, "required": False} in fields
    dirichlet = json.loads(flbench("partition", "dirichlet:2", "--json"))
    assert dirichlet["shorthand"] == "dirichlet:BETA"
    assert dirichlet["fields"][0] == {"name": "beta", "type": "number > 0", "default": None, "required": True}
    assert re.search(r"^groups +2 +integer >= 1", flbench("norm", "gn"), flags=re.MULTILINE)
    assert "beta=required" in flbench("partitions")
    assert "method=fedprox method.mu=0.01" in flbench("method", "fedprox")
    assert flbench("kind", "rank").count("kind: ") == 1


def test_norms_are_below_their_family_and_whole() -> None:
    lines = flbench("norms").splitlines()
    family = next(i for i, line in enumerate(lines) if "Normalizations of every activation:" in line)
    assert lines[family + 1].startswith("ln ") and not any("…" in line for line in lines)


def test_metrics_with_their_definition_and_when_runs_record_them() -> None:
    rows = json.loads(flbench("metrics", "--json"))
    assert [row["name"] for row in rows] == list(METRICS)
    assert all(row["title"] and row["what"] and row["recorded"] for row in rows)
    table = flbench("metrics")
    assert re.search(r"^val_acc +accuracy on the held-out slice .* with held-out data +higher", table, re.MULTILINE)
    assert json.loads(flbench("metric", "loss", "--json")) == next(row for row in rows if row["name"] == "loss")


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"ge": 0}, "number >= 0"),
        ({"lt": 1}, "number < 1"),
        ({"ge": 0, "lt": 1}, "number in [0, 1)"),
        ({"gt": 0, "le": 0.5}, "number in (0, 0.5]"),
        ({"ge": 1, "le": 1}, "always 1"),
        ({}, "number"),
    ],
)
def test_limits_are_written_as_people_do(limits: dict[str, float], words: str) -> None:
    schema = TypeAdapter(Annotated[float, Field(**limits)]).json_schema()
    assert _type(schema) == words


def test_sweeps_are_listed_by_their_comments(tmp_path: Path) -> None:
    """No file is expanded, which takes seconds; an error of its YAML is for those who use it."""
    (tmp_path / "paper").mkdir()
    comment = "# Does it help? On\n# digits.\n#\n#   flbench --plugin sweeps/mine.py sweep good\n"
    (tmp_path / "paper" / "good.yaml").write_text(f"{comment}version: 1\nname: good\naxes: {{lr: [0.1, 0.2]}}\n")
    (tmp_path / "bad.yaml").write_bytes(b"\xff")
    (tmp_path / "wrong.yaml").write_text("lrr: [")
    given = ("sweeps", "--folder", str(tmp_path))
    bad, good, wrong = json.loads(flbench(*given, "--json"))
    file = str(tmp_path / "paper" / "good.yaml")
    assert good == {"file": file, "about": "Does it help?", "plugins": ["sweeps/mine.py"], "problem": None}
    assert (wrong["about"], wrong["plugins"], wrong["problem"]) == ("", [], None)
    assert "expected text in UTF-8" in bad["problem"]
    (tmp_path / "paper" / "mine.py").touch()  # as in a wheel
    head, *lines, hint = flbench(*given).splitlines()
    assert head.split() == ["sweeps"] and "flbench sweep NAME --dry-run" in hint
    cells = [re.split("  +", line.strip()) for line in lines]
    assert [row[0] for row in cells] == [bad["file"], file, f"needs --plugin {tmp_path}/paper/mine.py", wrong["file"]]
    assert cells[1][1] == "Does it help?"
    assert "no sweep files" in flbench("sweeps", "--folder", str(tmp_path / "nowhere"))


def test_sweeps_that_need_a_plug_in_name_its_file() -> None:
    plugins = {row["file"]: row["plugins"] for row in json.loads(flbench("sweeps", "--json")) if row["plugins"]}
    assert plugins["sweeps/fl_simulator/cifar10.yaml"] == ["sweeps/fl_simulator/resnet18_gn.py"]
    assert all(Path(name).is_file() for names in plugins.values() for name in names)


def test_one_sweep_with_its_number_of_runs(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text("version: 1\nname: good\naxes: {lr: [0.1, 0.2]}\nseeds: [0, 1]\n")
    (tmp_path / "bad.yaml").write_text("version: 1\nname: bad\nbase: {lrr: 1}\n")
    good, bad = (json.loads(flbench("sweep", str(tmp_path / name), "--json")) for name in ("good.yaml", "bad.yaml"))
    assert (good["name"], good["cells"], good["runs"], good["problem"]) == ("good", 2, 4, None)
    assert (bad["name"], bad["runs"]) == (None, None)
    assert "did you mean 'lr'?" in bad["problem"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("methds",), "unknown list 'methds'; did you mean 'methods'?"),
        (("method", "fedprx"), "unknown method 'fedprx'; did you mean 'fedprox'?"),
        (("metric", "los"), "unknown metric 'los'; did you mean 'loss'?"),
        (("kind", "ranks"), "unknown kind 'ranks'; did you mean 'rank'?"),
    ],
)
def test_unknown_names_are_errors_with_the_nearest(arguments: tuple[str, ...], message: str) -> None:
    error = CliRunner().invoke(app, ["show", *arguments]).exception
    assert isinstance(error, UserError) and message in str(error)
