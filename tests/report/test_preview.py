"""What a leaderboard would refuse or leave empty is refused before the runs, by the report's own rules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flbench.errors import UserError
from flbench.report.preview import check_report_of
from flbench.sweeps import SpecError, Sweep, load_sweep
from tests.report.stores import finished_runs, leaderboard_of

#: Two data sets with all combinations of two norms and two partitions.
SQUARE = 'axes: {dataset: [digits, mnist], norm: [none, ln], partition: ["classes:1", iid]}\n'


def sweep(folder: Path, text: str, only: tuple[str, ...] = ()) -> Sweep:
    path = folder / "spec.yaml"
    path.write_text(f"version: 1\nname: test\n{text}")
    return load_sweep(path, only=only)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        # Sections are of one data set and model: their cells are never compared.
        (
            f"report: {{contrasts: [{{dataset: mnist, against: digits}}]}}\n{SQUARE}",
            "contrasts[0].dataset: no two cells of a data set and model, with a seed in common, differ in dataset ",
        ),
        # The norms are in different columns, or have no seed in common.
        (
            "report: {contrasts: [{norm: [ln], against: none}]}\n"
            'zip: {norm: [none, ln], partition: [iid, "classes:1"]}',
            "contrasts[0].norm[0]: no two cells",
        ),
        (
            "report: {contrasts: [{norm: ln, against: none}]}\n"
            "grids: [{set: {norm: none}, seeds: [0]}, {set: {norm: ln}, seeds: [1]}]",
            "contrasts[0].norm: no two cells",
        ),
        # One of the columns has one norm alone in each data set.
        (
            'report: {contrasts: [{norm: ln, against: none, between: {partition: ["classes:1", iid]}}]}\n'
            f"{SQUARE}exclude: [{{norm: ln, partition: iid, dataset: digits}}, "
            "{norm: none, partition: iid, dataset: mnist}]",
            "contrasts[0].norm: no two cells of a data set and model, with a seed in common, differ in norm alone, ln "
            "and none in both columns",
        ),
        # Two values match what the others are compared with.
        (
            "report: {contrasts: [{norm: ln, against: gn}]}\naxes: {norm: [ln, {name: gn, groups: 8}, "
            "{name: gn, groups: 4}]}",
            "contrasts[0]: planned comparison against norm: gn: gn(groups=4) and gn(groups=8) both match",
        ),
        # Rows are no columns.
        (
            f"report: {{headline: [{{partition: iid}}, {{norm: ln}}]}}\n{SQUARE}",
            "headline[1]: no column with ln: fix or remove it; the columns here: iid; classes:1",
        ),
    ],
)
def test_a_part_of_the_report_that_would_be_empty_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(f"spec.yaml:3: report.{message}")):
        check_report_of(sweep(tmp_path, text))


def test_the_check_agrees_with_the_report(tmp_path: Path) -> None:
    """A sweep that passes has all of its comparisons and columns, and the report refuses what the check refuses."""
    text = (
        'report: {contrasts: [{norm: ln, against: none}, {norm: ln, against: none, between: {partition: ["classes:1", '
        f"iid]}}}}], headline: [{{partition: iid}}]}}\n{SQUARE}seeds: [0, 1, 2]"
    )
    good = sweep(tmp_path, text)
    check_report_of(good)
    layout = vars(good.layout)
    board = leaderboard_of(finished_runs(good.experiments), **layout)
    for section in board.sections:
        assert {one.pair for one in section.planned} == {*layout["contrasts"]}
    ambiguous = sweep(
        tmp_path,
        "report: {contrasts: [{norm: ln, against: gn}]}\n"
        "axes: {norm: [ln, {name: gn, groups: 8}, {name: gn, groups: 4}]}",
    )
    with pytest.raises(UserError, match="both match"):
        leaderboard_of(finished_runs(ambiguous.experiments), **vars(ambiguous.layout))


def test_options_that_leave_cells_out_may_leave_the_report_without_them(tmp_path: Path) -> None:
    text = f"report: {{contrasts: [{{norm: ln, against: none}}], headline: [{{partition: iid}}]}}\n{SQUARE}"
    for only in (("norm=ln",), ("partition=classes:1",)):
        check_report_of(sweep(tmp_path, text, only))
