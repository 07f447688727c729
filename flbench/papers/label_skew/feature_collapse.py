"""Theorem 1 and figures 2 and 3 of the label-skew paper: what one class a client does to norms, features and accuracy.

Local training on one class is the method ``local-only`` with the partition ``classes:1``: client 0's model stands for
the global one, and its features are looked at on samples of all classes. Figure 3, right, and figure 2 are FedAvg.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from flbench.papers.label_skew.probe_cells import Probed, probes_of
from flbench.report.cells import grouped
from flbench.report.claims import Claim, Holding
from flbench.report.runs import Run
from flbench.report.stats import Difference, paired, summarize

PAPER = "Zhang et al. 2024"

#: Features of which the first singular value has a larger share than this are called collapsed.
COLLAPSED = 0.99
_LIMIT = f"{100 * COLLAPSED:g} %"

#: Norms that grow by less than this factor are called bounded.
_BOUNDED = 1.05

Values = Mapping[int, float]  # by seed


def claims(cells: Sequence[Probed]) -> Iterator[Claim]:
    """The claims about one-class training that the runs say something about."""
    one_class = [one for one in cells if one.partition == "classes:1"]
    alone = [one for one in one_class if one.method_label == "local-only" and one.growth is not None]
    if any(one.norm_label == "none" for one in alone):
        yield _growth(alone)
        yield _share(alone)
    averaged = [one for one in one_class if one.method_label == "fedavg"]
    if {"none", "fn"} <= {one.norm_label for one in averaged if one.share is not None}:
        yield _mitigates(averaged)
    if forgetting := _lines(averaged, _forgotten):
        yield _overfits(forgetting)


def _growth(cells: Sequence[Probed]) -> Claim:
    text = "Local training on one class without normalization makes the norms of features grow; FN bounds them"
    plain = [one for one in cells if one.norm_label == "none"]
    bounded = [one for one in cells if one.norm_label == "fn"]
    grown = [_is_above_one(one) for one in plain]
    kept = [1 / _BOUNDED < (one.growth or 0) < _BOUNDED for one in bounded]
    heads = [one.head_growth for one in plain if one.head_growth is not None]
    evidence = (
        f"none: factor {_range([one.growth or 0 for one in plain])}, above 1 in {sum(grown)} of {_settings(plain)} "
        "(95 % t-interval of its logarithm over seeds)"
    )
    evidence += f"; fn: {_range([one.growth or 0 for one in bounded])}" if bounded else "; fn was not run"
    evidence += f"; longest class embedding of none: factor {_range(heads)}" if heads else ""
    return Claim(text, f"{PAPER}, theorem 1 and figure 3, left", _holding([*grown, *kept]), evidence + ".")


def _share(cells: Sequence[Probed]) -> Claim:
    text = "Local training on one class makes features collapse onto one direction without normalization, not with FN"
    plain, normalized = (
        [one for one in cells if one.norm_label == norm and one.share is not None] for norm in ("none", "fn")
    )
    collapsed, kept = ([(one.share or 0) > COLLAPSED for one in some] for some in (plain, normalized))
    ranks = _range([one.rank for one in plain if one.rank is not None])
    evidence = (
        f"share of the first singular value, none: {_shares(plain)}, above {_LIMIT} in {sum(collapsed)} of "
        f"{_settings(plain)}, effective rank {ranks}"
    )
    if normalized:
        evidence += f"; fn: {_shares(normalized)}, above {_LIMIT} in {sum(kept)} of {_settings(normalized)}"
    facts = [*collapsed, *(not one for one in kept)]
    return Claim(text, f"{PAPER}, figure 3, middle right", _holding(facts), evidence + ".")


def _mitigates(cells: Sequence[Probed]) -> Claim:
    text = "FedAvg on one class a client: with FN the global model's features are spread over more directions"
    gaps = _contrasts(_lines(cells, _final("features", "first_share")))
    shares = ", ".join(f"{norm} {_shares([one for one in cells if one.norm_label == norm])}" for norm in ("none", "fn"))
    evidence = f"share of the first singular value, {shares}; {_gap_text(gaps, 'fn less none: ')}"
    return Claim(text, f"{PAPER}, figure 3, right", _lower(gaps), evidence)


def _overfits(lines: Sequence[Mapping[str, Values]]) -> Claim:
    text = "A few local steps on one class make the global model forget the others; with FN it forgets less"
    gaps = _contrasts(lines)
    plain = [value for line in lines for value in line.get("none", {}).values()]
    normalized = [value for line in lines for value in line.get("fn", {}).values()]
    evidence = f"mean class accuracy lost: none {_points(plain)}, fn {_points(normalized)}; "
    return Claim(text, f"{PAPER}, figure 2", _lower(gaps), evidence + _gap_text(gaps, "fn less none: "))


def _lines(cells: Sequence[Probed], value: Callable[[Run], float | None]) -> list[dict[str, Values]]:
    """By norm the values of the seeds, for each group of cells that differ by nothing else."""
    lines: list[dict[str, Values]] = []
    for members in grouped(cells, lambda one: (repr(one.column), one.lr)):
        line: dict[str, Values] = {one.norm_label: found for one in members if (found := _by_seed(one, value))}
        if "none" in line:
            lines.append(line)
    return lines


def _by_seed(one: Probed, value: Callable[[Run], float | None]) -> dict[int, float]:
    found = {run.experiment.seed: value(run) for run in one.cell.runs if run.state == "done"}
    return {seed: number for seed, number in found.items() if number is not None}


def _final(probe: str, name: str) -> Callable[[Run], float | None]:
    def value(run: Run) -> float | None:
        number: Any = probes_of(run.record).get(probe, {}).get(name)
        return float(number) if isinstance(number, int | float) else None

    return value


def _forgotten(run: Run) -> float | None:
    """Mean class accuracy of the global model less that after local steps."""
    seen = probes_of(run.record).get("overfit", {})
    before, after = seen.get("mean_before"), seen.get("mean_after")
    return before - after if before is not None and after is not None else None


def _contrasts(lines: Sequence[Mapping[str, Values]]) -> list[Difference]:
    """FN less none over the seeds of each line that has both."""
    found = (paired(line["fn"], line["none"]) for line in lines if "fn" in line)
    return [gap for gap in found if gap is not None]


def _lower(gaps: Sequence[Difference]) -> Holding:
    """Whether differences are below zero: all of them, some, or none."""
    if not gaps or all(gap.half_width is None for gap in gaps):
        return "inconclusive"
    below = [gap.half_width is not None and gap.mean + gap.half_width < 0 for gap in gaps]
    if any(below):
        return _holding(below)
    above = any(gap.half_width is not None and gap.mean - gap.half_width > 0 for gap in gaps)
    return "does not hold" if above else "inconclusive"


def _gap_text(gaps: Sequence[Difference], what: str) -> str:
    if not gaps:
        return "fn was not run."
    if len(gaps) == 1:
        gap = gaps[0]
        half = f" ± {100 * gap.half_width:.2f}" if gap.half_width is not None else ""
        return f"{what}{100 * gap.mean:+.2f}{half} points (paired by seed, n = {gap.n})."
    below = sum(gap.half_width is not None and gap.mean + gap.half_width < 0 for gap in gaps)
    means = [100 * gap.mean for gap in gaps]
    return f"{what}{_range(means)} points in {len(gaps)} settings, below 0 in {below} (95 % t-interval over seeds)."


def _holding(facts: Sequence[bool]) -> Holding:
    return "holds" if all(facts) else "in part" if any(facts) else "does not hold"


def _is_above_one(one: Probed) -> bool:
    """Whether the interval of the growth over seeds lies above one; too few seeds for one count by their mean."""
    logs = [math.log(value) for value in one.growth_by_seed.values()]
    summary = summarize(logs)
    return summary is not None and summary.mean - (summary.half_width or 0) > 0


def _shares(cells: Sequence[Probed]) -> str:
    """``99.8 % (before training 76.9 %)``."""
    final = _range([100 * one.share for one in cells if one.share is not None])
    born = _range([100 * one.born_share for one in cells if one.born_share is not None])
    return f"{final} % (before training {born} %)"


def _settings(cells: Sequence[Probed]) -> str:
    """``1 setting``."""
    return f"{len(cells)} setting{'' if len(cells) == 1 else 's'}"


def _range(values: Sequence[float]) -> str:
    """``3.1`` or ``1.2 to 48``."""
    if not values:
        return "–"
    low, high = (f"{value:.3g}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _points(values: Sequence[float]) -> str:
    return f"{100 * math.fsum(values) / len(values):.1f} points" if values else "not run"
