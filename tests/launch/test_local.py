from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from flbench.errors import UserError
from flbench.launch.inline import InlineLauncher
from flbench.launch.local import LocalLauncher, cgroup_quota, gpu_slots, usable_cores, visible_gpus
from flbench.launch.memory import oom_kills
from flbench.store import Store, strict_json
from flbench.worker import Options
from tests.faults.stub import experiments


@pytest.mark.parametrize(
    ("gpus", "slots"),
    [
        (1, ["0", "1", "2", "3"]),
        (0.5, ["0", "1", "2", "3", "0", "1", "2", "3"]),
        (0.3, ["0", "1", "2", "3"] * 3),
        (2, ["0,1", "2,3"]),
        (3, ["0,1,2"]),
    ],
)
def test_workers_share_gpus_in_turn_or_get_several(gpus: float, slots: list[str]) -> None:
    assert gpu_slots(gpus, ["0", "1", "2", "3"]) == slots


@pytest.mark.parametrize("devices", [[], ["0"]])
def test_too_few_gpus_are_a_users_mistake(devices: list[str]) -> None:
    with pytest.raises(UserError, match=r"resources.gpus asks for 2 GPUs a run; visible here"):
        gpu_slots(2, devices)


@pytest.mark.parametrize(
    ("mask", "devices"),
    [
        ("2,5", ["2", "5"]),
        ("GPU-8f2c, MIG-GPU-1/7/0", ["GPU-8f2c", "MIG-GPU-1/7/0"]),
        ("", []),
        ("-1", []),
    ],
)
def test_given_mask_is_respected(mask: str, devices: list[str]) -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": mask}) == devices


def test_affinity_mask_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {3})
    assert usable_cores() == 1


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"cpu.max": "max 100000\n"}, float("inf")),
        ({"cpu.max": "250000 100000\n"}, 2.5),
        ({"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, float("inf")),
        ({}, float("inf")),
    ],
)
def test_cgroup_quota(tmp_path: Path, files: dict[str, str], quota: float) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cgroup_quota(tmp_path) == quota


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
    launcher = LocalLauncher(store, "toy/abc", Options(), workers=3)
    launcher.start(1)
    processes[0].returncode = code
    assert launcher.alive() == 0
    assert launcher.slots == slots
    (token,) = launcher.tokens()
    told = strict_json.read_json(store.workers / token / "exit.json")
    assert (told and told["kind"]) == kind


def test_inline_worker_killed_by_the_user_costs_no_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, codes = Store(tmp_path / "store"), []
    monkeypatch.setattr("os._exit", codes.append)
    launcher = InlineLauncher(store, "toy/abc", experiments(), Options())
    launcher.kill()
    assert codes == [130]
    (token,) = launcher.tokens()
    end = strict_json.read_json(store.workers / token / "exit.json")
    assert end is not None and end["kind"] == "interrupted"


def test_memory_counters_of_the_kernel(tmp_path: Path) -> None:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    assert oom_kills(proc, cgroups) == 0
    contents = {
        proc / "vmstat": "nr_free_pages 5\noom_kill 2\n",
        proc / "self/cgroup": "4:memory:/job/7\n1:cpu:/\n0::/user/x\n",
        cgroups / "memory/job/7/memory.oom_control": "under_oom 0\noom_kill 30\n",
        cgroups / "user/x/memory.events": "low 0\noom 9\noom_kill 400\n",
    }
    for path, text in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert oom_kills(proc, cgroups) == 432


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
