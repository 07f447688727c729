"""The partition ``given``: a file, or the data set itself, names the rows of each client."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from flbench.config.base import digest
from flbench.data.arrays import Arrays, Data, Ints
from flbench.data.partition.base import Partition, Rows
from flbench.errors import DataMissing, UserError
from flbench.registry import PARTITIONS
from flbench.regular import read_text


@PARTITIONS.register("given")
@dataclass(frozen=True)
class Given(Partition):
    """The rows of each client are given, in a JSON file or by the data set itself.

    The file is ``{"train": [[0, 7, ...], ...], "test": [[...], ...]}``: a list a client of row numbers in the training
    set, from 0; rows that are in no list are not used. Without ``test``, the test set is divided in the same
    proportions per class as with other partitions. ``path`` is absolute or relative to the working directory; the file
    must be there wherever the sweep file is read, unless that names ``content``. A run is identified by ``content``, a
    hash of the lists: the file may move, and other lists are another run. Shorthand: ``given:path``.

    Without ``path``, the clients are the data set's own: its domains (PACS), the arrays ``train_client`` and
    ``test_client`` of an archive, or the folders of ``folder`` with ``clients: true``.
    """

    source: ClassVar[str] = ""

    shorthand = "path"

    path: Annotated[str, Field(min_length=1)] | None = None
    content: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Name the content, so that it enters the run id."""
        if self.path is None and self.content is not None:
            raise ValueError("content is that of a file: expected path beside it")
        if self.path is not None and self.content is None:
            try:
                object.__setattr__(self, "content", _lists_at(self.path)[1])
            except UserError as error:
                raise ValueError(str(error)) from error

    def identity(self) -> dict[str, Any]:
        return {name: value for name, value in super().identity().items() if name != "path"}

    def misfit(self, classes: int, clients: int, domains: int) -> str | None:
        """Return why, if the file is here, or the data set itself, and has another number of clients."""
        if self.path is None:
            if not domains:
                return "the data set does not name its clients; name a file: given:PATH.json"
            return None if domains == clients else f"the data set has {domains} clients; use clients: {domains}"
        try:
            lists, content = _lists_at(self.path)
        except UserError:
            return None
        if content != self.content or len(lists["train"]) == clients:
            return None
        return f"the file has {len(lists['train'])} clients; use clients: {len(lists['train'])}"

    def rows(self, data: Data, clients: int) -> Rows:
        if self.path is None:
            return Rows(_of_domains(data.train, clients), _of_domains(data.test, clients))
        lists, content = _lists_at(self.path)
        if content != self.content:
            raise UserError(
                f"{self.path} holds other rows than the experiment names: expected the content {self.content}, found "
                f"{content}. Restore the file, or plan the experiment again"
            )
        if len(lists["train"]) != clients:
            raise UserError(f"{self.path} has {len(lists['train'])} clients, the experiment {clients}")
        for name, half in (("train", data.train), ("test", data.test)):
            if (last := max((max(rows, default=-1) for rows in lists.get(name, ())), default=-1)) >= len(half.labels):
                raise UserError(f"{self.path}: {name} has row {last}, the set ends at {len(half.labels) - 1}")
        return Rows(_arrays(lists["train"]), _arrays(lists["test"]) if "test" in lists else None)

    def remedy(self) -> str:
        return f"give every client rows in {self.path or 'the data set'}"


def _of_domains(half: Arrays, clients: int) -> tuple[Ints, ...]:
    assert half.domains is not None
    return tuple(np.flatnonzero(half.domains == client) for client in range(clients))


def _arrays(lists: list[list[int]]) -> tuple[Ints, ...]:
    return tuple(np.array(rows, dtype=np.int64) for rows in lists)


def _lists_at(path: str) -> tuple[dict[str, list[list[int]]], str]:
    """Return the sorted lists in a file and their hash; raises UserError if there are none."""
    place = Path(path).expanduser()
    try:
        stat = place.stat()
        return _read(str(place.absolute()), stat.st_size, stat.st_mtime_ns)
    except FileNotFoundError as error:
        raise DataMissing(f"cannot read the partition {place}: {error.strerror}") from error
    except (OSError, ValueError, RecursionError) as error:
        detail = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise UserError(f"cannot read the partition {place}: {detail}") from error


@lru_cache(maxsize=8)
def _read(path: str, size: int, changed: int) -> tuple[dict[str, list[list[int]]], str]:
    """Read a file once for each size and time of change."""
    value = json.loads(read_text(path))
    if not isinstance(value, dict) or "train" not in value or value.keys() - {"train", "test"}:
        raise ValueError('expected {"train": [[row, ...], ...], "test": [[row, ...], ...]}, test optional')
    lists = {name: _checked(name, value[name]) for name in value}
    if len({len(clients) for clients in lists.values()}) > 1:
        raise ValueError(f"train has {len(lists['train'])} clients and test {len(lists['test'])}")
    return lists, digest(lists)


def _checked(name: str, clients: Any) -> list[list[int]]:
    """Return each client's rows, sorted; raises ValueError."""
    if not isinstance(clients, list) or not clients or not all(isinstance(rows, list) for rows in clients):
        raise ValueError(f"{name} must be a list with a list of rows for each client")
    seen: set[int] = set()
    for number, rows in enumerate(clients):
        if name == "train" and not rows:
            raise ValueError(f"train, client {number}: it has no row; expected at least one")
        for row in rows:
            if type(row) is not int or not 0 <= row < 2**63:
                raise ValueError(f"{name}, client {number}: expected a row number from 0, got {row!r:.40}")
            if row in seen:
                raise ValueError(f"{name}, client {number}: row {row} is there twice")
            seen.add(row)
    return [sorted(rows) for rows in clients]
