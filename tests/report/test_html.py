"""The page: what it holds, and in a real browser that it sorts, shows runs and fits a phone."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import itertools
import re
import time
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from flbench.report.blocks import BOLD, Block, Charts, Code, Entry, Figure, Fold, Grid, Heading, Paragraph, Updated
from flbench.report.board import Leaderboard
from flbench.report.output import write_text
from flbench.report.page.document import document
from flbench.report.runs import collect
from flbench.report.wording import TIED
from flbench.report.write import html
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
def board(tmp_path_factory: pytest.TempPathFactory) -> Leaderboard:
    return draw_board(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def page(board: Leaderboard) -> str:
    return html_of(board)


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
    assert '<th scope="row" data-tip="&quot;x&quot;">&lt;b&gt;</th>' in text


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


#: The tip, empty while it is hidden.
TIP = "document.getElementById('tip').hidden ? '' : document.getElementById('tip').innerText"


def blocks_of(blocks: Iterable[Block]) -> Iterator[Block]:
    for block in blocks:
        yield block
        yield from blocks_of(block.blocks) if isinstance(block, Fold) else ()


def test_every_table_says_what_its_marks_mean(board: Leaderboard) -> None:
    grids = [block for block in blocks_of(document(board)) if isinstance(block, Grid)]
    for grid in grids:
        entries = [entry for row in grid.rows for entry in row]
        is_bold, is_tied = any(one.bold for one in entries), any(TIED in one.mark for one in entries)
        used = grid.used_marks()
        assert (BOLD in used, TIED in used) == (is_bold, is_tied), grid.head
    assert len(grids) > 5


@pytest.mark.slow
@needs_browser
def test_hovering_over_a_cell_says_what_its_marks_mean_and_shows_its_runs(browser: Browser) -> None:
    over = "dispatchEvent(new MouseEvent('mouseover', {bubbles: true}))"
    assert browser.value(TIP) == ""
    cell = "document.querySelector('td[data-tip]:has(strong)')"
    browser.value(f"{cell}.scrollIntoView(), setTimeout(() => {{ window.isStill = true; }}, 100)")
    browser.wait_for("window.isStill")
    browser.value(f"{cell}.{over}")
    meanings = ["±: half-width of the 95 % interval of the mean", "bold: the best of its column, or ≈"]
    *lines, run = browser.value(TIP).split("\n")[:3]
    assert lines == meanings and re.fullmatch(r"seed 0: \d\d\.\d\d, run [0-9a-f]{16}", run)
    browser.value(f"document.body.{over}")
    assert browser.value(TIP) == ""


@pytest.mark.slow
@needs_browser
def test_the_keyboard_sorts_and_goes_from_cell_to_cell(browser: Browser) -> None:
    table = "document.querySelector('.scroll:has(td strong)')"
    browser.value(f"{table}.querySelector('th button').focus()")
    for order in ("ascending", "descending", None):
        browser.press("Enter")
        assert browser.value(f"{table}.querySelector('th').ariaSort") == order
    browser.value(f"{table}.focus()")
    where = "(c => [c.parentNode.rowIndex, c.cellIndex, c.getAttribute('aria-describedby')])(document.activeElement)"
    steps = {"ArrowDown": [1, 0, None], "ArrowRight": [1, 1, None], "ArrowLeft": [1, 0, None]}
    for key, place in steps.items():
        browser.press(key)
        assert browser.value(where) == place
    for key in ("ArrowUp", "ArrowRight", "ArrowRight"):  # there is nothing above the first row
        browser.press(key)
    assert browser.value(where) == [1, 2, "tip"] and browser.value(TIP).startswith("±: half-width")
    browser.press("Escape")
    assert browser.value(TIP) == ""


@pytest.mark.slow
@needs_browser
def test_the_search_keeps_rows_and_texts_that_have_all_words(browser: Browser) -> None:
    rows = "[...document.querySelectorAll('tbody tr')].filter(r => r.checkVisibility())"
    shown = f"{rows}.map(r => r.innerText.toLowerCase())"
    search = "document.querySelector('search input')"
    found = "document.querySelector('output').innerText"
    folds = "[...document.querySelectorAll('details')].map(fold => fold.open)"
    everything, closed = browser.value(f"{rows}.length"), browser.value(folds)

    def enter(text: str) -> None:
        browser.value("document.querySelector('output').textContent = '?'")
        browser.value(f"{search}.value = {text!r}; {search}.dispatchEvent(new Event('input'))")
        browser.wait_for(f"{found} !== '?'")

    browser.press("/")
    assert browser.value(f"document.activeElement === {search}")
    enter("FedAvg ln cost")
    rows_shown = browser.value(shown)
    assert rows_shown and all(row.startswith("fedavg\tln") for row in rows_shown)
    assert browser.value(found) == f"{len(rows_shown)} rows"
    heads = "[...document.querySelectorAll('h2, h3')].filter(h => h.checkVisibility()).map(h => h.innerText)"
    assert "Cost, clients and classes" in browser.value(heads) and "How to read this" not in browser.value(heads)
    run_id = browser.value("/run (\\w+)/.exec(document.querySelector('td[data-tip]').dataset.tip)[1]")
    enter(run_id)
    assert browser.value(f"{rows}.length") >= 1
    assert all(browser.value(f"{rows}.map(r => r.outerHTML.includes({run_id!r}))"))
    enter("no such words")
    assert (browser.value(found), browser.value(f"{rows}.length")) == ("nothing has all of these words", 0)
    browser.value(f"{search}.focus()")
    browser.press("Escape")
    assert browser.value(found) == "" and browser.value(folds) == closed
    assert browser.value(f"{rows}.length") == everything
    enter("no such words")
    browser.value("document.querySelector('nav a').click()")
    assert browser.value(f"{rows}.length") == everything, "a link to a section shows it"


@pytest.mark.slow
@needs_browser
def test_the_heads_of_a_long_table_stay_in_view(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    rows = tuple((Entry(f"row {i}"), Entry("a"), Entry(str(i), order=i)) for i in range(200))
    path.write_text(to_html([Heading(1, "t"), Grid(("run", "norm", "value"), rows, 2)], "t"), encoding="utf-8")
    with Browser(path, tmp_path / "profile", width=1280) as opened:
        opened.wait_for("document.querySelector('.scroll.narrow')")
        opened.value("scrollTo(0, 2000)")
        below = "document.querySelector('search').getBoundingClientRect().bottom"
        for column in range(3):
            place = f"document.querySelectorAll('thead th')[{column}].getBoundingClientRect()"
            assert opened.value(f"(p => Math.abs(p.top - {below}) < 3)({place})")
            middle = f"(p => document.elementFromPoint(p.left + 5, p.bottom - 5).closest('th').scope)({place})"
            assert opened.value(middle) == "col", "nothing covers the head"


@pytest.mark.slow
@needs_browser
def test_the_search_stays_when_the_page_loads_itself_again(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    rows = ((Entry("one"),), (Entry("two"),))
    path.write_text(
        to_html([Heading(1, "t"), Updated(time.time(), 1.0), Grid(("run",), rows, 1)], "t"), encoding="utf-8"
    )
    shown = "[...document.querySelectorAll('tbody tr')].filter(r => r.checkVisibility()).map(r => r.innerText).join()"
    with Browser(path, tmp_path / "profile", width=1280) as opened:
        opened.value("window.isFirst = true")
        opened.press("/")
        opened.value("(i => { i.value = 'two'; i.dispatchEvent(new Event('input')); })(document.activeElement)")
        opened.wait_for(f"!window.isFirst && {shown} === 'two'")
        assert opened.value("[document.activeElement.value, document.activeElement.type]") == ["two", "search"]
        assert opened.complaints == []


#: The width of the screen, the elements that are wider, and the colour of the paper.
LOOKS = """[innerWidth, [...document.querySelectorAll('main > *')].filter(
  e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName),
  getComputedStyle(document.body).backgroundColor]"""

#: The columns that cannot be seen whole beside those that stay: the label of their table and their head.
CUT = """[...document.querySelectorAll('.scroll')].filter(s => s.checkVisibility()).flatMap(scroll => {
  const cells = [...scroll.querySelector('thead tr').cells];
  const stays = cells.filter(c => getComputedStyle(c).left !== 'auto');
  return cells.filter(cell => {
    cell.scrollIntoView({inline: 'nearest'});
    const [own, all] = [cell, scroll].map(e => e.getBoundingClientRect());
    const left = stays.includes(cell) ? all.left : Math.max(...stays.map(c => c.getBoundingClientRect().right));
    return own.left < left - 1 || own.right > all.right + 1;
  }).map(cell => [scroll.ariaLabel, cell.innerText, stays.length]);
})"""


@pytest.fixture(scope="module")
def wide_page(board: Leaderboard) -> str:
    """The page with a table of many columns, one of long words, and one of long texts."""
    numbers = tuple(
        Entry("12,345.67 ± 1,234.56", ("more, but rising, within the grid",), mark="≈ ²") for _ in range(14)
    )
    long = (Entry("method_" * 30), Entry("x=" * 100), *(Entry("97.21 ± 1.75", mark="≈") for _ in numbers))
    texts = (Entry("a claim of many words " * 8), Entry("holds", bold=True), Entry("our measurement " * 60))
    grids = [
        Grid(("method", "norm", *("abcdefgh" * 5 for _ in numbers)), (long,), 2),
        Grid(
            ("row", "norm", *(f"classes:{i}" for i, _ in enumerate(numbers))), ((Entry("a"), Entry("b"), *numbers),), 2
        ),
        Grid(("claim", "verdict", "our measurement"), (texts,), 3),
    ]
    return to_html([*document(board), Heading(2, "Wide"), *grids, Code("flbench report " * 40)], "wide")


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_no_column_is_cut_and_the_page_follows_the_color_scheme(
    wide_page: str, tmp_path: Path, width: int, *, dark: bool
) -> None:
    (tmp_path / "page.html").write_text(wide_page, encoding="utf-8")
    with Browser(tmp_path / "page.html", tmp_path / "profile", width=width, dark=dark) as opened:
        opened.value("document.querySelectorAll('details').forEach(fold => { fold.open = true; })")
        opened.wait_for("document.querySelectorAll('.scroll.more').length")
        assert opened.value(LOOKS) == [width, [], "rgb(20, 23, 26)" if dark else "rgb(255, 255, 255)"]
        assert opened.value("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        assert opened.value(CUT) == []
        # In the second one method and norm stay when the other columns scroll; texts are wrapped.
        scrolls = "[...document.querySelectorAll('.scroll')].slice(-3)"
        names = f"{scrolls}[1].querySelectorAll('tbody :is(th, td)')[1].getBoundingClientRect().left > 0"
        assert opened.value(f"{scrolls}[1].scrollLeft = 999, {names}")
        assert opened.value(f"{scrolls}[2].scrollWidth < 1.3 * {scrolls}[2].clientWidth")
        assert opened.complaints == []


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_texts_have_the_contrast_that_wcag_asks_for(scheme: int) -> None:
    style = (Path(html.__file__).parent / "page.css").read_text()
    colors = dict(re.findall(r"--(\w+): #(\w{6});", style.split("@media")[scheme]))

    def luminance(name: str) -> float:
        parts = [int(colors[name][i : i + 2], 16) / 255 for i in (0, 2, 4)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    for text in ("ink", "soft", "link"):
        for paper in ("paper", "stripe", "warn"):
            low, high = sorted((luminance(text), luminance(paper)))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (text, paper)


def test_no_heading_skips_a_level(page: str) -> None:
    levels = [int(level) for level in re.findall(r"<h([1-6])\b", page)]
    assert levels.count(1) == 1
    assert all(level <= before + 1 for before, level in itertools.pairwise(levels))


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
