"""The chapter about studies of kind ``rank``: Daneshmand et al. 2020, lemma 1, theorem 2 and figure 2."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from flbench.papers.rank_collapse.depth import SETTLED, Net, nets_of, path_name, sizes
from flbench.papers.rank_collapse.width import Growth, growths
from flbench.report.blocks import Block, Entry, Grid, words
from flbench.report.cells import grouped
from flbench.report.claim_text import spread, verdict
from flbench.report.claims import Chapter, Claim
from flbench.report.runs import Collection, Run

PAPER = "Daneshmand et al. 2020"

#: A median over draws below this counts as rank one: single draws come back from it now and then.
ONE = 1.05


def chapter(runs: Sequence[Run], collection: Collection) -> Chapter:
    """What the runs say."""
    nets = nets_of(runs, collection)
    grown = growths(nets)
    claims = (
        _collapse(nets, "linear", "Without normalization a deep linear network ends in rank one", "lemma 1"),
        _collapse(nets, "relu", "Without normalization a deep ReLU network ends in rank one", "figure 2, right"),
        _avoids(nets),
        _order_of_root(grown),
        _bound(nets),
        _relu_order(grown),
    )
    introduction = (
        "Random networks on Gaussian inputs, layer by layer: r(H) = Tr(M)² / ‖M‖² with M = HHᵀ/N is 1 where all "
        "samples lie on one line and d where all directions are alike; H is what enters the activation. bn-rms divides "
        "every feature by its root mean square, as the paper does, bn also subtracts its mean, as networks do. ± is "
        "the half-width of the 95 % interval of the mean over draws (n)."
    )
    return Chapter("rank", "Ranks over depth", introduction, claims, _tables(nets, grown), tuple(runs))


def _collapse(nets: Sequence[Net], activation: str, text: str, where: str) -> Claim:
    bare = [net for net in nets if net.family[0] == activation and net.experiment.normalized == "none" and net.at_end]
    judged = [net for net in bare if net.settled]
    outcomes = [statistics.median(net.at_end) < ONE for net in judged]
    parts = [
        f"{_path(same[0])}: r = {spread(_ends(same))} at the end, at most {max(_ends(same)):.2f} ({_size(same)})"
        for same in _by_path(judged)
    ]
    early = [net for net in bare if not net.settled]
    parts += [
        f"not deep enough to judge: {_path(same[0])}, r = {spread(_ends(same))} ({_size(same)}: the first eigenvalue "
        f"of a linear network leads by {max(net.folds for net in same):.1f} factors of e there, {SETTLED:g} are needed)"
        for same in _by_path(early)
    ]
    holding = verdict(outcomes) if judged or not early else "inconclusive"
    return Claim(text, f"{PAPER}, {where}", holding, "; ".join(parts))


def _avoids(nets: Sequence[Net]) -> Claim:
    """Every late layer of every normalized draw has a higher rank than any draw without normalization at its end."""
    bare = {(net.family, net.experiment.width, net.layers): net for net in nets if _is_bare(net) and net.settled}
    outcomes, parts = [], []
    normalized = [net for net in nets if net.experiment.normalized != "none" and net.least is not None]
    for same in grouped(normalized, lambda net: (net.family[0], net.kind[-1])):
        pairs = [(net, bare.get((net.family, net.experiment.width, net.layers))) for net in same]
        kept = [(net, max([ONE, *other.at_end])) for net, other in pairs if other]
        fallen = [net for net, most in kept if (net.least or 0) <= most or len(net.at_end) < len(net.records)]
        outcomes += [net not in fallen for net, _ in kept]
        if kept:
            first = same[0].experiment
            exceptions = " and ".join(f"{_path(net)}, d = {net.experiment.width}" for net in fallen)
            parts.append(
                f"{first.activation}, {first.normalized}: r ≥ {min(net.least or 0 for net, _ in kept):.2f} "
                f"in all layers of the second half, "
                f"without normalization ≤ {max(most for _, most in kept):.2f} at the end "
                f"({len(kept)} networks, {_size([net for net, _ in kept])})"
                + (f"; it collapses for {exceptions}" if exceptions else "")
            )
    text = "Batch normalization keeps the rank of linear and of ReLU networks from collapsing"
    return Claim(text, f"{PAPER}, figure 2", verdict(outcomes), "; ".join(parts))


def _is_bare(net: Net) -> bool:
    return net.experiment.normalized == "none" and bool(net.records)


def _by_path(nets: Sequence[Net]) -> list[list[Net]]:
    return grouped(nets, lambda net: net.family[1])


def _path(net: Net) -> str:
    return path_name(net.experiment.gamma)


def _ends(nets: Sequence[Net]) -> list[float]:
    return [value for net in nets for value in net.at_end]


def _size(nets: Sequence[Net]) -> str:
    return f"{sizes(nets)}, n={sum(len(net.at_end) for net in nets)}"


def _order_of_root(grown: Sequence[Growth]) -> Claim:
    """An exponent whose interval reaches 1/2 is what r >= c sqrt(d) asks for."""
    residual = [one for one in grown if one.activation == "linear" and one.gamma and one.norm != "none"]
    fitted = [one for one in residual if one.exponent]
    outcomes = [one.reaches_root for one in fitted]
    text = "Batch normalization keeps r ≥ c √d in deep linear residual networks"
    holding = verdict(outcomes) if fitted or not residual else "inconclusive"
    return Claim(text, f"{PAPER}, theorem 2", holding, _growth_texts(residual))


def _relu_order(grown: Sequence[Growth]) -> Claim:
    relu = [one for one in grown if one.activation == "relu" and one.norm != "none"]
    outcomes = [one.reaches_root for one in relu if one.exponent]
    text = "The same order, √d, holds for ReLU networks (the paper asks)"
    holding = verdict(outcomes) if outcomes or not relu else "inconclusive"
    return Claim(text, f"{PAPER}, future work", holding, _growth_texts(relu))


def _growth_texts(grown: Sequence[Growth]) -> str:
    """Those with an exponent, or all where there is none."""
    return "; ".join(one.text for one in [one for one in grown if one.exponent] or grown)


def _bound(nets: Sequence[Net]) -> Claim:
    """Eq. 5, left: a theorem for every matrix, so a check of what we measure."""
    total, broken = 0, 0
    for net in nets:
        for record in (record for one in net.records for record in one):
            for name, value in record.items():
                tau = name.removeprefix("soft_rank_")
                if tau != name and value is not None:
                    total += 1
                    broken += value < (1 - float(tau)) ** 2 * record["rank"] * (1 - 1e-9)
    evidence = f"{broken} of {total} pairs of a layer and a τ violate it" if total else ""
    text = "The soft rank of every layer is at least (1 - τ)² r, τ relative to the mean eigenvalue"
    return Claim(text, f"{PAPER}, eq. 5", verdict([broken == 0] if total else []), evidence)


def _tables(nets: Sequence[Net], grown: Sequence[Growth]) -> tuple[Block, ...]:
    fitted = [one for one in grown if one.exponent]
    return (_over_depth(nets), *([_over_width(fitted)] if fitted else []))


def _over_depth(nets: Sequence[Net]) -> Grid:
    head = ("activation", "path", "normalization", "d", "layers", "r at the end", "r, second half")
    rest = ("least r there", "r / √d", "soft rank (τ 0.5)", "n", "remarks")
    return Grid((*head, *rest), tuple(map(_row, nets)), names=3, remarks=1)


def _row(net: Net) -> tuple[Entry, ...]:
    request, late = net.experiment, net.late()
    missing = len(net.runs) - len(net.at_end)
    remarks = [f"{missing} of {len(net.runs)} draws unfinished, or of rank 0"] if missing else []
    remarks += [] if net.settled else [f"not deep enough ({net.folds:.1f} of {SETTLED:g} e-foldings)"]
    return (
        *words(request.activation, path_name(request.gamma), request.normalized, str(request.width), str(net.layers)),
        Entry(spread(net.at_end)),
        Entry(spread(late)),
        Entry("–" if net.least is None else f"{net.least:.2f}"),
        Entry(spread([value / math.sqrt(request.width) for value in late])),
        Entry(spread(net.late("soft_rank_0.5"), 1)),
        *words(str(len(net.at_end)), "; ".join(remarks)),
    )


def _over_width(grown: Sequence[Growth]) -> Grid:
    widths = sorted({width for one in grown for width in one.ranks})
    rows = tuple(
        (
            *words(one.activation, path_name(one.gamma), one.norm),
            *(Entry(spread(one.ranks.get(width, ()))) for width in widths),
            Entry(one.exponent_text),
        )
        for one in grown
    )
    head = ("activation", "path", "normalization", *(f"r at d = {width}" for width in widths), "exponent")
    return Grid(head, rows, names=3)
