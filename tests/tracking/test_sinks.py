"""The same runs sent to every tracker, and read back with the tracker's own reader."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flbench import plugin_files, registry
from flbench.cli import app
from flbench.errors import UserError
from flbench.store import Store
from flbench.tracking import sink
from flbench.tracking.run_view import finished_view, rows_of, running_view
from flbench.tracking.tensorboard_sink import TensorBoardSink
from tests.report.stores import experiment, fail, finish
from tests.tracking.plans import SPEC, Planned, environment, flbench, planned
from tests.tracking.test_wandb import bare, uploaded

#: For each run that is shown, by its id, its name and its curves: values over rounds, by name.
Shown = dict[str, tuple[str, dict[str, list[tuple[int, float]]]]]

DOCUMENT = Path(__file__).parents[2] / "docs/tracking.md"


def read_wandb(toys: Planned, folder: Path) -> Shown:
    server = uploaded(toys.store, environment(toys.store.root.parent))
    runs = {run: sent for run, sent in server.runs.items() if not run.startswith("sweep-")}
    return {run: (sent.upserts[0]["displayName"], curves(bare(sent.history))) for run, sent in runs.items()}


def read_tensorboard(toys: Planned, folder: Path) -> Shown:
    shown: Shown = {}
    for run, events in accumulators(folder).items():
        values = {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
        if values or not re.search(r"-sweep-\w+$", run):
            shown[run.rpartition("-")[2]] = run.rpartition("-")[0], values
    return shown


def read_csv(toys: Planned, folder: Path) -> Shown:
    shown: Shown = {}
    for path in folder.glob("*.csv"):
        with path.open() as file:
            rows = list(csv.DictReader(file))
        if not path.stem.startswith("sweep-"):
            numbers = [{name: float(text) for name, text in row.items() if name != "run" and text} for row in rows]
            shown[path.stem] = rows[0]["run"] if rows else "", curves(numbers)
    return shown


def curves(rows: list[dict[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    names = dict.fromkeys(name for row in rows for name in row if name != "round")
    return {name: [(row["round"], row[name]) for row in rows if name in row] for name in names}


def accumulators(folder: Path) -> dict[str, Any]:
    """Each run below a folder, as TensorBoard itself finds and loads it."""
    from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer

    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(folder))
    multiplexer.Reload()
    return {run: multiplexer.GetAccumulator(run) for run in multiplexer.Runs()}


READERS: Mapping[str, Callable[[Planned, Path], Shown]] = {
    "csv": read_csv, "tensorboard": read_tensorboard, "wandb": read_wandb,
}  # fmt: skip


@pytest.fixture(params=["csv", "tensorboard", pytest.param("wandb", marks=pytest.mark.slow)])
def tracker(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "tensorboard":
        pytest.importorskip("tensorboard")
    plugin = tmp_path / "csv_tracker.py"
    plugin.write_text(next(block for block in code_blocks() if "csv_tracker.py" in block))
    known = dict(registry.TRACKERS.classes)  # without the plug-in, whose name is registered in this copy alone
    monkeypatch.setattr(registry.TRACKERS, "_classes", known)
    monkeypatch.setitem(vars(registry.TRACKERS), "classes", known)
    monkeypatch.setenv(plugin_files.VARIABLE, str(plugin))
    monkeypatch.delitem(sys.modules, "flbench_plugin_csv_tracker", raising=False)
    list(plugin_files.load_plugins())
    yield request.param
    sys.modules.pop("flbench_plugin_csv_tracker", None)


def code_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)


def sync(toys: Planned, tracker: str, folder: Path) -> str:
    """Send all runs; return what the command says."""
    arguments = ["sync", "--store", str(toys.store.root), "--to"]
    if tracker == "wandb":
        env = environment(toys.store.root.parent)
        return flbench(*arguments, "wandb", "--mode", "offline", env=env).stdout
    result = CliRunner().invoke(app, [*arguments, f"{tracker}:{folder}"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def expected(store: Store, run_ids: list[str]) -> dict[str, dict[str, list[tuple[int, float]]]]:
    return {run_id: curves(rows_of(store.run(run_id).metrics())) for run_id in run_ids}


def test_all_runs_are_there_once_and_whole_however_often_they_are_sent(tmp_path: Path, tracker: str) -> None:
    toys, folder = planned(tmp_path), tmp_path / "shown"
    probes = {"rank": {"rank": 3.0, "singular": [2.0, 1.0]}}
    finish(toys.store, other := experiment(norm="gn", lr=0.1, seed=9), probes=probes)
    runs = [*(run.run_id for run in toys.experiments), other.run_id]
    assert "4 of 4 runs are in" in sync(toys, tracker, folder)
    assert "0 of them new" in sync(toys, tracker, folder)
    first = toys.experiments[0]
    finish(toys.store, experiment(**{**first.to_json(), "rounds": 40}))
    assert "1 of them new" in sync(toys, tracker, folder)
    shown = READERS[tracker](toys, folder)
    assert {run: rows for run, (_, rows) in shown.items()} == {
        run: {name: [(round, pytest.approx(value)) for round, value in points] for name, points in rows.items()}
        for run, rows in expected(toys.store, runs).items()
    }
    assert len(shown[first.run_id][1]["acc"]) == 8
    assert shown[other.run_id][1]["probes/rank/singular/mean"][0][1] == 1.5
    assert re.sub(r"[\W_]", " ", shown[other.run_id][0]) == "fedavg gn classes 1 lr 0 1 E 10 s9"


@pytest.mark.parametrize("tracker", ["csv", "tensorboard"], indirect=True)  # for W&B test_wandb.py kills the service
def test_a_part_of_a_run_is_replaced(tmp_path: Path, tracker: str) -> None:
    toys, folder = planned(tmp_path), tmp_path / "shown"
    run = toys.store.run(toys.experiments[0].run_id)
    found = finished_view(run, ["toy"])
    assert found is not None
    rows, opened = rows_of(run.metrics()), sink.read_tracker(f"{tracker}:{folder}").target(toys.store.root).open()
    for sent in (rows[:2], rows[:1], rows):
        opened.send(found[0], sent)
    opened.close()
    ((_, shown),) = READERS[tracker](toys, folder).values()
    assert [round for round, _ in shown["acc"]] == [5, 10, 15, 20]


def test_a_tensorboard_that_is_open_follows_a_running_run(store: Store, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer

    finish(store, request := experiment(eval_every=5))
    run, folder = store.run(request.run_id), tmp_path / "logs"
    running, ended = running_view(run, (), run.state(request), 20), finished_view(run, ())
    assert running is not None and ended is not None
    rows, opened, multiplexer = rows_of(run.metrics()), TensorBoardSink(folder), EventMultiplexer()
    for view, count in ((running, 1), (running, 3), (ended[0], 4)):
        opened.send(view, rows[:count])
        multiplexer.AddRunsFromDirectory(str(folder)).Reload()
        (name,) = multiplexer.Runs()
        assert [event.step for event in multiplexer.Scalars(name, "acc")] == [5, 10, 15, 20][:count]
    assert multiplexer.Tensors(name, "result")
    # File systems count bytes, of which a Chinese character has three.
    finish(store, request := experiment(dataset=f"folder:/data/{'猫' * 60}/{'狗' * 60}"))
    found = finished_view(store.run(request.run_id), ())
    assert found is not None
    TensorBoardSink(tmp_path / "long").send(found[0], ())
    (one,) = (tmp_path / "long").iterdir()
    assert len(one.name.encode()) < 255 and one.name.endswith(request.run_id)


def test_tensorboard_shows_settings_results_tables_and_figures(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    toys, folder = planned(tmp_path), tmp_path / "shown"
    finish(toys.store, experiment(lr=10.0), status="diverged")
    fail(toys.store, experiment(lr=1.0))
    assert "open: tensorboard --logdir" in sync(toys, "tensorboard", folder)
    found = accumulators(folder)
    (table,) = found[f"toy-sweep-{toys.sweep.spec_hash}"].Tensors("leaderboard")
    assert b"| fedavg | ln |" in table.tensor_proto.string_val[0]
    assert found[f"toy-sweep-{toys.sweep.spec_hash}"].Tags()["images"]
    (result,) = found[f"fedavg_none_classes_1_lr=10_E=10_s0-{experiment(lr=10.0).run_id}"].Tensors("result")
    assert b"| status | diverged |" in result.tensor_proto.string_val[0]
    groups = {group.name: group for group in session_groups(folder)}
    for run in toys.experiments:
        group = groups[run.run_id]
        settings = {name: value.string_value or value.number_value for name, value in group.hparams.items()}
        assert (settings["method"], settings["partition"], settings["lr"]) == ("fedavg", "classes:1", 0.01)
        (acc,) = [value.value for value in group.metric_values if value.name.tag == "acc"]
        assert acc == pytest.approx(toys.metrics(run)[-1]["acc"])
    statuses = {name: group.sessions[0].status for name, group in groups.items()}
    assert statuses[experiment(lr=10.0).run_id] == 1  # success
    assert statuses[experiment(lr=1.0).run_id] == 2  # failure


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_files_leave_the_end_of_the_disk_to_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    pytest.importorskip(name)
    toys = planned(tmp_path)
    with monkeypatch.context() as full:
        full.setattr(sink, "RESERVED_BYTES", 1 << 62)
        arguments = ["sync", "--store", str(toys.store.root), "--to", name, "--mode", "offline"]
        result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert "are left to runs" in result.stdout
    assert "0 of 4 runs are in" in result.stdout
    if name == "tensorboard":
        assert "4 of them new" in sync(toys, name, toys.store.root / name)


def session_groups(folder: Path) -> Any:
    """The table of TensorBoard's page for hyper-parameters, as its server makes it."""
    from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
    from tensorboard.context import RequestContext
    from tensorboard.plugins.base_plugin import TBContext
    from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups

    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(folder))
    multiplexer.Reload()
    context = backend_context.Context(TBContext(data_provider=MultiplexerDataProvider(multiplexer, str(folder))))
    request = api_pb2.ListSessionGroupsRequest(
        start_index=0,
        slice_size=100,
        allowed_statuses=[api_pb2.STATUS_SUCCESS, api_pb2.STATUS_FAILURE],
        aggregation_type=api_pb2.AGGREGATION_AVG,
        include_metrics=True,
    )
    return list_session_groups.Handler(RequestContext(), context, "", request).run().session_groups


def test_a_missing_package_and_unknown_trackers_are_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toys = planned(tmp_path)
    monkeypatch.setattr(sink, "find_spec", lambda name: None)
    spec, store = str(toys.spec), str(toys.store.root)
    for arguments in (["sync", "--to", "tensorboard:x"], ["sweep", spec, "--track", "tensorboard:x"]):
        error = CliRunner().invoke(app, [*arguments, "--store", store]).exception
        assert str(error) == "TensorBoard needs the package tensorboard; install it: uv sync --extra tensorboard"
    wrong = CliRunner().invoke(app, ["sweep", spec, "--track", "tensorbord:x", "--store", store]).exception
    assert str(wrong).startswith("--track tensorbord:x: unknown tracker 'tensorbord'; did you mean 'tensorboard'?")
    for given, reason in {
        "tensorbord:x": "unknown tracker 'tensorbord'; did you mean 'tensorboard'?",
        "{name: tensorboard, foldr: x}": "did you mean 'folder'?",
        "{name: wandb, project: ''}": "at least 1 character",  # as in the section of a sweep file
        "5": "expected a tracker as a name",
        "[": "not valid YAML",
    }.items():
        assert reason in str(CliRunner().invoke(app, ["sync", "--store", store, "--to", given]).exception)


@pytest.mark.parametrize(
    ("track", "reason"),
    [
        ("[tensorboard:a, tensorboard:b]", "tensorboard is given twice"),
        ("wandb", "W&B has a section of its own"),
        ("tensorbord", "did you mean 'tensorboard'?"),
    ],
)
def test_a_sweep_file_names_its_trackers(tmp_path: Path, track: str, reason: str) -> None:
    with pytest.raises(UserError, match=r"toy.yaml:\d+: track: ") as error:
        planned(tmp_path, f"{SPEC}track: {track}\n")
    assert reason in str(error.value)
    pytest.importorskip("tensorboard")
    toys = planned(tmp_path, f"{SPEC}track: tensorboard\n")
    result = CliRunner().invoke(app, ["sync", "--store", str(toys.store.root), "--mode", "off"])
    assert "turned off" in result.stdout
    assert f"4 of 4 runs are in {toys.store.root}/tensorboard" in result.stdout
