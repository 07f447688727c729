from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from flbench.data import cache
from flbench.data.arrays import Arrays, fingerprint
from flbench.data.datasets import load, locate, recipe
from flbench.errors import UserError
from tests.data.files import folder_set, pixels, write_folder, write_halves

PROGRAM = """
import sys, time
from flbench.data import cache, datasets
from flbench.registry import DATASETS
if sys.argv[3:]:
    write = cache._write_half
    def slowly(folder, half, raw, advance):
        oddities = write(folder, half, raw, advance)
        print("half", flush=True)
        time.sleep(float(sys.argv[3]))
        return oddities
    cache._write_half = slowly
if sys.argv[2] == "unlocked":
    import fcntl
    def refuse(*args): raise OSError(38, "no locks here")
    fcntl.flock = refuse
print(datasets.load(DATASETS.parse("folder:" + sys.argv[1])).fingerprint, flush=True)
"""


def start(path: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", PROGRAM, str(path), *arguments], stdout=subprocess.PIPE, text=True)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number, image in enumerate(pixels(5, (3, 4, 4))):
        write_halves(tmp_path / "photos", [f"{name}/{number}.png" for name in "ab"], image)
    return tmp_path / "photos"


def entries(own_cache: Path) -> list[str]:
    return sorted(path.name for path in (own_cache / "decoded/folder").iterdir() if path.suffix != ".lock")


def test_the_second_load_opens_the_entry_of_the_first(
    photos: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load(folder_set(photos))
    monkeypatch.setattr(cache, "decode", lambda *_: pytest.fail("decoded twice"))
    second = load(folder_set(photos))
    assert first.fingerprint == second.fingerprint
    assert (first.train.images == second.train.images).all()
    meta = json.loads((own_cache / "decoded/folder" / entries(own_cache)[0] / "meta.json").read_text())
    assert meta["source"] == {"layout": "image folder", "folder": str(photos), "size": None}


def test_changed_files_are_decoded_again_and_the_old_entry_is_deleted(photos: Path, own_cache: Path) -> None:
    before = load(folder_set(photos))
    old = entries(own_cache)
    write_folder(photos, {"train/a/0.png": pixels(1, (3, 4, 4), seed=9)[0]})
    os.utime(photos / "train/a/0.png", ns=(1, 1))
    after = load(folder_set(photos))
    assert after.fingerprint != before.fingerprint
    assert len(entries(own_cache)) == 1
    assert entries(own_cache) != old
    assert before.train.images.sum() != after.train.images.sum()  # the old arrays stay usable for who has them open


def test_the_same_files_in_another_folder_have_an_entry_of_their_own(
    photos: Path, own_cache: Path, tmp_path: Path
) -> None:
    shutil.copytree(photos, tmp_path / "copy")
    assert load(folder_set(photos)).fingerprint == load(folder_set(tmp_path / "copy")).fingerprint
    load(folder_set(photos, size=2))
    assert len(entries(own_cache)) == 3


@pytest.mark.slow
@pytest.mark.parametrize("locks", ["locked", "unlocked"])
def test_processes_build_concurrently(photos: Path, own_cache: Path, locks: str) -> None:
    builders = [start(photos, locks, "0.2") for _ in range(3)]
    outputs = [builder.communicate(timeout=120)[0].split() for builder in builders]
    assert [builder.returncode for builder in builders] == [0] * 3
    assert {lines[-1] for lines in outputs} == {load(folder_set(photos)).fingerprint}
    if locks == "locked":
        assert sum(lines.count("half") for lines in outputs) == 2  # one built, the others waited for it
    assert len(entries(own_cache)) == 1


def test_the_leftovers_of_a_killed_builder_are_never_read(photos: Path, own_cache: Path) -> None:
    builder = start(photos, "locked", "60")
    assert builder.stdout is not None
    assert builder.stdout.readline() == "half\n"
    waiting = start(photos, "locked", "0")
    builder.send_signal(signal.SIGKILL)
    builder.wait()
    assert waiting.communicate(timeout=120)[0].split()[-1] == load(folder_set(photos)).fingerprint
    assert len(entries(own_cache)) == 1  # the next builder cleared the half-made one


def test_leftovers_of_another_machine_are_kept_until_they_are_old(photos: Path, own_cache: Path) -> None:
    key = recipe(folder_set(photos), locate(folder_set(photos))).entry
    fresh, old = (key.with_name(f"{key.name}.elsewhere.{name}.tmp") for name in ("1", "2"))
    fresh.mkdir(parents=True)
    old.mkdir()
    os.utime(old, (time.time() - 10**6,) * 2)
    load(folder_set(photos))
    assert fresh.exists()
    assert not old.exists()


@pytest.mark.parametrize("name", ["train-images.npy", "meta.json"])
def test_a_damaged_entry_is_decoded_again(photos: Path, own_cache: Path, name: str) -> None:
    whole = load(folder_set(photos))
    path = own_cache / "decoded/folder" / entries(own_cache)[0] / name
    path.write_bytes(path.read_bytes()[:-30])
    again = load(folder_set(photos))
    assert again.fingerprint == whole.fingerprint == fingerprint(again.train, again.test)


def test_an_unwritable_cache_is_reported(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLBENCH_CACHE", str(photos / "train/a/0.png"))  # a file, not a folder
    with pytest.raises(UserError, match=r"the cache of decoded data at .* cannot be used .*set \$FLBENCH_CACHE"):
        load(folder_set(photos))


def test_a_full_disk_is_an_error_and_leaves_nothing(
    photos: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(UserError, match="No space left on device"):
        load(folder_set(photos))
    assert entries(own_cache) == []


def test_failed_decoding_leaves_nothing(photos: Path, own_cache: Path) -> None:
    (photos / "test/b/4.png").write_bytes(b"junk")
    with pytest.raises(UserError, match=r"cannot read .*test/b/4.png"):
        load(folder_set(photos))
    assert not (own_cache / "decoded").exists() or entries(own_cache) == []


def test_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FLBENCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_root() == tmp_path / "flbench"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "platform", "linux")
    assert cache.cache_root() == tmp_path / "home/.cache/flbench"


def test_the_fingerprint_depends_on_every_array() -> None:
    images, labels = np.zeros((4, 1, 2, 2), np.uint8), np.zeros(4, np.int64)
    base = Arrays(images, labels)
    variants = [
        (base, base),
        (Arrays(images + np.uint8(1), labels), base),
        (Arrays(images, labels + 1), base),
        (Arrays(images, labels, labels), base),
        (Arrays(images.reshape(4, 1, 1, 4), labels), base),
        (base, Arrays(images[:2], labels[:2])),
    ]
    assert len({fingerprint(*halves) for halves in variants}) == len(variants)


def test_progress_shows_only_slow_work_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with cache.progress("decoding it", 10) as advance:
        advance(10)
    assert capsys.readouterr() == ("", "")
    clock = iter([0.0, 3.0, 4.0])
    monkeypatch.setattr(cache, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with cache.progress("decoding it", 10) as advance:
        advance(5)
    captured = capsys.readouterr()
    assert "decoding it" in captured.err
    assert captured.out == ""
