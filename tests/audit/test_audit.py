"""README and leaderboard against ``recompute.py``, which shares no code with the report."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from tests.audit.recompute import IMAGES, planned, runs, table

ROOT = Path(__file__).parents[2]

#: The rows and columns of digits in README's table: method; norm and head; partition.
METHODS = {"FedAvg": "fedavg", "FedYogi": "fedyogi"}
NORMS = {"none": ("none", "linear"), "constant": ("scale", "linear"), "feature norm": ("fn", "linear")}
NORMS |= {"layer norm": ("ln", "linear"), "group norm": ("gn", "linear"), "batch norm": ("bn", "linear")}
NORMS |= {"none, cosine head": ("none", "cosine")}
COLUMNS = {"digits, one class": "classes:1", "digits, Dirichlet(0.1)": "dirichlet:0.1", "digits, iid": "iid"}


def lines_of(text: str, head: str) -> list[list[str]]:
    """The rows of the table whose head begins so, the head first."""
    rows = text[text.index(head) :].split("\n\n")[0].splitlines()
    return [[entry.strip() for entry in row.strip("| ").split(" | ")] for row in rows if "---" not in row]


@pytest.fixture(scope="module")
def skew() -> pd.DataFrame:
    return runs(ROOT / "results/skew.parquet", "val-tail")


@pytest.mark.slow
def test_the_columns_of_digits_in_readme(skew: pd.DataFrame) -> None:
    numbers = table(skew, IMAGES["digits"])
    head, *rows = lines_of((ROOT / "README.md").read_text(), "| method | normalization |")
    for column, partition in COLUMNS.items():
        for row in rows:
            mean, half_width = numbers.loc[METHODS[row[0]], *NORMS[row[1]], partition, 10]
            assert row[head.index(column)] == f"{mean:.2f} ± {half_width:.2f}", row


@pytest.mark.slow
def test_the_planned_comparisons_of_digits(skew: pd.DataFrame) -> None:
    fedavg = skew[skew.method == "fedavg"]
    pages = {name: (ROOT / name).read_text() for name in ("leaderboard.md", "docs/results/digits-mlp.md")}
    compared = 0
    for text in pages.values():
        columns, *rows = lines_of(text, "| comparison |")
        for name, *entries in rows:
            value, against = name.removesuffix(" with fedavg").split(" against ")
            if against == "linear":
                continue
            for one in planned(fedavg, [value], against).itertuples():
                if (head := f"{one.column[0]}, E {one.column[1]}") in columns:
                    entry = entries[columns.index(head) - 1].replace("*", "")
                    assert entry.startswith(f"{one.mean:+.2f} ± {one.half_width:.2f}"), (name, one)
                    compared += 1
    assert compared == 7 * (3 + 8)


@pytest.mark.slow
def test_the_first_sentences_of_readme(skew: pd.DataFrame) -> None:
    fedavg, text = skew[skew.method == "fedavg"], " ".join((ROOT / "README.md").read_text().split())
    gains = planned(fedavg, ["scale", "fn", "ln", "gn"], "none")
    said = [
        f"{one.mean:.1f} ± {one.half_width:.1f}" for one in gains[gains.column.isin([("classes:1", 10)])].itertuples()
    ]
    assert f"FedAvg gains {said[0]} points if" in text
    assert "{} with feature, {} with layer and {} with group normalization".format(*said[1:]) in text
    iid = gains[gains.column.isin([("iid", 10)])]
    assert ((iid["mean"].abs() + iid.half_width) < 1).all(), "equivalent within one point, here by a stricter interval"
    against = planned(fedavg, ["fn", "ln", "gn"], "scale")
    assert len(against) == 24 and "Of 24 comparisons" in text
    page = (ROOT / "docs/results/digits-mlp.md").read_text()
    entries = [entry for _, *row in lines_of(page, "| comparison |")[1:] for entry in row]
    assert len(entries) + 7 * 2 == 94 and "94 comparisons of this section" in page
    # Holm's correction: the smallest p-value that is not among those of the gains over none and linear.
    different, *others = against.sort_values("p").itertuples()
    larger = 94 - sum("<sub>more</sub>" in entry for entry in entries) - 4 + 1  # four interactions, and this one
    assert different.p * larger < 0.05 <= others[0].p * (larger - 1)
    assert (different.norm, different.column) == ("ln", ("classes:2", 10))
    assert f"layer norm with two classes, {different.mean:.1f} ± {different.half_width:.1f} points" in text
    means = [one.mean for one in others]
    assert f"The others, from {min(means):.1f} to {max(means):+.1f} points" in text
    # A draw of one learning rate; a diverged run counts as guessing one of ten classes.
    one_class = fedavg[(fedavg.partition == "classes:1") & (fedavg.E == 10)]
    drawn = one_class.assign(value=one_class.value.fillna(0.1)).groupby(["norm", "head"]).value.mean() * 100
    none, scale, ln = (drawn[norm, "linear"] for norm in ("none", "scale", "ln"))
    cosine = drawn["none", "cosine"]
    assert f"FedAvg ends at {none:.0f} % on average, with the constant at {scale:.0f} %, with layer" in text
    assert f"normalization at {ln:.0f} %, and with a cosine head at {cosine:.0f} %" in text
