"""Escaping of strings from files before they enter a document, a spreadsheet or a terminal.

A store or an exported file can come from an attacker. Its labels, versions and hardware names are shown as text: they
become no links, tags, control sequences or formulas.
"""

from __future__ import annotations

import re

_WRITTEN_OUT = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}
#: Marks that are invisible or change the direction of text.
_WRITTEN_OUT |= {
    code: f"\\u{code:04x}" for code in (*range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2060, 0x206A), 0xFEFF)
}

#: Characters that start a tag, an entity, code, emphasis, mathematics or a link in Markdown.
_MARKUP = re.compile(r"[&<>`*$\\]|(?<=\])\(|(?<!\w)_|_(?!\w)|~(?=\S)|(?<=\S)~")

_NAMED = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}

#: White space other than the no-break space.
_SPACES = re.compile(r"[^\S\xa0]+")

#: First characters of a formula in a spreadsheet (OWASP, CSV injection).
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def visible(text: str) -> str:
    """Return the text with control characters written out, other than tabs and ends of lines."""
    return text.translate(_WRITTEN_OUT)


def line(text: str) -> str:
    """Return the text as a single line without control characters."""
    return visible(_SPACES.sub(" ", text).strip())


def literal(text: str) -> str:
    """Return inline Markdown that shows a text as it is: what would be markup is written as HTML entities."""
    return _MARKUP.sub(lambda found: _NAMED.get(found[0], f"&#{ord(found[0])};"), line(text))


def spreadsheet(text: str) -> str:
    """Return the text for a field of a CSV file: a single line, with an apostrophe before what would be a formula."""
    return f"'{line(text)}" if text.startswith(_FORMULA) else line(text)
