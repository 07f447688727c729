"""Is the gain of feature normalization explained by bounded norms?"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from flbench.papers.label_skew.answers import (
    CELL_UNITS,
    Answer,
    Comparison,
    Finding,
    Means,
    Verdict,
    correlate,
    grouping,
    leaning,
    mean_text,
    number_text,
    partitions,
)
from flbench.papers.label_skew.probe_cells import Probed
from flbench.report.correlation import Mean, mean

QUESTION = "Is the gain of FN explained by bounded norms?"

#: Growth of the un-normalized features' norm, in classes: hardly, some, a lot.
GROWTHS: tuple[tuple[float, float, str], ...] = (
    (0.0, 2.0, "below 2"),
    (2.0, 10.0, "2 to 10"),
    (10.0, math.inf, "10 and more"),
)

#: A gain below this, half a point, leaves nothing to explain.
NOTABLE = 0.005

#: Norms are bounded where their growth stays within this factor of one.
BOUNDED = 1.05


_INSIDE = "norm none, at the same lr"


@dataclass(frozen=True)
class _Pair:
    """A normalized cell and the one that differs from it by the normalization alone."""

    plain: Probed
    other: Probed

    @property
    def gain(self) -> float:
        """In accuracy."""
        return (self.other.acc or 0.0) - (self.plain.acc or 0.0)

    @property
    def growth(self) -> float | None:
        """Of the norms without normalization."""
        return self.plain.growth


_PAIR_UNITS: tuple[tuple[str, Callable[[_Pair], Hashable]], ...] = (
    ("methods", lambda pair: pair.plain.method_label),
    ("lines", lambda pair: (pair.plain.row, pair.plain.column)),
    ("cells", lambda pair: (pair.plain.row, pair.plain.column, pair.plain.lr)),
)


def answer(cells: Sequence[Probed], tuned: Sequence[Probed]) -> Answer:
    """What the gains of FN say beside the growth of norms without it, and what other normalizations do."""
    grown = [one for one in cells if one.growth is not None]
    pairs = _pairs(grown, lambda one: (one.column, one.method_label, one.lr), "fn")
    if not pairs:
        lack = "no cells with fn and with none, else alike, have the features probe (also at round 0)"
        return Answer("norms", QUESTION, "not measured", f"Not measured: {lack}.")
    found = _evidence(grown, pairs, _pairs(tuned, lambda one: (one.column, one.method_label), "fn"), tuned)
    verdict = _verdict(found)
    places = partitions(pairs, lambda pair: pair.plain.partition)
    findings = [*(_gain(some, where) for where, some in places), *found.places, found.same_rate, found.best]
    return Answer(
        "norms",
        QUESTION,
        verdict,
        _text(verdict, found, pairs),
        (*findings, *(one for one in found.others if one.correlation.rho is not None)),
        tuple(filter(None, [_by_growth(pairs), _by_norm(tuned)])),
    )


@dataclass(frozen=True)
class _Evidence:
    """What the answer rests on.

    Attributes:
        overall: gain at the best learning rates.
        without: gain at equal learning rates where the norms of none hardly grow.
        same_rate: gain against growth at equal learning rates; ``places``: the same in each partition, if several.
        best: the same at the best learning rates.
        others: whether ln gains where fn does; accuracy against growth within none, the second at equal learning rates.
    """

    overall: Mean | None
    without: Mean | None
    same_rate: Finding
    places: Sequence[Finding]
    best: Finding
    others: Sequence[Finding]


def _evidence(
    grown: Sequence[Probed], pairs: Sequence[_Pair], at_best: Sequence[_Pair], tuned: Sequence[Probed]
) -> _Evidence:
    *places, same_rate = (
        _gain(some, f"{where}, at the same lr", by_rate=True)
        for where, some in partitions(pairs, lambda pair: pair.plain.partition)
    )
    return _Evidence(
        overall=_mean(at_best),
        without=_mean([pair for pair in pairs if (pair.growth or 0) < GROWTHS[0][1]]),
        same_rate=same_rate,
        places=places,
        best=_gain(at_best, "everywhere, at the best lr of each row"),
        others=_others(grown, tuned),
    )


def _pairs(cells: Iterable[Probed], key: Callable[[Probed], Hashable], norm: str) -> list[_Pair]:
    """Cells with a norm (by its label) and those without any, where all else in the key is equal."""
    known = [one for one in cells if one.acc is not None]
    plain = {key(one): one for one in known if one.norm_label == "none"}
    return [_Pair(plain[key(one)], one) for one in known if one.norm_label == norm and key(one) in plain]


def _gain(pairs: Sequence[_Pair], where: str, *, by_rate: bool = False) -> Finding:
    return correlate(
        pairs,
        (lambda pair: pair.growth, lambda pair: pair.gain),
        what="gain of fn over none ~ growth of none's norms",
        where=where,
        strata=lambda pair: (pair.plain.column, pair.plain.lr) if by_rate else pair.plain.column,
        units=_PAIR_UNITS,
    )


def _others(grown: Sequence[Probed], tuned: Sequence[Probed]) -> list[Finding]:
    """Whether ln gains where fn does, and whether norms matter within what is not normalized."""
    key: Callable[[Probed], Hashable] = lambda one: (one.column, one.method_label, one.lr)  # noqa: E731
    of_ln = {key(pair.plain): pair for pair in _pairs(grown, key, "ln")}
    plain = [one for one in grown if one.norm_label == "none"]
    best = [one for one in tuned if one.norm_label == "none"]
    lines: list[tuple[Sequence[Probed], str, Callable[[Probed], Hashable]]] = [
        (plain, "norm none", lambda one: one.column),
        (plain, _INSIDE, lambda one: (one.column, one.lr)),
        (best, "norm none, methods at their best lr", lambda one: one.column),
    ]
    alike = correlate(
        [pair for pair in _pairs(grown, key, "fn") if key(pair.plain) in of_ln],
        (lambda pair: pair.gain, lambda pair: of_ln[key(pair.plain)].gain),
        what="gain of ln over none ~ gain of fn over none",
        where="everywhere",
        strata=lambda pair: pair.plain.column,
        units=_PAIR_UNITS,
    )
    within = [
        correlate(
            some,
            (lambda one: one.growth, lambda one: one.acc),
            what="accuracy ~ growth of norms",
            where=where,
            strata=strata,
            units=CELL_UNITS,
        )
        for some, where, strata in lines
    ]
    return [alike, *within]


def _mean(pairs: Sequence[_Pair]) -> Mean | None:
    _, group = grouping(pairs, _PAIR_UNITS)
    return mean([pair.gain for pair in pairs], list(map(group, pairs)))


def _verdict(found: _Evidence) -> Verdict:
    """Return the verdict: explained if the gain grows with the norms that it bounds, and is gone where they do not.

    Where it grows with them in some partitions alone, it is explained in part. Where it does not grow with them, but
    without normalization accuracy falls with growth, the evidence contradicts itself.
    """
    way, overall = leaning(found.same_rate.correlation), found.overall
    if overall is None or overall.interval is None:
        return "does not tell"
    if overall.interval[0] <= 0:
        return "no"
    if way == "rises":
        left = found.without.interval if found.without else None
        return "yes" if left is not None and left[0] <= NOTABLE else "in part"
    if any(leaning(one.correlation) == "rises" for one in found.places):
        return "in part"
    inside = [one for one in found.others if one.where == _INSIDE]
    contradicts = any(leaning(one.correlation) == "falls" for one in inside)
    return "does not tell" if way == "open" or contradicts else "no"


_WAYS = {"rises": "rises with it", "falls": "falls with it", "flat": "hardly depends on it", "open": "cannot be told"}


def _text(verdict: Verdict, found: _Evidence, pairs: Sequence[_Pair]) -> str:
    says = {"yes": "Yes", "in part": "In part", "no": "No"}.get(verdict, "The data do not tell")
    gains = "gains" if found.overall is None or found.overall.mean >= 0 else "loses"
    interval = found.overall.interval if found.overall else None
    ways = ", ".join(f"{one.where.split(', ')[0]}: {_WAYS[leaning(one.correlation)]}" for one in found.places)
    sentences = [
        f"{says}: at the best learning rates fn {gains} {mean_text(found.overall)} over none{_doubt(interval)}.",
        f"The gain against the growth of none's norms: at the same learning rate "
        f"{number_text(found.same_rate.correlation, found.same_rate.unit)}"
        + (f" (by partition, {ways})" if ways else "")
        + f", at the best ones {number_text(found.best.correlation, found.best.unit)}.",
        f"Where none's norms grow less than twofold the gain is {mean_text(found.without)} at the same learning rate."
        if found.without
        else "Nowhere do none's norms grow less than twofold.",
        *(_other_text(one) for one in found.others[:3] if one.correlation.rho is not None),
        _lengths(pairs),
    ]
    return " ".join(filter(None, sentences))


def _other_text(one: Finding) -> str:
    """``Accuracy ~ growth of norms (norm none): rho 0.86``, as a sentence."""
    where = "" if one.where == "everywhere" else f" ({one.where})"
    return f"{one.what[0].upper()}{one.what[1:]}{where}: {number_text(one.correlation, one.unit)}."


def _doubt(interval: tuple[float, float] | None) -> str:
    return "" if interval is None or interval[0] > 0 or interval[1] < 0 else ", which is not told apart from nothing"


def _lengths(pairs: Sequence[_Pair]) -> str:
    """How much longer normalized features are from the start: a difference that growth does not have."""
    ratios = [
        math.log(other / plain)
        for pair in pairs
        if (other := _born_length(pair.other)) is not None and (plain := _born_length(pair.plain)) is not None
    ]
    if not ratios:
        return ""
    factor = math.exp(math.fsum(ratios) / len(ratios))
    if 1 / BOUNDED < factor < BOUNDED:
        return ""
    return (
        f"Before the first round fn's features are {factor:.1f} times as long as none's, so that equal learning rates "
        "are not equal steps: what the gain owes to that, growth cannot tell."
    )


def _born_length(one: Probed) -> float | None:
    return one.norm / one.growth if one.norm and one.growth else None


def _by_growth(pairs: Sequence[_Pair]) -> Means | None:
    lines = []
    for low, high, name in GROWTHS:
        some = [pair for pair in pairs if pair.growth is not None and low <= pair.growth < high]
        columns = [_mean(part) for _, part in _columns(pairs, some)]
        lines.append(Comparison((name,), tuple(columns)))
    heads = tuple(name for name, _ in _columns(pairs, pairs))
    return Means(
        "Gain of fn over none at the same learning rate, by the growth of none's norms",
        ("growth", *heads),
        tuple(lines),
    )


def _columns(everything: Sequence[_Pair], some: Sequence[_Pair]) -> list[tuple[str, list[_Pair]]]:
    """The pairs of each partition, the same columns whatever pairs there are."""
    names = [name for name, _ in partitions(everything, lambda pair: pair.plain.partition)][:-1]
    parts = [(name, [pair for pair in some if pair.plain.partition == name]) for name in names]
    return [*parts, ("everywhere", list(some))]


def _by_norm(tuned: Sequence[Probed]) -> Means | None:
    """Every normalization against none, beside how much its norms grow."""
    labels = list(dict.fromkeys(one.norm_label for one in sorted(tuned, key=lambda one: one.cell.tick("norm"))))
    pairs = {label: _pairs(tuned, lambda one: (one.column, one.method_label), label) for label in labels}
    everything = [pair for label in labels if label != "none" for pair in pairs[label]]
    if not everything:
        return None
    lines = []
    for label in labels:
        growths = sorted(one.growth for one in tuned if one.norm_label == label and one.growth is not None)
        middle = f"{growths[len(growths) // 2]:.3g} ({growths[0]:.3g} to {growths[-1]:.3g})" if growths else "–"
        means = [None if label == "none" else _mean(part) for _, part in _columns(everything, pairs[label])]
        lines.append(Comparison((label, middle), tuple(means)))
    heads = tuple(name for name, _ in _columns(everything, everything))
    return Means(
        "Gain of every normalization over none at the best learning rates, beside the growth of its norms "
        "(median, smallest to largest)",
        ("norm", "growth", *heads),
        tuple(lines),
    )
