"""The acceptance of a GPU, with the CPU in place of the GPU and recorded rounds that are called again."""

from __future__ import annotations

import json
import logging
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import acceptance, common
from benchmarks.acceptance import Part, Skipped, accept, all_checks, marked_tests, rounds
from benchmarks.common import Case, data_of, experiment_of
from benchmarks.projection import Projection
from flbench.bench.timing import CHANNELS_LAST, PLAIN, Spread, trainer_of
from flbench.engine.federated import FederatedTrainer
from flbench.models.convolutions import CONVOLUTIONS
from tests.benchmarks.tiny import silent, tiny
from tests.recording import rerun

TINY = experiment_of("model=resnet18 model.width=2 model.blocks=[1] E=1 batch_size=4 clients=2")
GRAPHS = [f"one graph, {way} convolutions" for way in CONVOLUTIONS]
NAMES = [
    *(f"small, profile, {way} convolutions" for way in CONVOLUTIONS),
    "small, fp32, 2 clients",
    "cudnn.benchmark",
    "small, fp32, 3 clients",
    "tests",
    "small, fp32, one run",
    "small, fp32, runs together",
]


def outcome(passed: int, failed: int, skipped: int, *failures: str) -> dict[str, Any]:
    return {"passed": passed, "failed": failed, "skipped": skipped, "failures": list(failures), "interrupted": "no"}


def small() -> Case:
    return Case("small", TINY, data_of(TINY, None), repeats=1)


def given(folder: Path | None = None) -> Namespace:
    return Namespace(given=["cifar10"], device="cpu", repeats=1, threads=1, data=None, folder=folder)


def measure(measured: Sequence[Case], folder: Path | None = None, note: Any = silent) -> list[Part]:
    deadline = time.monotonic() + 1e6
    return list(accept(all_checks(measured, given(folder), deadline, Path()), note, deadline))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptance, "CLIENTS", (2, 3))
    monkeypatch.setattr(acceptance, "marked_tests", lambda *_: outcome(3, 0, 0))
    monkeypatch.setattr(acceptance, "with_cudnn_benchmark", lambda *_: [])
    monkeypatch.setattr(acceptance, "runs_worth_fusing", lambda *_, **__: 2)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[FederatedTrainer]:
    """All trainers, which record rounds by calling them again."""
    every: list[FederatedTrainer] = []

    def make(*args: Any, **options: Any) -> FederatedTrainer:
        trainer = trainer_of(*args, **options)
        trainer.record = rerun  # type: ignore[assignment]
        every.append(trainer)
        return trainer

    monkeypatch.setattr(common, "trainer_of", make)
    return every


@pytest.mark.slow
def test_every_part_is_measured(made: list[FederatedTrainer], tmp_path: Path) -> None:
    said: list[str] = []
    parts = measure([small()], tmp_path, note=lambda what, done, total: said.append(what))
    assert [(part.name, part.status, part.problem) for part in parts] == [(name, "passed", "") for name in NAMES]
    assert said == NAMES
    for ways in (parts[3].found, parts[5].found):
        assert isinstance(ways, list)
        rows: list[Any] = ways
        assert [row["way"] for row in rows] == ["single kernels", *GRAPHS, PLAIN, CHANNELS_LAST]
        assert all(row["round_s"].n == row["x plain"].n == 1 for row in rows)
        assert max(row["x plain"].median for row in rows[-2:]) == 1, "the faster loop"
        assert [row["apart"] is None for row in rows] == [False] * 4 + [True] * 2
        assert all(row["apart"] < 1e-4 for row in rows[:4]), "rounding"
    timed = [(set(trainer.convolutions.values()), trainer.record is rerun) for trainer in made[3:7]]
    assert timed == [({"grouped"}, False), *(({way}, True) for way in CONVOLUTIONS)]
    for way, part in zip(CONVOLUTIONS, parts, strict=False):
        found: Any = part.found
        assert found["convolutions"] == way and found["calls"] > 50
        assert sum(kernel["share"] for kernel in found["kernels"]) <= 1 + 1e-9
        assert any("bmm" if way == "unfolded" else "convolution" in kernel["name"] for kernel in found["kernels"])
        assert 0 <= found["idle_s"] < found["span_s"] <= 1.1 * found["wall_s"]
        assert (tmp_path / f"small-{way}-trace.json.gz").stat().st_size > 1000
    alone, together = parts[-2].found, parts[-1].found
    assert isinstance(alone, Projection) and isinstance(together, Projection)
    assert (alone.runs, together.runs) == (1, 2)


def test_seconds_without_a_kernel() -> None:
    assert acceptance.gaps([(5, 6), (1, 3), (2, 4), (2, 2.5), (4, 4.5)]) == (5.0, 0.5)


def test_networks_without_convolutions_have_one_graph(made: list[FederatedTrainer]) -> None:
    found = rounds(tiny(repeats=1), acceptance.ways_of(tiny()))
    assert [row["way"] for row in found] == ["single kernels", "one graph", PLAIN, CHANNELS_LAST]


def test_what_cudnn_computes_is_measured_with_its_benchmark() -> None:
    """What the engine takes comes first, because the trials of grouped convolutions may take all of the time."""
    assert [name for name, _ in acceptance.cudnn_checks([tiny(), small()])] == [
        f"small, fp32, 2 clients, cudnn.benchmark, {way} convolutions" for way in ("streamed", "grouped")
    ]


@pytest.mark.parametrize("wanted", [True, False])
def test_cudnn_benchmark_is_on_for_all_turns_or_none(
    wanted: bool, made: list[FederatedTrainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", not wanted)

    def turns(self: Case, variants: Sequence[Any]) -> dict[str, list[float]]:
        seen.append(torch.backends.cudnn.benchmark)
        return {variant.name: [1.0] for variant in variants}

    monkeypatch.setattr(Case, "turns", turns)
    (name, check), *_ = acceptance.in_each_precision(small(), 2, "streamed" * wanted)
    assert name == "small, fp32, 2 clients" + ", cudnn.benchmark, streamed convolutions" * wanted
    assert acceptance.outcome(check)[0] == "passed"
    assert seen == [wanted] and torch.backends.cudnn.benchmark != wanted, "it is restored"


def test_a_way_that_fails_does_not_lose_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is computed in another way than its name says is named, too."""

    def stacked(case: Case, way: str, *, graph: bool = True) -> FederatedTrainer:
        trainer = case.trainer("stacked")
        step = trainer.step

        def fail(**_: Any) -> Any:
            raise RuntimeError("no engine\nfound")

        def warn(**options: Any) -> Any:
            logging.getLogger("flbench").warning("a round cannot be one CUDA graph")
            return step(**options)

        trainer.step = {"one": fail, "two": warn}.get(way, step)  # type: ignore[assignment]
        return trainer

    monkeypatch.setattr(acceptance, "stacked", stacked)
    status, problem, found = acceptance.outcome(lambda: rounds(tiny(repeats=1), ["plain", "one", "two"]))
    assert isinstance(found, list)
    rows: list[Any] = found
    assert (status, problem) == ("failed", "a round cannot be one CUDA graph; RuntimeError: no engine")
    assert {row["way"]: "round_s" in row for row in rows} == {
        "single kernels": True,
        "one graph, plain convolutions": True,
        "one graph, two convolutions": True,
        PLAIN: True,
        CHANNELS_LAST: True,
        "one graph, one convolutions": False,
    }


def stubbed(monkeypatch: pytest.MonkeyPatch, **checks: Callable[..., Any]) -> list[Part]:
    for name in ("rounds", "profile", "project", "projected_together"):
        monkeypatch.setattr(acceptance, name, checks.get(name, lambda *_, **__: []))
    return measure([small(), tiny()])


def test_a_part_that_fails_does_not_lose_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("no engine\nfound")

    def skip(*_: Any) -> Any:
        raise Skipped("one run fills a stack")

    monkeypatch.setattr(acceptance, "marked_tests", lambda *_: outcome(3, 1, 0, "test_a"))
    parts = stubbed(monkeypatch, profile=fail, projected_together=skip)
    assert [(part.name, part.status, part.problem) for part in parts] == [
        *((name, "failed", "RuntimeError: no engine") for name in NAMES[:3]),
        *((name, "passed", "") for name in NAMES[3:6]),
        ("tiny, profile", "failed", "RuntimeError: no engine"),
        ("tiny, fp32, 2 clients", "passed", ""),
        ("tests", "failed", "tests that failed: 1"),
        ("small, fp32, one run", "passed", ""),
        ("small, fp32, runs together", "skipped", "one run fills a stack"),
        ("tiny, fp32, one run", "passed", ""),
        ("tiny, fp32, runs together", "skipped", "one run fills a stack"),
    ]


def test_no_part_begins_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptance, "LAST", 1e9)
    assert {(part.status, part.problem) for part in stubbed(monkeypatch)} == {("skipped", "no time is left")}


def test_a_program_is_started_only_if_enough_time_is_left() -> None:
    now = time.monotonic()
    assert acceptance.limited(100.0, now + 1e6) == 100.0
    assert 50.0 < acceptance.limited(100.0, now + 80.0) <= 60.0, "it may take a while to end"
    with pytest.raises(Skipped, match="no time is left"):
        acceptance.limited(100.0, now + 45.0)


def test_what_another_process_found_with_cudnn_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the function itself
    row = {"way": "single kernels", "round_s": same(0.002), "x plain": same(2.0), "apart": 0.0, "problem": ""}
    parts = [Part("cifar10, fp32, 10 clients, cudnn.benchmark", "passed", 2.0, "", [row])]
    report, started = tmp_path / "acceptance-cudnn-benchmark.json", []
    report.write_text("of an earlier command")

    def start(seconds: float, command: Sequence[str], folder: Path) -> str:
        started.append((seconds, command[1:]))
        assert not report.exists()
        if len(started) == 1:
            report.write_text(common.json_text({"acceptance": parts}))
        return "first\nlast line\n"

    monkeypatch.setattr(acceptance, "interrupted_after", start)
    deadline = time.monotonic() + 1e6
    assert acceptance.with_cudnn_benchmark(given(tmp_path), deadline) == parts
    known = ["--device", "cpu", "--repeats", "1", "--threads", "1"]
    command = ["-m", "benchmarks.acceptance", "cifar10", *known, "--cudnn-benchmark", "--folder", str(tmp_path)]
    assert started == [(acceptance.BENCHMARK_SECONDS, command)]
    with pytest.raises(RuntimeError, match="it has no report: last line"):
        acceptance.with_cudnn_benchmark(given(tmp_path), deadline)


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
    assert marked_tests(tmp_path, time.monotonic() + 1e6, processes=1) == outcome(1, 1, 1, "test_bad")
    (tmp_path / "tests" / "test_cuda.py").write_text("import nothing  # mark.cuda\n")
    found = marked_tests(tmp_path, time.monotonic() + 1e6, processes=1)
    assert (found["passed"], found["failed"]) == (0, 1), "an error of the collection"


@pytest.mark.slow
def test_tests_that_take_too_long_are_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptance, "WORTH_STARTING", 0.0)
    monkeypatch.setattr(acceptance, "TEST_SECONDS", 15.0)
    (tmp_path / "tests").mkdir()
    slow = "def test_slow():\n    import time\n    time.sleep(600)\n"
    (tmp_path / "tests" / "test_cuda.py").write_text(CHECKOUT + slow)
    found = marked_tests(tmp_path, time.monotonic() + 1e6, processes=1)
    assert (found["passed"], found["failed"], found["interrupted"]) == (2, 1, "yes"), "the one that ran counts, too"


def test_a_program_that_takes_too_long_is_interrupted(tmp_path: Path) -> None:
    sleep = "import time; time.sleep(600)"
    assert "good" not in acceptance.interrupted_after(0.2, [sys.executable, "-c", f"{sleep}; print('good')"], tmp_path)


def same(seconds: float) -> Spread:
    return Spread(seconds, seconds, seconds, 5)


PROFILE = {
    "convolutions": "grouped", "wall_s": 0.004, "span_s": 0.0035, "idle_s": 0.0005, "busy_s": 0.003, "calls": 40,
    "kernels": [{"name": "sgemm", "calls": 30, "seconds": 0.0015, "share": 0.5}],
}  # fmt: skip
ROW = {"way": "single kernels", "round_s": same(0.002), "x plain": same(1.5), "apart": 1e-6, "problem": ""}
PARTS = [
    Part("cifar10, profile, grouped convolutions", "passed", 1.0, "", PROFILE),
    Part("cifar10, fp32, 10 clients", "passed", 2.0, "", [ROW]),
    Part("cudnn.benchmark", "passed", 9.0, "", [Part("cifar10, tf32, 10 clients", "passed", 3.0, "", [ROW])]),
    Part("tests", "failed", 90.0, "tests that failed: 1", outcome(3, 1, 0, "test_bad")),
    Part("cifar10, fp32, one run", "passed", 1.0, "", Projection(1, same(0.005), same(0.006), 50.5, 2**30)),
    Part("cifar10, fp32, runs together", "skipped", 0.0, "no time is left", None),
]


def command(*arguments: str, monkeypatch: pytest.MonkeyPatch, cut_after: int = 99) -> int:
    """Return the exit code of the script, which believes that there is a GPU, and measures nothing."""

    def accepted(*_: Any) -> Any:
        yield from PARTS[:cut_after]
        if cut_after < len(PARTS):
            raise KeyboardInterrupt

    monkeypatch.setattr(acceptance, "accept", accepted)
    monkeypatch.setattr(acceptance, "cases", lambda arguments: [Case("tiny", TINY, data_of(TINY, None), "cuda")])
    monkeypatch.setattr(acceptance, "machine", lambda device: {"gpu": "imagined"})
    monkeypatch.setattr(sys, "argv", ["acceptance", "cifar10", "--device", "cpu", *arguments])
    with pytest.raises(SystemExit) as ended:
        acceptance.main()
    return int(ended.value.code or 0)


def test_the_report_as_text_and_in_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch=monkeypatch) == 1, "a part failed"
    printed = capsys.readouterr()
    lines = [" ".join(line.split()) for line in (printed.out + printed.err).splitlines()]
    for line in (
        "grouped 0.004 0.0035 0.0005 0.003 40",
        "sgemm 30 0.0015 0.5",
        "single kernels 0.002 (0.002 to 0.002) 1.5 (1.5 to 1.5) 1e-06",
        "cifar10, tf32, 10 clients: passed in 3.0 s",
        "tests: failed in 1:30: tests that failed: 1",
        "no 3 1 0",
        "failed: test_bad",
        "10,000 rounds fp32 1 5 (5 to 5) 6 (6 to 6) 50.5 1",
        "cifar10, fp32, runs together: skipped in 0.0 s: no time is left",
        "6 parts, 1 skipped, 1 failed: tests",
    ):
        assert line in lines
    command("--json", monkeypatch=monkeypatch)
    out = json.loads(capsys.readouterr().out)
    assert set(out) == {"schema", "machine", "options", "acceptance"}
    assert [part["status"] for part in out["acceptance"]] == [*["passed"] * 3, "failed", "passed", "skipped"]
    assert out["acceptance"][4]["found"]["seconds"] == 50.5


def test_a_command_that_is_cut_leaves_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        command("--folder", str(tmp_path), monkeypatch=monkeypatch, cut_after=2)
    assert [path.name for path in tmp_path.iterdir()] == ["acceptance.json"]
    text = (tmp_path / "acceptance.json").read_text()
    assert str(tmp_path) not in text
    found = json.loads(text)
    assert [part["name"] for part in found["acceptance"]] == [part.name for part in PARTS[:2]]
    assert found["machine"]["gpu"] == "imagined"
    assert command("--folder", str(tmp_path / "none"), monkeypatch=monkeypatch) == 2


def test_without_a_gpu_it_is_one_message(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for device, message in (("cpu", "run `flbench doctor`"), ("cuda", "torch sees no GPU here"), ("gpu", "cpu")):
        if device == "cuda" and torch.cuda.is_available():
            continue
        monkeypatch.setattr(sys, "argv", ["acceptance", "--device", device])
        with pytest.raises(SystemExit) as ended:
            acceptance.main()
        assert ended.value.code == 2 and message in capsys.readouterr().err
