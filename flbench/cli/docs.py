"""``flbench docs``: the pages of the documentation, which come with flbench, so that they can be read offline."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from flbench.cli.boundary import print_json
from flbench.cli.options import JsonOption
from flbench.cli.screen import plain_table, wide_console
from flbench.errors import UserError
from flbench.installation import bundled
from flbench.literal import visible
from flbench.messages import unknown

#: The pages in the repository's root; all others are in docs/.
_ROOT_PAGES = ("README", "leaderboard", "CONTRIBUTING", "CHANGELOG")


def page_names(incomplete: str) -> list[str]:
    """Return the names of the pages that begin with a text."""
    return [name for name in _pages() if name.startswith(incomplete)]


def docs(
    page: Annotated[
        str | None, typer.Argument(metavar="PAGE", help="The page to print.", autocompletion=page_names)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the pages of the documentation, or print one: drawn on a terminal, as Markdown into a pipe.

    Example: flbench docs

    Example: flbench docs cluster

    Example: flbench docs sweep-file | less
    """
    pages = _pages()
    if page is None:
        rows = [{"page": name, "title": _title(path), "file": str(path)} for name, path in pages.items()]
        if as_json:
            print_json(rows)
            return
        table = plain_table(["page", "title"])
        for row in rows:
            table.add_row(row["page"], Text(visible(row["title"])))
        wide_console().print(table, "flbench docs PAGE prints one.", sep="\n", highlight=False)
        return
    name = _named(page, pages)
    if name not in pages:
        raise UserError(f"flbench docs {page}: {unknown('page', name, pages)}")
    text = pages[name].read_text(encoding="utf-8")
    if as_json:
        print_json({"page": name, "title": _title(pages[name]), "file": str(pages[name]), "text": text})
    elif (console := wide_console()).is_terminal:
        from rich.markdown import Markdown  # slow, and for a page only

        console.print(Markdown(text, hyperlinks=False))
    else:
        typer.echo(text, nl=False)


def _named(link: str, pages: Iterable[str]) -> str:
    """Return the name of a page from a link as pages have them: ``docs/faq.md``, ``../concepts.md#words``."""
    name = re.sub(r"^(\.{1,2}/)*(docs/)?", "", link.partition("#")[0]).removesuffix(".md")
    same = [page for page in pages if page.rpartition("/")[2] == name]  # a link to a page of the same folder
    return same[0] if len(same) == 1 else name


def _pages() -> dict[str, Path]:
    """Return the files of the pages by name: the first page, the others, results last."""
    folder = bundled("docs")
    found = sorted(folder.rglob("*.md"), key=lambda path: (len(path.parts), path))
    of_docs = {path.relative_to(folder).with_suffix("").as_posix(): path for path in found}
    return {name: bundled(f"{name}.md") for name in _ROOT_PAGES} | of_docs


def _title(path: Path) -> str:
    found = re.search("^# (.*)", path.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else path.stem
