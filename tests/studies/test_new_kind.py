"""A new kind of study is one file that registers: the one below is parsed, swept and reported like the others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
from pydantic import Field

from flbench.config import KINDS, InvalidExperiment, parse_experiment
from flbench.config.base import Rounds, Whole
from flbench.papers import papers
from flbench.report.leaderboard import build
from flbench.report.parts import options_of, parts_of
from flbench.run_sources import StoreSource
from flbench.store import Lease, Plan, Store, records
from flbench.studies.base import Record, Study
from flbench.studies.experiment import StudyExperiment
from flbench.sweeps import load_sweep
from flbench.worker import Options, load_engine, work
from tests.report.stores import markdown_of

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
    monkeypatch.setattr(KINDS, "_entries", {**KINDS._entries})
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
    """By the worker's loop and the report's functions: starting the commands takes longer than these runs."""
    (tmp_path / "walks.yaml").write_text(SWEEP)
    sweep, store = load_sweep(tmp_path / "walks.yaml"), Store(tmp_path / "runs")
    plan = Plan.of(sweep.experiments)
    work(store, plan, Lease.here(), Options(), should_stop=lambda: False, load=load_engine)
    finals = [json.loads(file.read_text())["final"]["loss"] for file in store.root.rglob("results/*.json")]
    assert sorted(finals) == [1 / 14, 1 / 13, 1 / 6, 1 / 5]
    board = build(parts_of(StoreSource(store), [sweep]), options_of([sweep]), papers())
    assert "- Runs: 4, 4 finished" in markdown_of(board)  # a chapter of a kind registers in the report
