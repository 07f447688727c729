"""Where the numbers of a leaderboard come from: code, packages, hardware, data, numerics.

No dates, hosts or paths: the same runs give the same text on every machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flbench.literal import line
from flbench.report.runs import Run
from flbench.store.results import CONTRIBUTED_BY

#: The fact that names who contributed a run.
CONTRIBUTORS = "Contributed by"

#: What is counted, in the order of the document.
FACTS = ("Data", "Numerics", "Code", "Plug-ins", "Packages", "Hardware", CONTRIBUTORS)


@dataclass(frozen=True)
class Provenance:
    """Counts of finished runs by what they were computed with, in alphabetic order."""

    requested: int
    finished: int
    seeds: tuple[int, ...]
    rounds: tuple[int, ...]
    facts: Mapping[str, Mapping[str, int]]

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Provenance:
        """Return the provenance of the finished ones among ``runs``."""
        alike: dict[Any, list[Run]] = {}  # equal facts of results are one object
        finished = [run for run in runs if run.result is not None]
        for run in finished:
            alike.setdefault(_identity(run), []).append(run)
        counts = {name: Counter[str]() for name in FACTS}
        for members in alike.values():
            texts = _facts(members[0])
            for name in FACTS:
                if texts[name]:
                    counts[name][line(texts[name])] += len(members)
        return cls(
            requested=len(runs),
            finished=len(finished),
            seeds=tuple(sorted({run.experiment.seed for run in runs})),
            rounds=tuple(sorted({run.rounds for run in runs})),
            facts={name: dict(sorted(found.items())) for name, found in counts.items()},
        )


def _identity(run: Run) -> tuple[Any, ...]:
    """Return what ``_facts`` depends on, objects by their identity."""
    assert run.result is not None
    dataset = getattr(run.experiment, "dataset", None)
    return id(dataset), run.fingerprint, id(run.result.numerics), id(run.result.environment)


def _facts(run: Run) -> dict[str, str]:
    """Return what a finished run was computed with, by ``FACTS``; empty texts are not shown."""
    assert run.result is not None
    dataset, environment, numerics = (
        getattr(run.experiment, "dataset", None),
        run.result.environment,
        run.result.numerics,
    )
    commit = environment.get("git_commit")
    code = f"commit {str(commit)[:12]}" if commit else "installed package, no git commit"
    packages: dict[str, Any] = {
        name: environment[name] for name in ("flbench", "python", "torch") if name in environment
    }
    return {
        "Data": f"{dataset.name} {run.fingerprint}" if dataset is not None else "Gaussian inputs",
        "Numerics": describe(numerics),
        "Code": f"{code} with uncommitted changes" if commit and environment.get("git_dirty") else code,
        "Plug-ins": str(environment.get("plugins", "")),
        "Packages": describe(packages),
        "Hardware": ", ".join(str(environment[name]) for name in ("cpu", "gpu") if environment.get(name)),
        CONTRIBUTORS: str(environment.get(CONTRIBUTED_BY, "")),
    }


def describe(part: Mapping[str, Any]) -> str:
    """Return settings as text: ``device cpu, executor loop, torch 2.11.0``."""
    return line(", ".join(f"{name} {value}" for name, value in sorted(part.items()) if value is not None))
