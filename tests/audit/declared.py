"""Judge the claims that papers declare, by this folder's own arithmetic.

The declarations (``flbench/papers/*/claims.yaml``) are data: what is claimed, of which rows, with which bounds. Rules
and statistics are written down a second time here, with pandas, numpy and scipy; the frames come from exported runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pandas as pd
from ruamel.yaml import YAML

from tests.audit.runs import ROOT
from tests.audit.studies import (
    Claims,
    exponent,
    exponent_text,
    half_width,
    mean_text,
    median_text,
    short,
    verdict_of,
)

#: From bad to good.
VERDICTS = ["does not hold", "inconclusive", "in part", "holds"]

Spec = Mapping[str, Any]


def judged(paper: str, frames: Mapping[str, pd.DataFrame], constants: Mapping[str, float], separator: str) -> Claims:
    """Return the verdict and the evidence of every claim that a paper declares."""
    path = ROOT / "flbench/papers" / paper / "claims.yaml"
    found = {}
    for claim in YAML(typ="safe", pure=True).load(path.read_text())["claims"]:
        own = list(settings(claim, claim["frame"], frames, constants))
        assert own, "every claim has runs"
        others = settings(claim["beside"], claim["frame"], frames, constants) if "beside" in claim else []
        evidence = separator.join(text for _, text in [*own, *others])
        found[claim["claim"]] = (verdict_of(verdict for verdict, _ in own), evidence)
    return found


def settings(
    claim: Spec, name: str, frames: Mapping[str, pd.DataFrame], constants: Mapping[str, float]
) -> Iterator[tuple[str, str]]:
    """Yield the verdict in each setting of a claim, and the sentence about it."""

    def chosen(frame: str) -> pd.DataFrame:
        return frames[frame].query(claim["where"]) if "where" in claim else frames[frame]

    rows, each = chosen(name), claim.get("each", [])
    for values, own in rows.groupby(each, observed=True) if each else [((), rows)]:
        if "enough" in claim:
            wanted = claim["enough"]
            sizes = own[wanted["sizes"]].value_counts()
            own = own[own[wanted["sizes"]].isin(sizes.index[sizes >= wanted["each"]])]
            assert own[wanted["sizes"]].nunique() >= wanted["fewest"], "every setting of the committed runs has enough"
        texts, verdicts = {**constants, **dict(zip(each, values, strict=True))}, []
        for rule, parameters in (item for one in claim.get("rules", []) for item in one.items()):
            verdict, numbers = RULES[rule](own, parameters)
            verdicts.append(verdict)
            texts |= numbers
        for number, spec in claim.get("numbers", {}).items():
            texts[number] = statistic(chosen(spec["frame"]) if "frame" in spec else own, spec)
        worst = min(verdicts, key=VERDICTS.index, default="inconclusive")
        yield verdict_of(verdicts) if claim.get("combine") == "in part" else worst, claim["says"].format(**texts)


def statistic(rows: pd.DataFrame, spec: Spec) -> str:
    """Return a number of a sentence."""
    rows = rows.query(spec["where"]) if "where" in spec else rows
    rows = rows[rows[spec["at"]] == rows[spec["at"]].max()] if "at" in spec else rows
    (name,) = spec.keys() & STATISTICS.keys()
    rows = rows.assign(value=rows.eval(spec[name])).dropna(subset="value")
    form = {"one_decimal": "{:.1f}".format, "two_decimals": "{:.2f}".format}.get(spec.get("form", ""), short)
    if "by" not in spec:
        return STATISTICS[name](rows, form, spec)
    return ", ".join(f"{STATISTICS[name](own, form, spec)} at {size}" for size, own in rows.groupby(spec["by"]))


def flags_of(rows: pd.DataFrame, spec: Spec) -> tuple[pd.Series, pd.Series]:
    """Return for each unit whether every row has it, and whether some row has it."""
    units = rows.groupby(spec["unit"], observed=True).value
    return units.all(), units.any()


def listed_units(rows: pd.DataFrame, _: object, spec: Spec) -> str:
    every, some = flags_of(rows, spec)
    return f"{every.sum()} ({some.sum()}) of {len(every)}"


def some_units(rows: pd.DataFrame, _: object, spec: Spec) -> str:
    some = flags_of(rows, spec)[1]
    return f"{some.sum()} of {len(some)}"


def range_of(rows: pd.DataFrame, form: Callable[[float], str], _: object) -> str:
    return " to ".join(dict.fromkeys([form(rows.value.min()), form(rows.value.max())]))


STATISTICS: dict[str, Callable[[pd.DataFrame, Callable[[float], str], Spec], str]] = {
    "mean": lambda rows, form, _: form(rows.value.mean()),
    "mean_ci": lambda rows, *_: mean_text(rows.value),
    "middle": lambda rows, form, _: form(rows.value.median()),
    "median": lambda rows, *_: median_text(rows.value),
    "least": lambda rows, form, _: form(rows.value.min()),
    "most": lambda rows, form, _: form(rows.value.max()),
    "range": range_of,
    "number": lambda rows, *_: str(len(rows)),
    "count": lambda rows, *_: f"{rows.value.sum()} of {len(rows)}",
    "some": some_units,
    "units": listed_units,
}

Found = tuple[str, dict[str, str]]


def interval(low: float, high: float, spec: Spec) -> str:
    """Judge an interval: within bounds, outside, or across one of them."""
    least, most = spec.get("least", -math.inf), spec.get("most", math.inf)
    if least <= low and high <= most:
        return "holds"
    return "does not hold" if high < least or low > most else "inconclusive"


def judge_exponent(rows: pd.DataFrame, spec: Spec) -> Found:
    found = exponent(rows[spec["over"]], rows[spec["of"]])
    numbers = {"exponent": exponent_text(found), "draws": str(len(rows)), "largest": str(rows[spec["over"]].max())}
    return interval(*found[1:], spec), numbers


def judge_last_exponent(rows: pd.DataFrame, spec: Spec) -> Found:
    ends = sorted(rows[spec["over"]].unique())[-2:]
    last = rows[rows[spec["over"]].isin(ends)]
    found = exponent(last[spec["over"]], last[spec["of"]])
    verdict = "does not hold" if found[2] < spec["least"] else "holds"
    return verdict, {"last": f"{exponent_text(found)} from {ends[0]} to {ends[1]}"}


def judge_mean(rows: pd.DataFrame, spec: Spec) -> Found:
    last = rows[rows[spec["at"]] == rows[spec["at"]].max()]
    values, theory = last[spec["of"]], last[spec["near"]].iloc[0]
    reach, off = half_width(values) / theory, values.mean() / theory - 1
    text = f"{short(values.mean())} (sd {short(values.std())}, n={len(values)})"
    bounds = {"least": -spec["tolerance"], "most": spec["tolerance"]}
    return interval(off - reach, off + reach, bounds), {"mean": text, "near": short(theory)}


def judge_bounds(rows: pd.DataFrame, spec: Spec) -> Found:
    upper = rows[spec["high"]].fillna(math.inf)
    inside = rows[spec["of"]].between(rows[spec["low"]], upper)
    return "holds" if inside.mean() >= spec["least"] else "does not hold", {"within": f"{inside.sum()} of {len(rows)}"}


def judge_units(rows: pd.DataFrame, spec: Spec) -> Found:
    counted = rows.query(spec["where"])
    every, some = flags_of(counted.assign(value=counted.eval(spec.get("every") or spec["some"])), spec)
    flags = every if spec.get("every") else some
    numbers = {spec.get("name", "units"): f"{flags.sum()} of {len(flags)}"}
    if len(flags) < spec["fewest"]:
        return "inconclusive", numbers
    share = flags.mean()
    right = spec.get("least", 0) <= share <= spec.get("most", 1) and share > spec.get("above", -1)
    return "holds" if right else "does not hold", numbers


def judge_all_units(rows: pd.DataFrame, spec: Spec) -> Found:
    every, _ = flags_of(rows.assign(value=rows.eval(spec["every"])), spec)
    first = rows.drop_duplicates(spec["unit"]).set_index(spec["unit"])
    name = spec.get("but", "").partition("{")
    fallen = [(name[1] + name[2]).format_map(one) for one in first[~every].reset_index().to_dict("records")]
    verdict = "holds" if every.all() else "in part" if every.any() else "does not hold"
    return verdict, {"units": str(len(every)), "but": name[0] + " and ".join(fallen) if fallen else ""}


def judge_never(rows: pd.DataFrame, spec: Spec) -> Found:
    broken = rows.eval(spec["has"])
    return "does not hold" if broken.any() else "holds", {"never": f"{broken.sum()} of {len(broken)}"}


def judge_apart(rows: pd.DataFrame, spec: Spec) -> Found:
    """If both sides were alike, one of them would be the higher one throughout in one of binom(n + k, n) cases."""
    known = rows.dropna(subset=spec["of"])
    high, low = (known.query(spec[side]).groupby(spec["at"])[spec["of"]] for side in ("higher", "lower"))
    chance = math.prod(1 / math.comb(a + b, b) for a, b in zip(high.size(), low.size(), strict=True))
    ratios = high.median() / low.median()
    numbers = {"ratios": ", ".join(f"{short(ratio)} at {size}" for size, ratio in ratios.items())}
    if (ratios <= 1).any():
        return "does not hold", numbers
    return "holds" if (high.min() > low.max()).all() and chance < 0.05 else "inconclusive", numbers


RULES: dict[str, Callable[[pd.DataFrame, Spec], Found]] = {
    "exponent": judge_exponent,
    "keeps_growing": judge_last_exponent,
    "mean_near": judge_mean,
    "within": judge_bounds,
    "units": judge_units,
    "all_units": judge_all_units,
    "never": judge_never,
    "apart": judge_apart,
}
