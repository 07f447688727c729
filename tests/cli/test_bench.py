from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner, Result

from flbench.bench import measure
from flbench.bench.workloads import WORKLOADS
from flbench.cli import app
from flbench.cli import bench as module

ROW = {
    "variant", "precision", "cores", "runs", "rounds_per_s", "client_steps_per_s", "samples_per_s", "flops_per_s",
    "peak_fraction", "speedup",
}  # fmt: skip


@pytest.fixture(autouse=True)
def small_products(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(measure, "PRODUCT_SIDES", {"cpu": (64,)})


def bench(*arguments: str) -> Result:
    tiny = ["--device", "cpu", "--threads", "1", "--rounds", "1", "--repeats", "1", "--fuse", "2"]
    return CliRunner().invoke(app, ["bench", *arguments, *tiny])


@pytest.mark.slow
def test_json() -> None:
    result = bench("digits", "--norm", "ln", "--json")
    assert result.exit_code == 0, result.output
    out = json.loads(result.stdout)
    assert set(out) == {"schema", "machine", "settings", "workloads"}
    assert set(out["machine"]) == {
        "date", "flbench", "git_commit", "git_dirty", "python", "torch", "system", "cpu", "gpu", "usable_cores",
        "load_before", "load_after",
    }  # fmt: skip
    assert out["settings"] == {
        "rounds": 1, "repeats": 1, "device": "cpu", "precision": "fp32", "threads": 1, "fuse": 2, "norm": "ln"
    }  # fmt: skip
    (digits,) = out["workloads"]
    assert set(digits) == {
        "workload", "what", "norm", "data", "device", "auto", "clients", "local_steps", "batch_size", "rounds",
        "flops_per_sample", "peaks", "rows", "scaling",
    }  # fmt: skip
    assert set(digits["peaks"][0]) == {"precision", "cores", "flops_per_s", "by", "n"}
    assert all(set(row) == ROW for row in digits["rows"])
    assert set(digits["rows"][0]["rounds_per_s"]) == {"median", "min", "max", "n"}
    assert digits["scaling"] == []


@pytest.mark.slow
def test_tables_show_what_was_measured_and_on_what() -> None:
    out = bench("digits", "--scaling").stdout
    assert "digits, MLP 64-128-10, norm none: 10 clients, E=10, batch 32, 0.0404" in out
    for text in (
        "torch ",
        "load ",
        "peak (best of 1): ",
        "n = 1 turns of 1 round, medians",
        "executor auto selects stacked here",
    ):
        assert text in out
    for row in ("loop, pool of 1", "stacked", "fused, 2 runs", "plain, in memory", "plain, DataLoader"):
        assert f"\n{row} " in out
    for series in ("clients", "local steps", "fused runs"):
        assert f"\n{series} " in out


@pytest.mark.slow
@pytest.mark.parametrize(("load", "warned"), [(3.0, True), (0.1, False), (None, False)])
def test_a_busy_machine_is_reported(monkeypatch: pytest.MonkeyPatch, load: float | None, warned: bool) -> None:
    monkeypatch.setattr(module, "_load", lambda: load)
    monkeypatch.setattr(module, "usable_cores", lambda: 2)
    assert ("other work keeps this machine busy" in bench("digits").stdout) == warned


def test_progress_is_printed_on_standard_error_after_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUIET", 1e9)
    assert bench("digits").stderr == ""
    monkeypatch.setattr(module, "QUIET", 0.0)
    assert "digits: stacked: turn 2 of 16\n" in bench("digits").stderr


def test_invalid_arguments_are_one_message() -> None:
    result = bench("digit")
    assert (type(result.exception).__name__, "did you mean 'digits'?" in str(result.exception)) == ("UserError", True)
    assert "did you mean" in str(bench("digits", "--norm", "lnn").exception)
    assert bench("digits", "--precision", "fp8").exit_code == 2


def test_help_names_every_workload() -> None:
    assert f"[{'|'.join(WORKLOADS)}]" in " ".join(bench("--help").stdout.split())


def test_probes_in_tables_and_in_json() -> None:
    out = bench("digits", "--probes").stdout
    assert "digits, MLP 64-128-10, norm none, executor stacked, data " in out
    assert "a round of a run with probes, between two measurements: x " in out
    for probe in ("features", "drift", "sharpness", "overfit", "all"):
        assert f"\n{probe} " in out
    assert "of peak" not in out, "nothing else is timed"
    summary = json.loads(bench("digits", "--probes", "--json").stdout)
    assert set(summary) == {"schema", "machine", "settings", "probes"}
    (costs,) = summary["probes"]
    assert set(costs) == {
        "workload", "what", "norm", "data", "device", "executor", "round_s", "between", "keeping",
        "looks", "share",
    }  # fmt: skip
    assert [set(look) for look in costs["looks"]] == [{"probe", "every", "seconds", "rounds", "share"}] * 4
    assert costs["share"] == pytest.approx(sum(look["share"] for look in costs["looks"]))


def test_methods_in_tables_and_in_json() -> None:
    out = bench("digits", "--methods", "feddyn").stdout
    assert "n = 1 turns of 1 round, medians; executor auto selects stacked here" in out
    for row in ("loop      fedavg ", "loop      feddyn ", "stacked   fedavg ", "stacked   feddyn "):
        assert f"\n{row}" in out
    summary = json.loads(bench("digits", "--methods", "feddyn", "--json").stdout)
    assert set(summary) == {"schema", "machine", "settings", "methods"}
    (costs,) = summary["methods"]
    assert set(costs) == {"workload", "what", "norm", "data", "device", "auto", "rounds", "rows"}
    assert [set(row) for row in costs["rows"]] == [{"method", "executor", "round_s", "factor"}] * 4


def test_methods_that_cannot_be_timed_are_one_message() -> None:
    assert "did you mean 'feddyn'?" in str(bench("digits", "--methods", "fedavg,feddin").exception)
    assert "give one of them" in str(bench("digits", "--methods", "feddyn", "--probes").exception)
