"""The page: what it holds, and in a real browser that it sorts, shows runs and fits a phone."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

from flbench.report.blocks import Charts, Entry, Figure, Fold, Grid, Heading, Paragraph, Updated
from flbench.report.board import Leaderboard
from flbench.report.output import write_text
from flbench.report.runs import collect
from flbench.report.write.html import to_html
from flbench.run_sources import StoreSource
from tests.browser import Browser, needs_browser
from tests.report.stores import html_of, leaderboard_of, write_figures
from tests.report.test_leaderboard import everything


class PageReader(HTMLParser):
    """Notes every tag, the open ones, ids, addresses and handlers of events."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.events: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "br", "path", "use", "rect"):
            self.open.append(tag)
        given = dict(attrs)
        self.events += [name for name in given if name.startswith("on")]
        self.ids += [given["id"] or ""] if "id" in given else []
        self.addresses += [given[name] or "" for name in ("href", "src", "xlink:href") if name in given]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return html_of(draw_board(tmp_path_factory.mktemp("page")))


def draw_board(folder: Path) -> Leaderboard:
    store, requests = everything(folder / "store")
    collection = collect(StoreSource(store), requests)
    board = leaderboard_of(collection)
    return dataclasses.replace(board, pictures=write_figures(board, folder / "figures"))


def run_in_browser(page: str, script: str, folder: Path, *, width: int = 1200, dark: bool = False) -> object:
    """The value of ``script``, an expression, on the page after its own scripts have run."""
    path = folder / "page.html"
    path.write_text(page, encoding="utf-8")
    with Browser(path, folder / "profile", width=width, dark=dark) as browser:
        found: object = browser.value(script)
        assert browser.complaints == []
        return found


def test_the_page_is_complete_and_loads_nothing(page: str) -> None:
    checker = PageReader()
    checker.feed(page)
    assert checker.open == []
    assert len(checker.ids) == len(set(checker.ids))
    assert all(address.startswith(("#", "data:image/png;base64,")) for address in checker.addresses)
    assert {address[1:] for address in checker.addresses if address.startswith("#")} <= set(checker.ids)
    assert "url(" not in page.replace("url(#", "") and "@import" not in page


def test_the_page_allows_its_own_script_and_style_alone(page: str, tmp_path: Path) -> None:
    status = to_html([Heading(1, "t"), Updated(time.time(), 5.0), Charts({"groups": []})], "t")
    for name, text in {"report": page, "status": status}.items():
        path = tmp_path / f"{name}.html"
        write_text(path, text)
        written = path.read_bytes()
        (policy,) = re.findall(rb'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', written)
        # Elements with an attribute, such as the data of charts, are neither executed nor applied.
        own = {tag: re.findall(b"<%s>(.*?)</%s>" % (tag, tag), written, re.DOTALL) for tag in (b"script", b"style")}
        hashes = {
            tag.decode(): [base64.b64encode(hashlib.sha256(part).digest()).decode() for part in parts]
            for tag, parts in own.items()
        }
        assert policy.decode() == (
            f"default-src 'none'; img-src data:; script-src 'sha256-{hashes['script'][0]}'; "
            f"style-src 'sha256-{hashes['style'][0]}'; base-uri 'none'; form-action 'none'"
        )
        assert [len(parts) for parts in hashes.values()] == [1, 1]
        assert b"http-equiv" not in written[written.index(b"<style>") :]
        assert not re.search(rb"<[^<>]* style=", written), "the policy forbids style attributes"
        assert written.index(b"http-equiv") < written.index(b"<title>")


@pytest.mark.slow
@needs_browser
def test_a_browser_executes_nothing_that_enters_a_page(tmp_path: Path) -> None:
    strange = "<script>window.entered = 1</script><p id=x style='color: red' onclick='window.entered = 2'>x</p>"
    path = tmp_path / "page.html"
    write_text(path, to_html([Heading(1, "t"), Paragraph("here")], "t").replace("<p>here</p>", strange))
    with Browser(path, tmp_path / "profile", width=1200) as browser:
        assert browser.value("document.getElementById('x').click()") is None
        assert browser.value("[window.entered ?? 0, document.getElementById('x').style.color]") == [0, ""]
        assert browser.complaints and all("Content Security Policy" in one for one in browser.complaints)


def test_figures_keep_the_styles_of_their_elements(page: str, tmp_path: Path) -> None:
    """Rules of classes count like style attributes: more than the rule for all elements of a figure."""
    svg = tmp_path / "figure.svg"
    drawn = '<g style="fill: #fff; stroke-linejoin: miter"><path style="fill: #fff; stroke-linejoin: miter"/></g>'
    svg.write_text(f'<?xml version="1.0"?><svg><defs><style type="text/css">*{{a: b}}</style></defs>{drawn}</svg>')
    text = to_html([Figure("c", svg), Figure("c", svg)], "t")
    assert text.count("figure *{a: b}\n.drawn0 { fill: #fff; stroke-linejoin: miter }\n</style>") == 1
    assert text.count('<defs></defs><g class="drawn0"><path class="drawn0"/></g></svg>') == 2


@pytest.mark.slow
def test_the_same_runs_give_the_same_page(page: str, tmp_path: Path) -> None:
    assert html_of(draw_board(tmp_path)) == page


def test_texts_are_escaped(tmp_path: Path) -> None:
    blocks = [
        Heading(1, "<script>"),
        Paragraph("a < b & `c<d` **e**"),
        Grid(("h|<",), ((Entry("<b>", tip=('"x"',)),),), 1),
    ]
    text = to_html(blocks, "<t>")
    assert '<h1 id="script">&lt;script&gt;</h1>' in text and "<title>&lt;t&gt;</title>" in text
    assert "<p>a &lt; b &amp; <code>c&lt;d</code> <strong>e</strong></p>" in text
    assert 'data-tip="&quot;x&quot;">&lt;b&gt;</td>' in text


def test_repeated_titles_have_unique_anchors() -> None:
    blocks = [Heading(1, "t"), Heading(2, "A: b"), Heading(3, "Same"), Fold("f", (Heading(3, "Same"),))]
    text = to_html(blocks, "t")
    assert '<a href="#a-b">A: b</a>' in text
    assert '<h3 id="same">' in text and '<h3 id="same-1">' in text


#: The first column of numbers in the first table, row by row.
VALUES = "[...document.querySelector('table').tBodies[0].rows].map(r => r.cells[2].innerText.split('\\n')[0])"


@pytest.mark.slow
@needs_browser
def test_a_click_sorts_and_a_third_click_restores(page: str, tmp_path: Path) -> None:
    script = f"""(() => {{
      const values = () => {VALUES};
      const head = document.querySelector('table').tHead.rows[0].cells[2];
      const seen = [[values(), head.ariaSort]];
      for (let i = 0; i < 3; i++) {{ head.querySelector('button').click(); seen.push([values(), head.ariaSort]); }}
      return seen;
    }})()"""
    before, first, second, third = run_in_browser(page, script, tmp_path)  # type: ignore[misc]
    best = ["75.50", "70.50", "66.00 ± 5.52", "61.00 ± 5.65", "41.00 ± 5.69"]
    assert first == [best, "descending"]
    assert second == [best[::-1], "ascending"]
    assert third == before and before[1] is None


@pytest.mark.slow
@needs_browser
def test_cells_without_a_value_are_sorted_last(page: str, tmp_path: Path) -> None:
    column = VALUES.replace("cells[2]", "cells[3]")
    click = "document.querySelector('table').tHead.rows[0].cells[3].querySelector('button').click()"
    down, up = run_in_browser(page, f"[({click}, {column}), ({click}, {column})]", tmp_path)  # type: ignore[misc]
    assert [text.split(" ±")[0] for text in down] == ["80.50", "76.00", "71.00", "–", "not run"]
    assert [text.split(" ±")[0] for text in up] == ["71.00", "76.00", "80.50", "–", "not run"]


@pytest.mark.slow
@needs_browser
def test_text_columns_can_be_sorted(page: str, tmp_path: Path) -> None:
    names = "[...document.querySelector('table').tBodies[0].rows].map(r => r.cells[0].innerText)"
    click = "document.querySelector('table').tHead.rows[0].cells[0].querySelector('button').click()"
    assert run_in_browser(page, f"({click}, {names})", tmp_path) == [
        "fedavg", "fedavg", "fedbn ¹", "scaffold", "scaffold",
    ]  # fmt: skip


@pytest.mark.slow
@needs_browser
def test_hovering_over_a_cell_shows_its_runs(page: str, tmp_path: Path) -> None:
    script = """(() => {
      const cell = document.querySelector('td[data-tip]'), tip = document.getElementById('tip');
      const before = tip.hidden;
      cell.dispatchEvent(new MouseEvent('mouseover', {bubbles: true}));
      const shown = [tip.hidden, tip.innerText.split('\\n')[0]];
      document.body.dispatchEvent(new MouseEvent('mouseover', {bubbles: true}));
      return [before, ...shown, tip.hidden];
    })()"""
    before, hidden, text, after = run_in_browser(page, script, tmp_path)  # type: ignore[misc]
    assert (before, hidden, after) == (True, False, True)
    assert re.fullmatch(r"seed 0: \d\d\.\d\d, run [0-9a-f]{16}", text)


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("width", [390, 1200])
def test_nothing_but_tables_is_wider_than_the_screen(page: str, tmp_path: Path, width: int) -> None:
    everything = "[...document.querySelectorAll('body > :not(script)')]"
    wide = f"{everything}.filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName)"
    assert run_in_browser(page, f"[innerWidth, {wide}]", tmp_path, width=width) == [width, []]


@pytest.mark.slow
@needs_browser
def test_the_page_follows_the_dark_color_scheme(page: str, tmp_path: Path) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    assert run_in_browser(page, paper, tmp_path) == "rgb(255, 255, 255)"
    assert run_in_browser(page, paper, tmp_path, dark=True) == "rgb(20, 23, 26)"


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize(
    ("period", "says"),
    [(5.0, "the command that writes this page may have ended"), (None, "this page is not written any more")],
)
def test_an_old_page_says_whether_another_one_is_expected(tmp_path: Path, period: float | None, says: str) -> None:
    page = to_html([Heading(1, "t"), Updated(time.time() - 3700, period)], "t")
    told = run_in_browser(page, "document.querySelector('#page-updated').innerText", tmp_path)
    assert str(told).endswith(f"1 hour ago; {says}.")
