"""A contribution as its author makes it, and what CI's check finds in contributions that are not as they should be."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from flbench.exchange import exports
from flbench.exchange.exports import Exported
from flbench.registry import METHODS
from flbench.store import Store, strict_json
from flbench.store.results import CONTRIBUTED_BY
from tests.finished_sweep import Run

ADA = Path("results/contributed/ada")
TINY = ADA / "tiny.parquet"
CONTRIBUTE = ("export", "--contribute")

YAML = """\
# Written by `flbench export --contribute`, checked by `flbench verify --results`: do not edit.
contributor: Ada Lovelace
files:
  tiny.parquet:
    command: flbench sweep tiny.yaml
    commit: 0123456789abcdef0123456789abcdef01234567
    components:
      dataset digits: 1
      kind federated: 1
      method fedavg: 1
      model mlp: 1
      norm ln: 1
      norm none: 1
      partition classes: 1
      partition iid: 1
    flbench: 0.0.1
    machine: Test CPU
"""


def contribute(run: Run, *more: str) -> tuple[int, str]:
    return run(*CONTRIBUTE, "ada", "tiny.yaml", "--by", "Ada Lovelace", *more)


def verify(run: Run, *more: str) -> tuple[int, str]:
    return run("verify", "--results", "results/contributed", *more)


def test_a_contribution_is_sound(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert contribute(run)[0] == 0
    assert sorted(path.name for path in ADA.iterdir()) == ["contribution.yaml", "tiny.parquet"]
    assert (ADA / "contribution.yaml").read_text() == YAML
    assert verify(run) == (0, "8 runs in results/contributed: all sound\n")
    # The same with a newer flbench; exported files without metadata have their run ids alone.
    monkeypatch.setattr(METHODS["fedavg"], "version", 2)
    assert "method fedavg has version 1 there and 2 here" in verify(run)[1]
    code, said = run("verify", "--results", str(TINY))
    assert code == 1 and "its id is not the hash of its experiment in this version of flbench" in said


@pytest.mark.slow
def test_a_report_names_contributors(run: Run) -> None:
    contribute(run)
    assert run("report", "tiny.yaml", "--results", str(ADA), "--details", "pages", "--out", "front.md")[0] == 0
    details = "".join(path.read_text() for path in Path("pages").glob("*.md"))
    assert "³ This cell has seeds contributed by Ada Lovelace." in details
    assert "Contributed by: Ada Lovelace" in details
    assert "8 contributed by Ada Lovelace" in Path("front.md").read_text()


def test_the_mark_survives_an_import(run: Run) -> None:
    contribute(run)
    assert run("import", str(TINY), "--store", "other")[0] == 0
    assert run("export", "again.parquet", "--store", "other")[0] == 0
    assert {one.result.environment[CONTRIBUTED_BY] for one in exports.read(Path("again.parquet"))} == {"Ada Lovelace"}
    code, said = run(
        *CONTRIBUTE, "bob", "tiny.yaml", "--by", "Bob", "--store", "other", "--into", "elsewhere/contributed"
    )
    assert code == 2 and "was contributed by 'Ada Lovelace', and imported here" in said


def test_runs_that_are_in_the_results_are_left_out(run: Run) -> None:
    assert run("export", "results/house.parquet", "tiny.yaml", "--only", "norm=ln")[0] == 0
    code, said = contribute(run)
    assert code == 0 and "left out: 4 of 8 runs, which are in results already" in said
    assert verify(run)[0] == 0
    assert run("export", "results/all.parquet", "tiny.yaml")[0] == 0
    code, said = verify(run)
    assert code == 1 and "4 of 4 runs are in other files already" in said and "in results/all.parquet" in said
    code, said = contribute(run)
    assert code == 2 and "nothing to contribute" in said


def test_a_name_has_one_contributor(run: Run) -> None:
    assert run(*CONTRIBUTE, "ada", "tiny.yaml")[1].startswith("error: results/contributed/ada is new: say who")
    contribute(run)
    code, said = run(*CONTRIBUTE, "ada", "tiny.yaml", "--by", "Bob")
    assert code == 2 and "belongs to 'Ada Lovelace': choose another name than ada" in said
    assert run(*CONTRIBUTE, "ada", "tiny.yaml")[0] == 0, "the same contributor again"
    code, said = run(*CONTRIBUTE, "../ada", "tiny.yaml", "--by", "Bob")
    assert code == 2 and "expected letters" in said


def rewrite(change: Callable[[Exported], Exported], path: Path = TINY) -> None:
    """Change runs of a file and compute its checksums again, as somebody does who knows the format."""
    exports.write(path, [change(one) for one in exports.read(path)])


def boosted(one: Exported, by: float = 0.05) -> Exported:
    """Return a run with a higher accuracy in all records, and checksums that fit."""
    records = [{**record, "acc": record["acc"] + by} for record in one.records]
    metrics = strict_json.join_lines(records)
    sha256 = hashlib.sha256(metrics).hexdigest()
    result = dataclasses.replace(one.result, final=records[-1], metrics_sha256=sha256, metrics_bytes=len(metrics))
    return dataclasses.replace(one, metrics=metrics, result=result)


def by_bob(one: Exported) -> Exported:
    environment = {**one.result.environment, CONTRIBUTED_BY: "Bob"}
    return dataclasses.replace(one, result=dataclasses.replace(one.result, environment=environment))


def drop_column() -> None:
    pq.write_table(pq.read_table(TINY).drop_columns(["metrics"]), TINY)


def tamper() -> None:
    """Change an accuracy and no checksum."""
    table = pq.read_table(TINY)
    metrics = [text.as_py().replace('"acc":0.', '"acc":0.9') for text in table["metrics"]]
    changed = table.set_column(table.schema.get_field_index("metrics"), table.field("metrics"), [metrics])
    pq.write_table(changed, TINY)


def edit(before: str, after: str) -> Callable[[], object]:
    def change() -> None:
        path = ADA / "contribution.yaml"
        assert before in path.read_text()
        path.write_text(path.read_text().replace(before, after))

    return change


DEFECTS: dict[str, tuple[Callable[[], object], str]] = {
    "a column is missing": (drop_column, "tiny.parquet: a parquet file, but not one written by `flbench export`"),
    "an accuracy was changed": (tamper, "tiny.parquet: row 0 (run "),
    "another version": (
        edit("method fedavg: 1", "method fedavg: 2"),
        "tiny.parquet: method fedavg has version 2 there and 1 here: execute the runs again with this flbench",
    ),
    "an unknown component": (
        edit("method fedavg: 1", "method fedbest: 1"),
        "tiny.parquet: method fedbest is unknown here: contribute the component first",
    ),
    "a name that is taken": (
        lambda: rewrite(by_bob),
        "the name ada is taken: it belongs to 'Ada Lovelace', and these runs were contributed by 'Bob'",
    ),
    "a name in another case": (
        lambda: Path("results/contributed/Ada").mkdir(),
        "results/contributed/ada: the name is taken: Ada, ada differ only in case",
    ),
    "another key": (
        edit("contributor:", "author: x\ncontributor:"), "contribution.yaml:2: author: unknown key 'author'",
    ),
    "no metadata": (lambda: (ADA / "contribution.yaml").unlink(), "contribution.yaml is missing"),
    "another machine": (edit("machine: Test CPU", "machine: Big GPU"), "says machine: 'Big GPU', the runs say"),
    "a file too many": (lambda: (ADA / "x.py").write_text("x"), "x.py: not listed in contribution.yaml"),
    "a file too few": (TINY.unlink, "tiny.parquet: missing"),
}  # fmt: skip


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_named(run: Run, defect: str) -> None:
    contribute(run)
    spoil, says = DEFECTS[defect]
    spoil()
    code, said = verify(run)
    assert code == 1 and says in said and "Traceback" not in said, said


REAL = """
version: 1
name: real
base: {dataset: digits, model: {name: mlp, widths: [16]}, rounds: 4, eval_every: 2, E: 2}
axes: {norm: [none, ln]}
seeds: [0]
"""


@pytest.mark.slow
def test_recomputing_finds_a_tampered_accuracy(run: Run) -> None:
    """Checksums show edits by others, not by the author: only an execution finds these."""
    Path("real.yaml").write_text(REAL)
    assert run("sweep", "real.yaml", "--store", "real", "--backend", "inline")[0] == 0
    path = ADA / "real.parquet"
    assert run(*CONTRIBUTE, "ada", "real.yaml", "--by", "Ada", "--store", "real")[0] == 0
    code, said = verify(run, "--recompute", "2")
    assert code == 0 and len(re.findall(r"4 rounds again: same", said)) == 2

    rewrite(lambda one: boosted(one, 0.01), path)
    code, said = verify(run, "--recompute", "2")
    assert code == 0 and said.count("again: close: accuracies differ by up to 1.00 points, where 2 are allowed") == 2

    rewrite(lambda one: boosted(one, 0.04), path)
    code, said = verify(run, "--recompute", "1", "--json")
    summary: dict[str, Any] = json.loads(said)
    assert code == 1 and summary["problems"] == [], "nothing but the numbers is wrong"
    (verdict,) = summary["recomputed"]
    assert verdict["verdict"] == "different" and "5.00 points" in verdict["why"]
    assert list(Store(Path("real"), create=False).run_ids()), "the store is not touched"
