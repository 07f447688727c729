"""Two groups of runs compared: the fields in which they differ, and the paired differences of a metric.

Runs are paired where all other fields agree, the seed included, unless the groups have no seed in common. The unit of a
test is the pair: all seeds of one configuration against the same seeds of the other (``stats.paired``), corrected for
the number of configurations (``stats.corrected``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flbench.config import label
from flbench.errors import UserError
from flbench.metric_specs import value_of
from flbench.report.runs import Run, compared_fields
from flbench.report.stats import Contrast, corrected, interval_across, paired
from flbench.sums import sum_in_order

#: The values of all fields in which two groups can agree, as users write them.
Key = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class CellPair:
    """One configuration in both groups; ``contrast`` is the second minus the first over the seeds of both."""

    key: Mapping[str, str]  # the fields that vary between the configurations
    first: float
    second: float
    contrast: Contrast


@dataclass(frozen=True)
class Differences:
    """The comparison of two groups of runs.

    Attributes:
        fields: the fields that have no value in common, with the values of both groups.
        cells: the configurations that both groups have, those of the first in order.
        mean: mean over these of the mean difference; None without any.
        interval: of that mean, over seeds; None for fewer than three, and where configurations have different ones.
        pairs: number of pairs of runs.
        same: pairs of one run id, in two stores, with equal metrics.
        unpaired: runs of each group without a partner, or without a number.
    """

    fields: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]
    cells: tuple[CellPair, ...]
    mean: float | None
    interval: tuple[float, float] | None
    pairs: int
    same: int
    unpaired: tuple[int, int]


def differences(first: Sequence[Run], second: Sequence[Run], metric: str) -> Differences:
    """Return how the second group of runs differs from the first.

    Raises:
        UserError: a field that differs has several values within a group, so that runs have several partners.
    """
    import pandas as pd

    groups = [[(run, written(run)) for run in group] for group in (first, second)]
    frames = [pd.DataFrame([fields for _, fields in group]) for group in groups]
    values = [{str(name): tuple(texts.dropna().unique()) for name, texts in frame.items()} for frame in frames]
    names = dict.fromkeys(name for group in values for name in group)
    differing = [name for name in names if not {*values[0].get(name, ())} & {*values[1].get(name, ())}]
    fields = {name: (values[0].get(name, ("–",)), values[1].get(name, ("–",))) for name in differing}
    seeds, other = (_by_key(group, differing, metric, fields) for group in groups)
    runs = {key: [seeds[key], other[key]] for key in seeds if key in other}
    contrasts = corrected({key: gap for key, (a, b) in runs.items() if (gap := paired(_numbers(b), _numbers(a)))})
    varying = [name for name in names if name not in differing and len({dict(key).get(name) for key in contrasts}) > 1]
    cells, gaps, same = [], [], 0
    for key, contrast in contrasts.items():
        a, b = runs[key]
        common = sorted(_numbers(a).keys() & _numbers(b).keys())
        means = [sum_in_order(group[seed][1] for seed in common) / len(common) for group in (a, b)]
        cells.append(CellPair({name: text for name, text in key if name in varying}, means[0], means[1], contrast))
        gaps.append({seed: b[seed][1] - a[seed][1] for seed in common})
        same += sum(_is_same(a[seed][0], b[seed][0]) for seed in common)
    pairs = sum(map(len, gaps))
    return Differences(
        fields=fields,
        cells=tuple(cells),
        mean=sum_in_order(cell.contrast.difference.mean for cell in cells) / len(cells) if cells else None,
        interval=interval_across(gaps),
        pairs=pairs,
        same=same,
        unpaired=(len(first) - pairs, len(second) - pairs),
    )


def _is_same(first: Run, second: Run) -> bool:
    """Return whether two runs have one id and equal numbers, times aside."""
    records = [{**(run.record or {}), "seconds": None} for run in (first, second)]
    return first.run_id == second.run_id and records[0] == records[1]


def written(run: Run) -> dict[str, str]:
    """Return the fields that define a run, as users write them, and its round."""
    fields = {name: label(value) for name, value in compared_fields(run.experiment).items()}
    return {**fields, "rounds": str(run.rounds), "seed": str(run.experiment.seed)}


def _by_key(
    group: Sequence[tuple[Run, Mapping[str, str]]],
    differing: Sequence[str],
    metric: str,
    fields: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]],
) -> dict[Key, dict[int, tuple[Run, float]]]:
    """Return the runs that have a number, by the fields that both groups share, and by seed."""
    found: dict[Key, dict[int, tuple[Run, float]]] = {}
    for run, own in group:
        value = value_of(run.record, metric)
        if value is None:
            continue
        key = tuple((name, text) for name, text in own.items() if name not in differing and name != "seed")
        seeds = found.setdefault(key, {})
        seed = 0 if "seed" in differing else run.experiment.seed
        if seed in seeds:
            several = [name for name in differing if max(map(len, fields[name])) > 1]
            listed = "; ".join(f"{name}: {' | '.join(', '.join(side) for side in fields[name])}" for name in several)
            raise UserError(f"runs have several partners, because fields vary on one side alone: {listed}; use --only")
        seeds[seed] = run, value
    return found


def _numbers(seeds: Mapping[int, tuple[Run, float]]) -> dict[int, float]:
    return {seed: value for seed, (_, value) in seeds.items()}
