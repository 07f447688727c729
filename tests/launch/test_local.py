from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from flbench.launch.inline import InlineLauncher
from flbench.launch.local import LocalLauncher
from flbench.store import Store, strict_json
from flbench.worker import Options
from tests.faults.stub import experiments


def test_slots_are_cores_over_cpus_and_at_least_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flbench.launch.local.usable_cores", lambda: 8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    store = Store(tmp_path / "store")

    def slots(**given: float) -> int:
        return LocalLauncher(store, "toy/abc", Options(), **given).slots  # type: ignore[arg-type]

    assert slots() == 8
    assert slots(cpus=3) == 2
    assert slots(cpus=16) == 1
    assert slots(gpus=1) == 2
    assert slots(gpus=0.5) == 4
    assert slots(gpus=0.5, cpus=4) == 2
    assert slots(workers=5) == 5


class Process:
    """A worker process that ends on the test's request."""

    def __init__(self, environ: dict[str, str]) -> None:
        self.environ = environ
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self.returncode


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[Process]:
    started: list[Process] = []

    def start(argv: list[str], *, env: dict[str, str], **_: object) -> Process:
        started.append(Process({**env, "neighbours": next(word for word in argv if "--neighbours" in word)}))
        return started[-1]

    monkeypatch.setattr("subprocess.Popen", start)
    monkeypatch.setattr("flbench.launch.local.ForkServer", lambda _: pytest.fail("no fork is needed"))
    return started


def test_replacement_takes_the_gpu_that_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: list[Process]
) -> None:
    monkeypatch.setattr("flbench.launch.local.usable_cores", lambda: 8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    launcher = LocalLauncher(Store(tmp_path / "store"), "toy/abc", Options(), gpus=1)
    launcher.start(3)
    processes[1].returncode = 1
    assert launcher.alive() == 2
    launcher.start(1)
    assert [process.environ["CUDA_VISIBLE_DEVICES"] for process in processes] == ["4", "5", "6", "5"]
    assert {process.environ["neighbours"] for process in processes} == {"--neighbours=1"}


@pytest.mark.parametrize(
    ("code", "kills", "slots", "kind"),
    [(0, 0, 3, None), (75, 0, 3, None), (76, 0, 2, None), (1, 1, 3, "error"), (-9, 0, 3, "signal"), (-9, 1, 2, "oom")],
)
def test_end_of_a_worker_is_recorded_and_out_of_memory_costs_a_slot(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    processes: list[Process],
    code: int,
    kills: int,
    slots: int,
    kind: str | None,
) -> None:
    counted = iter([7, 7 + kills, 7 + kills])
    monkeypatch.setattr("flbench.launch.local.oom_kills", lambda: next(counted))
    store = Store(tmp_path / "store")
    launcher = LocalLauncher(store, "toy/abc", Options(), workers=3, command=("worker",))
    launcher.start(1)
    processes[0].returncode = code
    assert launcher.alive() == 0
    assert launcher.slots == slots
    (token,) = launcher.tokens()
    end = strict_json.read_json(store.workers / token / "exit.json")
    assert (end and end["kind"]) == kind


def test_inline_worker_killed_by_the_user_costs_no_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, codes = Store(tmp_path / "store"), []
    monkeypatch.setattr("os._exit", codes.append)
    launcher = InlineLauncher(store, "toy/abc", experiments(), Options())
    launcher.kill()
    assert codes == [130]
    (token,) = launcher.tokens()
    end = strict_json.read_json(store.workers / token / "exit.json")
    assert end is not None and end["kind"] == "interrupted"


@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGKILL, "SIGKILL"), (signal.SIGRTMIN + 5, f"signal {signal.SIGRTMIN + 5}")]
)
def test_the_end_of_a_worker_names_any_signal(tmp_path: Path, number: int, name: str) -> None:
    """A real-time signal has no name in Python's enumeration."""
    store = Store(tmp_path)
    program = (sys.executable, "-c", f"import os; os.kill(os.getpid(), {number})")
    launcher = LocalLauncher(store, "toy/0", Options(), workers=1, command=program)
    launcher.start(1)
    (token,) = launcher.tokens()
    while launcher.alive():
        time.sleep(0.01)
    end = strict_json.read_json(store.workers / token / "exit.json")
    assert end is not None
    assert end["message"] == f"its worker was killed by {name}"
