"""Where the numbers of a leaderboard come from: code, packages, hardware, data, numerics.

No dates, hosts or paths: the same runs give the same text on every machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flbench.report.literal import line
from flbench.report.runs import Run


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
        finished = [run for run in runs if run.result is not None]
        return cls(
            requested=len(runs),
            finished=len(finished),
            seeds=tuple(sorted({run.experiment.seed for run in runs})),
            rounds=tuple(sorted({run.rounds for run in runs})),
            facts={
                "Data": _count(_data(run) for run in finished),
                "Numerics": _count(describe(run.result.numerics) for run in finished if run.result),
                "Code": _count(code(run.result.environment) for run in finished if run.result),
                "Plug-ins": _count(str(run.result.environment.get("plugins", "")) for run in finished if run.result),
                "Packages": _count(packages(run.result.environment) for run in finished if run.result),
                "Hardware": _count(hardware(run.result.environment) for run in finished if run.result),
            },
        )


def _data(run: Run) -> str:
    dataset = getattr(run.experiment, "dataset", None)
    return f"{dataset.name} {run.fingerprint}" if dataset is not None else "Gaussian inputs"


def describe(part: Mapping[str, Any]) -> str:
    """Return settings as text: ``device cpu, executor loop, torch 2.11.0``."""
    return line(", ".join(f"{name} {value}" for name, value in sorted(part.items()) if value is not None))


def code(environment: Mapping[str, Any]) -> str:
    """Return the Git commit of the code, and whether it had uncommitted changes."""
    commit = environment.get("git_commit")
    if not commit:
        return "installed package, no git commit"
    return f"commit {str(commit)[:12]}" + (" with uncommitted changes" if environment.get("git_dirty") else "")


def packages(environment: Mapping[str, Any]) -> str:
    """Return the versions that the numbers depend on."""
    return describe({name: environment[name] for name in ("flbench", "python", "torch") if name in environment})


def hardware(environment: Mapping[str, Any]) -> str:
    """Return processor and accelerator."""
    return ", ".join(str(environment[name]) for name in ("cpu", "gpu") if environment.get(name))


def _count(texts: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(line(text) for text in texts if text).items()))
