"""README's answer and leaderboard.md against the recomputed numbers, which share no code with the report."""

from __future__ import annotations

import pytest

from tests.audit import leaderboard, pages, readme

#: The beginnings of paragraphs with numbers that other tests of this folder recompute.
ELSEWHERE = {
    "test_why": [
        "The range of learning rates that works follows",
        "Accuracy follows the rank of the features.",
        "Bounded norms explain the gain of FN.",
        "Local training on one class without normalization makes the norms of features grow",
        "Local training on one class makes features collapse onto one direction",
        "FedAvg on one class a client: with FN the global model's features are spread",
        "A higher rank of the features raises accuracy.",
        "A few local steps on one class make the global model forget the others",
        "Over 14,280 runs of digits accuracy rises with the rank of the features",
    ],
    "test_sharpening": ["Along training lr x lambda_max / 2 of the global model"],
    "test_studies": ["Sharpness of wide networks: ", "Ranks over depth: ", "Deep networks: "],
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
def test_every_sentence_with_a_number_is_recomputed() -> None:
    board = pages.leaderboard()
    for page, sentences in ((pages.readme(), readme.sentences()), (board, leaderboard.sentences(board))):
        text = "\n".join(pages.paragraphs(page))
        assert [sentence for sentence in sentences if sentence not in text] == []
        others = tuple(beginning for beginnings in ELSEWHERE.values() for beginning in beginnings)
        assert [left for left in pages.unaudited(page, sentences) if not left.startswith(others)] == []


def test_a_number_outside_of_the_recomputed_sentences_is_found() -> None:
    page = "Of 24 runs 3 diverged.\n\n- [Page 1](a1.md): 5 runs, `E1`\n\n| a 7 |\n| --- |\n\n```sh\nrun 8\n```\n"
    assert pages.unaudited(page, ["24 runs", "3 diverged", "Page 1", "5 runs"]) == []
    assert pages.unaudited(page, ["24 runs", "3 diverged", "Page 1"]) == [": 5 runs, `E1`"]
    assert pages.tables(page) == [[["a 7"]]]
