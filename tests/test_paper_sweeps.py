"""The sweeps of the label-skew paper: each table's file has exactly the configurations that the table publishes."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pytest

from flbench.config import Experiment, Federated
from flbench.papers.label_skew import published as published_numbers
from flbench.papers.label_skew.published import configuration_of, published_rows
from flbench.registry import PARTITIONS
from flbench.sweeps import load_sweep

PAPER = Path(__file__).parents[1] / "sweeps" / "paper"
TABLES = ("1", "2", "3", "4", "5", "6", "10", "11", "12", "13", "14")
FIGURES = ("figure04", "figure05", "figure06", "figure07")

ROWS = list(csv.DictReader(Path(published_numbers.__file__).with_name("published.csv").open(encoding="utf-8")))


def file_of(table: str) -> Path:
    return PAPER / f"table{int(table):02d}.yaml"


def asked_for(run: Experiment) -> tuple[Any, ...]:
    """Return the configuration of a run, read from the experiment and not through the report."""
    assert isinstance(run, Federated)
    groups = getattr(run.norm, "groups", None)
    return (
        run.method.name, run.norm.name, "" if groups is None else str(groups), run.bias, run.lr, run.batch_size,
        run.rounds, run.local_steps, run.clients, run.partition, run.dataset.label(), run.model.label(),
    )  # fmt: skip


def published(row: dict[str, str]) -> tuple[Any, ...]:
    return (
        row["method"], row["norm"], row["groups"], {"true": True, "false": False}[row["bias"]], float(row["lr"]),
        int(row["batch_size"]), int(row["rounds"]), int(row["local_steps"]), int(row["clients"]),
        PARTITIONS.parse(row["partition"]), row["dataset"], row["model"],
    )  # fmt: skip


def test_there_is_a_file_for_every_table_and_figure() -> None:
    names = {path.stem for path in PAPER.glob("*.yaml")}
    assert {row["table"] for row in ROWS} == {*TABLES}
    assert names == {*(file_of(table).stem for table in TABLES), *FIGURES, "other_readings"}
    for path in PAPER.glob("*.yaml"):
        assert load_sweep(path).name == path.stem


@pytest.mark.parametrize("table", TABLES)
def test_a_tables_file_has_exactly_its_rows(table: str) -> None:
    rows = [row for row in ROWS if row["table"] == table]
    sweep = load_sweep(file_of(table))
    asked = [asked_for(runs[0]) for runs in sweep.cells().values()]
    wanted = [published(row) for row in rows]
    assert len(asked) == len({*asked}) == len(wanted)
    assert {*asked} == {*wanted}
    assert {len(runs) for runs in sweep.cells().values()} == {int(row["seeds"]) for row in rows}


@pytest.mark.parametrize("table", TABLES)
def test_the_report_finds_every_row_of_a_table(table: str) -> None:
    answered = {configuration_of(run) for run in load_sweep(file_of(table)).experiments}
    assert answered == {row.configuration for row in published_rows() if row.table == table}


@pytest.mark.parametrize("path", sorted(PAPER.glob("*.yaml")), ids=lambda path: path.stem)
def test_one_option_scales_any_paper_sweep_down(path: Path) -> None:
    full, short = load_sweep(path), load_sweep(path, ["rounds=200"])
    assert {run.rounds for run in full.experiments} == {10_000}
    assert {run.rounds for run in short.experiments} == {200}
    assert [run.run_id for run in short.experiments] == [run.run_id for run in full.experiments]  # a prefix of the same
    assert {run.eval_every for run in full.experiments} == {100}


def test_figure_4_trains_both_kinds_on_the_same_amount_of_data() -> None:
    runs = load_sweep(PAPER / "figure04.yaml").experiments
    samples = {
        run.kind: run.batch_size * (run.local_steps or 0) * (run.clients if isinstance(run, Federated) else 1)
        for run in runs
    }
    assert samples == {"federated": 3200, "centralized": 3200}
    assert {run.momentum for run in runs if run.kind == "centralized"} == {0, 0.9}


def test_other_readings_differ_from_published_configurations_except_for_variants() -> None:
    configurations = {row.configuration for row in published_rows()}
    for run in load_sweep(PAPER / "other_readings.yaml").experiments:
        assert isinstance(run, Federated)
        if configuration_of(run) in configurations:
            assert re.search("variant=", run.method.label()) or run.method.label() in ("feddecorr", "scaffold")


#: All but one whose method is in a plug-in.
SWEEPS = sorted({*PAPER.parent.glob("*.yaml")} - {PAPER.parent / "head_scale.yaml"})


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_rows_with_published_numbers_use_the_papers_variants(path: Path) -> None:
    configurations = {row.configuration for row in published_rows()}
    beside = [run for run in load_sweep(path, ["seeds=[0]"]).experiments if configuration_of(run) in configurations]
    assert {getattr(run.method, "variant", "text") for run in beside if isinstance(run, Federated)} <= {"text"}
    compared = {"cifar10", "cifar10_full_length", "cifar10_one_step", "cifar10_ten_steps", "precision"}
    assert bool(beside) == (path.stem in compared)
