"""The documentation as a site: it builds without a warning, and its pages work from a folder. Needs the group docs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.browser import Browser, needs_browser

pytest.importorskip("mkdocs", reason="no mkdocs here: uv run --group docs pytest")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    subprocess.run(words, check=True, cwd=Path(__file__).parents[1], env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    return folder


def test_the_site_builds(site: Path) -> None:
    assert (site / "index.html").exists()


@needs_browser
def test_a_page_is_searched_from_a_folder(site: Path, tmp_path: Path) -> None:
    with Browser(site / "report.html", tmp_path / "profile", width=1280) as browser:
        browser.wait_for("document.querySelector('.md-search__input')")
        browser.value("document.querySelector('.md-search__input').focus()")
        browser.value("(i => { i.value = 'dirichlet'; i.dispatchEvent(new Event('keyup')); })(document.activeElement)")
        browser.wait_for("document.querySelector('.md-search-result__link')?.href.startsWith('file:')")
        assert [one for one in browser.complaints if not one.startswith(site.as_uri())] == []


@needs_browser
def test_a_wide_table_scrolls_beside_its_first_column(site: Path, tmp_path: Path) -> None:
    table = "[...document.querySelectorAll('.md-typeset__scrollwrap')].find(one => one.scrollWidth > one.clientWidth)"
    left = f"{table}.querySelector('td').getBoundingClientRect().left"
    with Browser(site / "results/phase-diagram.html", tmp_path / "profile", width=390) as browser:
        browser.wait_for(table)
        assert browser.value("document.documentElement.scrollWidth <= innerWidth")
        browser.value(f"{table}.scrollLeft = 9999")
        assert browser.value(left) >= 0
