"""README's answer and leaderboard.md against the recomputed numbers, which share no code with the report."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.audit import leaderboard, pages, published, readme
from tests.audit.planned import comparisons

#: Patterns of the paragraphs with numbers, or what is left of them, that other tests of this folder compare as a whole.
ELSEWHERE = {
    "test_why": [
        "The range of learning rates that works follows",
        r"Accuracy follows the rank of the features( only in part)?\.",
        r"Bounded norms explain the gain of FN\.",
        "Local training on one class without normalization makes the norms of features grow",
        "Local training on one class makes features collapse onto one direction",
        "FedAvg on one class a client: with FN the global model's features are spread",
        r"A higher rank of the features raises accuracy\.",
        "A few local steps on one class make the global model forget the others",
    ],
    "test_studies": [
        r"and [\d,]+ runs of studies of networks \(provenance\)\.$",
        r"(Sharpness of wide networks|Ranks over depth|Deep networks): \d+ of \d+ claims hold",
        r"(Sharpness of wide networks|Ranks over depth|Deep networks): \d+ claims, [\d,]+ runs$",
        r"Provenance: [\d,]+ finished runs of \d+ sweeps: ",
    ],
    "test_sharpening": ["Along training lr x lambda_max / 2 of the global model"],
}


@pytest.mark.slow
def test_the_table_of_readme() -> None:
    assert pages.tables(pages.readme()) == [readme.table()]


@pytest.mark.slow
def test_the_tables_of_the_leaderboard() -> None:
    found, expected = pages.tables(pages.leaderboard()), leaderboard.tables()
    for table, recomputed in zip(found, expected, strict=True):
        assert table == recomputed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "section", "sweeps"),
    [
        ("digits-mlp", "", ["one_class_digits", "skew", "rank_dose"]),
        ("fashion-mnist-mlp", "", ["one_class_fashion_mnist", "skew_fashion_mnist"]),
        ("fashion-mnist-lenet", "", ["fashion_mnist_lenet"]),
        ("cifar10-cnn", "", ["cifar10_one_step"]),
        ("cifar10-ten-steps", "", ["cifar10_ten_steps"]),
        ("cifar10-tuned", "", ["cifar10_tuned"]),
        ("cifar10-full-length", "", ["cifar10_full_length"]),
        ("phase-diagram", "digits, mlp(widths=[64, 64])", ["phase_digits"]),
        ("phase-diagram", "fashion_mnist, mlp(widths=[64, 64])", ["phase_fashion_mnist"]),
        ("scale-or-geometry", "fashion_mnist, mlp(widths=[64, 64])", ["constants"]),
        ("scale-or-geometry", "fashion_mnist, mlp(widths=[64, 64, 64, 64])", ["constants_of_a_deeper_network"]),
    ],
)
def test_the_planned_comparisons_of_the_details(name: str, section: str, sweeps: list[str]) -> None:
    page = pages.section(pages.details(name), section)
    found = pages.planned(page)
    recomputed = [one for sweep in sweeps for one in comparisons(sweep)]
    assert len(found) == len(recomputed)
    for one in recomputed:
        p = "no test" if np.isnan(one.p) else "p &lt;0.001" if one.p < 0.001 else f"p {one.p:.2g}"
        numbers, verdict, tested = found[one.name, one.head].split("<br>")[:3]
        # Means of multiples of 0.01 % may lie between two rounded numbers.
        rounded = [float(number) for number in numbers.strip("*").split(" ± ")]
        exact = [number for number in (one.mean, one.half_width) if not np.isnan(number)]
        assert rounded == pytest.approx(exact, rel=0, abs=0.005 + 1e-9), one
        assert verdict == f"<sub>{one.verdict}</sub>" and p in re.split("</?sub>|, ", tested), one
        last = re.search(r"<sub>last (\S+)(?: ± (\S+))?</sub>", found[one.name, one.head])
        assert (last is None) == (one.last is None)
        if last and one.last:
            exact = [number for number in (one.last.mean, one.last.half_width) if not np.isnan(number)]
            rounded = [float(number) for number in last.groups() if number]
            assert rounded == pytest.approx(exact, rel=0, abs=0.005 + 1e-9), one
    for sweep in sweeps:
        count = sum(not np.isnan(one.p) for one in comparisons(sweep))
        assert f"Holm's correction over all of this section that have a test ({count})" in page


@pytest.mark.parametrize(
    ("name", "sweeps", "count"),
    [("cifar10-cnn", published.SWEEPS, 12), ("cifar10-full-length", ("cifar10_full_length",), 5)],
)
def test_the_published_numbers_of_the_details(name: str, sweeps: tuple[str, ...], count: int) -> None:
    (head, *body), *_ = pages.tables(pages.section(pages.details(name), "Published numbers"))
    rows = [dict(zip(head, row, strict=True)) for row in body]
    whole = published.published(sweeps).query("rounds_ours >= rounds")
    whole = whole.drop_duplicates([*published.SHARED, "value", "std"])
    assert len(rows) == len(whole) == count
    for one in whole.itertuples():
        number = f"{one.value:.2f}" + ("" if np.isnan(one.std) else f" ± {one.std:.2f}")
        at = (f"{one.method}, {one.norm}", one.partition, number)
        # A page whose runs have one partition does not repeat it in each row.
        (row,) = (row for row in rows if (row["ours"], row.get("partition", one.partition), row["published"]) == at)
        assert row["mean"].partition("<")[0].partition(" ")[0] == f"{100 * one.ours:.2f}"
        assert row["difference"] == f"{100 * one.ours - one.value:+.2f}"
        if np.isnan(one.p):
            assert row["verdict"] == "inconclusive (no comparable runs with several seeds)"
        else:
            assert row["verdict"] == f"{one.verdict} ({100 * one.low:.2f} to {100 * one.high:.2f})"


@pytest.mark.slow
def test_every_sentence_with_a_number_is_recomputed() -> None:
    others = re.compile("|".join(pattern for patterns in ELSEWHERE.values() for pattern in patterns))
    for page, sentences in ((pages.readme(), readme.sentences()), (pages.leaderboard(), leaderboard.sentences())):
        text = "\n".join(pages.paragraphs(page))
        assert [sentence for sentence in sentences if sentence not in text] == []
        assert [left for left in pages.unaudited(page, sentences) if not others.match(left)] == []


def test_a_number_outside_of_the_recomputed_sentences_is_found() -> None:
    page = "Of 24 runs 3 diverged.\n\n- [Page 1](a1.md): 5 runs, `E1`\n\n| a 7 |\n| --- |\n\n```sh\nrun 8\n```\n"
    assert pages.unaudited(page, ["24 runs", "3 diverged", "Page 1", "5 runs"]) == []
    assert pages.unaudited(page, ["24 runs", "3 diverged", "Page 1"]) == [": 5 runs, `E1`"]
    assert pages.tables(page) == [[["a 7"]]]
