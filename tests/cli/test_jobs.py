"""The workers that ``flbench jobs`` prints, started as docs/queues.md shows, execute a sweep."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from flbench.cli import app
from flbench.errors import UserError
from flbench.launch.commands import worker_commands
from flbench.store import CancelMark, Store
from flbench.worker import REQUEUE, Options
from tests.faults.stub import recorded
from tests.warm import warm_python

PAGE = (Path(__file__).parents[2] / "docs/queues.md").read_text(encoding="utf-8")
SWEEP = """
version: 1
name: tiny
base: {dataset: digits, model: {name: mlp, widths: [8]}, clients: 4, partition: iid, rounds: 2, eval_every: 1}
axes: {norm: [none, ln]}
seeds: [0, 1]
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(SWEEP)
    return tmp_path


def flbench(*words: str) -> str:
    done = subprocess.run([warm_python(), "-m", "flbench", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def script_of(section: str) -> str:
    """Return the last line of the first shell block of a section, or the command of its job."""
    text = PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    block = re.search(r"```(sh|yaml)\n(.*?)```", text, re.DOTALL)
    assert block
    if block[1] == "sh":
        return block[2].splitlines()[-1]
    job = YAML(typ="safe").load(block[2])
    shell, option, script = job["spec"]["template"]["spec"]["containers"][0]["command"]
    assert (shell, option) == ("sh", "-c")
    return str(script)


#: How each section starts worker i of n, given what its queue would set.
QUEUES = {"PBS": ("PBS_ARRAY_INDEX", 1), "LSF": ("LSB_JOBINDEX", 1), "Kubernetes": ("JOB_COMPLETION_INDEX", 0)}


@pytest.mark.slow
@pytest.mark.parametrize("section", ["One machine", "GNU parallel", *QUEUES])
def test_the_examples_execute_a_sweep(here: Path, section: str) -> None:
    commands = flbench("jobs", "tiny.yaml", "--workers", "2")
    assert len(commands.splitlines()) == 2
    if section in QUEUES:
        Path("jobs.txt").write_text(commands)
        script = script_of(section).replace("/store/jobs.txt", "jobs.txt")
        variable, first = QUEUES[section]
        submitted = {**os.environ, "PBS_O_WORKDIR": str(here), "LS_SUBCWD": str(here)}
        for index in (first, first + 1):
            subprocess.run(["sh", "-c", script], env={**submitted, variable: str(index)}, check=True)
    else:
        pipe = re.search(rf"## {section}\n.*?flbench jobs quickstart --workers 2 \| (.*?)\n", PAGE, re.DOTALL)
        assert pipe
        if shutil.which(pipe[1].split()[0]) is None:
            pytest.skip(f"needs {pipe[1].split()[0]}")
        subprocess.run(pipe[1], shell=True, input=commands, text=True, check=True)
    assert flbench("jobs", "tiny.yaml", "--workers", "2") == "", "nothing is left"
    assert "4 of 4 runs done; nothing to launch" in flbench("sweep", "tiny.yaml")


@pytest.mark.slow
def test_the_signal_of_a_queue_reaches_the_worker(here: Path) -> None:
    """The job's own process is the worker, which ends with a checkpoint."""
    changes = ["--set", "rounds=1000000", "--set", "eval_every=100", "--limit", "1"]
    Path("jobs.txt").write_text(CliRunner().invoke(app, ["jobs", "tiny.yaml", *changes]).stdout)
    store = Store(here / "runs")
    given = {**os.environ, "PBS_ARRAY_INDEX": "1", "PBS_O_WORKDIR": str(here)}
    with subprocess.Popen(["sh", "-c", script_of("PBS")], env=given) as job:
        while recorded(store) < 2:
            assert job.poll() is None
            time.sleep(0.1)
        job.send_signal(signal.SIGTERM)
    assert job.returncode == REQUEUE
    (run_id,) = store.run_ids()
    (attempt,) = store.run(run_id).attempts()
    assert store.run(run_id).sound_checkpoints(attempt)


def test_the_commands_need_neither_folder_nor_variables(
    here: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FLBENCH_DATA", "my data")
    plugin = tmp_path / "my plugin.py"
    plugin.write_text("")
    monkeypatch.setenv("FLBENCH_PLUGINS", str(plugin))
    words = ["jobs", "tiny.yaml", "--workers", "9", "--set", "resources={cpus: 3}", "--store", "a store"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    commands = [shlex.split(line) for line in done.stdout.splitlines()]
    assert len(commands) == 4, "one a run"
    assert {str(here / "a store"), f"--data-root={here / 'my data'}", "--pool=3", "--workers=4"} <= {*commands[0]}
    assert f"FLBENCH_PLUGINS={plugin}" in commands[0]
    assert [next((word for word in one if "offset" in word), "") for one in commands][1:] == [
        f"--offset={number}" for number in (1, 2, 3)
    ]


def test_a_cancelled_sweep_starts_again(here: Path) -> None:
    for _ in range(2):
        assert CliRunner().invoke(app, ["jobs", "tiny.yaml"]).exit_code == 0
        (plan,) = Store(here / "runs").sweep_dirs()
        assert not CancelMark(plan).is_set()
        CancelMark(plan).put("a test")


def test_mistakes_are_one_error(here: Path) -> None:
    error = CliRunner().invoke(app, ["jobs", "tny.yaml"]).exception
    assert isinstance(error, UserError) and "there are tiny.yaml" in str(error)
    assert not (here / "runs").exists()


def test_only_options_that_differ_are_written(tmp_path: Path) -> None:
    (command,) = worker_commands(tmp_path, "x/y", Options(), 1)
    assert command.endswith(f"-m flbench.worker {tmp_path} x/y")
