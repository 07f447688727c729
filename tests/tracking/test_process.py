"""The mirror next to a sweep, as a process that may break in any way."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from flbench.tracking import process
from flbench.tracking.process import MirrorProcess
from flbench.tracking.sink import Tracker
from flbench.tracking.trackers import TensorBoard, Wandb
from tests.limits import wait_until


def end_of(folder: Path, *command: str, tracker: Tracker | None = None) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "FLBENCH", command)
        mirror = MirrorProcess.start(tracker or Wandb(mode="offline"), folder / "store", folder)
    if mirror._process is not None and "cat" not in command[-1]:
        wait_until(lambda: mirror._process is not None and mirror._process.poll() is not None, 60)
    return mirror.end()


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (("/bin/sh", "-c", "echo some; echo 8 of 8 runs are in files"), "8 of 8 runs are in files"),
        (("/bin/sh", "-c", "echo 'warning: toy: no wandb'; exit 1"), r"warning: toy: no wandb \(log: .*wandb.log\)"),
        (("/does/not/exist",), "warning: nothing is mirrored: No such file or directory"),
        (("/bin/false",), r"warning: the mirror ended with exit code 1 \(log: .*wandb.log\)"),
        (("/bin/sh", "-c", "kill -9 $$"), r"warning: the mirror ended with exit code -9 \(log: .*wandb.log\)"),
        (("/bin/sh", "-c", "cat; exec sleep 60"), r"process \d+ mirrors the rest \(log: .*\); so does `flbench sync`"),
    ],
    ids=["works", "warns", "no program", "dies at once", "is killed", "hangs"],
)
def test_it_costs_a_sweep_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], line: str
) -> None:
    monkeypatch.setattr(process, "GRACE", 0.2)
    assert re.fullmatch(line, end_of(tmp_path, *command))


def test_it_is_started_for_one_tracker_with_its_settings(tmp_path: Path) -> None:
    said = end_of(tmp_path, "/bin/echo", tracker=TensorBoard(Path("logs")))
    assert said.startswith("sync ") and said.endswith("--beside")
    assert json.dumps({"name": "tensorboard", "folder": "logs"}) in said


def test_nothing_is_started_for_a_tracker_that_is_off_or_for_a_detached_sweep(tmp_path: Path) -> None:
    assert end_of(tmp_path, "/does/not/exist", tracker=Wandb(mode="off")) == ""
    assert "run `flbench sync`" in MirrorProcess.start(Wandb(mode="offline"), tmp_path, tmp_path, detach=True).end()
