"""Replay successive halving on stored runs that were trained to the end: rounds saved, and settings found.

    options="--set val_fraction=0.1 --set probes={}"
    flbench sweep sweeps/digits.yaml $options --store STORE
    python -m benchmarks.halving sweeps/digits.yaml $options --store STORE [--rungs 10,30,100] [--keep 1/3]

The runs need held-out data (val_fraction) and three or more seeds, and the sweep has no search. A race is one row and
column; the full choice is the setting with the best mean validation accuracy after the last round. Races alternate
between two halves: choose rungs and keep by the first, and judge them by the second. ``same``: the search ends with the
full choice; ``no worse``: its test accuracy is not below that of the full choice by more than the half-width of the
95 % interval of their difference, paired by seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from pathlib import Path

from benchmarks.common import parser_of
from flbench.config import Experiment
from flbench.halving import Ended, Halving, Race
from flbench.report.runs import collect
from flbench.report.stats import summarize
from flbench.run_sources import StoreSource
from flbench.store import Store
from flbench.sweeps import load_sweep

#: Records of a run by round; empty after a run that diverged.
Curve = dict[int, dict[str, float]]


@dataclass(frozen=True)
class Replay:
    """What a search does in one race: its rounds as a share of all, and its choice compared with the full one."""

    share: float
    same: bool
    no_worse: bool
    loss: float  # points of test accuracy below the full choice
    what: str


def mean(curves: list[Curve], round: int, name: str) -> float:
    """Return the mean of the seeds; -1 where a seed has no value."""
    values = [curve[round][name] for curve in curves if round in curve]
    return sum(values) / len(values) if len(values) == len(curves) else -1.0


def replay(race: Race[Experiment], curves: dict[str, Curve], search: Halving) -> Replay:
    """Return what a search does in a race whose runs are all trained to the end."""

    def ended(run: Experiment, rung: int) -> Ended:
        return Ended(search.value(curves[run.run_id].get(rung)))

    last = race.rungs[-1]
    found = search.standings(race, ended)
    seeds = [[curves[run.run_id] for run in candidate] for candidate in race.candidates]
    scores = [round(mean(one, last, "val_acc"), 9) for one in seeds]
    kept = [place for place, standing in enumerate(found) if standing.rung == last and not standing.dropped]
    best, chosen = scores.index(max(scores)), max(kept, key=lambda place: scores[place])
    pairs = [pair for pair in zip(seeds[chosen], seeds[best], strict=True) if all(last in one for one in pair)]
    summary = summarize([one[last]["acc"] - other[last]["acc"] for one, other in pairs])
    assert summary is not None and summary.half_width is not None
    trained = sum(standing.rung * len(candidate) for standing, candidate in zip(found, race.candidates, strict=True))
    first = race.candidates[0][0]
    return Replay(
        trained / (last * sum(map(len, race.candidates))),
        scores[chosen] == scores[best],
        summary.mean >= -summary.half_width,
        -100 * summary.mean,
        f"{first.method.label()} {first.norm.label()} {first.partition.label()} E={first.local_steps}: "  # type: ignore[attr-defined]
        f"lr {race.candidates[chosen][0].lr:g} for {race.candidates[best][0].lr:g}",  # type: ignore[attr-defined]
    )


def line(found: list[Replay]) -> str:
    """Return the shares over some races."""
    n, same = len(found), sum(one.same for one in found)
    good, share = sum(one.same or one.no_worse for one in found), sum(one.share for one in found) / len(found)
    loss = sum(one.loss for one in found) / n
    return f"rounds {100 * share:4.1f} %, same {same}/{n}, same or no worse {good}/{n}, mean loss {loss:+.2f} points"


def main() -> None:
    parser = parser_of(__doc__ or "")
    parser.add_argument("sweep", type=Path)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--rungs", nargs="+", default=["10,20,100", "10,30,100", "10,40,100", "20,40,100"])
    parser.add_argument("--keep", nargs="+", default=["1/3", "2/5", "1/2"])
    given = parser.parse_args()
    sweep, source = load_sweep(given.sweep, given.set), StoreSource(Store(given.store, create=False))
    collection = collect(source, sweep.experiments)
    ended = {run.run_id: run for run in collection.runs if run.state in ("done", "diverged")}
    curves = {
        run_id: {} if run.state == "diverged" else {record["round"]: record for record in collection.records(run)}
        for run_id, run in ended.items()
    }
    runs = [(run.experiment, run.experiment.cell_id, run.experiment.to_json()) for run in collection.runs]
    for rungs, keep in product(given.rungs, given.keep):
        search = Halving(("lr",), (tuple(map(int, rungs.split(","))),), Fraction(keep), "val_acc")
        races = search.races(runs)
        whole = [race for race in races if all(run.run_id in curves for seeds in race.candidates for run in seeds)]
        found = [replay(race, curves, search) for race in whole]
        print(f"rungs {rungs}, keep {keep}: {len(whole)} of {len(races)} races are complete")
        for name, half in (("first half ", found[::2]), ("second half", found[1::2]), ("all        ", found)):
            print(f"  {name} {line(half)}")
        for one in found:
            if not (one.same or one.no_worse):
                print(f"  worse: {one.what}, {one.loss:.2f} points")


if __name__ == "__main__":
    main()
