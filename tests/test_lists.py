"""README.md and docs/ have the counts and tables that follow from the registries."""

from __future__ import annotations

from tests.lists import written


def test_pages_have_what_the_registries_say() -> None:
    for page, text in written().items():
        assert page.read_text(encoding="utf-8") == text, "run: python -m tests.lists"
