from __future__ import annotations

from pathlib import Path

from flbench.tracking.sync_log import SyncLog


def test_each_target_has_its_own_entries_and_the_last_line_counts(tmp_path: Path) -> None:
    path = tmp_path / "wandb" / "mirrored.jsonl"
    here, there = SyncLog(path, "here"), SyncLog(path, "there")
    here.add("a", "1", "")
    here.add("a", "2", "folder")
    assert not there.has("a", "2")
    again = SyncLog(path, "here")
    assert (again.has("a", "1"), again.has("a", "2")) == (False, True)


def test_torn_lines_are_skipped_and_lines_of_other_processes_are_read(tmp_path: Path) -> None:
    path = tmp_path / "mirrored.jsonl"
    log = SyncLog(path, "here")
    SyncLog(path, "here").add("a", "1", "")
    with path.open("ab") as file:
        file.write(b'{"schema":1,"target":"here","run":"b","dig')  # a crash
    log.refresh()
    assert log.has("a", "1")
    with path.open("ab") as file:
        file.write(b"\n[]\n")
    SyncLog(path, "here").add("c", "3", "")
    log.refresh()
    assert (log.has("b", "2"), log.has("c", "3")) == (False, True)
