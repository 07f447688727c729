"""The acceptance of a GPU, with the CPU in place of the GPU and recorded rounds that are called again."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import acceptance, common
from benchmarks.acceptance import Part, Skipped, accept, marked_tests
from benchmarks.common import Case, data_of, experiment_of
from benchmarks.projection import Projection
from flbench.bench.timing import Spread, trainer_of
from tests.benchmarks.tiny import silent
from tests.recording import rerun

TINY = experiment_of("model=resnet18 model.width=2 model.blocks=[1] E=1 batch_size=4 clients=2")
NAMES = [
    "tests",
    "tiny, 2 clients",
    "tiny, 3 clients",
    "tiny, profile",
    "tiny, fp32, one run",
    "tiny, fp32, runs together",
]


def outcome(passed: int, failed: int, skipped: int, *failures: str) -> dict[str, Any]:
    return {"passed": passed, "failed": failed, "skipped": skipped, "failures": list(failures)}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptance, "CLIENTS", (2, 3))
    monkeypatch.setattr(acceptance, "marked_tests", lambda root: outcome(3, 0, 0))
    monkeypatch.setattr(acceptance, "runs_worth_fusing", lambda *_, **__: 2)


@pytest.mark.slow
def test_every_part_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def make(*args: Any, **options: Any) -> Any:
        trainer = trainer_of(*args, **options)
        trainer.record = rerun  # type: ignore[assignment]
        made.append(trainer)
        return trainer

    monkeypatch.setattr(common, "trainer_of", make)
    said: list[str] = []
    case = Case("tiny", TINY, data_of(TINY, None), repeats=1)
    parts = accept([case], note=lambda what, done, total: said.append(what))
    assert [(part.name, part.status, part.problem) for part in parts] == [(name, "passed", "") for name in NAMES]
    for ways in (parts[1].found, parts[2].found):
        assert [each["way"] for each in ways] == [  # type: ignore[union-attr, index, call-overload]
            "single kernels", *(f"one graph, {way} convolutions" for way in ("grouped", "streamed", "unfolded"))
        ]  # fmt: skip
        assert all(each["round_s"].n == 1 for each in ways)  # type: ignore[union-attr]
    timed = [(set(trainer.convolutions.values()), trainer.record is rerun) for trainer in made[:4]]
    assert timed == [({"grouped"}, False), ({"grouped"}, True), ({"streamed"}, True), ({"unfolded"}, True)]
    profile, alone, together = (part.found for part in parts[3:])
    assert isinstance(profile, dict) and isinstance(alone, Projection) and isinstance(together, Projection)
    assert sum(kernel["share"] for kernel in profile["kernels"]) <= 1 and profile["calls"] > 50
    assert any("convolution" in kernel["name"] for kernel in profile["kernels"])
    assert (alone.runs, together.runs) == (1, 2)
    assert said == NAMES


def stubbed(monkeypatch: pytest.MonkeyPatch, **checks: Callable[..., Any]) -> list[Part]:
    for name in ("ways", "profile", "project", "projected_together"):
        monkeypatch.setattr(acceptance, name, checks.get(name, lambda *_: []))
    return accept([Case("tiny", TINY, data_of(TINY, None))], note=silent)


def test_a_part_that_fails_does_not_lose_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("no engine\nfound")

    def skip(*_: Any) -> Any:
        raise Skipped("one run fills a stack")

    monkeypatch.setattr(acceptance, "marked_tests", lambda root: outcome(3, 1, 0, "test_a"))
    parts = stubbed(monkeypatch, profile=fail, projected_together=skip)
    assert [(part.name, part.status, part.problem) for part in parts] == [
        ("tests", "failed", "tests that failed: 1"),
        ("tiny, 2 clients", "passed", ""),
        ("tiny, 3 clients", "passed", ""),
        ("tiny, profile", "failed", "RuntimeError: no engine"),
        ("tiny, fp32, one run", "passed", ""),
        ("tiny, fp32, runs together", "skipped", "one run fills a stack"),
    ]


def test_no_part_begins_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptance, "SECONDS", -1.0)
    assert {(part.status, part.problem) for part in stubbed(monkeypatch)} == {("skipped", "-1 s are over")}


CHECKOUT = """
import pytest
pytestmark = pytest.mark.cuda
def test_good(): pass
def test_bad(): assert False
@pytest.mark.skip
def test_skipped(): pass
"""


@pytest.mark.slow
def test_the_marked_tests_of_a_checkout(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_other.py").write_text("def test_without_a_mark(): pass\n")
    (tmp_path / "tests" / "test_cuda.py").write_text(CHECKOUT)
    assert marked_tests(tmp_path, processes=1) == outcome(1, 1, 1, "test_bad")
    (tmp_path / "tests" / "test_cuda.py").write_text("import nothing  # mark.cuda\n")
    found = marked_tests(tmp_path, processes=1)
    assert (found["passed"], found["failed"]) == (0, 1), "an error of the collection"


def test_a_program_that_takes_too_long_is_interrupted(tmp_path: Path) -> None:
    sleep = "import time; time.sleep(600)"
    assert "good" not in acceptance.interrupted_after(0.2, [sys.executable, "-c", f"{sleep}; print('good')"], tmp_path)


def same(seconds: float) -> Spread:
    return Spread(seconds, seconds, seconds, 5)


PROFILE = {
    "convolutions": "grouped", "wall_s": 0.004, "busy_s": 0.003, "calls": 40,
    "kernels": [{"name": "sgemm", "calls": 30, "seconds": 0.0015, "share": 0.5}],
}  # fmt: skip
PARTS = [
    Part("tests", "failed", 90.0, "tests that failed: 1", outcome(3, 1, 0, "test_bad")),
    Part("cifar10, 10 clients", "passed", 2.0, "", [{"way": "single kernels", "round_s": same(0.002)}]),
    Part("cifar10, profile", "passed", 1.0, "", PROFILE),
    Part("cifar10, fp32, one run", "passed", 1.0, "", Projection(1, same(0.005), same(0.006), 50.5, 2**30)),
    Part("cifar10, fp32, runs together", "skipped", 0.0, "480 s are over", None),
]


def reported(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the exit code of the script, which believes that there is a GPU, and measures nothing."""
    monkeypatch.setattr(acceptance, "accept", lambda measured, note: PARTS)
    monkeypatch.setattr(acceptance, "cases", lambda arguments: [Case("tiny", TINY, data_of(TINY, None), "cuda")])
    monkeypatch.setattr(sys, "argv", ["acceptance", "cifar10", "--device", "cpu", *arguments])
    with pytest.raises(SystemExit) as ended:
        acceptance.main()
    return int(ended.value.code or 0)


def test_the_report_as_text_and_in_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert reported(monkeypatch=monkeypatch) == 1, "a part failed"
    printed = capsys.readouterr()
    lines = [" ".join(line.split()) for line in (printed.out + printed.err).splitlines()]
    for line in (
        "tests: failed in 1:30: tests that failed: 1",
        "3 1 0",
        "failed: test_bad",
        "single kernels 0.002 (0.002 to 0.002)",
        "grouped 0.004 0.003 40",
        "sgemm 30 0.0015 0.5",
        "10,000 rounds fp32 1 5 (5 to 5) 6 (6 to 6) 50.5 1",
        "cifar10, fp32, runs together: skipped in 0.0 s: 480 s are over",
        "5 parts, 1 skipped, 1 failed: tests",
    ):
        assert line in lines
    reported("--json", monkeypatch=monkeypatch)
    out = json.loads(capsys.readouterr().out)
    assert set(out) == {"schema", "machine", "options", "acceptance"}
    assert [part["status"] for part in out["acceptance"]] == ["failed", *["passed"] * 3, "skipped"]
    assert out["acceptance"][3]["found"]["seconds"] == 50.5


def test_without_a_gpu_it_is_one_message(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for device, message in (("cpu", "run `flbench doctor`"), ("cuda", "torch sees no GPU here"), ("gpu", "cpu")):
        if device == "cuda" and torch.cuda.is_available():
            continue
        monkeypatch.setattr(sys, "argv", ["acceptance", "--device", device])
        with pytest.raises(SystemExit) as ended:
            acceptance.main()
        assert ended.value.code == 2 and message in capsys.readouterr().err
