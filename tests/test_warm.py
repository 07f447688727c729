"""A warm Python is one to its caller: streams, folder, variables, umask, signals, exit code and end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.limits import wait_until
from tests.warm import warm_python

FACTS = (
    "import json, os, sys; print(json.dumps([sys.argv, os.getcwd(), os.environ['ODD'], sys.stdin.read(), __name__, "
    "sys.path[:2], os.umask(0)])); print('oh', file=sys.stderr)"
)


@pytest.mark.parametrize("python", [sys.executable, None], ids=["python", "warm"])
def test_facts(python: str | None, tmp_path: Path) -> None:
    done = subprocess.run(
        [python or warm_python(), "-c", FACTS, "a", "b c"],
        cwd=tmp_path,
        env={**os.environ, "ODD": "ø", "PYTHONPATH": "/one"},
        input="in",
        umask=0o27,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "oh\n")
    assert json.loads(done.stdout) == [["-c", "a", "b c"], str(tmp_path), "ø", "in", "__main__", ["", "/one"], 0o27]


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit('it fails')", 1),
        ("raise ValueError", 1),
        ("import os; os._exit(7)", 7),
        ("import os; os.kill(os.getpid(), 9)", -9),
        ("import os; os.kill(os.getpid(), 15)", -15),
    ],
)
def test_ends(program: str, code: int) -> None:
    assert subprocess.run([warm_python(), "-c", program], stderr=subprocess.DEVNULL).returncode == code


def test_threads_and_functions_of_the_end_are_waited_for() -> None:
    program = (
        "import atexit, threading, time; atexit.register(print, 'end')\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), print('thread', end=' '))).start()"
    )
    assert subprocess.run([warm_python(), "-c", program], capture_output=True).stdout == b"thread end\n"


@pytest.mark.skipif(sys.platform != "linux", reason="the server is Linux's")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signals(number: signal.Signals) -> None:
    """SIGKILL is not forwarded, but the program ends with its client."""
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(100)"
    with subprocess.Popen(
        [warm_python(), "-c", program], text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.send_signal(number)
        assert process.wait(60) == -number
        wait_until(lambda: not Path(f"/proc/{pid}").exists())
