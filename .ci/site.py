"""Hooks of mkdocs: the pages in the repository's root are pages of the site, and links work in both places.

Pages link each other by their paths in the repository, so that the same text works on a code host. ``docs/`` is the
root of the site; a linked file outside of it is published under the same path.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
#: The pages in the repository's root, README as the site's first page.
ROOT_PAGES = ("README.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "SECURITY.md", "CHANGELOG.md", "leaderboard.md")
#: A Markdown link up to the end of its path.
LINK = re.compile(r"(\]\()([^)\s#:]+)(?=[)#])")
#: An element that a browser loads from another host.
FOREIGN = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=["']?(?:https?:)?//[^>]*>""")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace ``folder/*.md`` in the navigation by the pages of the folder."""
    config.nav = [{title: _pages(part) for title, part in entry.items()} for entry in config.nav or []]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages in the root, and the files outside of ``docs/`` that pages link."""
    for name in ROOT_PAGES:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    linked = {path for page in files.documentation_pages() for path in _linked(page)}
    for path in sorted(linked):
        if not path.startswith("docs/") and path not in ROOT_PAGES and (ROOT / path).is_file():
            files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files of the repository into links between files of the site."""
    here = posixpath.dirname(page.file.src_uri)

    def in_site(match: re.Match[str]) -> str:
        target = _in_repository(page.file, match[2]).removeprefix("docs/")
        return match[1] + posixpath.relpath(target, here or ".")

    return LINK.sub(in_site, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Keep a number and its interval in one line."""
    return html.replace(" ± ", "\u00a0±\u00a0")


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Return the page as it is.

    Raises:
        PluginError: it loads something from another host, such as a font or a script.
    """
    if found := FOREIGN.search(output):
        raise PluginError(f"{page.file.src_uri} loads something from another host: {found[0]}")
    return output


def _pages(part: Any) -> Any:
    if isinstance(part, list):
        return [page for one in part for page in (_matching(one) if isinstance(one, str) else [one])]
    return part


def _matching(pattern: str) -> list[str]:
    docs = ROOT / "docs"
    return sorted(path.relative_to(docs).as_posix() for path in docs.glob(pattern)) if "*" in pattern else [pattern]


def _linked(page: File) -> set[str]:
    return {_in_repository(page, match[2]) for match in LINK.finditer(page.content_string)}


def _in_repository(page: File, link: str) -> str:
    """Return the path in the repository of a page's link."""
    folder = "" if page.src_uri in ROOT_PAGES else posixpath.join("docs", posixpath.dirname(page.src_uri))
    return posixpath.normpath(posixpath.join(folder, link))
