"""A document as Markdown for GitHub: same blocks, same bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from flbench.report.blocks import Block, Code, Entry, Figure, Fold, Grid, Heading, Items, Paragraph
from flbench.report.literal import literal, visible

#: Most bytes of a file: GitHub shows Markdown of more than 512 KB as plain text.
LARGEST = 500_000


def to_markdown(blocks: Sequence[Block]) -> str:
    """Return the document; of one that is too large for GitHub, the largest folds are left out."""
    texts = [_block(block) for block in blocks]
    folds = [(index, block) for index, block in enumerate(blocks) if isinstance(block, Fold)]
    for index, fold in sorted(folds, key=lambda at: len(texts[at[0]]), reverse=True):
        if len(_joined(texts).encode()) <= LARGEST:
            break
        texts[index] = (
            f"{literal(fold.summary)}: left out, since GitHub shows a larger file as plain text; `--html` has them."
        )
    return _joined(texts) + "\n"


def _joined(texts: Iterable[str]) -> str:
    return "\n\n".join(filter(None, texts))


def _block(block: Block) -> str:
    match block:
        case Heading():
            return f"{'#' * block.level} {literal(block.text)}"
        case Paragraph():
            return "\n".join(f"> {line}" if block.warning else line for line in block.text.split("\n"))
        case Items():
            return "\n".join(f"- {text}" for text in block.texts)
        case Code():
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", block.text)), default=0))
            return f"{fence}sh\n{visible(block.text)}\n{fence}"
        case Grid():
            return _grid(block)
        case Figure():
            return f"![{literal(block.caption)}]({block.link})" if block.link else ""
        case Fold():
            # GitHub reads Markdown in HTML between empty lines.
            inside = _joined(map(_block, block.blocks))
            summary = f"<summary>{literal(block.summary)}</summary>"
            return f"<details>\n{summary}\n\n{inside}\n\n</details>" if inside else ""


def _grid(grid: Grid) -> str:
    rule = _line("---:" if grid.is_number(column) else "---" for column in range(len(grid.head)))
    return "\n".join(
        [
            _line("<br>".join(map(literal, head.split("\n"))) for head in grid.head),
            rule,
            *(_line(map(_entry, row)) for row in grid.rows),
        ]
    )


def _line(texts: Iterable[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"


def _entry(entry: Entry) -> str:
    text = f"**{literal(entry.text)}**" if entry.bold else literal(entry.text)
    first = " ".join(filter(None, [text, entry.mark]))
    below = map(literal, entry.below)
    return "<br>".join([*([first] if first else []), *(f"<sub>{line}</sub>" if first else line for line in below)])
