from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flbench.cli import app
from flbench.config import canonical_json
from flbench.errors import UserError
from flbench.store import Attempt, Lease, Store, encode_plan, files, strict_json
from flbench.store.attempts import ending
from flbench.store.results import Result
from tests.faults.stub import execute, experiments


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A sweep of three runs: done, failed, and running; and a worker."""
    monkeypatch.setenv("FLBENCH_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("STUB_PAUSE", "0")
    store = Store(tmp_path / "store")
    plan = experiments(3)
    directory = store.sweeps / "toy/abc"
    directory.mkdir(parents=True)
    (directory / "plan.jsonl").write_bytes(encode_plan(plan))
    done, failed, running = (claim(store, seed) for seed in range(3))
    done.describe({"torch": "2"})
    execute(plan[0], done, should_stop=lambda: False)
    done.end("ok", round=20)
    failed.record({"round": 5, "acc": 0.5})
    failed.end("oom")
    running.record({"round": 5, "acc": 0.5})
    return store


def claim(store: Store, seed: int, **request: Any) -> Attempt:
    attempt = store.claim(experiments(seed + 1, **request)[seed], Lease.here())
    assert attempt is not None
    return attempt


def verify(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["verify", *arguments])


def path_of(store: Store, seed: int, name: str) -> Path:
    run = store.run(experiments(seed + 1)[seed].run_id).path
    return next(iter(sorted(run.glob(name))))


def listing(store: Store) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(store.root.rglob("*")) if path.is_file()}


def test_a_sound_store(store: Store) -> None:
    before = listing(store)
    result = verify()
    assert result.exit_code == 0, result.stdout
    assert result.stdout == "3 runs, 13 files: all sound\n"
    assert listing(store) == before
    assert verify(str(store.root)).stdout == verify("toy").stdout == result.stdout
    assert verify(experiments(1)[0].run_id[:6]).stdout.startswith("1 run, ")
    assert isinstance(verify("nothing").exception, UserError)
    assert "name it alone" in str(verify(str(store.root), "toy").exception)
    # An older flbench wrote no checksums; the metrics of an attempt that has not finished may be torn.
    for name in ("lease.json", "environment.json"):
        rewrite(path_of(store, 0, f"attempts/*/{name}"), lambda raw: raw.pop("sha256"))
    for seed in (1, 2):
        cut(path_of(store, seed, "attempts/*/metrics.jsonl"))
    store.record_death("0123456789ab", ending("signal", "its worker was killed by SIGKILL"))
    assert verify().exit_code == 0


def test_damage_outside_of_runs(store: Store) -> None:
    store.record_death("0123456789ab", ending("signal", "its worker was killed by SIGKILL"))
    end = store.workers / "0123456789ab" / "exit.json"
    rewrite(end, lambda raw: raw.update(kind="ok"))
    (store.root / "runs/ab/notes").mkdir(parents=True)
    problems = json.loads(verify("--json").stdout)["problems"]
    assert [problem["path"] for problem in problems] == [str(store.root / "runs/ab/notes"), str(end)]


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    raw = json.loads(path.read_bytes())
    change(raw)
    path.write_bytes(strict_json.pretty(raw))


def resign(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a result so that its own checksum fits."""
    result = Result.read(str(path))
    assert result is not None
    raw = result.to_json()
    change(raw)
    raw.pop("sha256")
    raw["sha256"] = hashlib.sha256(canonical_json(raw).encode()).hexdigest()
    path.write_bytes(strict_json.pretty(raw))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes().rstrip()[:-3])


#: What is done to which file of which run, and what the message must hold.
DAMAGES: list[tuple[int, str, Callable[[Path], object], str]] = [
    (0, "experiment.json", cut, "cannot be read as JSON"),
    (0, "experiment.json", Path.unlink, "it is missing"),
    (0, "experiment.json", lambda path: rewrite(path, lambda raw: raw.update(lr=0.5)), "changed by hand"),
    (0, "experiment.json", lambda path: rewrite(path, lambda raw: raw.update(schema=99)), "its schema 99 is unknown"),
    (0, "experiment.json", lambda path: rewrite(path, lambda raw: raw.update(lr="fast")), "cannot be read: lr"),
    (0, "experiment.json", lambda path: path.write_text("[]"), "expected an object"),
    (0, "experiment.json", lambda path: path.write_text("[" * 100_000), "cannot be read as JSON"),
    (0, "results/*.json", cut, "cannot be read as JSON"),
    (0, "results/*.json", lambda path: rewrite(path, lambda raw: raw.update(seconds=9)), "checksum does not fit"),
    (0, "results/*.json", lambda path: resign(path, lambda raw: raw.pop("status")), "a field is missing"),
    (0, "results/*.json", lambda path: resign(path, lambda raw: raw.update(run_id="x")), "it belongs to run 'x'"),
    (0, "results/*.json", lambda path: resign(path, lambda raw: raw.update(rounds=21, wanted=21)), "another number"),
    (0, "results/*.json", lambda path: resign(path, lambda raw: raw.update(attempt=7)), "attempt 7"),
    (0, "results/*.json", lambda path: resign(path, lambda raw: raw.update(final={})), "last record is not that"),
    (0, "results/*.json", lambda path: resign(path, lambda raw: raw.update(evaluated=[20])), "not those of its"),
    (0, "attempts/*/metrics.jsonl", cut, "line 4 is torn"),
    (0, "attempts/*/metrics.jsonl", Path.unlink, "are missing"),
    (0, "attempts/*/metrics.jsonl", lambda path: path.write_text('{"round":1}\n'), "not those that it was made of"),
    (0, "attempts/*/checkpoint/*.pt", lambda path: path.write_bytes(b"x"), "not those of the checksum in its name"),
    (0, "attempts/*/environment.json", cut, "cannot be read as JSON"),
    (0, "attempts/*/lease.json", lambda path: path.write_text("{}"), "this is no lease"),
    (0, "attempts/*/environment.json", lambda path: rewrite(path, lambda raw: raw.update(x=1)), "changed after"),
    (0, "attempts/*/environment.json", lambda path: path.write_text('{"torch": "1.0"}'), "not that of attempt 1"),
    (0, "attempts/*/lease.json", lambda path: rewrite(path, lambda raw: raw.update(host="x")), "changed after"),
    (1, "attempts/*/exit.json", lambda path: rewrite(path, lambda raw: raw.update(kind="ok")), "changed after"),
    (0, "attempts/0001", lambda path: path.rename(path.with_name("0003")), "its attempts are 3"),
    (1, "attempts/*/exit.json", cut, "cannot be read as JSON"),
    (1, "attempts/*/exit.json", lambda path: rewrite(path, lambda raw: raw.update(schema=99)), "by a newer flbench"),
    (0, "results/*.json", lambda path: rewrite(path, lambda raw: raw.update(schema=99)), "schema 99 is unknown"),
    (1, "attempts/*/metrics.jsonl", lambda path: path.write_text('{"round":5}\n{"round":5}\n'), "do not ascend"),
    (1, "attempts/*/metrics.jsonl", lambda path: path.write_text('{"round":"a"}\n'), "round: expected a whole number"),
    (1, "attempts/*/metrics.jsonl", lambda path: path.write_text('{"round":5\n{"round":6}\n'), "line 1 is torn"),
]  # fmt: skip


@pytest.mark.parametrize(("seed", "name", "damage", "says"), DAMAGES)
def test_damage_is_named(store: Store, seed: int, name: str, damage: Callable[[Path], object], says: str) -> None:
    path = path_of(store, seed, name)
    damage(path)
    before = listing(store)
    result = verify("--json")
    assert result.exit_code == 1
    problems = json.loads(result.stdout)["problems"]
    assert any(says in problem["what"] for problem in problems), problems
    assert any(Path(problem["path"]).is_relative_to(store.root / "runs") for problem in problems)
    assert listing(store) == before  # what is damaged stays where it is
    assert verify("toy").exit_code == 1


def test_runs_of_a_plug_in_that_is_not_loaded_are_not_damage(store: Store) -> None:
    """Neither are they sound: exit code 2. Other damage is found all the same, with exit code 1."""
    experiment = path_of(store, 0, "experiment.json")
    rewrite(experiment, lambda raw: raw.update(norm="gone"))
    plan = store.root / "sweeps/toy/abc/plan.jsonl"
    plan.write_bytes(plan.read_bytes().replace(b'"name":"none"', b'"name":"gone"', 1))
    assert b"gone" in plan.read_bytes()
    run_id = experiment.parent.name
    cure = "is not known here; if a plug-in has it, name its file with --plugin or in $FLBENCH_PLUGINS"
    result = verify()
    assert result.exit_code == 2
    assert result.stdout == f"1 run not checked: its norm 'gone' {cure}\n3 runs, 13 files: no damage found\n"
    found = json.loads(verify("--json").stdout)
    assert found["problems"] == [] and found["unknown"] == {"norm 'gone'": [run_id]}
    assert "there is no finished run to execute again" in verify("--recompute", "1").stdout
    cut(path_of(store, 1, "attempts/*/exit.json"))
    result = verify()
    assert result.exit_code == 1
    assert f"1 run not checked: its norm 'gone' {cure}\n3 runs, 13 files: 1 problem\n" in result.stdout


def test_gaps_between_evaluations(store: Store) -> None:
    """A result that agrees with its metrics, which lack an evaluation."""
    metrics = path_of(store, 0, "attempts/*/metrics.jsonl")
    lines = metrics.read_bytes().splitlines(keepends=True)
    del lines[1]  # of the rounds 5, 10, 15, 20
    metrics.write_bytes(b"".join(lines))
    sha = files.sha256_of(metrics)
    wrong = {"evaluated": [5, 15, 20], "metrics_sha256": sha, "metrics_bytes": metrics.stat().st_size}
    resign(path_of(store, 0, "results/*.json"), lambda raw: raw.update(wrong))
    result = verify()
    assert result.exit_code == 1
    assert "evaluations are missing between round 5 and 20" in result.stdout


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (cut, "the plan cannot be read"),
        (lambda path: path.write_text(""), "it names no run"),
        (lambda path: path.write_bytes(path.read_bytes() * 2), "names a run twice"),
        (lambda path: path.write_bytes(path.read_bytes().replace(b'"lr":0.01', b'"lr":0.02', 1)), "hashes to"),
        (lambda path: path.write_text('{"run_id":"../../x","cell_id":"","experiment":{}}\n'), "is not a run id"),
        (lambda path: path.write_text('{"x":1}\n'), "the plan cannot be read"),
    ],
)
def test_damaged_plans(store: Store, damage: Callable[[Path], object], says: str) -> None:
    damage(store.root / "sweeps/toy/abc/plan.jsonl")
    result = verify()
    assert result.exit_code == 1
    assert says in result.stdout


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store with two short runs that were really computed."""
    monkeypatch.setenv("FLBENCH_STORE", str(tmp_path / "real"))
    for norm in ("ln", "none"):
        fields = ["dataset=digits", f"norm={norm}", "rounds=4", "eval_every=3", "E=2", "clients=10", "probes=[drift]"]
        result = CliRunner().invoke(app, ["run", *fields, "--threads", "1"])
        assert result.exit_code == 0, result.stdout
    return Store(tmp_path / "real")


def test_recomputing_gives_the_same_bits(real: Store) -> None:
    raw = json.loads(verify("--recompute", "5", "--json").stdout)
    assert [one["verdict"] for one in raw["recomputed"]] == ["same", "same"], raw
    assert (raw["problems"], raw["runs"]) == ([], 2)
    # One digit of one record, with all checksums mended.
    (run_id, other) = real.run_ids()
    path = real.run(run_id).path
    metrics = path / "attempts/0001/metrics.jsonl"
    records = strict_json.parse_lines(metrics.read_bytes())
    records[-1]["loss"] += 1e-12
    metrics.write_bytes(strict_json.join_lines(records))
    mended = {"metrics_sha256": files.sha256_of(metrics), "metrics_bytes": metrics.stat().st_size, "final": records[-1]}
    resign(path / "results/00000004.json", lambda raw: raw.update(mended))
    assert verify(run_id).exit_code == 0
    result = verify("--recompute", "2")
    assert result.exit_code == 1
    assert f"{run_id}, 4 rounds again: different: round 4, loss: recorded " in result.stdout
    assert f"{other}, 4 rounds again: same" in result.stdout
    # Numbers of another torch are not compared.
    resign(
        real.run(other).path / "results/00000004.json",
        lambda raw: raw.update(numerics={**raw["numerics"], "torch": "1.0"}),
    )
    assert f"{other}, 4 rounds again: skipped: computed with torch 1.0" in verify(other, "--recompute", "1").stdout
