"""Markdown stays as small as GitHub renders it."""

from __future__ import annotations

import pytest

from flbench.report.blocks import Block, Fold, Heading, Paragraph
from flbench.report.write import markdown


def document() -> list[Block]:
    return [
        Heading(1, "A sweep"),
        Fold("12 lines", (Paragraph("s" * 300),)),
        Fold("All 9 cells", (Paragraph("l" * 600),)),
        Fold("Nothing", ()),
        Paragraph("The end."),
    ]


def test_a_small_document_is_complete() -> None:
    assert markdown.to_markdown(document()) == (
        f"# A sweep\n\n<details>\n<summary>12 lines</summary>\n\n{'s' * 300}\n\n</details>\n\n"
        f"<details>\n<summary>All 9 cells</summary>\n\n{'l' * 600}\n\n</details>\n\nThe end.\n"
    )


@pytest.mark.parametrize("largest, kept, left_out", [(600, "s", "l"), (200, "", "sl")])
def test_the_largest_folds_of_a_large_document_are_left_out(
    monkeypatch: pytest.MonkeyPatch, largest: int, kept: str, left_out: str
) -> None:
    monkeypatch.setattr(markdown, "LARGEST", largest)
    text = markdown.to_markdown(document())
    assert text.startswith("# A sweep\n\n") and text.endswith("\n\nThe end.\n")
    assert all(letter * 300 in text for letter in kept) and not any(letter * 300 in text for letter in left_out)
    assert "All 9 cells: left out, since GitHub" in text
    assert ("12 lines: left out" in text) == ("s" in left_out)


def test_text_outside_of_folds_is_never_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markdown, "LARGEST", 10)
    assert "The end." in markdown.to_markdown(document())
