"""The decoded cache: every data set is decoded once, into memory-mapped arrays.

An entry is a directory ``<cache>/decoded/<name>/<key>`` whose key is a hash of the files it was made from (names,
sizes, modification times), so that changed files find no entry and are decoded again. An entry appears by the renaming
of a finished directory: readers never see half of one, and a builder that dies leaves only a temporary directory. A
file lock lets others wait for the first builder, and lets the next one clear what a dead one left. Where locks do not
work (some network file systems) every process builds, and the first to rename wins.

Loading imports neither the decoders nor torch.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from flbench.config import digest
from flbench.data.arrays import Arrays, Data, fingerprint
from flbench.data.images import Oddity, summaries
from flbench.data.layouts.base import RawData, RawSplit
from flbench.errors import UserError

_META = "meta.json"
#: Age in seconds after which a temporary directory of another machine counts as abandoned.
_ABANDONED = 24 * 3600
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recipe:
    """Everything that defines a decoded entry, and how to make it."""

    name: str
    version: int  # of the layout
    source: dict[str, Any]  # layout, folder, size
    signature: list[list[Any]]
    white: int
    names: Callable[[RawData], tuple[str, ...]]
    read: Callable[[], RawData]

    @cached_property
    def entry(self) -> Path:
        """The directory that holds, or will hold, the decoded arrays."""
        key = digest([self.version, self.name, self.source, self.signature])
        return cache_root() / "decoded" / self.name / key


def user_cache() -> Path:
    """Return the user's cache folder for flbench, by the convention of the operating system."""
    from platformdirs import user_cache_path

    return user_cache_path("flbench")


def cache_root() -> Path:
    """Return ``$FLBENCH_CACHE``, else the user's cache folder."""
    given = os.environ.get("FLBENCH_CACHE")
    return Path(given).expanduser() if given else user_cache()


def load(recipe: Recipe) -> Data:
    """Return the decoded data from the cache, and decode them into it the first time."""
    try:
        return read_entry(recipe.entry) or _build_once(recipe)
    except OSError as error:
        raise UserError(
            f"the cache of decoded data at {cache_root()} cannot be used ({error.strerror or error}); "
            "free some space there, or set $FLBENCH_CACHE to another folder"
        ) from error


def decode(recipe: Recipe, folder: Path) -> Data:
    """Decode into an existing empty folder, without using the cache."""
    contents = recipe.read()
    names = recipe.names(contents)
    oddities: list[Oddity] = []
    with progress(f"decoding {recipe.name} (once)", len(contents.train.labels) + len(contents.test.labels)) as advance:
        for half, raw in (("train", contents.train), ("test", contents.test)):
            where = f"{recipe.name} ({recipe.source['folder']}), {half}"
            if not len(raw.labels):
                raise UserError(f"{where}: there are no images")
            wrong = raw.labels[(raw.labels < 0) | (raw.labels >= len(names))]
            if len(wrong):
                raise UserError(
                    f"{where}: label {wrong[0]} is not in 0..{len(names) - 1}, the set has {len(names)} classes"
                )
            oddities += _write_half(folder, half, raw, advance)
    train, test = (_arrays(folder, half) for half in ("train", "test"))
    meta = {
        "version": recipe.version,
        "source": recipe.source,
        "signature": recipe.signature,
        "class_names": names,
        "domain_names": contents.domain_names,
        "white": recipe.white if train.images.dtype == np.uint8 else 1,
        "notes": (*contents.notes, *summaries(oddities)),
        "fingerprint": fingerprint(train, test, len(names)),
        "vocabulary": contents.vocabulary,
        "group_names": contents.group_names,
    }
    (folder / _META).write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8")
    data = read_entry(folder)
    assert data is not None
    return data


def read_entry(entry: Path) -> Data | None:
    """Return the decoded data of an entry; None if there is none or it is damaged."""
    try:
        meta = json.loads((entry / _META).read_text(encoding="utf-8"))
        train, test = (_arrays(entry, half) for half in ("train", "test"))
    except FileNotFoundError:
        return None
    except ValueError:  # cut short by a failing disk or by hand
        _log.warning("the cache entry %s is damaged and will be made again", entry)
        return None
    # Entries of layouts whose reading has not changed since then have no notes, vocabulary and groups.
    names, domains, notes = (tuple(meta.get(key, ())) for key in ("class_names", "domain_names", "notes"))
    groups = {name: tuple(values) for name, values in meta.get("group_names", {}).items()}
    more = domains, notes, meta.get("vocabulary", 0), groups
    return Data(train, test, len(names), names, meta["white"], meta["fingerprint"], *more)


def _arrays(folder: Path, half: str) -> Arrays:
    def array(name: str) -> Any:
        return np.load(folder / f"{half}-{name}.npy", mmap_mode="r")

    optional = (array(name) if (folder / f"{half}-{name}.npy").exists() else None for name in ("domains", "groups"))
    return Arrays(array("images"), array("labels"), *optional)


def _build_once(recipe: Recipe) -> Data:
    from filelock import FileLock

    entry = recipe.entry
    entry.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:  # The system releases this lock when the process ends; a soft one would outlive a builder that is killed.
            stack.enter_context(FileLock(entry.with_suffix(".lock"), fallback_to_soft=False))
            alone = True
        except OSError:
            alone = False
        if data := read_entry(entry):
            return data
        if alone:
            _clear(entry)
        building = entry.with_name(f"{entry.name}.{socket.gethostname()}.{secrets.token_hex(8)}.tmp")
        building.mkdir()
        try:
            decode(recipe, building)
            _publish(building, entry)
        finally:
            shutil.rmtree(building, ignore_errors=True)
        _drop_stale(recipe)
    data = read_entry(entry)
    if data is None:
        raise OSError(errno.EIO, "an entry vanished while it was made")
    return data


def _publish(building: Path, entry: Path) -> None:
    for path in (*building.iterdir(), building):
        _sync(path)
    try:
        building.rename(entry)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise  # another builder was first otherwise: its entry holds the same
    _sync(entry.parent)


def _clear(entry: Path) -> None:
    """Delete the leftovers of builders that died, and a damaged entry; only for the holder of the lock.

    The lock may cover this machine only, so directories of other machines stay until they are old.
    """
    ours = f"{entry.name}.{socket.gethostname()}."
    for left in entry.parent.glob(f"{entry.name}.*.tmp"):
        if left.name.startswith(ours) or time.time() - left.stat().st_mtime > _ABANDONED:
            shutil.rmtree(left, ignore_errors=True)
    if entry.exists():
        shutil.rmtree(entry)


def _drop_stale(recipe: Recipe) -> None:
    """Delete entries made from the same place when it held other files. Open mapped files stay readable."""
    for other in recipe.entry.parent.iterdir():
        if other == recipe.entry or other.suffix:
            continue
        with contextlib.suppress(OSError, ValueError, KeyError):
            if json.loads((other / _META).read_text(encoding="utf-8"))["source"] == recipe.source:
                shutil.rmtree(other)


def _write_half(folder: Path, half: str, raw: RawSplit, advance: Callable[[int], None]) -> list[Oddity]:
    """Write a decoded half, and return what was odd about its images."""
    path = folder / f"{half}-images.npy"
    shape = (len(raw.labels), *raw.shape)
    images = np.lib.format.open_memmap(path, mode="w+", dtype=raw.dtype, shape=shape)
    if hasattr(os, "posix_fallocate"):  # a full disk is then an error here, not a fatal signal in the mapped array
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    written, oddities = 0, list[Oddity]()
    for block in raw.blocks:
        images[block.rows] = block.images
        oddities += block.oddities
        written += len(block.rows)
        advance(len(block.rows))
    if written != len(images):
        raise UserError(f"{half}: expected {len(images)} images, got {written}; the files are damaged")
    images.flush()
    np.save(folder / f"{half}-labels.npy", raw.labels.astype(np.int64))
    for name, array in (("domains", raw.domains), ("groups", raw.groups)):
        if array is not None:
            np.save(folder / f"{half}-{name}.npy", array.astype(np.int64))
    return oddities


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yield how to advance a bar of progress on stderr, shown in a terminal after two seconds."""
    with contextlib.ExitStack() as stack:
        started, done = time.monotonic(), 0
        bar: Any = None

        def advance(count: int) -> None:
            nonlocal done, bar
            done += count
            if bar is None and sys.stderr.isatty() and time.monotonic() - started > 2:
                from rich.console import Console
                from rich.progress import Progress

                bar = stack.enter_context(Progress(console=Console(stderr=True), transient=True))
                bar.add_task(title, total=total)
            if bar is not None:
                bar.update(bar.task_ids[0], completed=done)

        yield advance
