"""A new kind of study is one file that registers: the one below sweeps, resumes and is reported like the others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
from pydantic import Field
from typer.testing import CliRunner

from flbench.cli import app
from flbench.config import KINDS, InvalidExperiment, parse_experiment
from flbench.config.base import Rounds, Whole
from flbench.store import records
from flbench.studies.base import Record, Study
from flbench.studies.experiment import StudyExperiment

SWEEP = """
version: 1
name: walks
base: {kind: walk, rounds: 4, eval_every: 2}
axes: {steps: [1, 3]}
seeds: [0, 1]
"""


class Walk(StudyExperiment):
    """A walk along a line."""

    kind: Literal["walk"] = "walk"
    rounds: Rounds = Field(default=2, ge=0, description="rounds")
    steps: Whole = Field(default=1, ge=1, description="steps in a round")
    lists: ClassVar[dict[str, int]] = {"places": 1}
    arithmetic: ClassVar[Literal["fp64", "fp32"]] = "fp64"

    @classmethod
    def headline_of(cls, raw: Any) -> str:
        return "loss"

    def study(self, data: object, device: str) -> Study:
        experiment = self

        class Walking(Study):
            def _train(self) -> float:
                self.x = {"place": self.x["place"] + experiment.steps}
                return 0.0

            def _measure(self) -> Record:
                place = self.x["place"].item()
                return {"loss": 1 / (1 + place + experiment.seed), "places": [place]}

        return Walking({"place": torch.zeros(())})


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    assert "walk" not in KINDS
    monkeypatch.setattr(KINDS, "_models", {**KINDS._models})
    KINDS.register(Walk)
    records._depths_of_runs.cache_clear()
    yield
    records._depths_of_runs.cache_clear()


def test_it_is_parsed_and_has_an_id() -> None:
    walk = parse_experiment({"kind": "walk", "steps": 3})
    assert parse_experiment(walk.to_json()).run_id == walk.run_id != parse_experiment({"kind": "walk"}).run_id
    with pytest.raises(InvalidExperiment, match="steps: expected a value of at least 1, got 0"):
        parse_experiment({"kind": "walk", "steps": 0})


def test_it_is_swept_and_reported(tmp_path: Path) -> None:
    path, store = tmp_path / "walks.yaml", tmp_path / "runs"
    path.write_text(SWEEP)
    for command in (
        ["sweep", str(path), "--backend", "inline"],
        ["report", str(path), "--out", str(tmp_path / "a.md")],
    ):
        done = CliRunner().invoke(app, [*command, "--store", str(store)])
        assert done.exit_code == 0, done.output
    assert "- Runs: 4, 4 finished" in (tmp_path / "a.md").read_text()  # a chapter of a kind registers in the report
    finals = [json.loads(file.read_text())["final"]["loss"] for file in store.rglob("results/*.json")]
    assert sorted(finals) == [1 / 14, 1 / 13, 1 / 6, 1 / 5]
