"""Sweeps on a real cluster, with its faults: wall time, preemption, requeuing, failed nodes, cancelled jobs.

The tests run in parallel: most use only node n1, one takes n2 down, and one fills n3.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flbench.config import Experiment
from flbench.errors import StoreUnusable
from flbench.launch import WorkersCrash
from flbench.launch.sbatch import Request
from flbench.slurm import config_value
from flbench.slurm.commands import output_of, show_job
from flbench.store import Store
from flbench.sweeps import load_sweep
from tests.faults.stub import experiments, undisturbed
from tests.limits import wait_until
from tests.slurm.toys import HUNGRY, PACED, ROOT, Cluster, orchestrate, scontrol

N1 = Request(seconds=600, exclude="n[2-3]")
N2 = Request(seconds=600, exclude="n[1,3]")
N3 = Request(seconds=600, exclude="n[1-2]", partition="low")

#: Stub runs that take about ten seconds.
SLOW = {"rounds": 400, "eval_every": 10}


@pytest.fixture(autouse=True)
def pace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STUB_PAUSE", "0.025")
    monkeypatch.setenv("STUB_HOLD", str(tmp_path / "hold"))


def assert_undisturbed(cluster: Cluster, plan: list[Any]) -> None:
    """Check that every run is done, with the metrics of a run without faults."""
    for experiment in plan:
        run = cluster.store.run(experiment.run_id)
        assert run.state(experiment).status == "done"
        assert run.metrics() == undisturbed(experiment)


SPEC = """
version: 1
name: real
base: {dataset: digits, model: {name: mlp, widths: [64, 64]}, method: scaffold, rounds: 510, eval_every: 10}
axes: {norm: [ln]}
seeds: [0]
"""


def flbench(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from flbench.cli import main; main()", *arguments],
        capture_output=True, text=True, cwd=cwd, timeout=300,
    )  # fmt: skip


def profile(path: Path, **values: object) -> Path:
    path.write_text(json.dumps({"time": "10m", "exclude": ["n2", "n3"], **values}))
    return path


def metrics(store: Store, experiment: Experiment) -> list[dict[str, Any]]:
    """Return the records of a run without times."""
    records = store.run(experiment.run_id).metrics()
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


def test_run_longer_than_its_wall_time_takes_several_jobs(cluster: Cluster, tmp_path: Path) -> None:
    """Real training takes at least 51 s; a worker must stop 25 s after its job started, whenever SLURM warns it."""
    (spec := tmp_path / "real.yaml").write_text(SPEC)
    experiment = load_sweep(spec).experiments[0]
    outcome = orchestrate(cluster.store, [experiment], replace(N1, seconds=60, grace=35), 1, command=PACED)
    assert outcome.exit_code == 0
    attempts = cluster.attempts(experiment)
    assert len(attempts) >= 3
    assert [end["kind"] for end in attempts] == ["timeout"] * (len(attempts) - 1) + ["ok"]
    assert [end["restart"] for end in attempts] == list(range(len(attempts)))
    assert len(cluster.submissions()) == 1

    elsewhere = Store(tmp_path / "undisturbed")
    assert flbench("sweep", str(spec), "--store", str(elsewhere.root), "--backend", "inline").returncode == 0
    assert metrics(cluster.store, experiment) == metrics(elsewhere, experiment)


def test_an_array_of_workers_shares_a_plan(cluster: Cluster) -> None:
    plan = experiments(6, rounds=40)
    outcome = cluster.sweep(plan, N1, workers=3)
    assert (outcome.exit_code, outcome.launched, outcome.progress.done) == (0, 3, 6)
    assert_undisturbed(cluster, plan)
    ends = [end for experiment in plan for end in cluster.attempts(experiment)]
    assert [end["kind"] for end in ends] == ["ok"] * 6
    assert len({end["job"] for end in ends}) > 1
    (submission,) = cluster.submissions()
    assert submission.job_id == cluster.rows()[0].job
    again = cluster.sweep(plan, N1, workers=3)
    assert (again.exit_code, again.launched) == (0, 0)


def test_arrays_are_as_large_as_the_cluster_allows(cluster: Cluster) -> None:
    largest = int(config_value("MaxArraySize") or 0)
    if largest > 4:
        pytest.skip(f"MaxArraySize is {largest}: slurm/dev-cluster start --max-array-size 4")
    plan = experiments(7, rounds=200)
    assert cluster.sweep(plan, N1, workers=7).exit_code == 0
    assert sorted(submission.tasks for submission in cluster.submissions()) == [3, 4]
    assert_undisturbed(cluster, plan)


def test_requeued_job_resumes_its_run_at_once(cluster: Cluster) -> None:
    plan = experiments(1, **SLOW)
    with cluster.sweep_in_progress(plan, N1) as sweep:
        scontrol("requeue", *cluster.job_ids())
        assert sweep.result(120).exit_code == 0
    assert_undisturbed(cluster, plan)
    first, second = cluster.attempts(plan[0])
    assert (first["kind"], first["restart"]) == ("interrupted", 0)
    assert second == {"kind": "ok", "job": first["job"], "restart": 1}
    assert sorted(cluster.executed(plan[0])) == list(range(1, 401))  # nothing was computed twice
    assert len(cluster.submissions()) == 1


def test_the_requeue_of_one_worker_leaves_the_others_of_its_array_alone(cluster: Cluster) -> None:
    """The last task of an array has the array's id: `scontrol requeue` with it kills all workers."""
    plan = experiments(3, **SLOW)
    with cluster.sweep_in_progress(plan, N1, workers=3) as sweep:
        (submission,) = cluster.submissions()
        last = cluster.task_named_as_its_array()
        scontrol("update", f"jobid={last}", "timelimit=1")
        subprocess.run(["scancel", "--signal=USR2", last], check=True)
        wait_until(lambda: "timeout" in [end["kind"] for one in plan for end in cluster.attempts(one)])
        scontrol("update", f"jobid={last}", "timelimit=10")
        assert sweep.result(120).exit_code == 0
    assert_undisturbed(cluster, plan)
    attempts = [cluster.attempts(experiment) for experiment in plan]
    disturbed = [ends for ends in attempts if ends[0]["job"] == last]
    assert [end["kind"] for ends in disturbed for end in ends] == ["timeout", "ok"]
    assert [(end["kind"], end["restart"]) for ends in attempts if ends not in disturbed for end in ends] == [
        ("ok", 0)
    ] * 2
    assert {end["restart"] for ends in attempts for end in ends if end["job"] != last} == {0}
    assert cluster.submissions() == [submission]


def test_node_that_goes_down_and_comes_back(cluster: Cluster) -> None:
    plan = experiments(1, **SLOW)
    with cluster.sweep_in_progress(plan, N2) as sweep:
        scontrol("update", "nodename=n2", "state=down", "reason=test")
        try:
            wait_until(lambda: [row.state for row in cluster.live()] == ["PENDING"])
            time.sleep(3)
            assert not sweep.done()
        finally:
            scontrol("update", "nodename=n2", "state=resume")
        assert sweep.result(120).exit_code == 0
    assert_undisturbed(cluster, plan)
    assert len(cluster.attempts(plan[0])) == 2
    assert len(cluster.submissions()) == 1  # SLURM requeued the job; flbench submitted none


def test_preempted_worker_checkpoints_and_is_requeued(cluster: Cluster) -> None:
    plan = experiments(1, **SLOW)
    with cluster.sweep_in_progress(plan, N3) as sweep:
        subprocess.run(
            ["sbatch", "--partition=high", "--nodelist=n3", "--nodes=1", "--ntasks=4", "--mem-per-cpu=64M", "--time=1",
             "--output=/dev/null", "--wrap=sleep 5"],
            check=True, capture_output=True,
        )  # fmt: skip
        assert sweep.result(120).exit_code == 0
    assert_undisturbed(cluster, plan)
    first, second = cluster.attempts(plan[0])
    assert (first["kind"], second["kind"]) == ("preempted", "ok")
    assert (first["job"], second["restart"]) == (second["job"], 1)
    assert sorted(cluster.executed(plan[0])) == list(range(1, 401))


def test_scancel_ends_the_sweep_and_loses_nothing(cluster: Cluster) -> None:
    plan = experiments(1, **SLOW)
    with cluster.sweep_in_progress(plan, N1) as sweep:
        subprocess.run(["scancel", *cluster.job_ids()], check=True)
        with pytest.raises(WorkersCrash, match="cancelled with scancel"):
            sweep.result(60)
    assert cluster.store.run(plan[0].run_id).state(plan[0]).status == "pending"
    assert cluster.sweep(plan, N1).exit_code == 0
    assert_undisturbed(cluster, plan)
    assert [end["kind"] for end in cluster.attempts(plan[0])] == ["interrupted", "ok"]
    assert sorted(cluster.executed(plan[0])) == list(range(1, 401))


def test_scancel_of_one_task_is_not_undone(cluster: Cluster) -> None:
    """The other worker continues, and takes over the interrupted run after its own."""
    plan = experiments(3, **SLOW)
    with cluster.sweep_in_progress(plan, N1, workers=2) as sweep:
        subprocess.run(["scancel", cluster.job_ids()[0]], check=True)
        assert sweep.result(120).exit_code == 0
    assert_undisturbed(cluster, plan)
    ends = sorted([end["kind"] for end in cluster.attempts(experiment)] for experiment in plan)
    assert ends == [["interrupted", "ok"], ["ok"], ["ok"]]
    (submission,) = cluster.submissions()
    assert submission.tasks == 2


def test_jobs_of_a_deleted_store_end_and_create_nothing(cluster: Cluster) -> None:
    plan = experiments(1, **SLOW)
    with cluster.sweep_in_progress(plan, N1) as sweep:
        names = ",".join(cluster.names())
        cluster.store.root.rename(cluster.store.root.with_name("grave"))
        with pytest.raises(StoreUnusable, match="was deleted or moved"):
            sweep.result(60)
    wait_until(lambda: output_of("squeue", "--noheader", f"--name={names}") == "")
    assert not cluster.store.root.exists()


def test_memory_is_doubled_once(cluster: Cluster) -> None:
    plan = experiments(1, rounds=20, lr=HUNGRY)
    request = replace(N1, mem=500 * 2**20)
    assert cluster.sweep(plan, request).exit_code == 0
    assert_undisturbed(cluster, plan)
    assert [end["kind"] for end in cluster.attempts(plan[0])] == ["oom", "ok"]


def test_run_that_needs_more_than_twice_the_memory_fails(cluster: Cluster) -> None:
    plan = experiments(1, rounds=20, lr=HUNGRY)
    request = replace(N1, mem=250 * 2**20)
    outcome = cluster.sweep(plan, request)
    assert outcome.exit_code == 1
    assert [seen.outcome for seen in outcome.failures] == ["oom"]
    assert [end["kind"] for end in cluster.attempts(plan[0])] == ["oom", "oom"]


def test_killed_worker_is_replaced_and_its_run_is_resumed(cluster: Cluster) -> None:
    plan = experiments(1, **SLOW)
    with cluster.sweep_in_progress(plan, N1) as sweep:
        lease = cluster.store.run(plan[0].run_id).attempts()[-1].lease()
        assert lease is not None and lease.slurm_job is not None
        os.kill(lease.pid, signal.SIGKILL)
        assert sweep.result(120).exit_code == 0
    assert_undisturbed(cluster, plan)
    assert len(cluster.attempts(plan[0])) == 2
    assert cluster.executed(plan[0]).count(1) == 1  # it resumed from a checkpoint


def test_two_sweeps_at_the_same_time_execute_each_run_once(cluster: Cluster) -> None:
    with cluster.sweeping(4, 100, 2) as one, cluster.sweeping(4, 100, 2) as other:
        assert (one.wait(120), other.wait(120)) == (0, 0)
    plan = experiments(4, rounds=100)
    assert_undisturbed(cluster, plan)
    for experiment in plan:
        assert sorted(cluster.executed(experiment)) == list(range(1, 101))


def test_variables_of_the_shell_do_not_override_the_profile(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = {"TIMELIMIT": "1", "MEM_PER_CPU": "9M", "MEM_PER_NODE": "9M", "JOB_NAME": "x", "ARRAY_INX": "0-9"}
    hostile |= {"OUTPUT": "/dev/null", "NO_REQUEUE": "1", "PARTITION": "low", "WAIT": "1", "EXPORT": "NONE"}
    for name, value in hostile.items():
        monkeypatch.setenv(f"SBATCH_{name}", value)
    monkeypatch.setenv("SRUN_CPUS_PER_TASK", "4")
    monkeypatch.setenv("SBATCH_HINT", "nomultithread")
    plan = experiments(1, rounds=1000)  # SBATCH_EXPORT keeps STUB_PAUSE from the worker
    with cluster.sweep_in_progress(plan, replace(N1, mem=500 * 2**20, partition="main")) as sweep:
        shown = show_job(cluster.job_ids()[0])
        assert sweep.result(120).exit_code == 0
    assert shown is not None
    (submission,) = cluster.submissions()
    found = {key: shown[key] for key in ("JobName", "TimeLimit", "MinMemoryNode", "Partition", "Requeue")}
    assert found == {
        **{"JobName": submission.name, "TimeLimit": "00:10:00", "MinMemoryNode": "500M"},
        **{"Partition": "main", "Requeue": "1"},
    }
    assert submission.logs()


def test_a_drained_partition_is_waited_for(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flbench.launch.slurm.RETRY_SECONDS", 1.0)
    plan, shown = experiments(1, rounds=40), list[str]()
    scontrol("update", "partitionname=high", "state=drain")
    try:
        with ThreadPoolExecutor(1) as pool:
            request = replace(N1, partition="high")
            sweep = pool.submit(
                orchestrate, cluster.store, plan, request, 1, show=lambda progress: shown.append(progress.delayed)
            )
            wait_until(lambda: len([text for text in shown if "Required partition not available" in text]) > 12)
            scontrol("update", "partitionname=high", "state=up")
            assert sweep.result(60).exit_code == 0
    finally:
        scontrol("update", "partitionname=high", "state=up")
    assert_undisturbed(cluster, plan)


def test_a_job_without_the_memory_to_start_names_mem(cluster: Cluster) -> None:
    # SLURM samples the memory each second; a stub's worker may end earlier.
    hold = f"{sys.executable} -c 'import time; held = b\"x\" * 10**8; time.sleep(60)'"
    with pytest.raises(WorkersCrash, match=r"mem is 20 MiB, .* raise mem in the profile"):
        cluster.sweep(experiments(1), replace(N1, mem=20 * 2**20, setup=(hold,)))


def test_a_percent_sign_in_the_stores_path(dev_cluster: None, tmp_path: Path) -> None:
    cluster, plan = Cluster(Store(tmp_path / "50%j it's")), experiments(1, rounds=40)
    assert cluster.sweep(plan, N1).exit_code == 0
    assert_undisturbed(cluster, plan)
    (submission,) = cluster.submissions()
    assert [log.name for log in submission.logs()] == [f"{submission.job_id}_0_0_log.out"]


def fake_sbatch(directory: Path, *lines: str) -> dict[str, str]:
    """Create an ``sbatch`` that precedes the real one in the caller's search path."""
    directory.mkdir()
    program = directory / "sbatch"
    program.write_text("\n".join(["#!/bin/bash", *lines]))
    program.chmod(0o755)
    return {"PATH": f"{directory}:{os.environ['PATH']}"}


def test_launcher_killed_before_sbatch_blocks_no_later_sweep(cluster: Cluster, tmp_path: Path) -> None:
    with cluster.sweeping(2, 40, **fake_sbatch(tmp_path / "bin", "kill -9 $PPID")) as process:
        assert process.wait(60) == -signal.SIGKILL
    assert [submission.job_id for submission in cluster.submissions()] == [None]
    plan = experiments(2, rounds=40)
    outcome = cluster.sweep(plan, N1)
    assert (outcome.exit_code, outcome.launched) == (0, 1)
    assert_undisturbed(cluster, plan)
    assert len({row.job for row in cluster.rows()}) == 1


def test_launcher_killed_after_sbatch_has_its_jobs_adopted_by_name(cluster: Cluster, tmp_path: Path) -> None:
    real = subprocess.run(["which", "sbatch"], check=True, capture_output=True, text=True).stdout.strip()
    with cluster.sweeping(2, 200, **fake_sbatch(tmp_path / "bin", f'{real} "$@"', "kill -9 $PPID")) as process:
        assert process.wait(60) == -signal.SIGKILL
    assert [submission.job_id for submission in cluster.submissions()] == [None]
    plan = experiments(2, rounds=200)
    outcome = cluster.sweep(plan, N1)
    assert (outcome.exit_code, outcome.launched) == (0, 0)
    assert_undisturbed(cluster, plan)
    (submission,) = cluster.submissions()
    assert {row.job for row in cluster.rows()} == {submission.job_id}


def test_interrupted_orchestrator_drains_its_jobs(cluster: Cluster) -> None:
    plan = experiments(2, rounds=1000)
    with cluster.sweeping(2, 1000, workers=2) as process:
        wait_until(lambda: all(cluster.round_of(experiment) >= 10 for experiment in plan))
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert cluster.live() == []
    for experiment in plan:
        assert [end["kind"] for end in cluster.attempts(experiment)] == ["interrupted"]
        assert cluster.store.run(experiment.run_id).attempts()[-1].checkpoint_files()


def test_detached_sweep_returns_at_once_and_finishes_alone(cluster: Cluster, tmp_path: Path) -> None:
    (spec := tmp_path / "real.yaml").write_text(SPEC)
    command = ("sweep", str(spec), "--store", str(cluster.store.root), "--backend", "slurm")
    command = (*command, "--profile", str(profile(tmp_path / "plain.yaml")))
    began = time.monotonic()
    assert flbench(*command, "--detach").returncode == 3
    assert time.monotonic() - began < 10
    wait_until(lambda: not cluster.live())
    again = flbench(*command, "--json")
    summary = json.loads(again.stdout)
    assert (again.returncode, summary["done"], summary["launched"]) == (0, 1, 0)


#: A normalization from a single file.
PLUGIN = """
from dataclasses import dataclass

from flbench.models.norms import Norm
from flbench.registry import NORMS


@NORMS.register("halved")
@dataclass(frozen=True)
class Halved(Norm):
    def layer(self, site):
        from torch import nn

        class Half(nn.Module):
            def forward(self, x):
                return x / 2

        return Half() if site.position == "after" else None
"""


def test_jobs_load_the_plugin_file_of_the_sweep(cluster: Cluster, tmp_path: Path) -> None:
    """The path is relative to a folder in which no job runs; after an edit the runs are executed again."""
    (plugin := tmp_path / "my_norm.py").write_text(PLUGIN)
    spec = SPEC.replace("[ln]", "[halved]").replace("510", "20")
    (tmp_path / "real.yaml").write_text(spec)
    slurm = ("--backend", "slurm", "--profile", str(profile(tmp_path / "nodes.yaml")), "--workers", "1")
    store = ("--store", str(cluster.store.root))

    def sweep() -> set[str]:
        """Return the source codes with which the run was computed, in all sweeps."""
        done = flbench("--plugin", "my_norm.py", "sweep", "real.yaml", *store, *slurm, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        (run_id,) = cluster.store.run_ids()
        return {str(result.environment["plugins"]) for result in cluster.store.run(run_id).results()}

    (first,) = sweep()
    assert first.startswith("flbench_plugin_my_norm=")
    plugin.write_text(PLUGIN.replace("x / 2", "x / 3"))
    assert len(sweep() - {first}) == 1
    (submitted, *_) = cluster.submissions()
    assert len(cluster.submissions()) == 2 and submitted.job_id is not None
