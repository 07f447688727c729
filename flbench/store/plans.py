"""Plans: the runs of a sweep, one line each, in the order in which workers claim them."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

from flbench.config import Experiment, parse_experiment, request_problem
from flbench.errors import StoreUnusable
from flbench.halving import Halving
from flbench.regular import read_regular
from flbench.store import files, strict_json
from flbench.store.names import is_run_id
from flbench.store.results import RunRequest

#: The start of every line of a plan, and the position of the id in it.
_LINE = re.compile(rb'^\{"run_id":"[0-9a-f]{16}",', re.MULTILINE)
_ID = slice(11, 27)
_ROUNDS = re.compile(rb'"rounds":([0-9]+)')
_SEED = re.compile(rb"(0|[1-9][0-9]{0,17})")

#: The file beside a plan that says how its runs are searched; a plan without it is executed whole.
SEARCH = "search.json"

#: The folder beside a plan with the runs that its search has added: a file for each cell. The results decide which runs
#: are added (``store/races.py``); these files only name them to commands that read plans.
ADDED = "added"


@dataclass(frozen=True)
class Entry:
    """One run of a plan; the experiment stays plain JSON until a worker executes it."""

    run_id: str
    cell_id: str
    experiment: dict[str, Any]

    @classmethod
    def of(cls, experiment: Experiment) -> Entry:
        """Return the entry of an experiment."""
        return cls(experiment.run_id, experiment.cell_id, experiment.to_json())

    def parse(self) -> Experiment:
        """Return the typed experiment."""
        return parse_experiment(self.experiment)

    def until(self, rounds: int) -> Entry:
        """Return the same run with another number of rounds."""
        return replace(self, experiment={**self.experiment, "rounds": rounds})

    def request(self) -> RunRequest:
        """Return how many rounds are requested, and what to record."""
        return RunRequest.of(self.experiment)


def plan_name(directory: Path) -> str:
    """Return the name of a plan, NAME/HASH, from its directory."""
    return "/".join(directory.parts[-2:])


def encode_plan(experiments: Iterable[Experiment]) -> bytes:
    """Return a plan file's content."""
    return strict_json.join_lines(vars(Entry.of(experiment)) for experiment in experiments)


class Plan(Sequence[Entry]):
    """The entries of a plan file, each parsed on access: 100,000 parsed ones would take half a gigabyte.

    Attributes:
        directory: the plan's directory in a store; None where it has none.

    Raises:
        StoreUnusable: the plan is damaged.
    """

    def __init__(self, path: Path, data: bytes, directory: Path | None = None) -> None:
        self._path, self._data, self.directory = path, data, directory
        self._starts = array("Q", (match.start() for match in _LINE.finditer(data)))
        if not data or len(self._starts) != data.count(b"\n") or data[-1:] != b"\n":
            refuse_newer(path, data)
            raise _unreadable(path, "it is damaged")

    @classmethod
    def of(cls, experiments: Iterable[Experiment], directory: Path | None = None) -> Plan:
        """Return the plan of some experiments, without reading it from its directory."""
        return cls(Path("plan.jsonl"), encode_plan(experiments), directory)

    def copy(self) -> Plan:
        """Return a plan that grows by itself."""
        return Plan(self._path, self._data, self.directory)

    def extend(self, experiments: Iterable[Experiment]) -> None:
        """Add runs at the end, in memory."""
        more = encode_plan(experiments)
        self._starts.extend(len(self._data) + match.start() for match in _LINE.finditer(more))
        self._data += more

    def run_id(self, index: int) -> str:
        """Return the id of one run, without parsing its line."""
        start = self._starts[index] + _ID.start
        return self._data[start : start + _ID.stop - _ID.start].decode()

    def rounds(self, index: int) -> int:
        """Return how many rounds are probably requested of one run: the first ``rounds`` in its line."""
        found = _ROUNDS.search(self._data, self._starts[index])
        return int(found[1]) if found else 0

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> Entry: ...

    @overload
    def __getitem__(self, index: slice) -> list[Entry]: ...

    def __getitem__(self, index: int | slice) -> Entry | list[Entry]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        (entry,) = parse_plan(self._path, self._line(index))
        return entry

    def __iter__(self) -> Iterator[Entry]:
        """Yield every entry; a line that differs from the last one by its id and seed alone is not parsed as JSON."""
        cell: _Cell | None = None
        for index in range(len(self)):
            line = self._line(index)
            entry = None if cell is None else cell.entry(line)
            if entry is None:
                (entry,) = parse_plan(self._path, line)
                cell = _Cell.of(entry, line)
            yield entry

    def _line(self, index: int) -> bytes:
        start = self._starts[index]
        return self._data[start : self._data.index(b"\n", start) + 1]


@dataclass(frozen=True)
class _Cell:
    """A parsed line of a plan, and its text between the id and the seed, and after the seed."""

    known: Entry
    middle: bytes
    end: bytes

    @classmethod
    def of(cls, entry: Entry, line: bytes) -> _Cell | None:
        """Return the cell of a line; None where its text leaves open which number is the seed, or which text the id."""
        head, _, rest = line.partition(b'"seed":')
        found = _SEED.match(rest)
        is_plain = line.count(b'"seed":') == line.count(b'"run_id":') == 1 and b"\\" not in line
        if not is_plain or found is None or entry.experiment.get("seed") != int(found[1]):
            return None
        return cls(entry, line[_ID.stop : len(head) + len(b'"seed":')], rest[found.end(1) :])

    def entry(self, line: bytes) -> Entry | None:
        """Return the entry of another line with the same text; None where the text is another."""
        start, stop = _ID.stop + len(self.middle), len(line) - len(self.end)
        if line[_ID.stop : start] != self.middle or line[stop:] != self.end:
            return None
        seed = _SEED.fullmatch(line, start, stop)
        if seed is None:
            return None
        experiment = {**self.known.experiment, "seed": int(seed[1])}
        return Entry(line[_ID].decode(), self.known.cell_id, experiment)


def plan_files(directory: Path) -> list[Path]:
    """Return the file of a plan, and those of the runs that its search has added so far."""
    return [directory / "plan.jsonl", *sorted((directory / ADDED).glob("*.jsonl"))]


def read_plan(path: Path, *, added: bool = False) -> Plan:
    """Return the plan in a file, or with ``added`` also the runs that its search has added so far.

    Raises:
        StoreUnusable: it cannot be read.
    """
    return Plan(path, _read_all(path) if added else read_content(path), path.parent)


def _read_all(path: Path) -> bytes:
    return b"".join(map(read_content, plan_files(path.parent)))


def record_added(directory: Path, entries: Iterable[Entry], root: Path) -> None:
    """Record the runs, whole cells, that the search of a plan has added.

    Args:
        directory: the plan's directory.
        entries: the runs.
        root: the store.

    Raises:
        OSError: a file cannot be written.
    """
    cells: dict[str, list[Entry]] = {}
    for entry in entries:
        cells.setdefault(entry.cell_id, []).append(entry)
    for cell_id, runs in cells.items():
        path, content = directory / ADDED / f"{cell_id}.jsonl", strict_json.join_lines(map(vars, runs))
        if files.read_bytes(path) != content:
            files.make_directory(path.parent, root)
            files.replace(path, content)


def read_search(directory: Path) -> Halving | None:
    """Return how the runs of a plan are searched; raises StoreUnusable where its file cannot be read."""
    path = directory / SEARCH
    data = files.read_bytes(path)
    if data is None:
        return None
    try:
        return Halving.from_json(strict_json.parse_object(data, path) or {})
    except (ValueError, TypeError, KeyError, AttributeError):
        raise _unreadable(path, "it is damaged") from None


def read_entries(path: Path, run_id: str) -> list[Entry]:
    """Return the entries of one run in a plan file; raises StoreUnusable where it cannot be read."""
    data = b"\n" + _read_all(path)
    begin = data.find(b'\n{"run_id":"%b",' % run_id.encode()) + 1  # faster than a regular expression
    return parse_plan(path, data[begin : data.find(b"\n", begin) + 1]) if begin else []


def plan_ids(path: Path) -> set[str]:
    """Return the ids in a plan file, and those added to it, without parsing its lines.

    Raises:
        StoreUnusable: it cannot be read.
    """
    plan = read_plan(path, added=True)
    return {plan.run_id(index) for index in range(len(plan))}


def read_content(path: Path) -> bytes:
    """Return the bytes of a plan file; raises StoreUnusable where it cannot be read."""
    try:
        return read_regular(path)
    except OSError as error:
        raise _unreadable(path, error.strerror) from None


def refuse_newer(path: Path, data: bytes) -> None:
    """Raise StoreUnusable where the first line of a plan has the schema of a newer flbench."""
    strict_json.parse_object(data.partition(b"\n")[0], path)


def parse_plan(path: Path, data: bytes) -> list[Entry]:
    """Return the entries in some whole lines of a plan file; raises StoreUnusable where they are damaged."""
    try:
        records = strict_json.parse_lines(data)
        if len(records) != data.count(b"\n") or data[-1:] not in (b"\n", b""):
            raise TypeError("it is damaged")
        entries = []
        for line in records:
            entry = Entry(**line)
            # Check what is used without parsing the experiment.
            for run_id in (entry.run_id, entry.cell_id):
                if not is_run_id(run_id):
                    raise TypeError(f"{run_id!r:.80} is not a run id")
            raw = entry.experiment
            if not isinstance(raw, dict) or not isinstance(raw.get("kind"), str):
                raise TypeError(f"the experiment of run {entry.run_id} is damaged")
            if problem := request_problem(raw):
                raise TypeError(f"run {entry.run_id}: {problem}")
            entries.append(entry)
    except TypeError as error:
        raise _unreadable(path, error) from None
    return entries


def _unreadable(path: Path, why: object) -> StoreUnusable:
    return StoreUnusable(f"{path}: the plan cannot be read ({why}); run `flbench sweep` on its spec again")
