"""The page: what it holds, and in a real browser that it sorts, shows runs and fits a phone."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re
import time
from collections.abc import Iterator
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


@pytest.fixture(scope="module")
def browser(page: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """The page in a browser, after its own scripts have run."""
    folder = tmp_path_factory.mktemp("browser")
    (folder / "page.html").write_text(page, encoding="utf-8")
    with Browser(folder / "page.html", folder / "profile", width=1200) as opened:
        yield opened
        assert opened.complaints == []


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


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize(
    ("column", "down"),
    [
        pytest.param(0, ["scaffold", "scaffold", "fedbn ¹", "fedavg", "fedavg"], id="texts"),
        pytest.param(2, ["75.50", "70.50", "66.00 ± 5.52", "61.00 ± 5.65", "41.00 ± 5.69"], id="numbers"),
        pytest.param(3, ["80.50", "76.00 ± 5.09", "71.00 ± 5.33", "–", "not run"], id="cells without a value are last"),
    ],
)
def test_a_click_sorts_and_a_third_click_restores(browser: Browser, column: int, down: list[str]) -> None:
    script = f"""(() => {{
      const table = document.querySelector('table'), head = table.tHead.rows[0].cells[{column}];
      const values = () => [...table.tBodies[0].rows].map(r => r.cells[{column}].innerText.split('\\n')[0]);
      const seen = [[values(), head.ariaSort]];
      for (let i = 0; i < 3; i++) {{ head.querySelector('button').click(); seen.push([values(), head.ariaSort]); }}
      return seen;
    }})()"""
    before, *sorted_, third = browser.value(script)
    valued = [text for text in down if text not in ("–", "not run")]
    orders = {"descending": down, "ascending": [*valued[::-1], *down[len(valued) :]]}
    assert {order: values for values, order in sorted_} == orders
    assert third == before and before[1] is None


@pytest.mark.slow
@needs_browser
def test_hovering_over_a_cell_shows_its_runs(browser: Browser) -> None:
    script = """(() => {
      const cell = document.querySelector('td[data-tip]'), tip = document.getElementById('tip');
      const before = tip.hidden;
      cell.dispatchEvent(new MouseEvent('mouseover', {bubbles: true}));
      const shown = [tip.hidden, tip.innerText.split('\\n')[0]];
      document.body.dispatchEvent(new MouseEvent('mouseover', {bubbles: true}));
      return [before, ...shown, tip.hidden];
    })()"""
    before, hidden, text, after = browser.value(script)
    assert (before, hidden, after) == (True, False, True)
    assert re.fullmatch(r"seed 0: \d\d\.\d\d, run [0-9a-f]{16}", text)


#: The width of the screen, the elements that are wider, and the colour of the paper.
LOOKS = """[innerWidth, [...document.querySelectorAll('body > :not(script)')].filter(
  e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName),
  getComputedStyle(document.body).backgroundColor]"""


@pytest.mark.slow
@needs_browser
def test_the_page_fits_a_phone_and_follows_the_dark_color_scheme(page: str, browser: Browser, tmp_path: Path) -> None:
    assert browser.value(LOOKS) == [1200, [], "rgb(255, 255, 255)"]
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    with Browser(tmp_path / "page.html", tmp_path / "profile", width=390, dark=True) as phone:
        assert phone.value(LOOKS) == [390, [], "rgb(20, 23, 26)"]


@pytest.mark.slow
@needs_browser
def test_an_old_page_says_whether_another_one_is_expected(tmp_path: Path) -> None:
    for number, (period, says) in enumerate(
        ((5.0, "the command that writes this page may have ended"), (None, "this page is not written any more"))
    ):
        path = tmp_path / f"{number}.html"
        path.write_text(to_html([Heading(1, "t"), Updated(time.time() - 3700, period)], "t"), encoding="utf-8")
        with Browser(path, tmp_path / str(number), width=1200) as opened:
            told = opened.value("document.querySelector('#page-updated').innerText")
        assert str(told).endswith(f"1 hour ago; {says}.")
