"""The table of NIID-Bench's numbers in docs/results/README.md."""

from __future__ import annotations

from tests.audit import niid_bench, pages


def test_the_table_of_niid_bench() -> None:
    assert niid_bench.table() in pages.tables(pages.details("README"))
