"""README's answer and leaderboard.md against the recomputed numbers, which share no code with the report."""

from __future__ import annotations

import re

import pytest

from tests.audit import leaderboard, pages, readme
from tests.audit.planned import comparisons

#: Patterns of the paragraphs with numbers, or what is left of them, that other tests of this folder compare as a whole.
ELSEWHERE = {
    "test_why": [
        "The range of learning rates that works follows",
        r"Accuracy follows the rank of the features\.",
        r"Bounded norms explain the gain of FN\.",
        "Local training on one class without normalization makes the norms of features grow",
        "Local training on one class makes features collapse onto one direction",
        "FedAvg on one class a client: with FN the global model's features are spread",
        r"A higher rank of the features raises accuracy\.",
        "A few local steps on one class make the global model forget the others",
        r"Over [\d,]+ settings on digits accuracy rises with the rank of the features",
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
    ("name", "sweeps"), [("digits-mlp", ["skew", "rank_dose"]), ("fashion-mnist-mlp", ["skew_fashion_mnist"])]
)
def test_the_planned_comparisons_of_the_details(name: str, sweeps: list[str]) -> None:
    page = pages.details(name)
    found = {
        (row[0], head): entry
        for heads, *rows in pages.tables(page)
        if heads[0] == "comparison"
        for row in rows
        for head, entry in zip(heads[1:], row[1:], strict=True)
    }
    recomputed = [one for sweep in sweeps for one in comparisons(sweep)]
    assert len(found) == len(recomputed)
    for one in recomputed:
        p = "&lt;0.001" if one.p < 0.001 else f"{one.p:.2g}"
        text = f"{one.mean:+.2f} ± {one.half_width:.2f}<br><sub>{one.verdict}</sub><br><sub>p {p}, n="
        assert found[one.name, one.head].startswith(text), one
    for sweep in sweeps:
        assert f"after Holm's correction for the {len(comparisons(sweep))} comparisons of this section" in page


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
