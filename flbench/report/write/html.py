"""A document as one self-contained page: sortable tables, a search, what is behind a cell, figures; nothing is fetched.

The page names the hashes of its own script and style sheet in a Content-Security-Policy: a browser executes no other
script and loads nothing, whatever the names and messages in a report hold. The policy forbids ``style`` attributes:
those of figures become rules of the style sheet.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape, unescape
from pathlib import Path

from flbench.literal import visible
from flbench.report.blocks import (
    Block,
    Charts,
    Code,
    Entry,
    Figure,
    Fold,
    Grid,
    Heading,
    Items,
    Paragraph,
    Updated,
    anchor,
)

#: The folder of the style sheets and scripts of pages.
_PARTS = Path(__file__).parent

#: A word of a table is broken after this many characters, so that no column is wider than a phone.
LONGEST = 14

#: A number and its interval, which stay in one line.
_JOINED = "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}"

#: A column with a text of more characters than this is wide enough for several words a line.
LONG_TEXT = 40

#: Those of every page, and those of pages with some blocks.
_ALWAYS = ("page.css", "page.js")
_OF_BLOCKS: Mapping[type[Block], tuple[str, ...]] = {
    Charts: ("charts.css", "charts.js"),
    Updated: ("updated.js",),
}

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="flbench report: {title}">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
<script>{script}</script>
</body>
</html>
"""


def to_html(blocks: Sequence[Block], title: str) -> str:
    """Return the page; the same blocks give the same bytes."""
    kinds = {type(block) for block in blocks}
    names = [*_ALWAYS, *(name for kind, parts in _OF_BLOCKS.items() if kind in kinds for name in parts)]
    style, script = (
        "".join((_PARTS / name).read_text(encoding="utf-8") for name in names if name.endswith(ending))
        for ending in (".css", ".js")
    )
    page = _Page()
    body = "\n".join(page.write(blocks))
    style += page.style()
    return _PAGE.format(title=escape(title), policy=_policy(script, style), style=style, script=script, body=body)


def _policy(script: str, style: str) -> str:
    """Return the Content-Security-Policy that allows one script, one style sheet and the images inside figures."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, style)]
    sources = "script-src 'sha256-{}'; style-src 'sha256-{}'".format(*hashes)
    return f"default-src 'none'; img-src data:; {sources}; base-uri 'none'; form-action 'none'"


class _Page:
    """Writes blocks; counts anchors and figures, whose ids must be unique, and collects the styles of figures."""

    def __init__(self) -> None:
        self._anchors: Counter[str] = Counter()
        self._figures = 0
        self._title = ""  # the last one, which names the tables below it
        self._sheets: dict[str, None] = {}  # in order, each once
        self._classes: dict[str, str] = {}  # by the style that a figure gives to its elements

    def style(self) -> str:
        """Return the style sheet of the figures that were written."""
        rules = (f".{name} {{ {style} }}" for style, name in self._classes.items())
        return "".join(f"{rule}\n" for rule in (*self._sheets, *rules))

    def write(self, blocks: Sequence[Block]) -> Iterator[str]:
        """Yield the blocks, with links to the sections below the title."""
        titles = [block.text for block in blocks if isinstance(block, Heading) and block.level == 2]
        links = [f'<a href="#{anchor(title)}">{_text(title)}</a>' for title in titles]
        for block in blocks:
            yield self._block(block)
            if isinstance(block, Heading) and block.level == 1 and links:
                yield f'<nav aria-label="sections">{" ".join(links)}</nav>'

    def _block(self, block: Block) -> str:
        match block:
            case Heading():
                # GitHub numbers the anchors of repeated titles in the same way.
                name = anchor(block.text)
                unique = f"{name}-{self._anchors[name]}" if self._anchors[name] else name
                self._anchors[name] += 1
                self._title = block.text
                return f'<h{block.level} id="{unique}">{_text(block.text)}</h{block.level}>'
            case Paragraph():
                lines = "<br>".join(map(_inline, block.text.split("\n")))
                return f'<p class="warning">{lines}</p>' if block.warning else f"<p>{lines}</p>"
            case Items():
                return "<ul>" + "".join(f"<li>{_inline(text)}</li>" for text in block.texts) + "</ul>"
            case Code():
                return f"<pre><code>{_text(block.text)}</code></pre>"
            case Grid():
                return _grid(block, self._title)
            case Figure():
                self._figures += 1
                return self._figure(block)
            case Fold():
                self._title = block.summary
                inside = "\n".join(map(self._block, block.blocks))
                return f"<details><summary>{_text(block.summary)}</summary>\n{inside}\n</details>" if inside else ""
            case Charts():
                return _charts(block)
            case Updated():
                made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(block.at))
                period = "" if block.period is None else f' data-period="{block.period}"'
                return f'<p id="page-updated" data-at="{block.at}"{period}>Made {made}.<span></span></p>'

    def _figure(self, figure: Figure) -> str:
        """Return the SVG with ids that no other figure has, and with classes in place of style attributes."""
        text = figure.svg.read_text(encoding="utf-8")
        text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
        text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>f{self._figures}-", text)
        text = re.sub(r"<style[^>]*>(.*?)</style>", self._sheet, text, flags=re.DOTALL)
        text = re.sub(r'\bstyle="([^"]*)"', self._class, text)
        opening, rest = text.split(">", 1)
        label = f'<svg role="img" aria-label="{_text(figure.caption)}"'
        opening = re.sub(r"\s+", " ", opening).replace("<svg", label, 1)
        return f"<figure>{opening}>{rest.strip()}<figcaption>{_text(figure.caption)}</figcaption></figure>"

    def _sheet(self, found: re.Match[str]) -> str:
        self._sheets[f"figure {found[1].strip()}"] = None
        return ""

    def _class(self, found: re.Match[str]) -> str:
        return f'class="{self._classes.setdefault(unescape(found[1]), f"drawn{len(self._classes)}")}"'


def _grid(grid: Grid, title: str) -> str:
    classes = [_class(grid, column) for column in range(len(grid.head))]
    heads = [
        f'<th scope="col"{name}><button type="button">{_broken(head)}</button></th>'
        for name, head in zip(classes, grid.head, strict=True)
    ]
    rows = ["<tr>" + "".join(map(_entry, row, classes, range(len(row)))) + "</tr>" for row in grid.rows]
    used = grid.used_marks()
    marks = f' data-marks="{_text(json.dumps(used, ensure_ascii=False))}"' if used else ""
    stuck = ' class="pair"' if grid.names > 1 else ""
    lines = [f"<table{stuck}{marks}><thead><tr>", *heads, "</tr></thead><tbody>", *rows]
    opening = f'<div class="scroll" role="group" tabindex="0" aria-label="{_text(title)}">'
    return opening + "\n".join([*lines, "</tbody></table>"]) + "</div>"


def _class(grid: Grid, column: int) -> str:
    """Return the class of the cells of a column."""
    if grid.is_number(column):
        return ' class="number"'
    is_long = any(len(row[column].text) > LONG_TEXT for row in grid.rows)
    return ' class="long"' if is_long or column >= grid.names else ""


def _entry(entry: Entry, name: str, column: int) -> str:
    text = f"<strong>{_broken(entry.text)}</strong>" if entry.bold else _broken(entry.text)
    text = f'<a href="{_text(entry.link)}">{text}</a>' if entry.link else text
    mark = f' <span class="mark">{escape(entry.mark)}</span>' if entry.mark else ""
    below = "".join(f"<small>{_broken(line.replace(' ± ', _JOINED))}</small>" for line in entry.below)
    order = "" if entry.order is None else f' data-order="{entry.order!r}"'
    tip = f' data-tip="{_text(chr(10).join(entry.tip))}"' if entry.tip else ""
    if not column:
        return f'<th scope="row"{name}{order}{tip}>{text}{mark}{below}</th>'
    return f"<td{name}{order}{tip}>{text}{mark}{below}</td>"


def _broken(text: str) -> str:
    """Return a text as HTML in which long words may be broken."""
    marked = re.sub(rf"\S{{{LONGEST}}}(?=\S)", "\\g<0>\0", visible(text))  # which has no NUL of its own
    return escape(marked).replace("\0", "<wbr>")


def _charts(charts: Charts) -> str:
    """Return the place of the charts, and their data without characters that could end the element."""
    data = json.dumps(charts.data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return (
        '<section id="charts-area"><noscript><p class="warning">The charts need JavaScript.</p></noscript></section>\n'
        f'<script type="application/json" id="charts-data">{data}</script>'
    )


def _text(text: str) -> str:
    """Return a text as HTML."""
    return escape(visible(text))


def _inline(text: str) -> str:
    """Return inline Markdown as HTML; only links to sections, files and the web become links."""
    text = re.sub(r"&amp;((?:amp|lt|gt|#\d+);)", r"&\1", escape(visible(text), quote=False))
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
    text = re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", text)
    text = re.sub(r"\*([^*\s][^*]*)\*", r"<em>\1</em>", text)
    return re.sub(r"\[([^\]]+)\]\(([^)\s]+)\)", _link, text)


def _link(found: re.Match[str]) -> str:
    label, target = found.groups()
    leads = re.match(r"https?://|[^:\\]*$", unescape(target), re.IGNORECASE)
    return f'<a href="{escape(unescape(target))}">{label}</a>' if leads else label
