"""The sources of a report as BibTeX: of the components of its runs, and of the papers that it compares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flbench.config import Experiment
from flbench.references import keys_of, references
from flbench.registry import Component, stated
from flbench.report.board import Leaderboard
from flbench.report.write.latex import comment

#: The entry of flbench itself.
OWN = "flbench"


def bibliography(board: Leaderboard) -> str:
    """Return the entries by key, each below a comment on what it is the source of."""
    users: dict[str, list[str]] = {OWN: ["this report"]}
    without = []
    for user, source in _sources(board):
        keys = keys_of(source)
        for key in keys:
            users.setdefault(key, []).append(user)
        if source and not keys:
            without.append(f"{user} ({source})")
    texts = [f"{comment(', '.join(users[key]))}{references()[key].bibtex}" for key in sorted(users)]
    return "\n".join([*([comment(f"Without an entry: {'; '.join(without)}")] if without else []), *texts])


def _sources(board: Leaderboard) -> Iterator[tuple[str, str]]:
    """Yield the names of components, papers and chapters, each with its source."""
    for field, cls in _components(run.experiment for run in board.collection.runs):
        yield f"{field} {cls.name}", stated(cls, "source")
    for supplement in board.supplements:
        yield "published numbers and claims", supplement.source
    for chapter in board.chapters:
        yield f"claims of “{chapter.title}”", chapter.source


def _components(experiments: Iterable[Experiment]) -> list[tuple[str, type[Component]]]:
    """Return the classes of components by their fields, each once, in the order of names."""
    found = {
        (field, type(one))
        for experiment in experiments
        for field in type(experiment).model_fields
        for value in [getattr(experiment, field)]
        for one in (value if isinstance(value, tuple) else (value,))
        if isinstance(one, Component)
    }
    return sorted(found, key=lambda one: (one[0], one[1].name))
