"""README's answer, leaderboard.md and docs/results against recomputed numbers, which share no code with the report."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from tests.audit import (
    fedvls,
    leaderboard,
    pages,
    published,
    readme,
    results_cifar10,
    results_digits,
    results_fashion_mnist,
    results_why,
)
from tests.audit.cells import comparisons, ranked

#: Patterns of the paragraphs with numbers, or what is left of them, that other tests of this folder compare as a whole.
ELSEWHERE = {
    "test_studies": [
        r"and [\d,]+ runs of studies of networks \(provenance\)\.$",
        r"(Sharpness of wide networks|Ranks over depth|Deep networks): \d+ of \d+ claims hold",
        r"(Sharpness of wide networks|Ranks over depth|Deep networks): \d+ claims, [\d,]+ runs$",
        r"Provenance: [\d,]+ finished runs of \d+ sweeps: ",
    ],
}


#: The sentences of docs/answers and docs/why.md, by section and by the function that recomputes them.
SENTENCES = [
    pytest.param(section, sentences, id=sentences.__name__)
    for module in (results_cifar10, results_digits, results_fashion_mnist, results_why)
    for section, functions in module.SECTIONS.items()
    for sentences in functions
]


@pytest.mark.slow
@pytest.mark.parametrize(("section", "sentences"), SENTENCES)
def test_the_sentences_of_the_results(section: str, sentences: Callable[[], Iterable[str]]) -> None:
    text = pages.text(section)
    assert [sentence for sentence in sentences() if sentence not in text] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "tables"),
    [
        pytest.param(pages.readme(), readme.tables, id="readme"),
        pytest.param(pages.leaderboard(), leaderboard.tables, id="leaderboard"),
        *(
            pytest.param(pages.section(pages.answers(), section), tables, id=section)
            for section, tables in {
                "NIID-Bench": lambda: [published.niid_bench()],
                "Skew and local steps": lambda: [results_digits.what_skew_adds()],
            }.items()
        ),
    ],
)
def test_the_tables_of_a_page(page: str, tables: Callable[[], list[list[list[str]]]]) -> None:
    for found, recomputed in zip(pages.tables(page), tables(), strict=True):
        assert found == recomputed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "section", "sweeps"),
    [
        ("digits-mlp", "", ["plateau", "plateau_skew", "plateau_methods", "rank_dose"]),
        ("fashion-mnist-mlp", "", ["fashion_mnist_long"]),
        ("skew-fashion-mnist", "", ["skew_fashion_mnist"]),
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
        assert pages.numbers(numbers) == pages.rounded(one.mean, one.half_width), one
        assert verdict == f"<sub>{one.checked}</sub>" and p in re.split("</?sub>|, ", tested), one
        last = re.findall(r"<sub>last ([^<]+)</sub>", found[one.name, one.head])
        assert len(last) == (one.last is not None), one
        if one.last:
            assert pages.numbers(last[0]) == pages.rounded(*one.last), one
    for sweep in sweeps:
        count = sum(not np.isnan(one.p) for one in (*comparisons(sweep), *ranked(sweep)))
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


def test_the_verdicts_on_fedvls() -> None:
    (head, *body), *_ = pages.tables(pages.section(pages.details("fedvls-mnist"), "FedVLS's published numbers"))
    named = (dict(zip(head, row, strict=True)) for row in body)
    rows = {(row["published as"], row["partition"], row["ours on"]): row for row in named}
    recomputed = list(fedvls.judged())
    assert len(recomputed) == sum(row["mean"] != "–" for row in rows.values()) == 48
    for one in recomputed:
        row = rows[one.label, one.partition, one.on]
        assert pages.numbers(row["mean"].split("<br>")[0]) == pages.rounded(one.mean), one
        assert float(row["difference"]) == pytest.approx(one.difference, abs=0.005 + 1e-9), one
        assert row["verdict"].startswith(one.verdict), one
        if one.half_width is not None:
            assert f"± {one.half_width:.2f}" in row["verdict"], one
