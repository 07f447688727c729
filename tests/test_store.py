from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from flbench.config import Experiment, parse_experiment
from flbench.errors import StoreUnusable
from flbench.store import (
    Attempt,
    Entry,
    Heartbeat,
    Lease,
    RunRequest,
    Store,
    encode_plan,
    files,
    read_plan,
    strict_json,
)
from flbench.store.files import Disk
from flbench.store.leases import process_start
from tests.faults.disks import Counting
from tests.limits import wait_until
from tests.report.stores import claim

NOBODY = 2**22 + 1  # above any process id


def experiment(rounds: int = 20, eval_every: int = 5, **fields: Any) -> Experiment:
    return parse_experiment({"rounds": rounds, "eval_every": eval_every, **fields})


def finish(attempt: Attempt, wanted: Experiment, begin: int = 0) -> None:
    for round in sorted(wanted.evaluated_rounds()):
        if round > begin:
            attempt.record({"round": round, "acc": round / 1000})
    attempt.save_checkpoint(wanted.rounds, lambda file: file.write(b"state %d" % wanted.rounds))
    publish(attempt, wanted.rounds)
    attempt.end("ok", round=wanted.rounds)


def publish(attempt: Attempt, rounds: int, status: Any = "done") -> bool:
    return attempt.publish(
        status=status, rounds=rounds, seconds=1.5, fingerprint="e3713c9c6ae47b99", numerics={"device": "cpu"}
    )


def run_whole(store: Store, wanted: Experiment) -> Attempt:
    attempt = claim(store, wanted)
    newest = next(iter(attempt.checkpoints()), None)
    attempt.adopt(newest)
    finish(attempt, wanted, newest.round if newest else 0)
    return attempt


def abandoned(**changes: Any) -> Lease:
    """A lease whose process is no more."""
    return Lease(**{**Lease.here().to_json(), "pid": NOBODY, **changes})


# --- opening


def test_new_store_records_its_schema(store: Store) -> None:
    assert json.loads((store.root / "format.json").read_text()) == {"schema": 1}
    assert list(Store(store.root).run_ids()) == []


def test_newer_store_is_refused(store: Store) -> None:
    (store.root / "format.json").write_text('{"schema": 2}')
    with pytest.raises(StoreUnusable, match=r"newer flbench \(schema 2, this one reads up to 1\)"):
        Store(store.root)


def test_damaged_format_is_refused(store: Store) -> None:
    (store.root / "format.json").write_text("{")
    with pytest.raises(StoreUnusable, match="damaged"):
        Store(store.root)


def test_directory_of_another_program_is_refused_and_unchanged(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(StoreUnusable, match="not empty and not a store"):
        Store(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_remains_of_a_deleted_store_are_reported_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "runs" / "ab").mkdir(parents=True)
    with pytest.raises(StoreUnusable, match=r"left of a deleted one \(runs\)\. Delete it: rm -r .*flbench verify"):
        Store(tmp_path)
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(StoreUnusable, match="name a new or empty directory"):
        Store(tmp_path)


def test_store_below_a_file_is_unusable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnusable, match="cannot be used"):
        Store(tmp_path / "file" / "store")


def test_reading_creates_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match="no store at"):
        Store(tmp_path / "none", create=False)
    assert not (tmp_path / "none").exists()


# --- files


def test_files_get_the_users_umask(store: Store) -> None:
    before = os.umask(0o022)
    try:
        attempt = run_whole(store, experiment())
        written = [path for path in store.root.rglob("*") if path.is_file()]
    finally:
        os.umask(before)
    assert attempt.metrics_path in written
    assert {stat.S_IMODE(path.stat().st_mode) for path in written} == {0o644}


def test_no_temporary_files_remain(store: Store) -> None:
    run_whole(store, experiment())
    run_whole(store, experiment(rounds=40))
    assert list(store.root.rglob(".*")) == []


def test_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "state"
    files.replace(path, b"old")

    def fail(file: Any) -> None:
        file.write(b"ne")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        files.stage(path, fail, sync=True)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_publish_first_writer_wins(tmp_path: Path) -> None:
    assert files.publish(tmp_path / "result", b"first")
    assert not files.publish(tmp_path / "result", b"second")
    assert (tmp_path / "result").read_bytes() == b"first"


@pytest.mark.parametrize(
    "tail", [b'{"round": 3', b'{"round": 3}', b"\x00\x00\n", b"[1]\n", b'{"round": 3}\x00\n{"round": 4}\n']
)
def test_torn_tail_is_dropped(tail: bytes) -> None:
    assert strict_json.parse_lines(b'{"round": 1}\n{"round": 2}\n' + tail) == [{"round": 1}, {"round": 2}]


@pytest.mark.parametrize("half", [b"\\ud800", "\ud800".encode("utf-8", "surrogatepass")])
def test_half_a_surrogate_pair_is_no_text(half: bytes) -> None:
    """Escaped, or as the bytes that UTF-8 would have for it: no text that is read can fail to be written."""
    with pytest.raises(ValueError):
        strict_json.loads(b'{"cpu": "' + half + b'"}')


def test_numbers_that_are_not_finite_become_null() -> None:
    line = strict_json.to_line(
        {"loss": float("nan"), "clients": [1.0, float("inf")], "probes": {"rank": float("-inf")}}
    )
    assert json.loads(line) == {"loss": None, "clients": [1.0, None], "probes": {"rank": None}}


def test_plan_round_trips(tmp_path: Path) -> None:
    wanted = [experiment(seed=seed, method="fedyogi") for seed in range(3)]
    (tmp_path / "plan.jsonl").write_bytes(encode_plan(wanted))
    entries = read_plan(tmp_path / "plan.jsonl")
    assert list(entries) == [Entry.of(one) for one in wanted]
    assert [entry.parse() for entry in entries] == wanted
    assert [entry.parse().run_id for entry in entries] == [one.run_id for one in wanted]


# --- one run's life


def test_run_goes_from_pending_to_done(store: Store) -> None:
    wanted = experiment()
    run = store.run(wanted.run_id)
    assert run.state(wanted).status == "pending"
    attempt = claim(store, wanted)
    assert (attempt.number, run.state(wanted).status) == (1, "running")
    attempt.adopt(None)
    finish(attempt, wanted)
    state = run.state(wanted)
    assert state.status == "done"
    assert state.result is not None
    assert (state.result.rounds, state.result.final) == (20, {"round": 20, "acc": 0.02})
    assert [record["round"] for record in run.metrics()] == [5, 10, 15, 20]
    assert store.claim(wanted, Lease.here()) is None
    assert list(store.run_ids()) == [wanted.run_id]
    assert run.experiment() == wanted


def test_result_records_its_metrics_data_and_environment(store: Store) -> None:
    wanted = experiment()
    attempt = claim(store, wanted)
    attempt.describe({"flbench": "1.0", "git_commit": "abc", "argv": ["long"]})
    attempt.adopt(None)
    finish(attempt, wanted)
    raw = json.loads((attempt.run.path / "results" / "00000020.json").read_text())
    assert raw["environment"] == {"flbench": "1.0", "git_commit": "abc"}
    assert (raw["schema"], raw["wanted"], raw["attempt"], raw["fingerprint"]) == (1, 20, 1, "e3713c9c6ae47b99")
    assert raw["metrics_sha256"] == files.sha256_of(attempt.metrics_path)


def test_held_run_is_not_claimed_twice(store: Store) -> None:
    wanted = experiment()
    claim(store, wanted)
    assert store.claim(wanted, Lease.here()) is None


def test_claim_appears_with_its_lease(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed right before the claim takes effect, a worker leaves nothing that looks like a claim."""
    wanted = experiment()

    rename = Path.rename

    def die(path: Path, target: Path) -> Path:
        if target.name == "0001":
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "rename", die)
        store.claim(wanted, Lease.here())
    assert len(list((store.run(wanted.run_id).path / "attempts").iterdir())) == 1  # staged, never in place
    assert store.run(wanted.run_id).state(wanted).status == "pending"
    assert claim(store, wanted).number == 1


def test_publishing_without_a_requested_evaluation_is_refused(store: Store) -> None:
    wanted = experiment()
    attempt = claim(store, wanted)
    attempt.adopt(None)
    attempt.record({"round": 20})
    with pytest.raises(ValueError, match=r"lacks the requested rounds \[5, 10, 15\]"):
        publish(attempt, 20)
    assert attempt.run.results() == []


def test_of_two_published_results_the_first_counts(store: Store) -> None:
    """A worker that was taken for dead finishes after its successor."""
    wanted = experiment()
    zombie = store.claim(wanted, abandoned())
    assert zombie is not None
    successor = claim(store, wanted)
    for attempt, acc in ((successor, 0.5), (zombie, 0.7)):
        attempt.adopt(None)
        for round in sorted(wanted.evaluated_rounds()):
            attempt.record({"round": round, "acc": acc})
    assert publish(successor, 20)
    assert not publish(zombie, 20)
    result = successor.run.result_for(wanted)
    assert result is not None
    assert result.attempt == successor.number
    assert successor.run.metrics()[-1]["acc"] == 0.5


def test_diverged_run_is_done_for_every_longer_request(store: Store) -> None:
    wanted = experiment()
    attempt = claim(store, wanted)
    attempt.adopt(None)
    attempt.record({"round": 5})
    publish(attempt, 7, "diverged")
    attempt.end("ok")
    run = store.run(wanted.run_id)
    assert run.state(wanted).status == "done"
    assert run.state(experiment(rounds=500)).status == "done"
    assert run.state(experiment(rounds=5)).status == "pending"


def test_run_that_diverges_before_any_evaluation_is_done(store: Store) -> None:
    wanted = experiment()
    attempt = claim(store, wanted)
    attempt.adopt(None)
    publish(attempt, 1, "diverged")
    result = store.run(wanted.run_id).result_for(wanted)
    assert result is not None
    assert (result.final, result.evaluated) == ({}, frozenset())


# --- going on: interruption, extension, re-observation


def test_resuming_copies_the_records_up_to_the_checkpoint(store: Store) -> None:
    wanted = experiment()
    first = claim(store, wanted)
    first.adopt(None)
    for round in (5, 10, 15):
        first.record({"round": round, "acc": round / 100})
        if round == 10:
            first.save_checkpoint(11, lambda file: file.write(b"eleven"))
    first.end("interrupted")
    second = claim(store, wanted)
    (checkpoint,) = second.checkpoints()
    assert (checkpoint.round, checkpoint.attempt, checkpoint.path.read_bytes()) == (11, 1, b"eleven")
    assert [record["round"] for record in second.adopt(checkpoint)] == [5, 10]
    assert [record["round"] for record in second.records()] == [5, 10]


def test_starting_over_copies_no_records(store: Store) -> None:
    wanted = experiment()
    first = claim(store, wanted)
    first.record({"round": 5})
    first.end("interrupted")
    second = claim(store, wanted)
    assert second.adopt(None) == []
    assert second.records() == []


def test_older_checkpoints_of_an_attempt_are_deleted(store: Store) -> None:
    attempt = claim(store, experiment())
    for round in (3, 7, 9):
        attempt.save_checkpoint(round, lambda file: file.write(b"x"))
    assert [path.name[:8] for path in attempt.checkpoint_files()] == ["00000009"]


def test_torn_checkpoint_goes_to_quarantine(store: Store) -> None:
    wanted = experiment()
    for round in (4, 8):
        attempt = claim(store, wanted)
        attempt.adopt(None)
        attempt.record({"round": 5})
        attempt.save_checkpoint(round, lambda file: file.write(b"a whole state"))
        attempt.end("interrupted")
    (newest,) = attempt.checkpoint_files()
    newest.write_bytes(b"a whole st")
    assert [checkpoint.round for checkpoint in claim(store, wanted).checkpoints()] == [4]
    assert len(list(store.quarantine.iterdir())) == 1


def test_checkpoint_with_missing_metrics_is_not_used(store: Store) -> None:
    wanted = experiment()
    first = claim(store, wanted)
    first.adopt(None)
    for round in (5, 10):
        first.record({"round": round})
    first.save_checkpoint(12, lambda file: file.write(b"twelve"))
    first.end("interrupted")
    first.metrics_path.write_bytes(first.metrics_path.read_bytes()[:-4])
    assert claim(store, wanted).checkpoints() == []


def test_longer_request_extends_from_the_last_checkpoint(store: Store) -> None:
    run_whole(store, experiment(rounds=20))
    longer = experiment(rounds=40)
    run = store.run(longer.run_id)
    assert run.state(longer).status == "pending"
    second = claim(store, longer)
    (checkpoint,) = second.checkpoints()
    assert checkpoint.round == 20
    second.adopt(checkpoint)
    finish(second, longer, begin=20)
    assert [record["round"] for record in run.metrics()] == list(range(5, 41, 5))
    assert [result.rounds for result in run.results()] == [20, 40]
    assert run.result_for(experiment(rounds=20)).rounds == 20  # type: ignore[union-attr]
    assert run.result_for(experiment(rounds=30)).rounds == 40  # type: ignore[union-attr]


def test_extended_metrics_equal_those_of_an_uninterrupted_run(store: Store) -> None:
    """22 rounds evaluate round 22; going on to 40, that evaluation is not requested."""
    run_whole(store, experiment(rounds=22))
    longer = run_whole(store, experiment(rounds=40))
    assert [record["round"] for record in longer.records()] == list(range(5, 41, 5))


def test_shorter_request_ignores_later_checkpoints(store: Store) -> None:
    run_whole(store, experiment(rounds=20))
    shorter = experiment(rounds=18)
    assert store.run(shorter.run_id).state(shorter).status == "pending"  # round 18 was not evaluated
    assert claim(store, shorter).checkpoints() == []


def test_request_with_more_evaluations_starts_from_round_0(store: Store) -> None:
    run_whole(store, experiment(eval_every=5))
    finer = experiment(eval_every=2)
    run = store.run(finer.run_id)
    assert run.state(finer).status == "pending"
    second = claim(store, finer)
    assert second.checkpoints() == []
    second.adopt(None)
    finish(second, finer)
    assert run.state(finer).status == run.state(experiment(eval_every=5)).status == "done"
    assert len(run.results()) == 2
    assert run.state(experiment(eval_every=10)).status == "done"


def test_request_with_more_probes_starts_from_round_0(store: Store) -> None:
    plain = experiment()
    run_whole(store, plain)
    request = RunRequest.of({**plain.to_json(), "probes": [{"name": "drift"}]})
    assert store.run(plain.run_id).state(request).status == "pending"


def test_result_of_a_plugins_earlier_source_is_computed_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = experiment()
    run = store.run(wanted.run_id)
    monkeypatch.setattr("flbench.store.results.plugins_of", lambda raw: "pack=1")
    first = claim(store, wanted)
    first.describe({"plugins": "pack=1"})
    finish(first, wanted)
    assert run.state(wanted).status == "done"
    monkeypatch.setattr("flbench.store.results.plugins_of", lambda raw: "pack=2")
    assert run.state(wanted).status == "pending"
    again = claim(store, wanted)
    again.describe({"plugins": "pack=2"})
    assert list(again.checkpoints()) == [], "an earlier source's checkpoint leads elsewhere"
    finish(again, wanted)
    state = run.state(wanted)
    assert state.result is not None and state.result.attempt == 2
    monkeypatch.setattr("flbench.store.results.plugins_of", lambda raw: "pack=1")
    state = run.state(wanted)
    assert state.result is not None and state.result.attempt == 1, "both are kept"


# --- superseding


def test_superseded_run_starts_over(store: Store) -> None:
    wanted = experiment()
    run = store.run(wanted.run_id)
    assert not run.supersede(), "there is nothing yet"
    run_whole(store, wanted)
    assert run.supersede()
    assert run.state(wanted).status == "pending"
    again = claim(store, wanted)
    assert again.checkpoints() == []
    assert not run.supersede()
    finish(again, wanted)
    longer = claim(store, experiment(rounds=40))
    assert [checkpoint.attempt for checkpoint in longer.checkpoints()] == [2]
    assert not run.supersede(), "a worker executes it right now"


def test_superseding_interrupted_at_any_change_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Counting):
        def reach(self, call: str, number: int) -> bool:
            if number == limit:
                raise OSError("cut short")
            return True

    wanted, outcomes = experiment(), []
    for limit in range(1, 20):
        store = Store(tmp_path / str(limit))
        attempt = run_whole(store, wanted)
        run = store.run(wanted.run_id)
        written = (run.path / "results/00000020.json").read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(files, "disk", Failing())
            try:
                outcomes.append(run.supersede())
            except OSError:
                outcomes.append(None)
        kept = [path.read_bytes() for folder in ("results", "superseded") for path in (run.path / folder).glob("*")]
        assert kept == [written]
        if run.state(wanted).status != "done":
            assert claim(store, wanted).checkpoints() == []
        assert attempt.metrics_path.exists()
    assert outcomes[0] is None and outcomes[-1] is True


# --- failures


def test_failures_are_counted_and_interruptions_are_not(store: Store) -> None:
    wanted = experiment()
    run = store.run(wanted.run_id)
    for kind in ("error", "interrupted", "preempted", "oom"):
        claim(store, wanted, max_attempts=3).end(kind, "because")
    state = run.state(wanted)
    assert (state.status, state.kind, state.message, state.failures) == ("failed", "oom", "because", 2)
    assert store.claim(wanted, Lease.here(), max_attempts=2) is None
    assert store.claim(wanted, abandoned(), max_attempts=3) is not None
    assert (run.state(wanted).status, run.state(wanted).failures) == ("lost", 3)
    assert store.claim(wanted, Lease.here(), max_attempts=3) is None
    run.reset_failures()
    assert claim(store, wanted, max_attempts=3).number == 6


def test_user_fixable_failure_is_not_retried_before_a_reset(store: Store) -> None:
    wanted = experiment()
    claim(store, wanted).end("error", "no data", user_fixable=True)
    assert store.claim(wanted, Lease.here()) is None
    store.run(wanted.run_id).reset_failures()
    assert store.claim(wanted, Lease.here()) is not None


def test_success_resets_the_count_of_failures(store: Store) -> None:
    claim(store, experiment()).end("error")
    run_whole(store, experiment())
    claim(store, experiment(rounds=40)).end("error")
    assert store.run(experiment().run_id).state(experiment(rounds=40)).failures == 1


# --- damage


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"schema": 1, "status": "done"}'])
def test_damaged_result_is_quarantined_and_the_run_continues(
    store: Store, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = experiment()
    run_whole(store, wanted)
    run = store.run(wanted.run_id)
    (run.path / "results" / "00000020.json").write_bytes(damage)
    assert run.state(wanted).status == "pending"
    (aside,) = store.quarantine.iterdir()
    assert aside.read_bytes() == damage
    assert caplog.messages == [f"a damaged file was set aside: {str(aside)!r}"], "once, by the command that moves it"
    again = run_whole(store, wanted)
    assert run.state(wanted).status == "done"
    assert [record["round"] for record in again.records()] == [5, 10, 15, 20]


def test_result_written_with_other_white_space_is_sound_and_its_change_noticed(store: Store) -> None:
    """As results were written at first, and as a person may lay them out."""
    wanted = experiment()
    run_whole(store, wanted)
    run = store.run(wanted.run_id)
    (result,) = run.results()
    laid_out = json.dumps(dict(reversed(result.to_json().items())), indent=1)
    result.path.write_text(laid_out)
    assert run.results() == [result]
    result.path.write_text(laid_out.replace('"acc": 0.02', '"acc": 0.92'))
    assert run.results() == []


def test_one_changed_digit_in_a_result_is_noticed(store: Store) -> None:
    wanted = experiment()
    run_whole(store, wanted)
    path = store.run(wanted.run_id).path / "results" / "00000020.json"
    sound = path.read_text()
    assert '"acc":0.02' in sound
    path.write_text(sound.replace('"acc":0.02', '"acc":0.92'))
    assert store.run(wanted.run_id).result_for(wanted) is None


@pytest.mark.parametrize("keep_size", [True, False])
def test_result_with_damaged_metrics_is_quarantined_with_them(store: Store, keep_size: bool) -> None:
    wanted = experiment()
    attempt = run_whole(store, wanted)
    data = attempt.metrics_path.read_bytes()
    attempt.metrics_path.write_bytes(data.replace(b"0.01", b"0.91") if keep_size else data[:-10])
    run = store.run(wanted.run_id)
    assert run.metrics() == []
    assert run.state(wanted).status == "pending"
    assert claim(store, wanted).checkpoints() == []  # nothing resumes from damaged records


def test_result_of_a_newer_flbench_is_not_treated_as_damaged(store: Store) -> None:
    wanted = experiment()
    run_whole(store, wanted)
    path = store.run(wanted.run_id).path / "results" / "00000020.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 2}))
    with pytest.raises(StoreUnusable, match="newer flbench"):
        store.run(wanted.run_id).state(wanted)
    assert path.exists()


def test_damaged_experiment_json_is_written_again(store: Store) -> None:
    wanted = experiment()
    claim(store, wanted).end("interrupted")
    path = store.run(wanted.run_id).path / "experiment.json"
    path.write_bytes(b"")
    with pytest.raises(FileNotFoundError):
        store.run(wanted.run_id).experiment()
    claim(store, wanted)
    assert store.run(wanted.run_id).experiment() == wanted


# --- liveness of leases


def test_own_process_is_alive_and_a_reused_pid_is_not(store: Store, tmp_path: Path) -> None:
    alive = store.liveness.alive
    assert alive(Lease.here(), tmp_path)
    assert not alive(abandoned(), tmp_path)
    assert not alive(abandoned(pid=os.getpid(), pid_start="1"), tmp_path)


@pytest.mark.parametrize("change", [{"boot_id": "another"}, {"host": "elsewhere"}, {"pid_namespace": "pid:[1]"}])
def test_elsewhere_the_heartbeat_decides(store: Store, tmp_path: Path, change: dict[str, str]) -> None:
    lease = abandoned(**change)  # its process id means nothing here
    beat = store.workers / lease.token / "heartbeat"
    beat.parent.mkdir()
    beat.touch()
    now = beat.stat().st_mtime
    assert store.liveness.alive(lease, tmp_path)
    os.utime(beat, (now - 50, now - 50))
    assert store.liveness.alive(lease, tmp_path)
    os.utime(beat, (now - 70, now - 70))
    assert not store.liveness.alive(lease, tmp_path)


def test_local_clock_does_not_matter(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = abandoned(host="elsewhere")
    beat = store.workers / lease.token / "heartbeat"
    beat.parent.mkdir()
    beat.touch()
    monkeypatch.setattr("time.time", lambda: 4e9)
    assert store.liveness.alive(lease, tmp_path)


def test_without_heartbeat_the_age_of_the_claim_decides(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "lease.json"
    path.touch()
    now = path.stat().st_mtime
    assert store.liveness.alive(abandoned(host="elsewhere"), path)
    os.utime(path, (now - 70, now - 70))
    assert not store.liveness.alive(abandoned(host="elsewhere"), path)


def test_claim_without_a_lease_is_dead_after_a_minute(store: Store) -> None:
    wanted = experiment()
    run = store.run(wanted.run_id)
    attempt = run.path / "attempts" / "0001"
    attempt.mkdir(parents=True)
    assert run.state(wanted).status == "running"
    now = attempt.stat().st_mtime
    os.utime(attempt, (now - 70, now - 70))
    assert run.state(wanted).status == "lost"
    assert claim(store, wanted).number == 2


def test_unknown_liveness_counts_as_alive(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "replace", lambda *_, **__: (_ for _ in ()).throw(OSError("read-only file system")))
    assert store.liveness.alive(abandoned(host="elsewhere"), store.root / "format.json")


def test_zombie_process_counts_as_dead() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert process_start(pid) is None
    os.waitpid(pid, 0)


def test_worker_is_registered_while_it_works(store: Store) -> None:
    lease = Lease.here()
    with Heartbeat(store.workers, lease, "tiny/abc"):
        (worker,) = store.live_workers()
        assert (worker.lease, worker.plan) == (lease, "tiny/abc")
    assert store.live_workers() == []
    assert list(store.workers.iterdir()) == []


def test_heartbeat_is_renewed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flbench.store.leases.INTERVAL", 0.01)
    lease = Lease.here()
    with Heartbeat(store.workers, lease):
        beat = store.workers / lease.token / "heartbeat"
        os.utime(beat, (0, 0))
        wait_until(lambda: beat.stat().st_mtime > 0)


@pytest.mark.parametrize("length", [1, 10, 20_000, 300_000])
def test_last_record_is_found_from_the_end(store: Store, length: int) -> None:
    attempt = claim(store, experiment())
    assert attempt.last_record() is None
    attempt.adopt(None)
    assert attempt.last_record() is None
    for round in (5, 10):
        attempt.record({"round": round, "clients": [0] * length})
        assert attempt.last_record() == {"round": round, "clients": [0] * length}
    with attempt.metrics_path.open("ab") as file:
        file.write(b'{"round": 15, "cl')
    assert (attempt.last_record() or {})["round"] == 10


class Unlinkable(Disk):
    """A file system without hard links."""

    def link(self, path: Path, target: Path) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), os.fspath(path), None, os.fspath(target))


def test_a_file_system_without_hard_links_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "disk", Unlinkable())
    path = tmp_path / "store" / "format.json"
    message = f"{path}: hard links do not work here, and a store needs them (Operation not permitted)"
    with pytest.raises(StoreUnusable) as raised:
        Store(tmp_path / "store")
    assert str(raised.value) == f"the store {tmp_path}/store cannot be used: {message}"
    assert not [found for found in (tmp_path / "store").iterdir() if found.is_file()]


@pytest.mark.parametrize("call", ["create", "rename", "link"])
def test_an_error_of_the_disk_names_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def fail(disk: Disk, path: Path, target: Path | None = None) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path), None, target and str(target))

    monkeypatch.setattr(Disk, call, fail)
    write = files.publish if call == "link" else files.replace
    with pytest.raises(OSError, match="Input/output error") as raised:
        write(tmp_path / "a.json", b"1")
    assert str(raised.value) == f"[Errno 5] Input/output error: '{tmp_path}/a.json'"


def test_a_stale_handle_is_opened_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path := tmp_path / "a").write_bytes(b"1")
    real, refusals = os.open, [2]

    def stale(*arguments: Any) -> int:
        refusals[0] -= 1
        if refusals[0] % 2 == 1 or refusals[0] < 0:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), arguments[0])
        return real(*arguments)

    monkeypatch.setattr("os.open", stale)
    assert files.read_bytes(path) == b"1"
    refusals[0] = 2
    files.overwrite(path, b"2")
    with pytest.raises(OSError, match="Stale file handle"):  # twice in a row
        files.read_bytes(path)
    monkeypatch.undo()
    assert path.read_bytes() == b"2"
