"""Small synthetic stores, written through the store's own interface."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flbench.config import Experiment, content_of, parse_experiment
from flbench.papers import papers
from flbench.report.blocks import Block, Fold
from flbench.report.board import Leaderboard, Options, Picture
from flbench.report.claims import Chapter
from flbench.report.figures import kinds
from flbench.report.figures.drawing import Drawing
from flbench.report.leaderboard import build
from flbench.report.page.document import document
from flbench.report.paper import figure_kinds
from flbench.report.parts import Part
from flbench.report.runs import Collection, Run
from flbench.report.write.html import to_html
from flbench.report.write.markdown import to_markdown
from flbench.store import Attempt, Lease, Store
from flbench.sweeps.layout import Layout, Pair, conditions
from flbench.sweeps.report import read_contrast
from flbench.sweeps.source import Source

NUMERICS = {"device": "cpu", "executor": "loop", "precision": "fp32", "torch": "2.11.0"}
ENVIRONMENT = {
    "flbench": "0.0.1",
    "git_commit": "0123456789abcdef0123456789abcdef01234567",
    "git_dirty": False,
    "python": "3.11.9",
    "torch": "2.11.0",
    "numpy": "2.2.0",
    "host": "laptop-of-somebody",
    "cpu": "Test CPU",
    "gpu": None,
    "argv": ["/home/somebody/flbench", "sweep"],
}


def leaderboard_of(collection: Collection, **options: Any) -> Leaderboard:
    """The leaderboard of runs that are laid out alike; ``options`` are a sweep's, the document's or of papers.

    Conditions of ``baseline`` and ``headline`` may be texts, such as ``norm=ln``.
    """
    document = {name: value for name, value in options.items() if name in Options.__dataclass_fields__}
    compared = {name: value for name, value in options.items() if name in ("published", "tolerance", "why")}
    layout = {name: value for name, value in options.items() if name not in document | compared}
    if isinstance((layout.get("baseline") or (None,))[0], str):
        layout["baseline"] = conditions(layout["baseline"])
    if isinstance(((layout.get("headline") or (None,))[0] or (None,))[0], str):
        layout["headline"] = tuple(map(conditions, layout["headline"]))
    return build([Part(Layout(**layout), collection)], Options(**document), papers(**compared))


def pair(**contrast: Any) -> Pair:
    """A planned comparison as a sweep file has it: ``pair(norm="ln", against="none")``."""
    (found,) = read_contrast(Source("spec.yaml", "version: 1"), contrast, ("report", "contrasts", 0))
    return found


def run_of(acc: float | None, state: str = "done", *, more: Mapping[str, Any] | None = None, **fields: Any) -> Run:
    """A run without a store; one without an accuracy has no record."""
    request = experiment(**fields)
    return Run(request, request.rounds, state, record=None if acc is None else {"acc": acc, **(more or {})})


def board_of(runs: Iterable[Run], **options: Any) -> Leaderboard:
    """The leaderboard of such runs; ``options`` as in ``leaderboard_of``."""
    return leaderboard_of(Collection(tuple(runs)), **options)


def finished_runs(requests: Iterable[Experiment], acc: float = 0.5) -> Collection:
    """Finished runs without a store."""
    return Collection(tuple(Run(request, request.rounds, "done", record={"acc": acc}) for request in requests))


def markdown_of(board: Leaderboard) -> str:
    """The text of ``leaderboard.md``."""
    return to_markdown(document(board))


def unfolded_of(board: Leaderboard) -> str:
    """The text of a report with what only HTML shows."""

    def unfolded(blocks: Iterable[Block]) -> Iterator[Block]:
        for block in blocks:
            yield from unfolded(block.blocks) if isinstance(block, Fold) else (block,)

    return to_markdown(list(unfolded(document(board))))


def html_of(board: Leaderboard) -> str:
    """The page."""
    return to_html(document(board), board.options.title)


def draw(board: Leaderboard, kind: str, data_root: Path | None = None) -> list[Drawing]:
    """The figures of one kind, general or of a paper."""
    return list(kinds.draw(board, figure_kinds(papers())[kind], data_root))


def write_figures(board: Leaderboard, directory: Path) -> tuple[Picture, ...]:
    """Every figure, general or of a paper."""
    return kinds.write_figures(board, directory, figure_kinds(papers()).values())


def chapters(collection: Collection) -> tuple[Chapter, ...]:
    """The chapters about the studies among some runs."""
    return leaderboard_of(collection).chapters


def experiment(**fields: Any) -> Experiment:
    """A federated experiment on digits of 20 rounds, evaluated every 10."""
    return parse_experiment({"rounds": 20, "eval_every": 10, **fields})


def records(rounds: Sequence[int], acc: float, **more: Any) -> list[dict[str, Any]]:
    """Metrics whose accuracy grows to ``acc`` at the last round."""
    return [
        {
            "round": r,
            "acc": acc * r / rounds[-1],
            "acc_weighted": acc * r / rounds[-1],
            "acc_global": acc * r / rounds[-1],
            "acc_worst": 0.5 * acc,
            "clients_tested": 10,
            "clients": [acc, acc],
            "recall": [acc, None],
            "loss": 1.0 - acc,
            "seconds": 0.5 * r,
            **more,
        }
        for r in rounds
    ]


def claim(store: Store, request: Experiment, lease: Lease | None = None, **options: Any) -> Attempt:
    attempt = store.claim(request, lease or Lease.here(), **options)
    assert attempt is not None
    return attempt


def finish(
    store: Store,
    request: Experiment,
    acc: float = 0.9,
    *,
    status: str = "done",
    diverged_at: int = 7,
    lines: Sequence[Mapping[str, Any]] | None = None,
    fingerprint: str | None = None,
    numerics: Mapping[str, Any] | None = None,
    environment: Mapping[str, Any] | None = None,
    samples: tuple[int, int] | None = None,
    **more: Any,
) -> None:
    """Execute a request in no time: publish ``lines``, or records whose last accuracy is ``acc``."""
    attempt = claim(store, request)
    attempt.adopt(None)
    attempt.describe({**ENVIRONMENT, **(environment or {})})
    rounds = request.rounds
    if status == "diverged":
        rounds, lines = diverged_at, []
    for line in records(sorted(request.evaluated_rounds()), acc, **more) if lines is None else lines:
        attempt.record(line)
    attempt.publish(
        status=status,  # type: ignore[arg-type]
        rounds=rounds,
        seconds=1.0,
        fingerprint=fingerprint or content_of(request.to_json()) or "feedfacecafebeef",
        numerics=numerics or NUMERICS,
        samples=samples,
    )
    attempt.end("ok")


def fail(store: Store, request: Experiment, kind: str = "oom") -> None:
    attempt = claim(store, request)
    attempt.end(kind, "killed")


#: What is said of a run after ``forget_norm``.
FORGOTTEN = (
    "1 run with the unknown norm 'of-tomorrow'; if a plug-in has it, name its file with --plugin or in $FLBENCH_PLUGINS"
)


def forget_norm(store: Store, request: Experiment) -> None:
    """Leave a run as one of a plug-in's norm is without the plug-in."""
    path = store.run(request.run_id).path / "experiment.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "norm": {"name": "of-tomorrow"}}))


def small_sweep() -> list[Experiment]:
    """Two methods, two norms, two partitions, three seeds."""
    return [
        experiment(method=method, norm=norm, partition=partition, seed=seed)
        for method in ("fedavg", "scaffold")
        for norm in ("none", "ln")
        for partition in ("classes:1", "dirichlet:0.1")
        for seed in range(3)
    ]


def accuracy(request: Any) -> float:
    """A made-up accuracy that depends on everything in ``small_sweep``; exact in two decimals of a percent."""
    acc = 0.6 + 0.1 * (request.norm.name == "ln") + 0.01 * request.seed
    if request.kind == "federated":
        acc += 0.05 * (request.method.name == "scaffold") + 0.1 * (request.partition.name == "dirichlet")
    return round(acc, 4)


def filled(path: Path, requests: Sequence[Experiment] | None = None) -> Store:
    """A store in which all of ``requests`` are done."""
    store = Store(path)
    for request in small_sweep() if requests is None else requests:
        finish(store, request, accuracy(request))
    return store
