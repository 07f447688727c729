"""Markdown names what only HTML shows, and links figures relative to its file."""

from __future__ import annotations

from pathlib import Path

from flbench.report.blocks import Block, Figure, Fold, Heading, Paragraph
from flbench.report.write.markdown import to_markdown


def blocks(folder: Path) -> list[Block]:
    figure = Figure("a caption", folder / "docs" / "figures" / "a-0.1.svg")
    return [
        Heading(1, "A sweep"),
        figure,
        Fold("12 lines", (Paragraph("hidden"),)),
        Fold("All 9 cells", (Paragraph("hidden"), figure)),
        Fold("1 more figure", (figure,)),
        Paragraph("The end."),
    ]


def test_folds_are_named_and_their_figures_linked(tmp_path: Path) -> None:
    assert to_markdown(blocks(tmp_path), tmp_path) == (
        "# A sweep\n\n![a caption](docs/figures/a-0.1.svg)\n\n"
        "All 9 cells: [a-0.1](docs/figures/a-0.1.svg).\n\n1 more figure: [a-0.1](docs/figures/a-0.1.svg).\n\n"
        "In `--html`: 12 lines; All 9 cells.\n\nThe end.\n"
    )
    assert "](../figures/a-0.1.svg)" in to_markdown(blocks(tmp_path), tmp_path / "docs" / "results")


def test_without_a_folder_there_are_no_figures(tmp_path: Path) -> None:
    assert to_markdown(blocks(tmp_path)) == "# A sweep\n\nIn `--html`: 12 lines; All 9 cells.\n\nThe end.\n"
