from __future__ import annotations

from pathlib import Path

import pytest

from flbench.errors import UserError
from flbench.launch.local import LocalLauncher, cgroup_quota, gpu_slots, usable_cores, visible_gpus
from flbench.store import Store
from flbench.worker import Options


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
def test_too_few_gpus_are_the_users_to_mend(devices: list[str]) -> None:
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
