"""The sweeps of the sharpness paper's figures have the right networks, and one option gives them full size."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from flbench.studies.sharpness import Sharpness
from flbench.sweeps import load_sweep

SWEEPS = Path(__file__).parents[1] / "sweeps"


def asked_for(name: str, *sets: str) -> list[Sharpness]:
    runs = load_sweep(SWEEPS / f"{name}.yaml", sets).experiments
    assert all(isinstance(run, Sharpness) for run in runs)
    return [run for run in runs if isinstance(run, Sharpness)]


def test_figure_1_has_the_papers_networks() -> None:
    runs = asked_for("sharpness_figure1")
    single = [run for run in runs if run.outputs == 1]
    assert {(run.activation, run.sigma_w2, run.sigma_b2) for run in runs} == {("relu", 2, 0), ("tanh", 3, 0.64)}
    assert {run.normalized for run in single} == {"none", "mean-last", "bn-last", "bn-middle", "bn-all"}
    assert {run.outputs for run in runs if run.normalized == "ln-all"} == {10}
    apart = [run for run in single if run.normalized in ("none", "mean-last", "bn-last")]
    assert {run.width for run in apart} == {50, 100, 200, 400, 800, 1600}
    assert {run.width for run in runs if run not in apart} == {50, 100, 200, 400}
    assert {(run.layers, run.samples, run.lr, run.rounds, run.precision) for run in runs} == {
        (3, None, None, 0, "fp64")
    }
    assert {run.seed for run in runs} == set(range(20))


def test_figure_1_at_full_size() -> None:
    assert {run.seed for run in asked_for("sharpness_figure1", "seeds={range: [0, 100]}")} == set(range(100))
    widest = asked_for("sharpness_figure1", "exclude=[]")
    assert {run.normalized for run in widest if run.width == 1600} == {run.normalized for run in widest}


def test_figure_2_has_the_papers_networks() -> None:
    runs = asked_for("sharpness_figure2")
    assert {(run.activation, run.sigma_w2, run.sigma_b2, run.samples) for run in runs} == {("relu", 4, 1, 1000)}
    assert {run.normalized for run in runs} == {"none", "mean-last"}
    assert {(run.layers, run.outputs, run.precision) for run in runs} == {(3, 1, "fp32")}
    assert {run.evaluated_rounds() for run in runs} == {frozenset({0, 150})}
    full = asked_for("sharpness_figure2", "rounds=1000")
    assert {run.evaluated_rounds() for run in full} == {frozenset({0, 1000})}
    assert [run.run_id for run in full] == [run.run_id for run in runs], "finished runs are extended"


def test_wide_networks_differ_from_figure_2_in_their_width_and_learning_rates_alone() -> None:
    def settings(run: Sharpness) -> str:
        return repr(run.model_copy(update={"width": 0, "lr": 0.0, "seed": 0}))

    narrow = {settings(run) for run in asked_for("sharpness_figure2") if run.normalized == "none"}
    wide = asked_for("sharpness_wide")
    assert {settings(run) for run in wide} == narrow
    assert {run.width for run in wide} == {800, 1600}


@pytest.mark.parametrize("name", ["sharpness_figure1", "sharpness_figure2"])
def test_commands_in_the_comments_are_valid(name: str) -> None:
    text = (SWEEPS / f"{name}.yaml").read_text(encoding="utf-8")
    found = re.findall(r"^#   (flbench sweep .*?)(?:\s{3,}.*)?$", text, re.MULTILINE)
    assert len(found) >= 2
    for command in found:
        _, _, file, *options = shlex.split(command)
        assert file == name
        assert asked_for(
            name, *[value for key, value in zip(options[::2], options[1::2], strict=True) if key == "--set"]
        )
