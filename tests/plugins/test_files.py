"""Single files with metrics, studies and versions of components, loaded by ``--plugin``."""

from __future__ import annotations

import json
import math
import os
import subprocess
from pathlib import Path

import pytest
import torch

from flbench import metrics
from flbench.errors import InvalidComponent, UserError
from flbench.metric_specs import METRICS
from tests.test_extending import module
from tests.warm import warm_python

METRIC_FILE = """
from flbench.metric_specs import METRICS

@METRICS.register("calibration_error", "ECE", "expected calibration error, ten bins", lower_is_better=True)
def calibration_error(logits_MY, labels_M):
    sure_M, found_M = logits_MY.double().softmax(-1).max(-1)
    gap = 0.0
    for low in range(10):
        there = (sure_M > low / 10) & (sure_M <= (low + 1) / 10)
        if there.any():
            gap += abs(float((found_M == labels_M)[there].double().mean() - sure_M[there].mean())) * int(there.sum())
    return gap / len(labels_M)

@METRICS.register_of_records("forgetting", "forgetting", "best earlier recall minus the present", lower_is_better=True)
def forgetting(records):
    now = records[-1]["recall"]
    best = [max(record["recall"][y] for record in records) for y in range(len(now))]
    return sum(b - n for b, n in zip(best, now)) / len(now)
"""

STUDY_FILE = '''
from typing import ClassVar, Literal
from pydantic import Field
from flbench.config import KINDS
from flbench.config.base import Rounds
from flbench.studies.experiment import StudyExperiment

@KINDS.register
class Walk(StudyExperiment):
    """A walk along a line."""

    kind: Literal["walk"] = "walk"
    rounds: Rounds = Field(default=2, ge=0, description="rounds")
    arithmetic: ClassVar = "fp64"

    @classmethod
    def headline_of(cls, raw):
        return "loss"

    def study(self, data, device):
        import torch
        from flbench.studies.base import Study

        class Walking(Study):
            def _train(self):
                self.x = {"place": self.x["place"] + 1}
                return 0.0

            def _measure(self):
                return {"loss": 1 / (1 + self.x["place"].item())}

        return Walking({"place": torch.zeros(())})
'''

METHOD_FILE = """
from dataclasses import dataclass
from flbench.methods.base import Method, tmap
from flbench.registry import METHODS

@METHODS.register("halved")
@dataclass(frozen=True)
class Halved(Method):
    def direction(self, w, g, ctx):
        return tmap(lambda leaf: 0.5 * leaf, g)
"""

SMALL = ("clients=3", "partition=iid", "rounds=4", "eval_every=2", "model={name: mlp, widths: [8]}")


def flbench(folder: Path, *arguments: str, code: int = 0) -> str:
    command = [warm_python(), "-c", "from flbench.cli import main; main()", *arguments]
    environment = {**os.environ, "FLBENCH_STORE": str(folder / "runs"), "COLUMNS": "200"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_macro_f1_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two classes of three and one sample: three right of two classes, F1 4/5 and 2/3, by hand."""
    monkeypatch.setattr(METRICS, "_entries", dict(METRICS))
    module("A metric")
    logits = torch.eye(3)[[0, 0, 1, 1]]
    record = metrics.whole_set(logits, torch.tensor([0, 0, 0, 1]))
    assert record["macro_f1"] == pytest.approx((4 / 5 + 2 / 3) / 2)
    assert METRICS.source("macro_f1") == ""


def test_a_metric_has_a_name_of_its_own_and_returns_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(METRICS, "_entries", dict(METRICS))
    for name, message in {"acc": "is registered twice", "recall": "none of clients", "F 1": "small letters"}.items():
        with pytest.raises(InvalidComponent, match=message):
            METRICS.register(name, "x", "x")(lambda logits, labels: 0.0)
    METRICS.register("odd", "x", "x")(lambda logits, labels: logits.mean())
    with pytest.raises(UserError, match=r"test_files.py:\d+: the metric 'odd' returned a Tensor; expected a number"):
        metrics.whole_set(torch.eye(2), torch.tensor([0, 1]))


@pytest.mark.slow
def test_a_mistake_in_a_metric_names_its_file_and_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(METRICS, "_entries", dict(METRICS))
    with pytest.raises(InvalidComponent, match="metric 'odd': unknown of 'images'; did you mean 'test images'"):
        METRICS.register("odd", "odd", "odd", of="images")(lambda logits, labels: 0.0)
    for name, function, problem in (
        ("missing", lambda logits: 0.0, "raised TypeError: .* 1 positional argument but 2"),
        ("in_place", lambda logits, labels: float(logits.mul_(2).sum()), "changes what it is given in place"),
        ("nothing", lambda logits, labels: {}["class"], "raised KeyError: 'class'"),
    ):
        METRICS.register(name, name, name)(function)
        with pytest.raises(UserError, match=rf"test_files.py:\d+: the metric '{name}' {problem}"):
            metrics.whole_set(torch.eye(2), torch.tensor([0, 1]))
        del METRICS._entries[name]


def test_metrics_of_a_file_are_recorded_resumed_and_ranked(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(METRIC_FILE)
    (tmp_path / "s.yaml").write_text(
        "version: 1\nname: s\nbase: {clients: 3, partition: iid, rounds: 4, eval_every: 2}\n"
        "axes: {norm: [none, ln]}\nreport: {metric: forgetting}\n"
    )
    assert "unknown metric 'forgetting'" in flbench(tmp_path, "sweep", "s.yaml", "--dry-run", code=2)
    plugin = ("--plugin", "mine.py")
    flbench(tmp_path, *plugin, "sweep", "s.yaml", "--backend", "inline", "--set", "base.rounds=2")
    flbench(tmp_path, *plugin, "sweep", "s.yaml", "--backend", "inline")  # continues: the first evaluation is known
    board = flbench(tmp_path, *plugin, "report", "s.yaml", "--out", "board.md", "--json")
    assert "forgetting" in board
    (state,) = {len(path.read_text().splitlines()) for path in (tmp_path / "runs").rglob("metrics.jsonl")} - {1}
    assert state == 2
    for path in (tmp_path / "runs").rglob("metrics.jsonl"):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        assert records[0]["forgetting"] == 0 and 0 <= records[0]["calibration_error"] <= 1
        if len(records) == 2:
            lost = [max(a - b, 0.0) for a, b in zip(records[0]["recall"], records[1]["recall"], strict=True)]
            assert math.isclose(records[1]["forgetting"], sum(lost) / len(lost))
    assert "unknown metric" in flbench(tmp_path, "report", "s.yaml", "--out", "board.md", code=2)


@pytest.mark.slow
def test_a_study_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "walk.py").write_text(STUDY_FILE.replace('    arithmetic: ClassVar = "fp64"\n', ""))
    message = "walk.py:8: kind 'walk' must define arithmetic"
    assert message in flbench(tmp_path, "--plugin", "walk.py", "run", "kind=walk", code=2)
    (tmp_path / "walk.py").write_text(STUDY_FILE)
    assert "unknown kind 'walk'" in flbench(tmp_path, "run", "kind=walk", code=2)
    flbench(tmp_path, "--plugin", "walk.py", "run", "kind=walk", "rounds=4", "eval_every=2")
    (found,) = json.loads(flbench(tmp_path, "--plugin", "walk.py", "runs", "--json"))
    assert (found["kind"], found["rounds"], found["loss"]) == ("walk", 4, 0.2)


@pytest.mark.slow
def test_an_edit_of_a_component_with_a_version_of_its_own_executes_nothing_again(tmp_path: Path) -> None:
    (tmp_path / "halved.py").write_text(METHOD_FILE)
    run = ("--plugin", "halved.py", "run", "method=halved", *SMALL)
    flbench(tmp_path, *run)
    versioned = METHOD_FILE.replace("class Halved(Method):", "class Halved(Method):\n    version = 1")
    for text, code in ((versioned, False), (versioned + "# neutral\n", False), (METHOD_FILE + "# edited\n", True)):
        (tmp_path / "halved.py").write_text(text)
        said = flbench(tmp_path, "--plugin", "halved.py", "runs")
        assert ("(other code)" in said) is code, said
        assert ("has changed" in flbench(tmp_path, *run)) is code
    raised = versioned.replace("version = 1", "version = 2")
    (tmp_path / "halved.py").write_text(raised)
    flbench(tmp_path, *run)
    assert len(list((tmp_path / "runs/runs").glob("*/*"))) == 2, "another version is another run"
