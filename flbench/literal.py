"""Escaping of strings from files before they enter a document, a spreadsheet or a terminal.

A store or an exported file can come from an attacker. Its labels, versions and hardware names are shown as text: they
become no links, tags, control sequences or formulas.
"""

from __future__ import annotations

import re
import unicodedata

#: Categories of Unicode without a sign of their own: control, format, private use, surrogate, and ends of lines.
_UNSEEN = frozenset({"Cc", "Cf", "Co", "Cs", "Zl", "Zp"})

#: Characters of other categories that are not shown either (Default_Ignorable_Code_Point).
_IGNORED = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0000-\U000e0fff]")

#: Characters that start a tag, an entity, code, emphasis, mathematics or a link in Markdown.
_MARKUP = re.compile(r"[&<>`*$\\]|(?<=\])\(|(?<!\w)_|_(?!\w)|~(?=\S)|(?<=\S)~")

_NAMED = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}

#: White space other than the no-break space.
_SPACES = re.compile(r"[^\S\xa0]+")

#: First characters of a formula in a spreadsheet (OWASP, CSV injection).
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def visible(text: str) -> str:
    """Return the text with characters written out that show nothing or change others, other than tabs and newlines."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_shown, text))


def _shown(character: str) -> str:
    is_unseen = unicodedata.category(character) in _UNSEEN or _IGNORED.match(character)
    if character in "\t\n" or not is_unseen:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def line(text: str) -> str:
    """Return the text as a single line without control characters."""
    return visible(_SPACES.sub(" ", text).strip())


def literal(text: str) -> str:
    """Return inline Markdown that shows a text as it is: what would be markup is written as HTML entities."""
    return _MARKUP.sub(lambda found: _NAMED.get(found[0], f"&#{ord(found[0])};"), line(text))


def spreadsheet(text: str) -> str:
    """Return the text for a field of a CSV file: a single line, with an apostrophe before what would be a formula."""
    return f"'{line(text)}" if text.startswith(_FORMULA) else line(text)
