"""flbench from a notebook."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from rich.jupyter import JupyterMixin

import flbench
from flbench.errors import UserError
from flbench.exchange import exports, transfer
from flbench.store import Store
from tests.report.stores import FORGOTTEN, accuracy, experiment, filled, finish, forget_norm
from tests.start_up import HEAVY, SLOW, heavy_imports

TINY = {"model": {"name": "mlp", "widths": [4]}, "clients": 2, "partition": "iid", "E": 1, "rounds": 3, "eval_every": 1}

SPEC = """
version: 1
name: tiny
base: {model: {name: mlp, widths: [4]}, clients: 2, partition: iid, E: 1, rounds: 2}
axes: {norm: [none, ln]}
seeds: [0]
"""


def test_importing_flbench_imports_nothing_heavy() -> None:
    assert heavy_imports("import flbench; assert 'load' in dir(flbench)", (*HEAVY, *SLOW))[0] == []
    assert heavy_imports("import flbench; assert callable(flbench.load)")[0] == []


def test_a_problem_and_its_samples_are_one_line() -> None:
    problem = flbench.problem(**{**TINY, "dataset": "digits", "norm": "ln"})
    shape = "1,442 training and 355 test samples of [1, 8, 8]"
    assert repr(problem) == f"<Problem: digits, mlp(widths=[4]), norm ln, iid, 2 clients, {shape}, 304 parameters>"
    assert repr(problem.test) == "<Samples: 355 of [1, 8, 8]>"


def test_a_problem_is_what_its_run_trains_on(tmp_path: Path) -> None:
    partial = {
        "clients": 3,
        "partition": "iid",
        "local_epochs": 1,
        "drop_last": False,
        "batch_size": 64,
        "val_fraction": 0.1,
        "norm": "bn",
    }
    found, again = (flbench.problem(**partial, participation=0.67) for _ in range(2))
    assert found.cohort(3).tolist() == again.cohort(3).tolist() and len(found.cohort(3)) == len(found.steps(3)) == 2
    client, steps = int(found.cohort(3)[0]), found.steps(3)[0]
    batches = found.batches(client, 3)
    assert len(batches) == steps and len(batches[-1]) < 64, "a partial batch has its own rows alone"
    rows = [row for batch in batches for row in batch.tolist()]
    assert sorted(rows) == found.train_rows[client].tolist() and not {*rows} & {*found.val_rows[client].tolist()}
    assert len({row for own in found.test_rows for row in own.tolist()}) == sum(map(len, found.test_rows))
    assert found.test.inputs_MCHW.shape[0] == len(found.test.labels_M) and float(found.train.inputs_MCHW.max()) == 1
    weights = dict(found.network().named_parameters())
    assert weights.keys() == found.params.keys() and all(
        (weights[name] == leaf).all() for name, leaf in found.params.items()
    )
    (absent,) = {0, 1, 2} - {*found.cohort(3).tolist()}
    with pytest.raises(ValueError, match=f"client {absent} does not take part in round 3"):
        found.batches(absent, 3)
    for fields, message in (({"kind": "centralized"}, "federated experiments"), ({"lrr": 1}, "did you mean 'lr'")):
        with pytest.raises(UserError, match=message):
            flbench.problem(**fields)


def test_a_store_and_its_export_load_as_the_same_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [experiment(norm=norm, seed=seed) for norm in ("none", "ln") for seed in range(2)]
    store = filled(tmp_path / "runs", requests)
    frame = flbench.load(tmp_path / "runs")
    assert frame.groupby("norm")["acc"].mean().to_dict() == pytest.approx({"none": 0.605, "ln": 0.705})
    (tmp_path / "files").mkdir()
    exported, _ = transfer.export_runs(store, store.run_ids())
    exports.write(tmp_path / "files" / "some.parquet", exported)
    for source in ("files", "files/some.parquet", [tmp_path / "files" / "some.parquet"]):
        there = tmp_path / source if isinstance(source, str) else source
        assert flbench.load(there)["acc"].tolist() == frame["acc"].tolist()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLBENCH_STORE", raising=False)
    assert flbench.load().equals(frame), "the store in this folder"
    curves = flbench.load(str(tmp_path / "runs"), curves=True)
    assert list(curves["round"]) == [10, 20] * 4
    assert set(curves["run_id"]) == set(frame["run_id"])


def test_a_sweep_file_loads_finished_and_missing_runs(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(SPEC)
    Store(tmp_path / "runs")
    frame = flbench.load(tmp_path / "runs", spec=tmp_path / "tiny.yaml")
    assert list(frame["state"]) == ["pending", "pending"]


def test_runs_that_cannot_be_read_are_left_out_with_a_warning(tmp_path: Path) -> None:
    store = filled(tmp_path, [experiment(), experiment(seed=1)])
    forget_norm(store, experiment())
    with pytest.warns(UserWarning, match=f"^{re.escape(f'left out: {FORGOTTEN}')}$") as given:
        assert list(flbench.load(tmp_path)["seed"]) == [1]
    assert [Path(one.filename) for one in given] == [Path(__file__)], "it points at the caller"


def test_a_missing_source_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no store"):
        flbench.load(tmp_path / "nowhere")
    with pytest.raises(UserError, match="unknown rule"):
        flbench.load(filled(tmp_path, [experiment()]).root, select_by="best")


def test_one_experiment_runs_once(tmp_path: Path) -> None:
    first = flbench.run(store=tmp_path, device="cpu", norm="ln", **TINY)
    assert list(first["round"]) == [1, 2, 3]
    assert first["acc"].between(0, 1).all()
    again = flbench.run(store=tmp_path, device="cpu", norm="ln", **TINY)
    assert again.equals(first), "its seconds too: nothing was computed"
    assert list(flbench.load(tmp_path)["state"]) == ["done"]


def test_mistakes_and_failures_are_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="norm: unknown norm 'lm'"):
        flbench.run(store=tmp_path, norm="lm")
    unreachable = {"partition": "dirichlet:1", "min_size": 700, "val_fraction": 0.5}
    with pytest.raises(UserError, match="min_size is 700"):
        flbench.run(store=tmp_path, device="cpu", **{**TINY, **unreachable})
    monkeypatch.setattr("flbench.execution.make_trainer", lambda *_, **__: 1 / 0)
    with pytest.raises(UserError, match=r"run [0-9a-f]{16} failed \(error\)"):
        flbench.run(store=tmp_path, device="cpu", **TINY)


@pytest.mark.slow
def test_a_sweep_runs_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(SPEC)
    frame = flbench.sweep(tmp_path / "tiny.yaml", store=tmp_path / "runs", workers=1)
    assert sorted(frame["norm"]) == ["ln", "none"]
    assert set(frame["state"]) == {"done"}


def test_finished_runs_are_not_repeated(tmp_path: Path) -> None:
    from flbench.sweeps import load_sweep

    (tmp_path / "tiny.yaml").write_text(SPEC)
    for request in load_sweep(tmp_path / "tiny.yaml").experiments:
        finish(Store(tmp_path / "runs"), request, accuracy(request))
    frame = flbench.sweep(tmp_path / "tiny.yaml", store=tmp_path / "runs")
    assert sorted(frame["acc"]) == pytest.approx([0.6, 0.7])


def test_a_notebook_shows_one_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Handle:
        def update(self, drawn: JupyterMixin) -> None:
            shown.append(drawn._repr_mimebundle_((), ())["text/plain"])

    def display(drawn: JupyterMixin, display_id: bool) -> Handle:
        Handle().update(drawn)
        return Handle()

    module = ModuleType("IPython.display")
    module.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    flbench.run(store=tmp_path / "a", device="cpu", **TINY)
    assert shown == [], "a terminal of IPython is no notebook"
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    flbench.run(store=tmp_path / "b", device="cpu", **TINY)
    assert len(shown) >= 2 and "1/1 run" in shown[-1]
