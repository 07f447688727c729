"""The real wandb: offline files, a server on the loopback interface, and everything that may break."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flbench.store import Store
from flbench.tracking.run_view import rows_of
from flbench.tracking.trackers import Wandb
from tests.limits import wait_until
from tests.report.stores import claim, experiment, finish, records
from tests.tracking.plans import KEY, SPEC, Planned, environment, flbench, planned
from tests.tracking.server import FakeServer, serving
from tests.warm import warm_python

pytestmark = pytest.mark.slow

#: What wandb adds to a row.
ADDED = ("_step", "_timestamp", "_runtime")

MANY = SPEC.replace("[0, 1]", "{range: [0, 4]}")


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


def folder_of(store: Store, run_id: str) -> Path:
    """The one folder of a run's offline files."""
    (path,) = store.root.glob(f"wandb/offline-run-*-{run_id}")
    return path


def bare(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in ADDED} for row in rows]


def uploaded(store: Store, env: dict[str, str]) -> FakeServer:
    """A server after `wandb sync` of all offline files, by wandb's own reader."""
    paths = sorted(store.root.glob("wandb/offline-run-*"))
    command = [sys.executable, "-m", "wandb", "sync", *map(str, paths)]
    quiet: dict[str, Any] = {"capture_output": True, "stdin": subprocess.DEVNULL}
    with serving() as server:
        done = subprocess.run(command, env=online(env, server), cwd=store.root.parent, check=True, timeout=240, **quiet)
    assert sorted(marker.parent for marker in store.root.glob("wandb/*/*.synced")) == paths, done.stderr.decode()
    for marker in store.root.glob("wandb/*/*.synced"):
        marker.unlink()  # wandb would skip these files the next time
    return server


def assert_on(server: FakeServer, toys: Planned, without: str = "") -> None:
    """Every run is there once, with all its metrics."""
    assert server.faults == []
    for run in (one for one in toys.experiments if one.run_id != without):
        sent = server.runs[run.run_id]
        assert bare(sent.history) == rows_of(toys.metrics(run))
        assert [row["_step"] for row in sent.history] == [row["round"] for row in sent.history]
        assert sent.summary["status"] == "done"
        assert sent.exit_code == 0
        assert sent.upserts[0]["groupName"] == sent.upserts[0]["displayName"].rpartition(" ")[0]


def assert_in_files(toys: Planned, env: dict[str, str]) -> FakeServer:
    """Every run has one folder of offline files, and these hold all its metrics; return a server that has them."""
    assert all(folder_of(toys.store, run.run_id) for run in toys.experiments)
    server = uploaded(toys.store, env)
    assert_on(server, toys)
    return server


def assert_no_key_in(folder: Path) -> None:
    holding = [path for path in folder.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert holding == []


def assert_nothing_of_wandb_in(folder: Path) -> None:
    assert [path for path in folder.rglob("*") if "wandb" in path.name] == []


#: In the second of a failed try, wandb appends a number to the name of a run's folder.
SAME_SECOND = """from wandb.sdk.wandb_init import _WandbInit
_WandbInit.set_sync_dir_suffix = lambda self, settings: setattr(settings, "x_sync_dir_suffix", "1")"""


def test_offline_files_hold_the_runs_and_the_sweep(tmp_path: Path, env: dict[str, str]) -> None:
    toys = planned(tmp_path)
    result = flbench("sync", "--store", toys.store.root, "--json", env=env, cwd=tmp_path / "home", before=SAME_SECOND)
    assert result.returncode == 0, result.stderr
    (facts,) = json.loads(result.stdout)["sweeps"]
    assert (facts["mode"], facts["mirrored"], facts["new"], facts["told_sweep"]) == ("offline", 4, 4, True)
    assert_nothing_of_wandb_in(tmp_path / "home")  # which is also where it was called
    server, run = assert_in_files(toys, env), toys.experiments[0]
    shown = server.runs[run.run_id].upserts[0]
    assert (shown["project"], shown["jobType"]) == ("papers", "federated")
    assert shown["displayName"] == "fedavg none classes:1 lr=0.01 E=10 s0"
    assert shown["tags"] == ["toy", "fedavg", "none", "digits", "classes:1"]
    config = {name: field["value"] for name, field in json.loads(shown["config"]).items()}
    del config["_wandb"]
    assert config == {**run.to_json(), "rounds": 20, "cell_id": run.cell_id}
    metrics = json.loads(server.runs[run.run_id].upserts[-1]["config"])["_wandb"]["value"]["m"]
    assert [[metric.get("1"), metric.get("2")] for metric in metrics] == [["round", None], [None, "*"]]
    assert metrics[1]["5"] == 1  # the first metric, round, is the step of all others

    run_id = f"sweep-{toys.sweep.spec_hash}"
    (table,) = folder_of(toys.store, run_id).glob("files/media/table/leaderboard*.table.json")
    content = json.loads(table.read_text())
    rows = [dict(zip(content["columns"], row, strict=True)) for row in content["data"]]
    assert {row["norm"]: row["mean"] for row in rows} == pytest.approx({"none": 0.55, "ln": 0.55})
    assert {row["cell_id"] for row in rows} == set(toys.sweep.cells())
    assert len(list(folder_of(toys.store, run_id).glob("files/media/images/**/*.png"))) >= 1
    shown = server.runs[run_id].upserts[0]
    assert (shown["jobType"], shown["displayName"]) == ("sweep", "toy")
    assert any(name.startswith("media/table/leaderboard") for name in server.files)
    assert not [name for name in server.operations if "Artifact" in name]  # they would name files that are gone

    old = folder_of(toys.store, run.run_id)
    finish(toys.store, experiment(**{**run.to_json(), "rounds": 40}))
    assert "4 of 4 runs are in files, 1 of them new" in flbench("sync", "--store", toys.store.root, env=env).stdout
    assert not old.exists()
    assert_in_files(toys, env)
    assert len(toys.metrics(run)) == 8


def test_online_a_second_sync_sends_what_the_server_has_refused(
    tmp_path: Path, env: dict[str, str], server: FakeServer
) -> None:
    toys = planned(tmp_path)
    env = online(env, server)
    _, refused, deleted, _ = (run.run_id for run in toys.experiments)
    server.refusing.add(refused)
    server.deleted.add(deleted)
    result = flbench("sync", "--store", toys.store.root, "--mode", "online", env=env)
    assert result.returncode == 1
    assert f"warning: run {refused} could not be sent: filestream" in result.stdout
    assert f"run {deleted} was deleted on W&B and stays deleted" in result.stdout
    assert "3 of 4 runs are on W&B" in result.stdout
    server.refusing.clear()
    first = toys.experiments[0]
    finish(toys.store, experiment(**{**first.to_json(), "rounds": 40}))
    result = flbench("sync", "--store", toys.store.root, "--mode", "auto", env=env, cwd=tmp_path / "home")
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"4 of 4 runs are on W&B, 2 of them new; {server.url}/somebody/papers" in result.stdout
    assert deleted not in server.runs
    assert_on(server, toys, without=deleted)
    assert len(server.runs[first.run_id].history) == len(toys.metrics(first)) == 8
    assert any(name.startswith("media/table/leaderboard") for name in server.files)
    assert list(toys.store.root.glob("wandb/*run*")) == []  # no files of what W&B has
    assert_nothing_of_wandb_in(tmp_path / "home")
    assert_no_key_in(tmp_path)


@pytest.mark.parametrize("listening", [False, True], ids=["is down", "never answers"])
def test_a_server_that_cannot_be_used_costs_a_warning(tmp_path: Path, env: dict[str, str], listening: bool) -> None:
    toys = planned(tmp_path)
    patience = "import flbench.tracking.wandb_sink as w; w.INIT_TIMEOUT = 2.0"
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        env = {**env, "WANDB_API_KEY": KEY, "WANDB_BASE_URL": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        if not listening:
            silent.close()
        result = flbench("sync", "--store", toys.store.root, "--mode", "online", env=env, before=patience)
    assert result.returncode == 1
    assert re.search(r"warning: toy/\w+: 0 of 4 runs are on W&B, .* gave up", result.stdout)
    assert "Traceback" not in result.stdout + result.stderr
    assert_no_key_in(tmp_path)


@pytest.mark.parametrize("call", ["init", "teardown"])
def test_a_service_that_hangs_costs_a_warning_and_no_other_run(
    tmp_path: Path, env: dict[str, str], server: FakeServer, call: str
) -> None:
    """It hangs once: the mirror then uses another one. A call without an exit code only ends the search for a login."""
    toys = planned(tmp_path)
    hanging = f"""import time, wandb, flbench.tracking.mirror as m
m.STUCK, call, hangs = 10.0, wandb.{call}, iter([1000])
wandb.{call} = lambda **options: time.sleep(next(hangs, 0) if options else 0) or call(**options)"""
    result = flbench("sync", "--store", toys.store.root, "--mode", "online", env=online(env, server), before=hanging)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "4 of 4 runs are on W&B" in result.stdout
    assert call == "teardown" or "W&B's service did not answer for 10 s" in result.stdout
    assert_on(server, toys)


#: Leaves time to kill the service between two runs.
SLOWLY = """import time, flbench.tracking.wandb_sink as w
send = w.WandbSink._send
w.WandbSink._send = lambda *given, **options: (time.sleep(0.2), send(*given, **options))"""


def test_a_killed_service_costs_no_run(tmp_path: Path, env: dict[str, str], server: FakeServer) -> None:
    toys = planned(tmp_path, MANY)
    over, killed = threading.Event(), []

    def kill() -> None:
        while not over.wait(0.02) and len(killed) < 2:
            sent = len(synced(toys))
            if sent > 4 * len(killed) + 1 and (service := service_of(env["HOME"])) is not None:
                os.kill(service, signal.SIGKILL)
                killed.append(service)

    killer = threading.Thread(target=kill)
    killer.start()
    env = online(env, server)
    result = flbench("sync", "--store", toys.store.root, "--mode", "online", env=env, before=SLOWLY)
    over.set()
    killer.join()
    assert len(killed) == 2
    assert result.returncode == 0, result.stdout + result.stderr
    assert "8 of 8 runs are on W&B" in result.stdout
    assert_on(server, toys)


@pytest.mark.parametrize("mode", ["offline", "online"])
def test_a_killed_mirror_loses_and_doubles_nothing(
    tmp_path: Path, env: dict[str, str], server: FakeServer, mode: str
) -> None:
    toys, env = planned(tmp_path, MANY), online(env, server)
    argv = [warm_python(), "-c", "from flbench.cli import main; main()", "sync", "--mode", mode]
    for kills in range(2):
        with subprocess.Popen([*argv, "--store", str(toys.store.root)], env=env, stdout=subprocess.DEVNULL) as mirror:
            wait_until(lambda kills=kills: len(synced(toys)) > 2 * kills + 1, 300)
            mirror.kill()
    before = len(synced(toys))
    result = flbench("sync", "--store", toys.store.root, "--mode", mode, env=env)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"8 of 8 runs are {'in files' if mode == 'offline' else 'on W&B'}, {8 - before} of them" in result.stdout
    if mode == "offline":
        assert_in_files(toys, env)
    else:
        assert_on(server, toys)


def synced(toys: Planned) -> set[str]:
    """The runs that the mirror has recorded as sent."""
    path = toys.store.root / "wandb/mirrored.jsonl"
    whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
    return {json.loads(line)["run"] for line in whole.splitlines()} & {run.run_id for run in toys.experiments}


def service_of(home: str) -> int | None:
    """The wandb-core of this home; other tests have theirs at the same time."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "comm").read_text().strip() == "wandb-core" and f"HOME={home}\0" in (
                process / "environ"
            ).read_text():
                return int(process.name)
        except OSError:
            continue
    return None


def test_a_full_disk_costs_a_warning_and_the_runs_are_sent_later(tmp_path: Path, env: dict[str, str]) -> None:
    toys = planned_with_many_evaluations(tmp_path)
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 15, resource.RLIM_INFINITY))"
    result = flbench("sync", "--store", toys.store.root, env=env, before=full)
    assert result.returncode == 1
    assert "0 of 4 runs are in files" in result.stdout
    assert "Traceback" not in result.stdout + result.stderr
    assert list(toys.store.root.glob("wandb/offline-run-*")) == []
    assert flbench("sync", "--store", toys.store.root, env=env).returncode == 0
    assert_in_files(toys, env)


#: A run's staging folder takes 288 KiB: sizes that cut its file in the middle, at its last write, or its log only.
@pytest.mark.parametrize("kib", [96, 288, *(pytest.param(kib, marks=pytest.mark.nightly) for kib in (284, 292, 8192))])
def test_no_run_on_a_full_disk_counts_as_sent_unless_its_files_hold_it(
    tmp_path: Path, env: dict[str, str], kib: int
) -> None:
    toys = planned_with_many_evaluations(tmp_path)
    folder = toys.store.root / "wandb"
    folder.mkdir()
    script = (
        f"mount -t tmpfs -o size={kib}k tmpfs {folder} || exit 99; "
        f'"$@"; cp -r {folder} {tmp_path}/kept && df --output=pcent {folder} | tail -1'
    )
    program = "import flbench.tracking.sink as s; s.RESERVED_BYTES = 0\nfrom flbench.cli import main\nmain()"
    argv = ["unshare", "-Urm", "sh", "-c", script, "sh", sys.executable, "-c", program]
    argv += ["sync", "--store", str(toys.store.root)]
    result = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL)
    if result.returncode == 99 or "unshare" in result.stderr:
        pytest.skip("no file system may be mounted here")
    folder.rmdir()
    (tmp_path / "kept").rename(folder)
    kept = {run for run in toys.experiments if list(folder.glob(f"offline-run-*-{run.run_id}"))}
    assert synced(toys) <= {run.run_id for run in kept}, result.stdout
    assert (len(kept) < 2) if kib < 8192 else (len(kept) == 4), result.stdout
    on_server = uploaded(toys.store, env).runs if kept else {}
    assert all(bare(on_server[run.run_id].history) == rows_of(toys.metrics(run)) for run in kept)


def planned_with_many_evaluations(folder: Path) -> Planned:
    """Runs of 400 evaluations; the offline file of each takes about 280 KiB."""
    toys = planned(folder)
    for run in toys.experiments:
        finish(toys.store, experiment(**{**run.to_json(), "rounds": 400, "eval_every": 1}))
    return toys


def test_a_running_run_is_sent_live(tmp_path: Path, env: dict[str, str], server: FakeServer) -> None:
    toys = planned(tmp_path, SPEC.replace("[0, 1]", "[0]").replace("[none, ln]", "[ln]"), done=False)
    (request,) = toys.experiments
    sent = server.runs[request.run_id]
    attempt = claim(toys.store, request)
    attempt.adopt(None)
    lines = records([5, 10, 15, 20], 0.9)
    attempt.record(lines[0])
    program = f"import flbench.tracking.mirror as m; m.LIVE_PERIOD = 0.0\n{AT_NORMAL_PRIORITY}"
    argv = [warm_python(), "-c", program, "sync", "toy", "--store", str(toys.store.root), "--mode", "online"]
    with subprocess.Popen([*argv, "--beside"], env=online(env, server), stdin=subprocess.PIPE) as mirror:
        wait_until(lambda: len(sent.lines) == 1, 300)
        attempt.record(lines[1])
        wait_until(lambda: len(sent.lines) == 2, 300)
        assert bare(sent.history) == rows_of(lines[:2])
        assert sent.exit_code is None  # it is still running
        for line in lines[2:]:
            attempt.record(line)
        attempt.publish(status="done", rounds=20, seconds=1.0, fingerprint="e3713c9c6ae47b99", numerics={})
        attempt.end("ok")
        assert mirror.stdin is not None
        mirror.stdin.close()
    assert mirror.returncode == 0
    assert_on(server, toys)
    assert len(sent.history) == 4


SWEEP = """
version: 1
name: tiny
base: {model: {name: mlp, widths: [8]}, rounds: 4, eval_every: 2}
axes: {norm: [none, ln]}
seeds: [0, 1]
wandb: {mode: offline}
"""


#: A mirror next to a sweep runs on idle cores only, of which a busy machine has none.
AT_NORMAL_PRIORITY = """import flbench.tracking.sync as s; s.os.nice = s._set_autogroup = lambda nice: None
from flbench.cli import main
main()"""


def mirror_as(program: str) -> str:
    """Statements with which a sweep starts this program as its mirror."""
    return f"import sys, flbench.tracking.process as p; p.FLBENCH = (sys.executable, '-c', {program!r})"


NOT_NICE = mirror_as(AT_NORMAL_PRIORITY)
NO_PACKAGE = mirror_as(f"import sys; sys.modules['wandb'] = None\n{AT_NORMAL_PRIORITY}")


def sweep(tmp_path: Path, env: dict[str, str], text: str = SWEEP, *, before: str = NOT_NICE) -> tuple[Planned, str]:
    toys = planned(tmp_path, text, done=False)
    result = flbench("sweep", toys.spec, "--store", toys.store.root, "--workers", "1", env=env, before=before)
    assert result.returncode == 0, result.stdout + result.stderr
    return toys, result.stdout


def wait_for_mirror(toys: Planned) -> str:
    """The log of a mirror that has ended."""
    log = toys.plan / "wandb.log"
    wait_until(lambda: re.search(r"runs (are|is)|warning: tiny", log.read_text()), 300)
    return log.read_text()


def test_a_sweep_is_mirrored_while_it_runs(tmp_path: Path, env: dict[str, str]) -> None:
    toys, said = sweep(tmp_path, env)
    assert re.search(r"^W&B: ", said, re.MULTILINE)
    assert "4 of 4 runs are in files, 4 of them new" in wait_for_mirror(toys)
    assert_in_files(toys, env)
    assert folder_of(toys.store, f"sweep-{toys.sweep.spec_hash}").exists()


def test_a_sweep_without_wandb_says_so_in_one_line(tmp_path: Path, env: dict[str, str]) -> None:
    auto = SWEEP.replace("mode: offline", "mode: auto")
    no_login = sweep(tmp_path, {**env, "WANDB_PROJECT": "toys"}, auto)
    (tmp_path / "b").mkdir()
    no_package = sweep(tmp_path / "b", env, before=NO_PACKAGE)
    for (toys, said), line in ((no_login, "wandb login"), (no_package, "warning: .*wandb")):
        (found,) = [one for one in said.splitlines() if one.startswith("W&B: ")]
        assert re.search(line, found)
        assert "4 of 4 runs done" in said and "Traceback" not in said
        assert all(toys.metrics(request) for request in toys.experiments)


def test_where_wandb_was_never_set_up_no_process_is_started(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    home = Path(env["HOME"])
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("NETRC", str(home / "netrc"))
    monkeypatch.chdir(home)
    assert Wandb().is_off() and not Wandb(mode="online").is_off()
    for sign in (home / "netrc", home / ".config" / "wandb", home / "wandb" / "settings"):
        sign.mkdir(parents=True)
        assert not Wandb().is_off()
        sign.rmdir()
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    assert not Wandb().is_off()


def test_a_killed_sweep_leaves_no_mirror_behind(tmp_path: Path, env: dict[str, str]) -> None:
    text = SWEEP.replace("rounds: 4, eval_every: 2", "rounds: 100000, eval_every: 100")
    toys = planned(tmp_path, text, done=False)
    argv = [warm_python(), "-c", "from flbench.cli import main; main()", "sweep", str(toys.spec)]
    argv += ["--store", str(toys.store.root), "--backend", "inline"]
    with subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        wait_until((toys.plan / "wandb.lock").exists, 300)
        process.kill()
    # A run that was lost with the sweep is shown as failed.
    assert re.search(r"[0-4] of 4 runs (are|is) in files", wait_for_mirror(toys))
