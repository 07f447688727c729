"""Does accuracy follow the rank of the features?"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from flbench.papers.label_skew.answers import (
    CELL_UNITS,
    STRONG,
    Answer,
    Finding,
    Verdict,
    correlate,
    leaning,
    number_text,
    partitions,
)
from flbench.papers.label_skew.probe_cells import Probed

QUESTION = "Does accuracy follow the rank of the features?"


def answer(cells: Sequence[Probed], tuned: Sequence[Probed]) -> Answer:
    """What accuracy and effective rank say, over all cells, and where norm or learning rate are the same."""
    known = [one for one in cells if one.rank is not None and one.acc is not None]
    if not known:
        return Answer("rank", QUESTION, "not measured", "Not measured: no run has the features probe.")
    findings = [
        _finding(some, where, lambda one: one.column) for where, some in partitions(known, lambda one: one.partition)
    ]
    whole = findings[-1]
    same_norm = _finding(known, "everywhere, at the same norm", lambda one: (one.column, one.norm_label))
    same_rate = _finding(known, "everywhere, at the same lr", lambda one: (one.column, one.lr))
    both = _finding(known, "everywhere, at the same norm and lr", lambda one: (one.column, one.norm_label, one.lr))
    best = _finding(
        [one for one in tuned if one.rank is not None],
        "everywhere, at the best lr of each row",
        lambda one: one.column,
    )
    share = correlate(
        known,
        (lambda one: one.share, lambda one: one.acc),
        what="accuracy ~ share of the first singular value",
        where="everywhere",
        strata=lambda one: one.column,
        units=CELL_UNITS,
    )
    more = [one for one in (same_norm, same_rate, both, best, share) if one.correlation.rho is not None]
    verdict = _verdict(whole, same_norm, same_rate)
    text = (
        f"{_says(verdict, whole)}: over all cells of a column {number_text(whole.correlation, whole.unit)}; "
        f"{_within('norm', same_norm)}; {_within('learning rate', same_rate)}; at the best learning rates "
        f"{number_text(best.correlation, best.unit)}."
    )
    return Answer("rank", QUESTION, verdict, text, (*findings, *more))


def _finding(cells: Sequence[Probed], where: str, strata: Callable[[Probed], Hashable]) -> Finding:
    return correlate(
        cells,
        (lambda one: one.rank, lambda one: one.acc),
        what="accuracy ~ effective rank",
        where=where,
        strata=strata,
        units=CELL_UNITS,
    )


def _verdict(whole: Finding, *within: Finding) -> Verdict:
    way = leaning(whole.correlation)
    if way == "rises":
        is_strong = (whole.correlation.rho or 0) >= STRONG
        return "yes" if is_strong and all(leaning(one.correlation) == "rises" for one in within) else "in part"
    return "does not tell" if way == "open" else "no"


def _says(verdict: Verdict, whole: Finding) -> str:
    if verdict == "no":
        return "No, the opposite" if leaning(whole.correlation) == "falls" else "No"
    return {"yes": "Yes", "in part": "In part"}.get(verdict, "The data do not tell")


_WAYS = {
    "rises": "it rises with the rank",
    "falls": "it falls with the rank",
    "flat": "it hardly depends on the rank",
    "open": "the data do not tell",
}


def _within(what: str, found: Finding) -> str:
    way = _WAYS[leaning(found.correlation)]
    return f"at the same {what} {way}, {number_text(found.correlation, found.unit)}"
