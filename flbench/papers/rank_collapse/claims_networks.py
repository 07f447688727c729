"""Lemma 1, theorem 2 and figure 2 of Daneshmand et al. 2020: the rank of random networks over depth and width."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from flbench.papers.evidence import claim, combined, mean_text, range_text
from flbench.papers.rank_collapse import PAPER
from flbench.papers.rank_collapse.networks import DEEP_ENOUGH, Growth, Net, growths, path_name
from flbench.report.cells import grouped
from flbench.report.claims import Claim

#: A median over draws below this counts as rank one: single draws come back from it now and then.
RANK_ONE = 1.05

#: The exponent of theorem 2.
ROOT = 0.5


def claims(nets: Sequence[Net]) -> list[Claim]:
    """Return all claims, also those without runs."""
    normalized = [one for one in growths(nets) if one.net.experiment.normalized != "none"]
    linear = [one for one in normalized if one.net.family[0] == "linear" and one.net.experiment.gamma]
    relu = [one for one in normalized if one.net.family[0] == "relu"]
    same_bound = "The same lower bound, r ≥ c √d, holds for ReLU networks (an open question of the paper)"
    return [
        _collapse(nets, "linear", "Without normalization a deep linear network ends in rank one", "lemma 1"),
        _collapse(nets, "relu", "Without normalization a deep ReLU network ends in rank one", "figure 2, right"),
        _no_collapse(nets),
        _root(linear, "Batch normalization keeps r ≥ c √d in deep linear residual networks", "theorem 2"),
        _soft_rank(nets),
        _root(relu, same_bound, "future work"),
    ]


def _collapse(nets: Sequence[Net], activation: str, text: str, source: str) -> Claim:
    bare = [net for net in nets if net.family[0] == activation and net.experiment.normalized == "none" and net.at_end]
    deep = [net for net in bare if net.is_deep_enough]
    parts = [
        f"{path_name(same[0].experiment.gamma)}: r = {mean_text(_ends(same))} at the end, at most "
        f"{max(_ends(same)):.2f} ({_size(same)})"
        for same in grouped(deep, lambda net: net.family[1])
    ]
    parts += [
        f"not deep enough to judge: {path_name(same[0].experiment.gamma)}, r = {mean_text(_ends(same))} "
        f"({_size(same)}: the first eigenvalue of a linear network leads by {max(net.folds for net in same):.1f} "
        f"factors of e there, {DEEP_ENOUGH:g} are needed)"
        for same in grouped([net for net in bare if not net.is_deep_enough], lambda net: net.family[1])
    ]
    outcomes = [statistics.median(net.at_end) < RANK_ONE for net in deep]
    verdict = combined(outcomes) if deep or not bare else "inconclusive"
    return Claim(text, f"{PAPER}, {source}", verdict, "; ".join(parts))


def _no_collapse(nets: Sequence[Net]) -> Claim:
    """Every late layer of every normalized draw has a higher rank than any draw without normalization at its end."""
    bare = {
        (net.family, net.experiment.width, net.layers): net.at_end
        for net in nets
        if net.experiment.normalized == "none" and net.records and net.is_deep_enough
    }
    outcomes, parts = [], []
    normalized = [net for net in nets if net.experiment.normalized != "none" and net.least is not None]
    for same in grouped(normalized, lambda net: (net.family[0], net.kind[-1])):
        ends = [(net, bare.get((net.family, net.experiment.width, net.layers))) for net in same]
        compared = [(net, max([RANK_ONE, *end])) for net, end in ends if end is not None]
        fallen = [net for net, end in compared if (net.least or 0) <= end or len(net.at_end) < len(net.records)]
        outcomes += [net not in fallen for net, _ in compared]
        if compared:
            exceptions = " and ".join(
                f"{path_name(net.experiment.gamma)}, d = {net.experiment.width}" for net in fallen
            )
            parts.append(
                f"{same[0].experiment.activation}, {same[0].experiment.normalized}: "
                f"r ≥ {min(net.least or 0 for net, _ in compared):.2f} in all layers "
                f"of the second half, without normalization ≤ {max(end for _, end in compared):.2f} at the end "
                f"({len(compared)} networks, {_size([net for net, _ in compared])})"
                + (f"; it collapses for {exceptions}" if exceptions else "")
            )
    text = "Batch normalization keeps the rank of linear and of ReLU networks from collapsing"
    return Claim(text, f"{PAPER}, figure 2", combined(outcomes), "; ".join(parts))


def _root(grown: Sequence[Growth], text: str, source: str) -> Claim:
    """Theorem 2, r >= c sqrt(d); kinds of networks with too few widths count only if there are no others."""
    fitted = [one for one in grown if one.exponent]
    return claim(text, f"{PAPER}, {source}", [(_reaches_root(one), one.text) for one in fitted or grown])


def _reaches_root(grown: Growth) -> bool | None:
    """Whether the exponent is shown to be 1/2 or more over all widths, or to be less there or over the last two."""
    whole = grown.exponent
    if any(one and one.high is not None and one.high < ROOT for one in (whole, grown.last_exponent)):
        return False
    return True if whole and whole.low is not None and whole.low >= ROOT else None


def _soft_rank(nets: Sequence[Net]) -> Claim:
    """Eq. 5, left: a theorem for every matrix, so it checks our measurement."""
    total, broken = 0, 0
    for record in (record for net in nets for one in net.records for record in one):
        for name, value in record.items():
            tau = name.removeprefix("soft_rank_")
            if tau != name and value is not None:
                total += 1
                broken += value < (1 - float(tau)) ** 2 * record["rank"] * (1 - 1e-9)
    text = "The soft rank of every layer is at least (1 - τ)² r, τ relative to the mean eigenvalue"
    evidence = f"{broken} of {total} pairs of a layer and a τ violate it"
    return claim(text, f"{PAPER}, eq. 5", [(broken == 0, evidence)] if total else [])


def _ends(nets: Sequence[Net]) -> list[float]:
    return [value for net in nets for value in net.at_end]


def _size(nets: Sequence[Net]) -> str:
    """``d = 8 to 128, 1000 layers, n=12``."""
    widths, layers = (
        range_text(sizes) for sizes in zip(*((net.experiment.width, net.layers) for net in nets), strict=True)
    )
    return f"d = {widths}, {layers} layers, n={len(_ends(nets))}"
