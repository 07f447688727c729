"""Runs in memory instead of a store, so that tests can make hundreds of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from flbench.config import Experiment
from flbench.report.claims import Chapter, Claim
from flbench.report.figures.drawing import Drawing
from flbench.report.runs import Collection, collect
from flbench.run_sources import StoredRun
from flbench.store import Result
from tests.report.stores import ENVIRONMENT, NUMERICS, chapters, draw, leaderboard_of


class Memory:
    """A source of the runs that are added to it; ``reads``: how often the records of one were read."""

    def __init__(self) -> None:
        self._requests: dict[str, Experiment] = {}
        self._records: dict[str, list[dict[str, Any]]] = {}
        self._results: dict[str, Result] = {}
        self._chapter: Chapter | None = None
        self.reads = 0

    def add(self, request: Experiment) -> None:
        """Add a run that has started and is not finished."""
        self._requests[request.run_id] = request
        self._chapter = None

    def finish(
        self,
        request: Experiment,
        lines: Sequence[Mapping[str, Any]],
        *,
        status: Literal["done", "diverged"] = "done",
    ) -> None:
        """Add a run with these records; a diverged one diverged in the round after the last of them."""
        self.add(request)
        records = [dict(line) for line in lines]
        reached = request.rounds if status == "done" else records[-1]["round"] + 1
        self._records[request.run_id] = records
        self._results[request.run_id] = Result(
            file="",
            run_id=request.run_id,
            status=status,
            rounds=reached,
            wanted=request.rounds,
            evaluated=frozenset(record["round"] for record in records),
            probes=frozenset(),
            final=records[-1],
            metrics_sha256="",
            metrics_bytes=0,
            attempt=1,
            seconds=1.0,
            fingerprint="feedfacecafebeef",
            numerics=NUMERICS,
            environment=ENVIRONMENT,
            published="2026-01-01T00:00:00+00:00",
        )

    def collection(self) -> Collection:
        """Return all runs."""
        return collect(self)

    def chapter(self) -> Chapter:
        """Return the chapter about the studies among the runs, which are of one kind."""
        if self._chapter is None:
            (self._chapter,) = chapters(self.collection())
        return self._chapter

    def claim(self, words: str) -> Claim:
        """Return the claim of that chapter with some words in its text or source."""
        (found,) = (one for one in self.chapter().claims if words in f"{one.text} ({one.source})")
        return found

    def drawings(self, kind: str) -> list[Drawing]:
        """Return the figures of a kind."""
        return draw(leaderboard_of(self.collection()), kind)

    def stored_runs(self) -> Iterator[StoredRun]:
        for run_id, request in self._requests.items():
            yield StoredRun(run_id, request)

    def results(self, run_id: str) -> Sequence[Result]:
        return [self._results[run_id]] if run_id in self._results else []

    def metrics(self, run_id: str, result: Result) -> list[dict[str, Any]]:
        self.reads += 1
        return self._records[run_id]

    def state(self, experiment: Experiment) -> tuple[str, str | None]:
        return "pending", None
