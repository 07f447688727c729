from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import flbench
from flbench.cli import app
from flbench.config import Experiment
from flbench.errors import UserError
from flbench.launch import WorkersCrash
from flbench.launch.inline import InlineLauncher
from flbench.store import Attempt, CancelMark, Lease, Store
from tests.faults.stub import OneByOne, execute
from tests.limits import wait_until
from tests.start_up import heavy_imports

SPEC = """
version: 1
name: toy
base: {rounds: 20, eval_every: 5}
axes: {norm: [none, ln], lr: [0.01, 0.1]}
seeds: [0, 1]
"""


pytestmark = pytest.mark.usefixtures("toy_workers")


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "toy.yaml"
    path.write_text(SPEC)
    return path


def sweep(spec: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["sweep", str(spec), "--backend", "inline", *options])


def facts(result: Result) -> dict[str, Any]:
    return dict(json.loads(result.stdout))


def test_sweep_ends_with_the_table_and_says_where_it_is(spec: Path, tmp_path: Path) -> None:
    result = sweep(spec)
    assert result.exit_code == 0
    (board,) = (tmp_path / "store").glob("sweeps/toy/*/leaderboard.md")
    assert re.search(r"8 of 8 runs done in (?:\d+\.\d s|\d+:\d\d); 1 worker started\.", result.stdout)
    assert str(board) in result.stdout and "fedavg" in result.stdout
    assert "| ln |" in board.read_text()
    assert (board.parent / "spec.yaml").read_text() == SPEC
    table, end = sweep(spec).stdout.split("toy: 8 of 8 runs done; nothing to launch.")
    assert "┃ method ┃" in table and table in result.stdout, "the second call prints the same"
    assert result.stdout.endswith(end), "the paths are printed again"


def test_on_end_gets_the_summary_and_changes_no_exit_code(spec: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    command = 'cat > seen.json; echo "$SWEEP_NAME $SWEEP_EXIT_CODE" > seen.txt; exit 4'
    result = sweep(spec, "--json", "--on-end", command)
    assert result.exit_code == 0 and json.loads(Path("seen.json").read_text()) == facts(result)
    assert Path("seen.txt").read_text() == "toy 0\n"
    assert "exit code 4" in result.stderr


def test_on_end_is_executed_after_an_error(spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(self: Any, *args: Any) -> None:
        raise WorkersCrash("no worker lives")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("flbench.orchestrate.Orchestrator._start_missing_workers", crash)
    assert isinstance(sweep(spec, "--on-end", "cat > seen.json").exception, WorkersCrash)
    seen = json.loads(Path("seen.json").read_text())
    assert (seen["sweep"], seen["message"]) == ("toy", "no worker lives") and seen["exit_code"] != 0


def test_on_end_cannot_be_detached(spec: Path) -> None:
    error = (
        CliRunner().invoke(app, ["sweep", str(spec), "--backend", "local", "--detach", "--on-end", "true"]).exception
    )
    assert isinstance(error, UserError) and "leave out --detach" in str(error)


def test_changes_are_the_same_with_set_and_without(spec: Path) -> None:
    plain = sweep(spec, "axes.lr=[0.01]", "rounds=3", "--dry-run", "--json")
    option = sweep(spec, "--set", "axes.lr=[0.01]", "--set", "rounds=3", "--dry-run", "--json")
    assert (
        plain.exit_code == 0
        and plain.stdout == option.stdout
        and json.loads(plain.stdout) != json.loads(sweep(spec, "--dry-run", "--json").stdout)
    )


def test_sweep_prints_where_everything_is(spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLBENCH_STORE")
    options = ["--set", "axes.lr=[0.01, 0.1]", "--only", "norm=ln"]
    result = sweep(Path("toy.yaml"), *options)
    (board,) = Path("runs").glob("sweeps/toy/*/leaderboard.md")
    lines = result.stdout.splitlines()
    last = lines[next(number for number, line in enumerate(lines) if line.startswith("toy: 4 of 4")) + 1 :]
    assert last[:4] == [
        f"Leaderboard: {board}",
        "Runs:        runs/runs",
        "Pictures:    flbench report toy.yaml --set 'axes.lr=[0.01, 0.1]' --only norm=ln"
        " --figures figures --html report.html",
        "More:        flbench status toy; flbench logs toy",
    ]
    words = shlex.split(last[2])[2:-4]
    assert CliRunner().invoke(app, [*words, "--out", "there.md"]).exit_code == 0, "the command can be typed as it is"
    assert Path("there.md").exists()
    elsewhere = sweep(Path("toy.yaml"), "--store", "else where").stdout
    assert "flbench status toy --store 'else where'" in elsewhere
    (board,) = Path("else where").glob("sweeps/toy/*/leaderboard.md")
    assert "flbench report toy.yaml --store 'else where'" in board.read_text(), "the command finds the same runs"


def test_the_commands_after_a_sweep_load_its_plugins(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")
    for file in ("other.py", "../my norm.py"):
        Path(file).touch()
    monkeypatch.setenv("FLBENCH_PLUGINS", str(Path("other.py").resolve()))
    result = CliRunner().invoke(app, ["--plugin", "../my norm.py", "sweep", str(spec), "--backend", "inline"])
    assert f"flbench --plugin other.py --plugin '{tmp_path / 'my norm.py'}' report {spec} " in result.stdout


def test_second_call_imports_nothing_heavy(spec: Path, tmp_path: Path) -> None:
    sweep(spec)
    program = (
        "import sys\nfrom flbench.cli import app\n"
        f"sys.argv = ['flbench', 'sweep', {str(spec)!r}]\n"
        "try:\n    app()\nexcept SystemExit as end:\n    assert end.code == 0, end.code"
    )
    heavy, output = heavy_imports(program)
    assert heavy == []
    assert "nothing to launch" in output


def test_json_is_all_that_is_on_standard_output(spec: Path) -> None:
    found = facts(sweep(spec, "--json"))
    expected = {
        "schema": 1, "sweep": "toy", "total": 8, "done": 8, "diverged": 0, "failed": 0, "running": 0, "pending": 0,
        "launched": 1, "adopted": 0, "interrupted": False, "failures": [], "exit_code": 0,
    }  # fmt: skip
    assert {key: found[key] for key in expected} == expected
    assert Path(found["leaderboard"]).exists()
    assert facts(sweep(spec, "--json"))["launched"] == 0


def test_plans_with_other_options_share_runs(spec: Path, tmp_path: Path) -> None:
    assert facts(sweep(spec, "--only", "norm=ln", "--json"))["total"] == 4
    assert facts(sweep(spec, "--limit", "3", "--json"))["total"] == 3
    found = facts(sweep(spec, "--set", "axes.lr=[0.01,0.1,0.2]", "--json"))
    assert (found["total"], found["done"]) == (12, 12)
    store = Store(tmp_path / "store")
    assert [len(store.run(run_id).attempts()) for run_id in store.run_ids()] == [1] * 12
    assert len(store.sweep_dirs()) == 3


def test_failures_are_counted_shown_and_explained(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = sweep(spec, "--set", "axes.lr=[0.01,0.101]")
    assert result.exit_code == 1
    assert "4 of 8 runs done, 4 failed" in result.stdout
    assert "--set retry.max_attempts=6" in result.stdout
    *_, reason, one, two, three, four = result.stdout.splitlines()
    assert reason == "4 failed: error: RuntimeError: the toy is broken"
    labels = ["fedavg none lr=0.101 s0", "fedavg none lr=0.101 s1", "fedavg ln lr=0.101 s0", "fedavg ln lr=0.101 s1"]
    for line, label in zip((one, two, three, four), labels, strict=True):
        assert re.fullmatch(rf"  {label} \(run [0-9a-f]{{16}}, log: .*/log\.txt\)", line)
    again = facts(sweep(spec, "--set", "axes.lr=[0.01,0.101]", "--json"))
    assert (again["launched"], again["exit_code"], len(again["failures"])) == (0, 1, 4)
    assert again["failures"][0]["kind"] == "error"
    monkeypatch.setattr("flbench.cli.sweep_run.MOST_FAILURES", 3)
    lines = sweep(spec, "--set", "axes.lr=[0.01,0.101]").stdout.splitlines()
    assert lines[-1].startswith("1 more: flbench status toy --json --store ")
    assert sum(line.startswith("  fedavg ") for line in lines) == 3
    fixable = sweep(spec, "--set", "axes.lr=[0.01,0.105]").stdout
    assert "4 failed: error: the toy's data are not there" in fixable and "retry.max_attempts" not in fixable
    assert "Once the reasons below are fixed, the same command tries the runs that failed for them again." in fixable


class Cancelled:
    """Starts a worker that fails the first run; the next start reports that the jobs were cancelled."""

    slots, start_seconds, delayed = 1, 0.0, ""

    def __init__(self, store: Store, first: Experiment) -> None:
        self._store, self._first = store, first

    def start(self, count: int, out_of_memory: int = 0) -> int:
        attempt = self._store.claim(self._first, Lease.here())
        if attempt is None:
            raise WorkersCrash("jobs of this sweep were cancelled with scancel")
        attempt.end("error", "its data are missing", user_fixable=True)
        return count

    def alive(self) -> int:
        return 0

    def tokens(self) -> set[str]:
        return set()


def test_failed_runs_are_named_where_workers_crash(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def launcher(_: object, store: Store, plan: str, experiments: Any) -> Cancelled:
        return Cancelled(store, experiments[0])

    monkeypatch.setattr("flbench.launchers.SweepWorkers.launcher", launcher)
    result = sweep(spec)
    assert isinstance(result.exception, WorkersCrash)
    *_, reason, run = result.stdout.splitlines()
    assert reason == "1 failed: error: its data are missing"
    assert run.startswith("  fedavg none lr=0.01 s0 (run ")


def test_a_cancelled_sweep_is_reported(spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep is cancelled while it runs."""

    def cancel(experiment: Experiment, attempt: Attempt, *, should_stop: Callable[[], bool]) -> Any:
        (directory,) = (tmp_path / "store").glob("sweeps/toy/*")
        CancelMark(Store(tmp_path / "store").sweeps / f"toy/{directory.name}").put("me")
        wait_until(should_stop)
        return execute(experiment, attempt, should_stop=should_stop)

    launcher = partial(InlineLauncher, load=lambda _: OneByOne(cancel))
    monkeypatch.setattr("flbench.launch.inline.InlineLauncher", launcher)
    result = sweep(spec)
    assert result.exit_code == 3
    assert "\nCancelled; call the same command again to go on.\n" in result.stdout


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_tf32_on_a_cpu_is_refused_before_anything_is_stored(spec: Path, tmp_path: Path, options: list[str]) -> None:
    refused = sweep(spec, "--set", "precision=tf32", *options)
    assert isinstance(refused.exception, UserError)
    assert "resources.gpus=1" in str(refused.exception)
    assert not (tmp_path / "store").exists()
    with pytest.raises(UserError, match="precision: fp32"):
        flbench.sweep(spec, store=tmp_path / "store", sets=["precision=tf32"])
    with pytest.raises(UserError, match="precision: fp32"):
        flbench.run(store=tmp_path / "store", device="cpu", precision="tf32")
    assert not (tmp_path / "store").exists()
    on_gpus = sweep(spec, "--set", "precision=tf32", "--set", "resources.gpus=1", "--dry-run")
    assert on_gpus.exit_code == 0


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--backend", "slurm"], 2, "--backend slurm needs --profile NAME|FILE"),
        (["--backend", "slurm", "--profile", "p.yaml"], 2, "p.yaml:2: partiton: unknown key 'partiton'; did you mean"),
        (["--profile", "dev"], 2, "profiles are for --backend slurm"),
        (["--detach"], 2, "--detach needs workers of their own"),
        (["--set", "axes.lr=[0.1,oops]"], 2, "lr"),
        (["--limit", "0"], 2, "at least 1 run"),
        (["--store", "."], 4, "store"),
    ],
)
def test_invalid_options_are_one_message(
    spec: Path, options: list[str], code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p.yaml").write_text("time: 2h\npartiton: gpu\n")
    result = sweep(spec, *options)
    assert isinstance(result.exception, UserError)
    assert result.exception.exit_code == code
    assert message in str(result.exception)
    assert not Path("store").exists()


def test_dry_run_shows_the_script_that_sbatch_gets(spec: Path, tmp_path: Path) -> None:
    (profile := tmp_path / "gpus.yaml").write_text("{partition: gpu, gpus: 1, time: 2h, setup: module load cuda}")
    result = CliRunner().invoke(
        app,
        [
            *["sweep", str(spec), "--set", "base.rounds=200"],  # enough work for three workers
            *["--backend", "slurm", "--profile", str(profile), "--dry-run", "--workers", "3"],
        ],
    )
    assert result.exit_code == 0
    for line in ("#SBATCH --array=0-2%3", "#SBATCH --gpus-per-node=1", "#SBATCH --time=120", "module load cuda"):
        assert line in result.stdout.splitlines()
    assert "-m flbench.worker" in result.stdout and "--device=cuda" in result.stdout
    assert not (tmp_path / "store").exists()


def test_a_store_that_no_job_can_write_its_log_to_is_refused_before_anything_is_written(
    spec: Path, tmp_path: Path
) -> None:
    (profile := tmp_path / "p.yaml").write_text("time: 2h\n")
    (tmp_path / "runs").mkdir()
    store = tmp_path / "runs" / "a\nb"
    options = ["--backend", "slurm", "--profile", str(profile), "--store", str(store)]
    for more in ([], ["--dry-run"]):
        result = CliRunner().invoke(app, ["sweep", str(spec), *options, *more])
        assert r"a SLURM job cannot write its log to a path with '\n'" in str(result.exception)
    assert not list((tmp_path / "runs").iterdir())
