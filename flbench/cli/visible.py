"""Text from files for terminals: whatever would move the cursor, or colour the screen, is written out."""

from __future__ import annotations

_WRITTEN_OUT = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}
#: Marks that turn the direction of writing, or hide.
_WRITTEN_OUT |= {
    code: f"\\u{code:04x}" for code in (*range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}


def visible(text: str) -> str:
    """The text without control characters other than tabs and ends of lines."""
    return text.translate(_WRITTEN_OUT)
