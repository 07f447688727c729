"""What a machine offers to workers, from GPU masks, cgroups and the kernel's counters."""

from __future__ import annotations

from pathlib import Path

import pytest

from flbench.errors import UserError
from flbench.launch.resources import cgroup_quota, gpu_slots, oom_kills, usable_cores, visible_gpus


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
def test_too_few_gpus_are_a_user_error(devices: list[str]) -> None:
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
