"""The real wandb: into files, onto a server on the loopback interface, and against everything that may break."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flbench.store import Store
from flbench.tracking import segments
from tests.report.stores import claim, experiment, finish, records
from tests.tracking.plans import KEY, SPEC, Planned, environment, flbench, planned
from tests.tracking.server import FakeServer, serving

pytestmark = pytest.mark.slow

#: What wandb adds to a row.
ADDED = ("_step", "_timestamp", "_runtime")

MANY = SPEC.replace("[0, 1]", "{range: [0, 12]}")


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with serving() as served:
        yield served


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    home = tmp_path / "home"
    home.mkdir()
    return environment(home)


def online(env: dict[str, str], server: FakeServer) -> dict[str, str]:
    return {**env, "WANDB_API_KEY": KEY, "WANDB_BASE_URL": server.url}


def segment_of(store: Store, run_id: str) -> Path:
    """The one segment of a run."""
    (path,) = store.root.glob(f"wandb/offline-run-*-{run_id}/run-{run_id}.wandb")
    return path


def bare(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in ADDED} for row in rows]


def assert_in_files(toys: Planned) -> None:
    for wish in toys.experiments:
        rows = segments.history(segment_of(toys.store, wish.run_id))
        assert bare(rows) == toys.metrics(wish)
        assert [row["_step"] for row in rows] == [row["round"] for row in rows]


def assert_no_key_in(folder: Path) -> None:
    holding = [path for path in folder.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert holding == []


def assert_nothing_of_wandb_in(folder: Path) -> None:
    assert [path for path in folder.rglob("*") if "wandb" in path.name] == []


def records_of(path: Path, kind: str) -> list[Any]:
    return [
        getattr(record, kind)
        for record in segments._parsed(path)
        if record.WhichOneof("record_type") == kind
    ]  # fmt: skip


def test_offline_files_hold_the_runs(tmp_path: Path, env: dict[str, str]) -> None:
    toys = planned(tmp_path)
    result = flbench("sync", "--store", toys.store.root, "--json", env=env, cwd=tmp_path / "home")
    assert result.returncode == 0, result.stderr
    (facts,) = json.loads(result.stdout)["sweeps"]
    assert (facts["mode"], facts["mirrored"], facts["new"], facts["told_sweep"]) == ("offline", 4, 4, True)
    assert_in_files(toys)
    wish = toys.experiments[0]
    path = segment_of(toys.store, wish.run_id)
    (run,) = records_of(path, "run")
    assert (run.run_id, run.project, run.run_group) == (wish.run_id, "papers", wish.cell_id)
    assert (run.job_type, run.display_name) == ("federated", "fedavg none classes:1 lr=0.01 E=10 s0")
    assert list(run.tags) == ["toy", "fedavg", "none"]
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert {name: value for name, value in config.items() if name != "_wandb"} == {**wish.to_json(), "rounds": 20}
    metrics = {(metric.name, metric.glob_name, metric.step_metric) for metric in records_of(path, "metric")}
    assert metrics == {("round", "", ""), ("", "*", "round")}
    assert_nothing_of_wandb_in(tmp_path / "home")  # which is also where it was called


def test_the_sweep_has_its_table_and_figures_in_a_run_of_its_own(tmp_path: Path, env: dict[str, str]) -> None:
    toys = planned(tmp_path)
    assert flbench("sync", "--store", toys.store.root, env=env).returncode == 0
    path = segment_of(toys.store, f"sweep-{toys.sweep.spec_hash}")
    (run,) = records_of(path, "run")
    assert (run.job_type, run.display_name) == ("sweep", "toy")
    (table,) = path.parent.glob("files/media/table/leaderboard*.table.json")
    content = json.loads(table.read_text())
    rows = [dict(zip(content["columns"], row, strict=True)) for row in content["data"]]
    assert {row["norm"]: row["mean"] for row in rows} == pytest.approx({"none": 0.55, "ln": 0.55})
    assert {row["cell_id"] for row in rows} == set(toys.sweep.cells())
    pictures = list(path.parent.glob("files/media/images/**/*.png"))
    assert len(pictures) >= 1
    assert records_of(path, "artifact") == []  # they would name files that are gone


def test_synced_twice_extended_and_synced_again_it_is_there_once(tmp_path: Path, env: dict[str, str]) -> None:
    toys = planned(tmp_path)
    assert flbench("sync", "--store", toys.store.root, env=env).returncode == 0
    before = sorted((toys.store.root / "wandb").iterdir())
    again = flbench("sync", "--store", toys.store.root, env=env)
    assert "4 of 4 runs are in files, 0 of them new" in again.stdout
    assert sorted((toys.store.root / "wandb").iterdir()) == before
    first = toys.experiments[0]
    old = segment_of(toys.store, first.run_id).parent
    finish(toys.store, experiment(**{**first.to_json(), "rounds": 40}))
    assert "1 of them new" in flbench("sync", "--store", toys.store.root, env=env).stdout
    assert not old.exists()
    assert_in_files(toys)
    assert segments.history(segment_of(toys.store, first.run_id))[-1]["round"] == 40


def test_wandbs_own_reader_uploads_the_files_as_they_are(
    tmp_path: Path, env: dict[str, str], server: FakeServer
) -> None:
    toys = planned(tmp_path)
    assert flbench("sync", "--store", toys.store.root, env=env).returncode == 0
    paths = sorted(toys.store.root.glob("wandb/offline-run-*"))
    wandb = [sys.executable, "-m", "wandb", "sync", *map(str, paths)]
    quiet: dict[str, Any] = {"capture_output": True, "stdin": subprocess.DEVNULL}
    subprocess.run(wandb, env=online(env, server), cwd=tmp_path, check=True, timeout=120, **quiet)
    assert_on(server, toys)
    assert any("leaderboard" in name for name in server.files)


def assert_on(server: FakeServer, toys: Planned) -> None:
    for wish in toys.experiments:
        told = server.runs[wish.run_id]
        assert bare(told.history) == toys.metrics(wish)
        assert told.summary["status"] == "done"
        assert told.exit_code == 0
        assert told.upserts[0]["groupName"] == wish.cell_id


def test_online_every_run_is_told(tmp_path: Path, env: dict[str, str], server: FakeServer) -> None:
    toys = planned(tmp_path)
    env = online(env, server)
    result = flbench("sync", "--store", toys.store.root, "--mode", "auto", env=env, cwd=tmp_path / "home")
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"4 of 4 runs are on W&B, 4 of them new; {server.url}/somebody/papers" in result.stdout
    assert_on(server, toys)
    assert any(name.startswith("media/table/leaderboard") for name in server.files)
    assert list(toys.store.root.glob("wandb/*run*")) == []  # nothing is kept that W&B has
    assert_nothing_of_wandb_in(tmp_path / "home")
    assert_no_key_in(tmp_path)
    first = toys.experiments[0]
    finish(toys.store, experiment(**{**first.to_json(), "rounds": 40}))
    assert flbench("sync", "--store", toys.store.root, "--mode", "online", env=env).returncode == 0
    assert_on(server, toys)
    assert len(server.runs[first.run_id].history) == len(toys.metrics(first)) == 8


def test_a_run_deleted_on_wandb_stays_so_and_the_others_are_told(
    tmp_path: Path, env: dict[str, str], server: FakeServer
) -> None:
    toys = planned(tmp_path)
    gone = toys.experiments[1].run_id
    server.deleted.add(gone)
    patience = "import flbench.tracking.writer as w; w.INIT_TIMEOUT = 5.0"
    shell = online(env, server)
    result = flbench("sync", "--store", toys.store.root, "--mode", "online", env=shell, before=patience)
    assert result.returncode == 0, result.stdout
    assert f"run {gone} was deleted on W&B and stays so" in result.stdout
    assert server.runs.keys() - {gone} >= {wish.run_id for wish in toys.experiments} - {gone}


def test_what_the_server_refuses_is_not_taken_for_told(tmp_path: Path, env: dict[str, str], server: FakeServer) -> None:
    toys = planned(tmp_path)
    refused = toys.experiments[1].run_id
    server.refusing.add(refused)
    result = flbench("sync", "--store", toys.store.root, "--mode", "online", env=online(env, server))
    assert result.returncode == 1
    assert f"warning: run {refused} could not be told: filestream" in result.stdout
    assert "3 of 4 runs are on W&B" in result.stdout
    server.refusing.clear()
    assert flbench("sync", "--store", toys.store.root, "--mode", "online", env=online(env, server)).returncode == 0
    assert_on(server, toys)


def test_nobody_there_costs_a_warning(tmp_path: Path, env: dict[str, str]) -> None:
    toys = planned(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    began = time.monotonic()
    env = {**env, "WANDB_API_KEY": KEY, "WANDB_BASE_URL": url}
    result = flbench("sync", "--store", toys.store.root, "--mode", "online", env=env)
    assert result.returncode == 1
    assert re.search(r"warning: toy/\w+: 0 of 4 runs are on W&B, .* gave up", result.stdout)
    assert "cannot be reached" in result.stdout
    assert "Traceback" not in result.stdout + result.stderr
    assert time.monotonic() - began < 30
    assert_no_key_in(tmp_path)


def test_somebody_there_who_never_answers_costs_a_warning(tmp_path: Path, env: dict[str, str]) -> None:
    toys = planned(tmp_path)
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        env = {**env, "WANDB_API_KEY": KEY, "WANDB_BASE_URL": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        patience = "import flbench.tracking.writer as w; w.INIT_TIMEOUT = 2.0"
        result = flbench("sync", "--store", toys.store.root, "--mode", "online", env=env, before=patience)
    assert result.returncode == 1
    assert "gave up" in result.stdout
    assert "Traceback" not in result.stdout + result.stderr


def test_a_killed_service_costs_no_run(tmp_path: Path, env: dict[str, str]) -> None:
    toys = planned(tmp_path, MANY)
    over, killed = threading.Event(), []

    def kill() -> None:
        while not over.wait(0.02) and len(killed) < 2:
            told = len(list(toys.store.root.glob("wandb/offline-run-*")))
            if told > 5 * len(killed) + 2 and (service := service_of(str(toys.store.root))) is not None:
                os.kill(service, signal.SIGKILL)
                killed.append(service)

    killer = threading.Thread(target=kill)
    killer.start()
    pace = "import flbench.tracking.mirror as m; m.PACE['offline'] = 0.2"
    result = flbench("sync", "--store", toys.store.root, env=env, before=pace)
    over.set()
    killer.join()
    assert len(killed) == 2
    assert result.returncode == 0, result.stdout + result.stderr
    assert "24 of 24 runs are in files" in result.stdout
    assert_in_files(toys)


def service_of(store: str) -> int | None:
    """The wandb-core whose staging folder lies in the store."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "comm").read_text().strip() == "wandb-core" and store in (process / "environ").read_text():
                return int(process.name)
        except OSError:
            continue
    return None


def test_a_full_disk_costs_a_warning_and_what_was_not_told_is_told_later(tmp_path: Path, env: dict[str, str]) -> None:
    toys = planned(tmp_path)
    for wish in toys.experiments:
        finish(toys.store, experiment(**{**wish.to_json(), "rounds": 400, "eval_every": 1}))
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 15, resource.RLIM_INFINITY))"
    result = flbench("sync", "--store", toys.store.root, env=env, before=full)
    assert result.returncode == 1
    assert "0 of 4 runs are in files" in result.stdout
    assert "Traceback" not in result.stdout + result.stderr
    assert list(toys.store.root.glob("wandb/offline-run-*")) == []
    assert flbench("sync", "--store", toys.store.root, env=env).returncode == 0
    assert_in_files(toys)


def test_the_last_of_a_disk_is_left_to_the_runs(tmp_path: Path, env: dict[str, str]) -> None:
    toys = planned(tmp_path)
    spared = "import flbench.tracking.writer as w; w.SPARED = 1 << 62"
    result = flbench("sync", "--store", toys.store.root, env=env, before=spared)
    assert result.returncode == 1
    assert "runs need them more" in result.stdout


def test_a_missing_package_costs_a_warning(tmp_path: Path, env: dict[str, str]) -> None:
    toys = planned(tmp_path)
    missing = "import sys; sys.modules['wandb'] = None"
    result = flbench("sync", "--store", toys.store.root, env=env, before=missing)
    assert result.returncode == 1
    assert re.search(r"warning: .*wandb", result.stdout)
    assert "Traceback" not in result.stdout + result.stderr


def test_a_running_run_is_told_as_it_goes_on(tmp_path: Path, env: dict[str, str], server: FakeServer) -> None:
    toys = planned(tmp_path, SPEC.replace("[0, 1]", "[0]").replace("[none, ln]", "[ln]"), done=False)
    (wish,) = toys.experiments
    attempt = claim(toys.store, wish)
    attempt.adopt(None)
    lines = records([5, 10, 15, 20], 0.9)
    for line in lines[:2]:
        attempt.record(line)
    program = "import flbench.tracking.mirror as m; m.LIVE_AFTER = 0.0\nfrom flbench.cli import main\nmain()"
    argv = [sys.executable, "-c", program, "sync", "toy", "--store", str(toys.store.root), "--mode", "online"]
    with subprocess.Popen([*argv, "--beside"], env=online(env, server), stdin=subprocess.PIPE) as mirror:
        deadline = time.monotonic() + 60
        while len(server.runs[wish.run_id].lines) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert bare(server.runs[wish.run_id].history) == lines[:2]
        for line in lines[2:]:
            attempt.record(line)
        attempt.publish(status="done", rounds=20, seconds=1.0, fingerprint="e3713c9c6ae47b99", numerics={})
        attempt.end("ok")
        assert mirror.stdin is not None
        mirror.stdin.close()
    assert mirror.returncode == 0
    assert_on(server, toys)
    assert len(server.runs[wish.run_id].history) == 4
    begun = [upsert for upsert in server.runs[wish.run_id].upserts if upsert["entity"] is None]
    assert len(begun) == 1  # it went on under the same session


SWEEP = """
version: 1
name: tiny
base: {model: {name: mlp, widths: [8]}, rounds: 4, eval_every: 2}
axes: {norm: [none, ln]}
seeds: [0, 1]
wandb: {mode: offline}
"""


def sweep(tmp_path: Path, env: dict[str, str], text: str = SWEEP, *, before: str = "") -> tuple[Planned, str, float]:
    toys = planned(tmp_path, text, done=False)
    began = time.monotonic()
    result = flbench("sweep", toys.spec, "--store", toys.store.root, "--workers", "1", env=env, before=before)
    assert result.returncode == 0, result.stdout + result.stderr
    return toys, result.stdout, time.monotonic() - began


def wait_for_mirror(toys: Planned) -> str:
    """What the mirror said last."""
    log, deadline = toys.plan / "wandb.log", time.monotonic() + 60
    while not re.search(r"runs are|warning: tiny", text := log.read_text()):
        assert time.monotonic() < deadline, text
        time.sleep(0.1)
    return text


def test_a_sweep_is_mirrored_beside_it(tmp_path: Path, env: dict[str, str]) -> None:
    toys, said, _ = sweep(tmp_path, env)
    assert re.search(r"^W&B: ", said, re.MULTILINE)
    assert "4 of 4 runs are in files, 4 of them new" in wait_for_mirror(toys)
    assert_in_files(toys)
    assert segment_of(toys.store, f"sweep-{toys.sweep.spec_hash}").exists()


def test_a_sweep_is_mirrored_online(tmp_path: Path, env: dict[str, str], server: FakeServer) -> None:
    toys, _, _ = sweep(tmp_path, online(env, server), SWEEP.replace("mode: offline", "mode: auto"))
    assert "4 of 4 runs are on W&B" in wait_for_mirror(toys)
    assert_on(server, toys)
    assert_no_key_in(tmp_path)


def test_a_sweep_without_a_key_says_in_one_line_how_to_turn_it_on(tmp_path: Path, env: dict[str, str]) -> None:
    _, said, _ = sweep(tmp_path, env, SWEEP.replace("mode: offline", "mode: auto"))
    (line,) = [line for line in said.splitlines() if line.startswith("W&B")]
    assert "wandb login" in line


@pytest.mark.parametrize(
    "before",
    [
        "import sys; sys.modules['wandb'] = None",
        "import flbench.tracking.beside as b; b.FLBENCH = ('/does/not/exist',)",
        "import flbench.tracking.beside as b; b.FLBENCH = ('/bin/false',)",
        "import flbench.tracking.beside as b; b.FLBENCH = ('/bin/sleep', '60', '#')",
    ],
    ids=["no package", "no program", "dies at once", "hangs"],
)
def test_a_broken_mirror_costs_a_sweep_one_line(tmp_path: Path, env: dict[str, str], before: str) -> None:
    toys, said, seconds = sweep(tmp_path, env, before=before)
    assert seconds < 50
    lines = [line for line in said.splitlines() if line.startswith("W&B: ")]
    assert len(lines) == 1
    assert "4 of 4 runs done" in said
    assert all(toys.metrics(wish) for wish in toys.experiments)
    assert "Traceback" not in said


def test_a_killed_sweep_leaves_no_mirror_behind(tmp_path: Path, env: dict[str, str]) -> None:
    text = SWEEP.replace("rounds: 4, eval_every: 2", "rounds: 100000, eval_every: 100")
    toys = planned(tmp_path, text, done=False)
    argv = [sys.executable, "-c", "from flbench.cli import main; main()", "sweep", str(toys.spec)]
    argv += ["--store", str(toys.store.root), "--backend", "inline"]
    with subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        deadline = time.monotonic() + 60
        while not (toys.plan / "wandb.lock").exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.kill()
    # A run that was lost with the sweep is told as such.
    assert re.search(r"[0-4] of 4 runs are in files", wait_for_mirror(toys))
