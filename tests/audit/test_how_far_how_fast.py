"""docs/answers/how-far-how-fast.md against recomputed numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tests.audit import pages
from tests.audit.cells import IMAGES, WITHIN, comparisons, judge, ranked
from tests.audit.measured import FASHION_MNIST, FRESH, LONG, THREE, Column, gain, leads_over_none, ratios_of_other_seeds
from tests.audit.runs import ROOT, TAIL, accuracy

PAGE = (ROOT / "docs/answers/how-far-how-fast.md").read_text()

#: Rows with a linear head by their names on the page.
NORMS = {"none": "none", "scale": "constant", "fn": "feature norm", "ln": "layer norm", "gn": "group norm"}
NORMS["bn"] = "batch norm"

SKEWED, IID = Column("plateau"), Column("plateau", "iid")
TWO_CLASSES, DIRICHLET = Column("plateau_skew", "classes:2"), Column("plateau_skew", "dirichlet:0.1")

#: Columns with the names of their data sets.
COLUMNS = {
    "digits, one class": (SKEWED, "digits"),
    "digits, two classes": (TWO_CLASSES, "digits"),
    "digits, Dirichlet(0.1)": (DIRICHLET, "digits"),
    "digits, iid": (IID, "digits"),
    "Fashion-MNIST, one class": (FASHION_MNIST, "fashion_mnist"),
}

#: One local step a round, where FedAvg is SGD on all data, with one class and without skew.
ONE_STEP, PHASE = Column("plateau_skew", "classes:1", 1), Column("plateau_skew", "iid", 1)

#: Columns of the table of rounds.
PACES = {
    "one class, ten local steps": SKEWED,
    "one class, one step": ONE_STEP,
    "iid, one step": PHASE,
    "iid, ten steps": IID,
    "two classes, ten steps": TWO_CLASSES,
    "Dirichlet(0.1), ten steps": DIRICHLET,
}

#: The methods by their names on the page, and the partitions in which they are compared.
METHODS = {"fedavg": "FedAvg", "fedyogi": "FedYogi", "scaffold": "SCAFFOLD", "feddyn": "FedDyn"}
PARTITIONS = {"classes:1": "one class", "classes:2": "two classes", "dirichlet:0.1": "Dirichlet(0.1)", "iid": "iid"}


def gains(column: Column, rounds: int | None = None) -> pd.DataFrame:
    """Return ``p``, corrected for the three, and ``text`` of the gain over none of each norm."""
    of = column.by_seed(rounds) / 100
    found = judge([(of[f"fedavg {norm}"] - of["fedavg none"]).dropna() for norm in THREE])
    return pd.DataFrame({"p": [one.p for one in found], "text": [one.text for one in found]}, THREE)


def entry(column: Column, row: str, images: int) -> str:
    """Return ``97.07 ± 1.78, 70 rounds at 0.65``; – for a row that the column lacks."""
    values = column.by_seed()
    if row not in values:
        return "–"
    of, rounds = values[row].dropna(), column.rounds_to_level()[row].median()
    over_seeds, over_images = gain(of, 0 * of)[1], 1.959964 * np.sqrt(of.mean() * (100 - of.mean()) / images)
    reached = f"{rounds:.0f} rounds" if np.isfinite(rounds) else "not reached"
    rate = column.rates()[row].idxmax()
    return f"{of.mean():.2f} ± {np.hypot(over_seeds, over_images):.2f}, {reached}, {rate:.2g}"


def values() -> list[list[str]]:
    rows = [["normalization", *COLUMNS]]
    for norm, name in NORMS.items():
        rows.append([name, *(entry(column, f"fedavg {norm}", IMAGES[data]) for column, data in COLUMNS.values())])
    return rows


def paces() -> list[list[str]]:
    rows = [["digits", *(NORMS[norm] for norm in PACE)]]
    for name, column in PACES.items():
        rounds = column.rounds_to_level().median()
        rows.append([name, *(f"{rounds[f'fedavg {norm}']:.0f}" for norm in PACE)])
    return rows


def other_levels() -> Iterator[str]:
    """The rounds of none to levels below and above that of the table, and where its curve falls at first."""
    columns, texts = (SKEWED, ONE_STEP, PHASE), []
    for bound in (0.85, 0.9, 0.95):
        rounds = [column.rounds_to(bound)["fedavg none"].median() for column in columns]
        texts.append(f"{100 * bound:.0f} % after {pages.listed(rounds)}")
    yield f"none reaches {texts[0]} rounds, {texts[1]}, and {texts[2]}."
    of = SKEWED.chosen().query("row == 'fedavg none'").records
    ten, twenty = (100 * np.mean([run[at]["acc"] for run in of]) for at in (0, 1))
    assert [of.iloc[0][at]["round"] for at in (0, 1)] == [10, 20]
    yield f"With one class and ten steps none is at {ten:.0f} % after 10 rounds, and falls to {twenty:.0f} % after 20."


#: Norms of the table of rounds.
PACE = ("none", "scale", "ln")


def methods() -> list[list[str]]:
    rows = [["method", "normalization", *PARTITIONS.values()]]
    for method, name in METHODS.items():
        for norm in PACE:
            rows.append([name, NORMS[norm]])
            for partition in PARTITIONS:
                of = Column("plateau_methods", partition).by_seed()
                mean, lead = of[f"{method} {norm}"].mean(), gain(of[f"{method} {norm}"], of[f"fedavg {norm}"])
                beside = f" ({lead[0]:+.1f} ± {lead[1]:.1f})" if method != "fedavg" else ""
                rows[-1].append(f"{mean:.1f}{beside}")
    return rows


def digits() -> Iterator[str]:
    """What is shown in each column of digits, with the checks."""
    every = (*comparisons("plateau"), *ranked("plateau"))
    one = {(of.measure, of.value): of for of in every if of.column == ("classes:1",)}
    assert all(one["far", norm].checked == WITHIN for norm in THREE)
    ratios = [one["fast", norm] for norm in THREE]
    assert [(of.verdict, of.doubts) for of in ratios] == [("open", ()), ("open", ()), ("faster", ())]
    yield "need {:.2f}, {:.2f} and {:.2f} times its rounds:".format(*(of.effect for of in ratios))
    assert ratios[0].p == ratios[1].p and len(every) == 18
    yield f"(p {ratios[2].p:.3f}), the other two are open after correction for all 18 comparisons (p {ratios[0].p:.3f};"
    rounds = SKEWED.rounds_to_level()
    sooner = [np.sign(rounds["fedavg none"] - rounds[f"fedavg {norm}"]).value_counts().to_dict() for norm in THREE]
    assert sooner == [{1: 9, 0: 1}, {1: 9, 0: 1}, {1: 10}]
    found = {(of.column[0], of.measure, of.value): of for of in (*comparisons("plateau_skew"), *ranked("plateau_skew"))}
    verdicts = {at: (of.verdict, of.doubts) for at, of in found.items()}
    two, dirichlet = "classes:2", "dirichlet:0.1"
    assert verdicts[two, "far", "ln"] == (WITHIN, ()) and verdicts[two, "fast", "ln"] == ("faster", ())
    assert found[two, "fast", "ln"].effect == 0.5
    assert all(verdicts[two, "far", norm] == (WITHIN, ("difference rising",)) for norm in ("scale", "fn"))
    assert (verdicts[two, "fast", "fn"], verdicts[two, "fast", "scale"]) == (("faster", ()), ("open", ()))
    fn, scale = (found[two, "fast", norm].effect for norm in ("fn", "scale"))
    yield f"Feature norm needs {fn:.2f} times the rounds (shown); the constant's {scale:.2f} is open."
    assert all(found[dirichlet, "far", norm].verdict == WITHIN for norm in THREE)
    assert all({"rising", "depends on the window"} <= {*found[dirichlet, "far", norm].doubts} for norm in THREE)
    assert verdicts[dirichlet, "fast", "ln"] == ("faster", ())
    yield f"layer norm needs {found[dirichlet, 'fast', 'ln'].effect:.2f} times the rounds (shown)"
    costs = [column.cost_of_grid() for column in (SKEWED, TWO_CLASSES, DIRICHLET, IID)]
    known = pd.concat([costs[0].drop("fedavg bn"), costs[1], costs[2].drop("fedavg none"), costs[3]])
    assert (known < 1).all()
    yield f"The two neighbours of each best rate on digits are worse by at most {known.max():.1f} points"


def curves(column: Column) -> dict[str, pd.DataFrame]:
    """Return the accuracies of each row after each evaluated round (index) and seed."""
    found = {}
    for row, of in column.chosen().groupby("row"):
        known = {run.seed: pd.Series({at["round"]: accuracy(at) for at in run.records}) for run in of.itertuples()}
        found[str(row)] = pd.DataFrame(known).drop(index=0, errors="ignore").dropna(axis=1)
    return found


def _early(column: Column) -> dict[str, pd.Series[float]]:
    """Return the mean accuracy of each row over the evaluations of the first 100 rounds, by seed, in percent."""
    return {row: 100 * of.loc[:100].mean() for row, of in curves(column).items()}


def what_is_faster() -> Iterator[str]:
    """Other measures of speed than the first evaluation at the level, with one class on digits."""
    bound, of_rows = SKEWED.level() / 100, curves(SKEWED)
    stays = {row: (of[::-1] >= bound).cumprod().sum() for row, of in of_rows.items()}
    from_round = {row: of_rows[row].index[-1] + 10 - 10 * count.median() for row, count in stays.items()}
    yield (
        "Half of the seeds stay above it from round {:.0f} on without a normalization, from {:.0f}, {:.0f} and {:.0f} "
        "with the".format(*(from_round[f"fedavg {norm}"] for norm in ("none", *THREE)))
    )
    areas = _early(SKEWED)
    leads = [gain(areas[f"fedavg {norm}"], areas["fedavg none"]) for norm in THREE]
    yield f"these three lead by {pages.listed(f'{mean:.1f} ± {half:.1f}' for mean, half, _ in leads)} points."
    runs = SKEWED.runs()
    first = [next((one["round"] for one in run if one["acc"] >= bound), np.inf) for run in runs.records]
    runs = runs.assign(first=first)
    paces = runs.groupby(["row", "lr"])["first"].agg(["median", "mean"]).sort_values(["median", "mean"]).reset_index()
    fastest = runs.merge(paces.groupby("row").first()[["lr"]].reset_index(), on=["row", "lr"])
    of = fastest.pivot(index="seed", columns="row", values="first")
    ratios = [(of[f"fedavg {norm}"] / of["fedavg none"]).median() for norm in THREE]
    yield "fastest rate, they need {:.2f}, {:.2f} and {:.2f} times the rounds.".format(*ratios)


def fashion_mnist() -> Iterator[str]:
    early, late = gains(FASHION_MNIST, 400), gains(FASHION_MNIST)
    assert set(FASHION_MNIST.by_seed().count()) == {10}
    found = {(one.value, one.column[0]): one for one in comparisons("fashion_mnist_long")}
    for norm in THREE:
        assert found[norm, "classes:1"].verdict == "more"
        assert "rising" in found[norm, "classes:1"].doubts
    yield (
        f"After 400 rounds the constant, feature and layer norm lead by {pages.listed(early.text)} points with one "
        f"class, and after 800 by {pages.listed(late.text)}."
    )
    rounds = FASHION_MNIST.rounds_to_level()
    medians = [rounds[f"fedavg {norm}"].median() for norm in (*THREE, "none")]
    faster = [(rounds[f"fedavg {norm}"] < rounds["fedavg none"]).sum() for norm in THREE]
    assert faster == [8, 9, 10]
    yield f"To {FASHION_MNIST.level():.1f} % they need {pages.listed(medians[:3])} rounds and none {medians[3]:.0f}:"
    iid = [found[norm, "iid"] for norm in THREE]
    assert all(WITHIN in one.verdict for one in iid)
    yield f"Without skew the leads are {pages.listed([one.mean for one in iid], 1)} points, all within a point."
    cost = FASHION_MNIST.cost_of_grid().max()
    assert cost < 1
    yield f"The two neighbours of each best rate are worse by at most {cost:.1f} points on held-out data"


def other_seeds_and_more_rounds() -> Iterator[str]:
    """What thirty other seeds and three times the rounds leave of the answers."""
    rounds, values = FRESH.rounds_to(SKEWED.level() / 100), FRESH.by_seed()
    none, rows = "fedavg none", [f"fedavg {norm}" for norm in THREE]
    assert [*values.index] == [*range(10, 40)] and not set(values.index) & set(SKEWED.by_seed().index)
    assert FRESH.rates().idxmax()[rows].to_dict() == SKEWED.rates().idxmax()[rows].to_dict()
    ratios = [of.median() for of in ratios_of_other_seeds()]
    sooner = [(rounds[row] < rounds[none]).sum() for row in rows]
    assert all((rounds[row] <= rounds[none]).all() for row in rows)
    ties = [(rounds[row] == rounds[none]).sum() for row in rows]
    assert max(stats.binomtest(n, 30 - tied).pvalue for n, tied in zip(sooner, ties, strict=True)) < 1e-7
    yield f"need {pages.listed(ratios, 2)} times the rounds of none with the constant, feature and layer norm."
    counts = pages.listed(sooner)
    yield f"They are faster with {counts} of the 30 seeds and slower with no seed (sign tests, p below 1e-7)."
    yield f"Their leads in accuracy are {_leads(FRESH)} points."
    digits, fashion_mnist = LONG["digits"], LONG["fashion_mnist"]
    assert set(digits.plateaus().index) == {none, *rows} and digits.rates().notna().sum().max() == 1
    yield f"none is at {digits.by_seed()[none].mean():.1f} %, and the leads are {_leads(digits)} points."
    rate, before = fashion_mnist.rates()[none].idxmax(), FASHION_MNIST.rates()[none].idxmax()
    scores = fashion_mnist.rates()[none].dropna()
    assert [*scores.index].index(rate) == 1 and len(scores) == 4 and 0.5 < rate / before < 0.6
    worse = [scores[rate] - scores.iloc[at] for at in (0, 2)]
    yield (
        f"none has the best of four rates by held-out data ({rate:.2f}, about half of that for 800 rounds; its two "
        f"neighbours, {scores.index[0]:.1f} and {scores.index[2]:.2f}, are {pages.listed(worse, 1)} points worse there)"
    )
    yield (
        f"none is at {fashion_mnist.by_seed()[none].mean():.1f} %, and the constant, feature and layer norm lead by "
        f"{_leads(fashion_mnist)} points. By the last evaluation alone the leads are {_leads(fashion_mnist, 1)}."
    )
    slopes = fashion_mnist.slopes()
    rising = slopes["mean"] > slopes.half_width
    assert set(rising[rising].index) == {none, "fedavg fn", "fedavg ln"}


def _leads(column: Column, tail: int = TAIL) -> str:
    return pages.listed(f"{mean:.1f} ± {half_width:.1f}" for mean, half_width in leads_over_none(column, tail))


def at_equal_accuracy() -> Iterator[str]:
    """After 60 rounds none is as far with one class and ten steps as without skew and one step."""
    columns = [column.by_seed(60, 1) for column in (SKEWED, PHASE)]
    none = [of["fedavg none"].mean() for of in columns]
    over = [[of[f"fedavg {norm}"] - of["fedavg none"] for norm in ("scale", "ln")] for of in columns]
    texts = [pages.listed("{:.1f} ± {:.1f}".format(*gain(one, 0 * one)) for one in some) for some in over]
    assert all(abs(mean) < half for mean, half, _ in (gain(*both) for both in zip(*over, strict=True)))
    assert columns[0].count()["fedavg none"] == 10 and columns[1].count()["fedavg none"] == 5
    yield (
        f"After 60 rounds none is at {none[0]:.1f} % with one class and ten steps, and at {none[1]:.1f} % without skew "
        f"and with one step; there the constant and layer norm gain {texts[0]} points, and {texts[1]}."
    )


def of_methods() -> Iterator[str]:
    """What is shown of the methods after 300 rounds."""
    found = {(one.value, one.column[0]): one for one in comparisons("plateau_methods")}
    assert found["scaffold", "dirichlet:0.1"].checked == WITHIN
    for method in ("fedyogi", "scaffold"):
        one = found[method, "classes:1"]
        assert (one.verdict, one.doubts) == (WITHIN, ("depends on the window",))
    assert {found["feddyn", at].verdict for at in ("classes:1", "dirichlet:0.1")} == {"open"}
    one_class, dirichlet = (Column("plateau_methods", at) for at in ("classes:1", "dirichlet:0.1"))
    first = one_class.rounds_to_level()
    medians = [first[f"{method} none"].median() for method in ("fedavg", "feddyn", "scaffold")]
    (every,) = {*first["fedyogi none"]}
    yield (
        f"to {one_class.level():.1f} % with one class and without a normalization FedYogi needs {every:.0f} rounds in "
        "every seed, FedAvg {:.0f}, FedDyn {:.0f} and SCAFFOLD {:.0f} (medians).".format(*medians)
    )
    leads = []
    for column in (one_class, dirichlet):
        areas = _early(column)
        leads.append("{:.1f} ± {:.1f}".format(*gain(areas["fedyogi none"], areas["fedavg none"])[:2]))
    yield f"FedYogi leads FedAvg there by {leads[0]} points, and with Dirichlet(0.1) by {leads[1]}."
    ln = [found["ln", at] for at in ("classes:1", "dirichlet:0.1")]
    assert {one.verdict for one in ln} == {"open"}
    yield (
        f"Layer norm gains nothing that is shown in the other methods: {ln[0].text} points with one class and "
        f"{ln[1].text} with Dirichlet(0.1), means over the three methods."
    )
    of = Column("plateau_methods", "dirichlet:0.1").by_seed()
    failed = {row: (of[row] < of[row].median() - 5).sum() for row in of}
    assert {row: n for row, n in failed.items() if n} == {"fedavg scale": 1, "scaffold ln": 1}
    lowest = [of[row].min() for row in ("fedavg scale", "scaffold ln")]
    yield f"one of FedAvg with the constant and one of SCAFFOLD with layer norm end at {pages.listed(lowest, 1)} %."


def the_constant() -> Iterator[str]:
    """All parts of the constant get as far as it, and all are faster than none."""
    for dataset in ("digits", "fashion_mnist"):
        column, none = Column("head_scale", dataset=dataset), "fedavg none"
        values, rounds = column.by_seed(), column.rounds_to_level().median()
        means = values.mean()
        parts = [row for row in means.index if row != none]
        assert len(parts) == len(values) == 5 and not column.is_at_edge().any()
        text = (
            f"none is at {means[none]:.1f} % and the five others are at {pages.span(means[parts])} %; to "
            f"{column.level():.1f} % none needs {rounds[none]:.0f} rounds and they need {pages.span(rounds[parts], 0)}."
        )
        if dataset == "digits":
            yield f"On digits {text}"
            continue
        yield f"On Fashion-MNIST {text}"
        leads = [gain(values[row], values[none])[:2] for row in parts]
        least, most = min(leads), max(leads)
        assert all(mean > half for mean, half in leads)
        yield (
            f"There the five lead by {least[0]:.1f} ± {least[1]:.1f} to {most[0]:.1f} ± {most[1]:.1f} points, and the "
            "curves still rise."
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "sentences",
    [
        digits,
        what_is_faster,
        fashion_mnist,
        other_seeds_and_more_rounds,
        other_levels,
        at_equal_accuracy,
        of_methods,
        the_constant,
    ],
)
def test_the_sentences(sentences: Callable[[], Iterator[str]]) -> None:
    text = pages.plain(PAGE)
    assert [sentence for sentence in sentences() if sentence not in text] == []


@pytest.mark.slow
def test_the_tables() -> None:
    assert pages.tables(PAGE) == [values(), paces(), methods()]
