"""Theorem 1 and figures 2 and 3 of the label-skew paper: one class a client, its norms, features and accuracy.

Local training on one class is the method ``local-only`` with the partition ``classes:1``: client 0's model stands for
the global one, and the features are those of samples of all classes. Figure 3, right, and figure 2 are FedAvg.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from flbench.papers.evidence import combined, points_text, range_text
from flbench.papers.label_skew.probe_cells import Probed, Value, by_seed, number, probes_of
from flbench.report.cells import grouped
from flbench.report.claims import Claim
from flbench.report.runs import Run
from flbench.report.stats import Difference, corrected, paired

PAPER = "Zhang et al. 2024"

#: Features are collapsed if the first singular value has a larger share than this.
COLLAPSED = 0.99

#: Norms that grow by less than this factor are bounded.
BOUNDED = 1.05

#: How a claim's settings are tested.
TESTS = "t-tests over seeds, Holm's correction"


def claims(cells: Sequence[Probed]) -> Iterator[Claim]:
    """Yield the claims about one-class training that the runs are about."""
    one_class = [one for one in cells if one.partition == "classes:1"]
    alone = [one for one in one_class if one.method_label == "local-only" and one.growth is not None]
    if any(one.norm_label == "none" for one in alone):
        yield _norms_grow(*_by_norm(alone))
        yield _features_collapse(*_by_norm([one for one in alone if one.share is not None]))
    averaged = [one for one in one_class if one.method_label == "fedavg"]
    plain, normalized = _by_norm(averaged)
    if any(one.share is not None for one in plain) and any(one.share is not None for one in normalized):
        yield _fn_reduces(
            "FedAvg on one class a client: with FN the global model's features are spread over more directions",
            "figure 3, right",
            averaged,
            _share,
            f"share of the first singular value, none {_shares(plain)}, fn {_shares(normalized)}",
        )
    forgotten = [[value for one in some for value in by_seed(one, _forgotten).values()] for some in (plain, normalized)]
    if forgotten[0]:
        lost = (f"{100 * statistics.fmean(values):.1f} points" if values else "not run" for values in forgotten)
        yield _fn_reduces(
            "A few local steps on one class make the global model forget the others; with FN it forgets less",
            "figure 2",
            averaged,
            _forgotten,
            "mean class accuracy lost: none {}, fn {}".format(*lost),
        )


def _by_norm(cells: Sequence[Probed]) -> tuple[list[Probed], list[Probed]]:
    """The cells without normalization, and those with FN."""
    plain, normalized = ([one for one in cells if one.norm_label == norm] for norm in ("none", "fn"))
    return plain, normalized


def _norms_grow(plain: Sequence[Probed], bounded: Sequence[Probed]) -> Claim:
    text = "Local training on one class without normalization makes the norms of features grow; FN bounds them"
    logs = [{seed: math.log(value) for seed, value in one.growth_by_seed.items()} for one in plain]
    grown = _shown([_over(values, 0.0) for values in logs])
    # FN sets the norm itself, so a single seed outside refutes the claim.
    kept = [all(1 / BOUNDED < value < BOUNDED for value in one.growth_by_seed.values()) for one in bounded]
    heads = [one.head_growth for one in plain if one.head_growth is not None]
    evidence = (
        f"none: factor {range_text([one.growth or 0 for one in plain])}, shown to be above 1 in {_counts(grown)} "
        f"(its logarithm; {TESTS})"
    )
    evidence += f"; fn: {range_text([one.growth or 0 for one in bounded])}" if bounded else "; fn was not run"
    evidence += f"; longest class embedding of none: factor {range_text(heads)}" if heads else ""
    verdict = combined([*map(_OUTCOMES.get, grown), *kept])
    return Claim(text, f"{PAPER}, theorem 1 and figure 3, left", verdict, evidence + ".")


def _features_collapse(plain: Sequence[Probed], normalized: Sequence[Probed]) -> Claim:
    text = "Local training on one class makes features collapse onto one direction without normalization, not with FN"
    signs = _shown([_over(by_seed(one, _share), COLLAPSED) for one in [*plain, *normalized]])
    collapsed, kept = signs[: len(plain)], signs[len(plain) :]
    above = f"shown to be above {100 * COLLAPSED:g} % in"
    evidence = (
        f"share of the first singular value, none: {_shares(plain)}, {above} {_counts(collapsed)}, "
        f"effective rank {range_text([one.rank for one in plain if one.rank is not None])}"
    )
    if normalized:
        evidence += f"; fn: {_shares(normalized)}, {above} {_counts(kept)}"
    verdict = combined([*map(_OUTCOMES.get, collapsed), *(_OUTCOMES[-sign] for sign in kept)])
    return Claim(text, f"{PAPER}, figure 3, middle right", verdict, f"{evidence} ({TESTS}).")


def _fn_reduces(text: str, source: str, cells: Sequence[Probed], value: Value, numbers: str) -> Claim:
    """A claim that a value is smaller with FN than without, paired by seed among cells that differ by nothing else."""
    gaps = []
    for members in grouped(cells, lambda one: (repr(one.column), one.lr)):
        for plain, normalized in product(*_by_norm(members)):
            gap = paired(by_seed(normalized, value), by_seed(plain, value))
            gaps += [gap] if gap is not None else []
    signs = _shown(gaps)
    if not gaps:
        comparison = "fn was not run."
    elif len(gaps) == 1:
        comparison = f"fn less none: {points_text(gaps[0], 2)} points (paired by seed, n = {gaps[0].n})."
    else:
        comparison = (
            f"fn less none: {range_text([100 * gap.mean for gap in gaps])} points, shown to be below 0 in "
            f"{signs.count(-1)} of {len(gaps)} settings, above in {signs.count(1)} ({TESTS})."
        )
    verdict = combined(_OUTCOMES[-sign] for sign in signs) if gaps else "inconclusive"
    return Claim(text, f"{PAPER}, {source}", verdict, f"{numbers}; {comparison}")


#: What the sign of a number that should be positive says of a claim.
_OUTCOMES: Mapping[int, bool | None] = {1: True, -1: False, 0: None}


def _shown(gaps: Sequence[Difference | None]) -> list[int]:
    """Return 1 where a difference is shown to be above 0, -1 where below, else 0, corrected for their number."""
    found = corrected({at: gap for at, gap in enumerate(gaps) if gap is not None})
    signs = {"more": 1, "less": -1}
    return [signs.get(found[at].verdict, 0) if at in found else 0 for at in range(len(gaps))]


def _over(values: Mapping[int, float], bound: float) -> Difference | None:
    """Return the values of seeds minus a bound."""
    return paired(values, dict.fromkeys(values, bound))


def _share(run: Run) -> float | None:
    """Share of the first singular value's square."""
    return number(probes_of(run.record), "features", "first_share")


def _forgotten(run: Run) -> float | None:
    """Mean class accuracy of the global model less that after local steps."""
    before, after = (number(probes_of(run.record), "overfit", name) for name in ("mean_before", "mean_after"))
    return before - after if before is not None and after is not None else None


def _shares(cells: Sequence[Probed]) -> str:
    """``99.8 % (before training 76.9 %)``."""
    final = range_text([100 * one.share for one in cells if one.share is not None])
    born = range_text([100 * one.born_share for one in cells if one.born_share is not None])
    return f"{final} % (before training {born} %)"


def _counts(signs: Sequence[int]) -> str:
    """``13 of 14 settings, below in 0``."""
    return f"{signs.count(1)} of {len(signs)} setting{'' if len(signs) == 1 else 's'}, below in {signs.count(-1)}"
