"""Theorem 1 and figures 2 and 3 of the label-skew paper: one class a client, its norms, features and accuracy.

Local training on one class is the method ``local-only`` with the partition ``classes:1``: client 0's model stands for
the global one, and the features are those of samples of all classes. Figure 3, right, and figure 2 are FedAvg.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from flbench.papers.evidence import Outcome, combined, points_text, range_text
from flbench.report.claims import Claim
from flbench.report.stats import Difference, corrected, paired

if TYPE_CHECKING:
    import pandas as pd

PAPER = "Zhang et al. 2024"

#: Features are collapsed if the first singular value has a larger share than this.
COLLAPSED = 0.99

#: Norms that grow by less than this factor are bounded.
BOUNDED = 1.05

#: How a claim's settings are tested.
TESTS = "t-tests over seeds, Holm's correction"


def claims(cells: pd.DataFrame) -> Iterator[Claim]:
    """Yield the claims about one-class training that the runs are about."""
    one_class = cells[cells.partition == "classes:1"]
    alone = one_class[(one_class.method == "local-only") & one_class.growth.notna()]
    averaged = one_class[one_class.method == "fedavg"]
    if (alone.norm == "none").any():
        yield _norms_grow(*_by_norm(alone))
        yield _features_collapse(*_by_norm(alone.dropna(subset="share")))
    plain, normalized = _by_norm(averaged)
    if plain.share.notna().any() and normalized.share.notna().any():
        yield _fn_reduces(
            "FedAvg on one class a client: with FN the global model's features are spread over more directions",
            "figure 3, right",
            averaged,
            "shares",
            f"share of the first singular value, none {_shares(plain)}, fn {_shares(normalized)}",
        )
    lost = [[value for seeds in some.lost for value in seeds.values()] for some in (plain, normalized)]
    if lost[0]:
        yield _fn_reduces(
            "A few local steps on one class make the global model forget the others; with FN it forgets less",
            "figure 2",
            averaged,
            "lost",
            "mean class accuracy lost: none {}, fn {}".format(
                *(f"{100 * statistics.fmean(values):.1f} points" if values else "not run" for values in lost)
            ),
        )


def _by_norm(cells: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The cells without normalization, and those with FN."""
    return cells[cells.norm == "none"], cells[cells.norm == "fn"]


def _norms_grow(plain: pd.DataFrame, bounded: pd.DataFrame) -> Claim:
    logs = [{seed: math.log(value) for seed, value in seeds.items()} for seeds in plain.growths]
    grown = shown([_over(values, 0.0) for values in logs])
    # FN sets the norm itself, so a single seed outside refutes the claim.
    kept = [all(1 / BOUNDED < value < BOUNDED for value in seeds.values()) for seeds in bounded.growths]
    heads = plain.head_growth.dropna()
    evidence = (
        f"none: factor {range_text(plain.growth.tolist())}, shown to be above 1 in {_counts(grown)} "
        f"(its logarithm; {TESTS})"
    )
    evidence += f"; fn: {range_text(bounded.growth.tolist())}" if len(bounded) else "; fn was not run"
    evidence += f"; longest class embedding of none: factor {range_text(heads.tolist())}" if len(heads) else ""
    return Claim(
        "Local training on one class without normalization makes the norms of features grow; FN bounds them",
        f"{PAPER}, theorem 1 and figure 3, left",
        combined([*map(outcome, grown), *kept]),
        evidence + ".",
    )


def _features_collapse(plain: pd.DataFrame, normalized: pd.DataFrame) -> Claim:
    signs = shown([_over(seeds, COLLAPSED) for seeds in (*plain.shares, *normalized.shares)])
    collapsed, kept = signs[: len(plain)], signs[len(plain) :]
    above = f"shown to be above {100 * COLLAPSED:g} % in"
    evidence = (
        f"share of the first singular value, none: {_shares(plain)}, {above} {_counts(collapsed)}, "
        f"effective rank {range_text(plain['rank'].dropna().tolist())}"
    )
    if len(normalized):
        evidence += f"; fn: {_shares(normalized)}, {above} {_counts(kept)}"
    return Claim(
        "Local training on one class makes features collapse onto one direction without normalization, not with FN",
        f"{PAPER}, figure 3, middle right",
        combined([*map(outcome, collapsed), *(outcome(-sign) for sign in kept)]),
        f"{evidence} ({TESTS}).",
    )


def _fn_reduces(text: str, source: str, cells: pd.DataFrame, name: str, numbers: str) -> Claim:
    """A claim that a value is smaller with FN than without, paired by seed among cells that differ by nothing else."""
    plain, normalized = (own[["column", "lr", name]] for own in _by_norm(cells))
    pairs = plain.merge(normalized, on=["column", "lr"], suffixes=("_plain", "_fn"))
    found = [paired(fn, none) for none, fn in zip(pairs[f"{name}_plain"], pairs[f"{name}_fn"], strict=True)]
    gaps = [gap for gap in found if gap is not None]
    signs = shown(gaps)
    if not gaps:
        comparison = "fn was not run."
    elif len(gaps) == 1:
        comparison = f"fn less none: {points_text(gaps[0], 2)} points (paired by seed, n = {gaps[0].n})."
    else:
        comparison = (
            f"fn less none: {range_text([100 * gap.mean for gap in gaps])} points, shown to be below 0 in "
            f"{signs.count(-1)} of {len(gaps)} settings, above in {signs.count(1)} ({TESTS})."
        )
    verdict = combined(outcome(-sign) for sign in signs) if gaps else "inconclusive"
    return Claim(text, f"{PAPER}, {source}", verdict, f"{numbers}; {comparison}")


def shown(gaps: Sequence[Difference | None]) -> list[int]:
    """Return 1 where a difference is shown to be above 0, -1 where below, else 0, corrected for their number."""
    found = corrected({at: gap for at, gap in enumerate(gaps) if gap is not None})
    signs = {"more": 1, "less": -1}
    return [signs.get(found[at].verdict, 0) if at in found else 0 for at in range(len(gaps))]


def outcome(sign: int) -> Outcome:
    """Return what the sign of a number says of a claim that it is positive."""
    return sign > 0 if sign else None


def _over(values: Mapping[int, float], bound: float) -> Difference | None:
    """Return the values of seeds minus a bound."""
    return paired(values, dict.fromkeys(values, bound))


def _shares(cells: pd.DataFrame) -> str:
    """``99.8 % (before training 76.9 %)``."""
    last, first = (range_text((100 * cells[name].dropna()).tolist()) for name in ("share", "first_share"))
    return f"{last} % (before training {first} %)"


def _counts(signs: Sequence[int]) -> str:
    """``13 of 14 settings, below in 0``."""
    return f"{signs.count(1)} of {len(signs)} setting{'' if len(signs) == 1 else 's'}, below in {signs.count(-1)}"
