from __future__ import annotations

import json
import os
import re
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flbench.cli import app
from flbench.cli.doctor import Finding, _slurm
from flbench.store.files import Disk


def doctor(*arguments: str) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(app, ["doctor", "--json", *arguments])
    found = json.loads(result.stdout)
    assert found["ok"] == (result.exit_code == 0)
    return result.exit_code, {finding["name"]: finding for finding in found["findings"]}


def test_a_working_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, found = doctor("--store", str(tmp_path / "store"), "--data", str(tmp_path))
    assert code == 0
    assert {found[name]["state"] for name in ("python", "torch", "cores", "store", "data: digits")} == {"ok"}
    assert found["data: cifar10"]["advice"] == "flbench data download cifar10"
    assert list(tmp_path.iterdir()) == []  # nothing is left behind
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: True)
    finding = doctor("--store", str(tmp_path / "store"))[1]["gpu"]
    assert (finding["state"], finding["found"]) == ("ok", "Apple GPU (MPS)")
    assert "flbench run --device mps" in finding["advice"] and "no Mac has run it" in finding["advice"]


def test_a_line_is_printed_before_torch_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each check is shown as it ends: the import of torch takes seconds."""
    monkeypatch.setenv("FLBENCH_STORE", str(tmp_path / "store"))
    shown: list[str] = []

    def torch() -> Finding:
        shown.append(capfd.readouterr().out)
        return Finding("torch", "ok", "here")

    monkeypatch.setattr("flbench.cli.doctor._torch", torch)
    with pytest.raises(SystemExit):
        app(["doctor"])
    assert [line.split()[0] for line in shown[0].splitlines()] == ["flbench", "python"]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [("format.json", '{"schema": 99}', "newer flbench"), ("../file", "", "file is not a folder")],
)
def test_a_store_that_cannot_be_used_is_broken(tmp_path: Path, name: str, text: str, says: str) -> None:
    (folder := tmp_path / "store").mkdir()
    (folder / name).write_text(text)
    code, found = doctor("--store", str(tmp_path / "file" if "file" in says else folder))
    assert (code, found["store"]["state"]) == (1, "broken")
    assert says in found["store"]["found"]


@pytest.mark.parametrize(
    ("call", "what"),
    [
        ("sync", "writing a file with fsync fails: Operation not permitted"),
        ("rename", "renaming fails: Operation not permitted"),
        ("link", "a hard link fails: hard links do not work here, and a store needs them (Operation not permitted)"),
    ],
)
def test_what_does_not_work_on_a_disk_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, what: str
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Disk, call, refuse)
    code, found = doctor("--store", str(tmp_path / "store"))
    assert (code, found["store"]["state"]) == (1, "broken")
    assert found["store"]["found"] == f"{tmp_path}: {what}"
    assert "`flbench docs cluster` lists what a store needs" in found["store"]["advice"]
    assert list(tmp_path.iterdir()) == []


def test_a_clock_that_goes_back_and_a_link_that_overwrites_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = Disk.link

    def link_and_date_back(disk: Disk, path: Path, target: Path) -> None:
        link(disk, path, target)
        os.utime(target, (0, target.stat().st_mtime - 7))

    monkeypatch.setattr(Disk, "link", link_and_date_back)
    code, found = doctor("--store", str(tmp_path / "store"))
    assert (code, found["store"]["state"]) == (1, "broken")
    assert re.search(r"a file is dated (6\.\d|7\.0) s before one that was written earlier", found["store"]["found"])
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(Disk, "link", lambda disk, path, target: target.write_bytes(path.read_bytes()))
    assert doctor("--store", str(tmp_path / "store"))[1]["store"]["found"].endswith(": a hard link overwrote a file")


def test_wandb_reports_the_mode_of_sweeps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    finding = doctor("--store", str(tmp_path / "store"))[1]["wandb"]
    assert finding["state"] == "absent" and "wandb login" in finding["advice"]
    monkeypatch.setenv("WANDB_API_KEY", "0123456789" * 4)
    finding = doctor("--store", str(tmp_path / "store"))[1]["wandb"]
    assert finding["state"] == "ok" and finding["found"].endswith("is online")
    assert "0123456789" not in str(finding)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    finding = doctor("--store", str(tmp_path / "store"))[1]["wandb"]
    assert finding["state"] == "absent" and "WANDB_MODE" in finding["advice"]


def test_tensorboard_is_named_and_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("flbench.cli.doctor.version", lambda name: "2.20.0")
    finding = doctor("--store", str(tmp_path / "store"))[1]["tensorboard"]
    assert (finding["state"], finding["found"]) == ("ok", "2.20.0; `track: tensorboard:DIR` mirrors runs to it")
    monkeypatch.setattr("flbench.cli.doctor.version", missing)
    code, found = doctor("--store", str(tmp_path / "store"))
    assert (code, found["tensorboard"]["state"], found["wandb"]["state"]) == (0, "absent", "absent")
    assert found["tensorboard"]["advice"] == "install it: uv sync --extra tensorboard"


def test_the_message_of_sinfo_is_shown_where_slurm_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, script in (("sbatch", ""), ("sinfo", "echo first >&2; echo sinfo: fatal: no configuration >&2; exit 1")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert _slurm() == Finding(
        "slurm", "absent", "sbatch is there, `sinfo --version` fails: sinfo: fatal: no configuration"
    )
