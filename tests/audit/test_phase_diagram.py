"""The page of the phase diagram, and what docs/results/README.md says of it, recomputed."""

from __future__ import annotations

import pytest

from tests.audit import pages
from tests.audit.planned import Comparison, comparisons


def entry(one: Comparison) -> str:
    return f"{one.mean:+.2f} ± {one.half_width:.2f}<br><sub>{one.verdict}</sub><br>"


@pytest.mark.slow
def test_the_tables_of_all_planned_comparisons() -> None:
    """Many columns: a table of gains has a row for each, and one of interactions a row a comparison."""
    found = {}
    for heads, *rows in pages.tables(pages.details("phase-diagram")):
        for row in rows:
            for head, text in zip(heads[1:], row[1:], strict=True):
                if heads[0] == "column":
                    found[head, row[0]] = text
                elif heads[0] == "comparison" and "pair" in text:
                    found[row[0], head] = text
    recomputed = comparisons("phase_diagram")
    assert len(found) == len(recomputed)
    for one in recomputed:
        assert found[one.name, one.head].startswith(entry(one)), one


@pytest.mark.slow
def test_what_the_comparisons_with_the_constant_show() -> None:
    against = [one for one in comparisons("phase_diagram") if one.against == "scale" and not one.between]
    more, less = (
        {(one.value, one.column) for one in against if one.verdict.startswith(word)} for word in ("more", "less")
    )
    assert more == {("ln", ("classes:2", 50)), ("ln", ("classes:3", 50))}
    assert less == {("fn", ("classes:3", 1))}
    text = pages.plain(pages.details("README"))
    assert f"of {len(against)} comparisons of feature and layer normalization with it, two show more" in text
