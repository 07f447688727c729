"""The fork server: its ends, what runs without it, and which workers are forks; ``tests/test_warm.py`` has the rest."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from flbench.launch.fork_server import ForkServer
from flbench.launch.local import LocalLauncher
from flbench.store import Store
from flbench.worker import Options
from tests.limits import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems start every worker by itself")

#: A server that imports nothing.
LIGHT = (sys.executable, "-c", "from flbench.launch.fork_server import main; from tests.warm import run; main([], run)")
HELD = "import os, sys, time; print(os.getpid(), flush=True); sys.stdin.read()"


def start(server: ForkServer, program: str) -> subprocess.Popen[str]:
    command = [*server.python(), "-c", program]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_fork_outlives_its_server_which_leaves_no_file() -> None:
    server = ForkServer(os.environ, LIGHT)
    with start(server, HELD) as client:
        assert client.stdout is not None
        pid = int(client.stdout.readline())
        assert pid != client.pid
        folder = Path(server.address).parent
        assert folder.stat().st_mode & 0o77 == 0
        del server
        wait_until(lambda: not folder.exists())
        assert Path(f"/proc/{pid}").exists()
        client.communicate("")
        assert client.returncode == 0


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_after_kill_9_of_the_server_forks_continue_and_later_programs_start_alone() -> None:
    server = ForkServer(os.environ, LIGHT)
    with start(server, HELD) as first:
        assert first.stdout is not None
        pid = int(first.stdout.readline())
        os.kill(parent(parent(pid)), signal.SIGKILL)
        with start(server, HELD) as second:
            out, _ = second.communicate("")
            assert (second.returncode, int(out)) == (0, second.pid)
        assert parent(pid)
        first.communicate("")
        assert first.returncode == 0


@pytest.mark.parametrize("program", ["", "import os; os._exit(1)"], ids=["has ended", "fails"])
def test_without_a_server_python_itself_runs_the_program(program: str) -> None:
    server = ForkServer(os.environ, (sys.executable, "-c", program))
    with start(server, HELD) as client:
        out, _ = client.communicate("")
        assert (client.returncode, int(out)) == (0, client.pid)


def test_a_detached_sweep_has_its_workers_before_the_server_ends() -> None:
    server = ForkServer(os.environ, LIGHT)
    with start(server, HELD) as client:
        del server
        out, _ = client.communicate("")
        assert client.returncode == 0 and out


def test_a_fork_ends_with_a_client_that_is_killed_before_it_reads_the_answer(tmp_path: Path) -> None:
    server, begun = ForkServer(os.environ, LIGHT), tmp_path / "begun"
    program = f"import os, time; open({str(begun)!r}, 'w').write(str(os.getpid())); time.sleep(1000)"
    request = json.dumps([["-c", program], str(tmp_path), {**os.environ}, 0, [], []]).encode()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(server.address)
        socket.send_fds(client, [len(request).to_bytes(8, "big")], [0, 1, 2])
        client.sendall(request)
        wait_until(lambda: begun.exists() and begun.read_text())
    wait_until(lambda: not Path("/proc", begun.read_text()).exists())


@pytest.mark.parametrize(("workers", "gpus", "forks"), [(1, 0, False), (2, 0, True), (2, 0.5, False)])
def test_several_workers_without_gpus_are_forks(
    workers: int, gpus: float, forks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    started: list[str] = []
    monkeypatch.setattr("subprocess.Popen", lambda argv, **_: started.append(argv[0]))
    monkeypatch.setattr("flbench.launch.local.ForkServer", lambda _: SimpleNamespace(python=lambda: ("fork",)))
    LocalLauncher(Store(tmp_path / "store"), "toy/0", Options(), workers=workers, gpus=gpus).start(workers)
    assert started == ["fork" if forks else sys.executable] * workers
