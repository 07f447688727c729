"""Strings that a store may hold, through every writer: they are shown, and do nothing."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flbench.literal import literal, spreadsheet, visible
from flbench.report.blocks import Paragraph
from flbench.report.board import Leaderboard
from flbench.report.dataframes import write_csv
from flbench.report.runs import Collection, Run, collect
from flbench.report.write.html import to_html
from flbench.report.write.json import to_json
from flbench.report.write.terminal import to_terminal
from flbench.run_sources import StoreSource
from flbench.store import Store
from tests.report.stores import experiment, fail, finish, html_of, leaderboard_of, markdown_of, write_figures
from tests.report.test_html import PageReader

LINK = "[click](javascript:alert(1))"
TAG = "<script>alert(2)</script><img src=x onerror=alert(3)>"
ESC = "\x1b]0;title\x07\x9b2J\u202eright"
BREAK = "first\n\n# heading\n| a | b |\n[x]: javascript:alert(4)"
CODE = "`` ``` **bold** ![pixel](http://tracker.example/x.png) &lt;b&gt;"
FORMULA = '=HYPERLINK("http://x.example")'
ALL = (LINK, TAG, ESC, BREAK, CODE, FORMULA)
RAW = {"\x1b", "\x07", "\x9b", "\u202e"}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[Leaderboard, Collection]:
    """A store whose every free string is hostile: environment, numerics, fingerprint, failure, the path of a folder."""
    folder = tmp_path_factory.mktemp("hostile")
    store = Store(folder / "store")
    data = {"name": "folder", "path": f"pets {LINK} {TAG} $^$ *a* _b_"}
    for index, text in enumerate(ALL):
        request = experiment(dataset=data, norm=("none", "ln")[index % 2], seed=index)
        environment = {"cpu": text, "gpu": text, "git_commit": text, "torch": text, "python": text, text: text}
        finish(
            store, request, 0.5, environment=environment, numerics={"device": text, "executor": text}, fingerprint="aa"
        )
    finish(store, experiment(dataset=data, norm="fn"), 0.5, fingerprint=f"`{TAG}")
    fail(store, experiment(dataset=data, norm="gn"), f"{TAG}{ESC}{LINK}")
    collection = collect(StoreSource(store))
    board = leaderboard_of(collection, title="hostile", why=True, specs=((f"name {TAG}", "0"),), command=f"a ``` {ESC}")
    return dataclasses.replace(board, pictures=write_figures(board, folder / "figures")), collection


def test_markdown_shows_hostile_strings_as_text(hostile: tuple[Leaderboard, Collection]) -> None:
    text = markdown_of(hostile[0])
    assert not RAW & {*text}
    body, _, command = text.partition("Regenerate with:")
    assert "<script" not in body and "<img" not in body and "](javascript" not in body and "](http" not in body
    assert "alert(1)" in text or "alert&#40;1" in text, "it is shown"
    assert not any(line.startswith(("# heading", "| a | b", "[x]:")) for line in body.splitlines())
    assert command.startswith("\n\n````sh\n"), "a fence longer than any in the command"


def test_markdown_rendered_as_on_github_has_no_tags_or_handlers(hostile: tuple[Leaderboard, Collection]) -> None:
    markdown = pytest.importorskip("markdown_it")
    page = PageReader()
    page.feed(markdown.MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown_of(hostile[0])))
    assert not {"script", "img"} & {*page.tags}
    assert page.events == [] and all(address.startswith("#") for address in page.addresses)


def test_html_shows_hostile_strings_as_text(hostile: tuple[Leaderboard, Collection]) -> None:
    text = html_of(hostile[0])
    page = PageReader()
    page.feed(text)
    assert not RAW & {*text}
    assert page.tags.count("script") == 1 and page.events == []
    assert all(address.startswith(("#", "data:image/png")) for address in page.addresses)
    assert "<script>alert" not in text


def test_links_lead_only_to_the_web_or_to_files() -> None:
    targets = {
        "https://a.example/b": True,
        "docs/a.md#b": True,
        "#how-to-read-this": True,
        "javascript:alert": False,
        "JaVaScRiPt:alert": False,
        "data:text/html,x": False,
        "java&#115;cript&#58;alert": False,
        "vbscript:x": False,
        "file:///etc": False,
    }
    for target, leads in targets.items():
        page = PageReader()
        page.feed(to_html([Paragraph(f"a [label]({target}) b")], "t"))
        assert len(page.addresses) == leads, target


def test_the_terminal_gets_no_control_characters(hostile: tuple[Leaderboard, Collection]) -> None:
    console = Console(width=120, file=(out := io.StringIO()), color_system=None)
    for part in to_terminal(hostile[0], 120):
        console.print(part)
    assert not RAW & {*out.getvalue()}


def test_csv_has_no_formulas_and_no_control_characters(hostile: tuple[Leaderboard, Collection], tmp_path: Path) -> None:
    write_csv(tmp_path / "runs.csv", hostile[1].runs)
    text = (tmp_path / "runs.csv").read_text()
    rows = list(csv.reader(io.StringIO(text)))
    assert not RAW & {*text}
    assert len(rows) == len(text.splitlines()) == 9
    assert not [field for row in rows for field in row if field.startswith(("=", "+", "@", "\t", "\r"))]
    assert f"'{FORMULA}" in {field for row in rows for field in row}


def test_json_has_no_control_characters(hostile: tuple[Leaderboard, Collection]) -> None:
    text = json.dumps(to_json(hostile[0]), allow_nan=False)
    assert not RAW & {*text}


@pytest.mark.parametrize("text", ALL)
def test_texts_are_shown_as_they_are(text: str) -> None:
    assert unescape(literal(text)) == visible(" ".join(text.split()))


@pytest.mark.parametrize(
    ("value", "written"),
    [("=1", "'=1"), ("-x", "'-x"), ("@a", "'@a"), ("cpu 1-2", "cpu 1-2"), ("a\nb\x1b", "a b\\x1b")],
)
def test_fields_of_a_spreadsheet(value: str, written: str) -> None:
    assert spreadsheet(value) == written


def test_numbers_of_a_spreadsheet_stay_numbers(tmp_path: Path) -> None:
    request: Any = experiment(weight_decay=0.5)
    run = Run(request, 20, "done", record={"acc": -0.5})
    write_csv(tmp_path / "a.csv", [run])
    (row,) = csv.DictReader((tmp_path / "a.csv").open())
    assert row["acc"] == "-0.5"
