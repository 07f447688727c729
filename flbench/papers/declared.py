"""Claims as data: statements that a paper's ``claims.yaml`` declares, judged by rules on frames of runs.

Each claim has

- ``claim`` and ``source``: the statement, and where the paper has it;
- ``frame``: the name of a frame of the paper, and ``where``, a query for the rows that the claim is about;
- ``each``: columns whose values make a setting; without it all rows are one setting;
- ``enough``: what a setting needs to be judged (``rules.enough``);
- ``rules``: functions of ``rules.py`` by name, with their parameters. All must hold in a setting; with
  ``combine: in part`` it holds in part where some do;
- ``numbers``: statistics of ``rules.py`` by name;
- ``says``: the sentence about a setting, with columns of ``each``, and numbers of rules and statistics, in braces;
- ``beside``: the same for settings that the claim is not about, which are shown beside it;
- ``instead``: the same for settings that are judged where there are no others.

The verdict on a claim is that over its settings (``evidence.combined``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

from flbench.papers.evidence import Outcome, combined
from flbench.papers.rules import RULES, enough, statistic, worst
from flbench.report.claims import Claim

if TYPE_CHECKING:
    import pandas as pd

Parameters = dict[str, Any]


class Settings(BaseModel):
    """Rows of a frame, and what is said of each setting among them."""

    model_config = ConfigDict(extra="forbid")

    where: str | None = None
    each: tuple[str, ...] = ()
    enough: Parameters | None = None
    rules: tuple[dict[str, Parameters], ...] = ()
    combine: Literal["all", "in part"] = "all"
    numbers: dict[str, Parameters] = {}
    says: str


class Declared(Settings):
    """A claim."""

    claim: str
    source: str
    frame: str
    beside: Settings | None = None
    instead: Settings | None = None


@cache
def declared(package: str) -> tuple[Declared, ...]:
    """Return the claims that a paper's package declares."""
    from ruamel.yaml import YAML

    text = (files(package) / "claims.yaml").read_text(encoding="utf-8")
    return tuple(Declared(**one) for one in YAML(typ="safe", pure=True).load(text)["claims"])


def judge(
    claims: Sequence[Declared],
    frames: Mapping[str, pd.DataFrame],
    constants: Mapping[str, float],
    separator: str = " ",
) -> tuple[Claim, ...]:
    """Return the claims with their verdicts and evidence.

    Args:
        claims: as declared.
        frames: by name.
        constants: numbers that sentences have in braces, by name.
        separator: between the sentences about settings.
    """
    found = []
    for one in claims:
        judged = list(_judged(one, one.frame, frames, constants))
        others = list(_judged(one.beside, one.frame, frames, constants)) if one.beside else []
        if not judged and one.instead:
            judged, others = list(_judged(one.instead, one.frame, frames, constants)), []
        sentences = [sentence for _, sentence in (*judged, *others)]
        verdict = combined(outcome for outcome, _ in judged)
        found.append(Claim(one.claim, one.source, verdict, separator.join(sentences)))
    return tuple(found)


def _judged(
    of: Settings, name: str, frames: Mapping[str, pd.DataFrame], constants: Mapping[str, float]
) -> Iterator[tuple[Outcome, str]]:
    """Yield the outcome in each setting that the rules apply to, and the sentence about it."""

    def chosen(frame: str) -> pd.DataFrame:
        return frames[frame].query(of.where) if of.where else frames[frame]

    for place, rows in _settings(chosen(name), of.each):
        own, lack = enough(rows, **of.enough) if of.enough else (rows, "")
        if lack:
            yield None, f"{place[of.each[-1]]}: {lack}."
            continue
        called = [RULES[rule](own, **parameters) for one in of.rules for rule, parameters in one.items()]
        findings = [finding for finding in called if finding is not None]
        if len(findings) < len(called):
            continue
        texts: dict[str, Any] = {**constants, **place}
        for finding in findings:
            texts |= finding.numbers
        for number, options in of.numbers.items():
            frame = options.get("frame")
            texts[number] = statistic(chosen(frame) if frame else own, options)
        outcomes = [finding.outcome for finding in findings]
        yield worst(outcomes) if of.combine == "all" else combined(outcomes), of.says.format(**texts)


def _settings(rows: pd.DataFrame, each: Sequence[str]) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """Yield the rows of each setting with the values that it shares; nothing for no rows."""
    if each:
        for values, own in rows.groupby(list(each), observed=True):
            yield dict(zip(each, values, strict=True)), own
    elif len(rows):
        yield {}, rows
