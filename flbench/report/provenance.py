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
from flbench.store import Result
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
        facts = [_facts(run, run.result) for run in runs if run.result is not None]
        return cls(
            requested=len(runs),
            finished=len(facts),
            seeds=tuple(sorted({run.experiment.seed for run in runs})),
            rounds=tuple(sorted({run.rounds for run in runs})),
            facts={
                name: dict(sorted(Counter(line(texts[name]) for texts in facts if texts[name]).items()))
                for name in FACTS
            },
        )


def _facts(run: Run, result: Result) -> dict[str, str]:
    """Return what a run was computed with, by ``FACTS``; empty texts are not shown."""
    dataset, environment = getattr(run.experiment, "dataset", None), result.environment
    commit = environment.get("git_commit")
    code = f"commit {str(commit)[:12]}" if commit else "installed package, no git commit"
    packages: dict[str, Any] = {
        name: environment[name] for name in ("flbench", "python", "torch") if name in environment
    }
    return {
        "Data": f"{dataset.name} {run.fingerprint}" if dataset is not None else "Gaussian inputs",
        "Numerics": describe(result.numerics),
        "Code": f"{code} with uncommitted changes" if commit and environment.get("git_dirty") else code,
        "Plug-ins": str(environment.get("plugins", "")),
        "Packages": describe(packages),
        "Hardware": ", ".join(str(environment[name]) for name in ("cpu", "gpu") if environment.get(name)),
        CONTRIBUTORS: str(environment.get(CONTRIBUTED_BY, "")),
    }


def describe(part: Mapping[str, Any]) -> str:
    """Return settings as text: ``device cpu, executor loop, torch 2.11.0``."""
    return line(", ".join(f"{name} {value}" for name, value in sorted(part.items()) if value is not None))
