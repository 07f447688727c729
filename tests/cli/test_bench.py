from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from flbench.cli import app
from flbench.cli import bench as module
from flbench.errors import UserError


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)  # tiny problems are too small for several threads
    monkeypatch.setattr("flbench.bench.timing.TURN", 0.001)


def bench(*arguments: str) -> Result:
    tiny = ("model.widths=[4]", "clients=5", "E=2", "--device", "cpu", "--repeats", "2")
    return CliRunner().invoke(app, ["bench", *tiny, *arguments])


def test_json() -> None:
    result = bench("norm=ln", "partition=iid", "--json")
    assert result.exit_code == 0, result.output
    out = json.loads(result.stdout)
    assert set(out) == {
        "schema", "machine", "settings", "experiment", "data", "executor", "runs", "seconds", "speed",
    }  # fmt: skip
    assert set(out["machine"]) == {
        "date", "flbench", "git_commit", "git_dirty", "python", "torch", "system", "cpu", "gpu", "device",
        "usable_cores", "load_before", "load_after",
    }  # fmt: skip
    assert out["settings"] == {"device": "cpu", "threads": 1, "repeats": 2}
    assert (out["experiment"]["norm"]["name"], out["experiment"]["clients"]) == ("ln", 5)
    assert (out["executor"], out["runs"]) == ("native", 6)  # 30 clients
    ours, loops = ["flbench", "flbench, 6 runs together"], ["plain loop", "plain loop, channels last"]
    assert {name: len(own) for name, own in out["seconds"].items()} == dict.fromkeys([*ours, *loops], 2)
    assert list(out["speed"]) == ours
    for name, spread in out["speed"].items():
        ratios = [
            min(turn) / own for *turn, own in zip(*(out["seconds"][each] for each in [*loops, name]), strict=True)
        ]
        assert spread == {"median": sum(ratios) / 2, "min": min(ratios), "max": max(ratios), "n": 2}


@pytest.mark.parametrize(("load", "warned"), [(3.0, True), (0.1, False), (None, False)])
def test_a_busy_machine_is_reported(monkeypatch: pytest.MonkeyPatch, load: float | None, warned: bool) -> None:
    monkeypatch.setattr(module, "load", lambda: load)
    monkeypatch.setattr(module, "usable_cores", lambda: 2)
    assert any("other work keeps this machine busy" in line for line in module.header(module.machine("cpu"))) == warned


def test_the_table_and_progress_on_standard_error_after_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUIET", 1e9)
    done = bench("participation=0.4", "partition=iid")
    assert done.stderr == ""
    for text in (
        "digits, mlp(widths=[4]), none, fedavg, iid: 2 of 5 clients, E=2, batch 32; data: e3713c9c6ae47b99",
        *("torch ", "load ", "executor native, 1 thread; n = 2 turns, medians (min to max)"),
        *("\nflbench ", "\nflbench, 15 runs together ", "\nplain loop ", "\nplain loop, channels last "),
    ):
        assert text in done.stdout
    monkeypatch.setattr(module, "QUIET", 0.0)
    assert "plain loop: turn 3 of 12\n" in bench("partition=iid").stderr


def test_missing_files_are_replaced_by_random_images(tmp_path: Path) -> None:
    tiny = ("dataset=mnist", "model=mlp", "model.widths=[2]", "clients=10", "partition=iid", "--data", str(tmp_path))
    assert (
        "data: random images" in CliRunner().invoke(app, ["bench", *tiny, "--repeats", "1", "--device", "cpu"]).stdout
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("digits",), "digits: expected FIELD=VALUE"),
        (("norm=lnn",), "did you mean 'ln'?"),
        (("kind=sharpness",), "flbench bench times federated training only"),
        (("--data", "nowhere"), "--data nowhere: there is no such folder"),
    ],
)
def test_what_does_not_exist_is_one_message(arguments: tuple[str, ...], message: str) -> None:
    error = CliRunner().invoke(app, ["bench", *arguments]).exception
    assert isinstance(error, UserError) and error.exit_code == 2
    assert message in str(error) and not os.path.lexists("nowhere")


def test_devices_are_cpu_and_cuda() -> None:
    assert bench("--device", "mps").exit_code == 2
    if not torch.cuda.is_available():
        result = CliRunner().invoke(app, ["bench", "--device", "cuda"])
        assert "--device cuda: torch sees no GPU here" in str(result.exception)
