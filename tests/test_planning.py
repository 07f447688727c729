"""The content of the data identifies a run: it is looked up before anything is written and compared before use."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from flbench.cli import app
from flbench.cli.targets import find_plans
from flbench.config import Experiment, parse_experiment
from flbench.data.datasets import load, load_named
from flbench.errors import DataMissing, OtherData, UserError
from flbench.exchange import exports, transfer
from flbench.exchange.transfer import FilesSource
from flbench.execution import Runner
from flbench.execution_types import Settings
from flbench.launch.inline import InlineLauncher
from flbench.planning import prepare_runs, resolve_data, with_planned_data, write_plan
from flbench.registry import DATASETS
from flbench.report.runs import collect
from flbench.run_sources import StoreSource
from flbench.store import Lease, Plan, Store
from flbench.sweeps import load_sweep
from flbench.worker import Options, work
from tests.data.files import encode, labels, pixels, write_folder, write_parquet
from tests.faults.stub import OneByOne, execute
from tests.report.stores import finish
from tests.warm import warm_python

OFFICIAL = "cba35f7e9a8daa08"
OTHER, THIRD = "0123456789abcdef", "fedcba9876543210"


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every test its own working directory, cache, data and store, and a stub in place of training."""
    monkeypatch.setenv("FLBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FLBENCH_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("FLBENCH_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("STUB_PAUSE", "0")
    monkeypatch.setattr(
        "flbench.launch.inline.InlineLauncher", partial(InlineLauncher, load=lambda _: OneByOne(execute))
    )
    monkeypatch.chdir(tmp_path)


def write_images(folder: Path, shape: tuple[int, int, int], *, seed: int, count: int = 12, classes: int = 10) -> None:
    """Write a small parquet data set of random images."""
    images = [encode(image) for image in pixels(count, shape, seed)]
    for half in ("train", "test"):
        columns = {"image": images, "label": labels(count, classes)}
        write_parquet(folder / f"{half}-00000-of-00001.parquet", columns)


def cifar(root: Path, seed: int) -> Path:
    write_images(root / "cifar10", (3, 32, 32), seed=seed)
    return root


def photos(root: Path, seed: int = 0) -> Path:
    images = pixels(8, (3, 8, 8), seed)
    write_folder(
        root, {f"{'train' if n < 6 else 'test'}/{'ab'[n % 2]}/{n}.png": image for n, image in enumerate(images)}
    )
    return root


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["run", "--device", "cpu", "rounds=4", "eval_every=4", *arguments])


def computed(*arguments: str) -> tuple[str, bool]:
    """Return the id of a run, and whether this call computed it."""
    found = json.loads(run(*arguments, "--json").stdout)
    assert found["status"] == "done"
    return found["run_id"], found["computed"]


def named(experiment: Experiment, needed: Any = "data", data: Path | None = None) -> Experiment:
    ((found,), _) = resolve_data([experiment], Path("store"), data, needed)
    return found


def request(**fields: Any) -> Experiment:
    return parse_experiment({"rounds": 20, "eval_every": 10, **fields})


def on_photos(path: str) -> Experiment:
    return request(dataset=f"folder:{path}", clients=2, partition="iid")


# The id contains the content.


def test_the_official_content_is_left_out_of_the_id() -> None:
    plain = parse_experiment({"dataset": "cifar10"})
    assert parse_experiment({"dataset": {"name": "cifar10", "content": OFFICIAL}}) == plain
    other = parse_experiment({"dataset": {"name": "cifar10", "content": OTHER}})
    assert other.run_id != plain.run_id
    assert other.cell_id != plain.cell_id
    assert parse_experiment(other.to_json()) == other
    assert other.having(dataset=DATASETS.parse("cifar10")).run_id == plain.run_id


def test_other_images_under_one_name_are_another_run(tmp_path: Path) -> None:
    first, second = cifar(tmp_path / "d1", 1), cifar(tmp_path / "d2", 2)
    one, two = computed("dataset=cifar10", "--data", str(first)), computed("dataset=cifar10", "--data", str(second))
    assert one[0] != two[0] and one[1] and two[1]
    assert computed("dataset=cifar10", "--data", str(first)) == (one[0], False)
    assert parse_experiment({"dataset": "cifar10"}).run_id not in (one[0], two[0]), "which is the official set's"
    store = Store(tmp_path / "store")
    assert {str(row.experiment.dataset.label()) for row in collect(StoreSource(store)).runs} == {  # type: ignore[union-attr]
        store.run(run_id).experiment().dataset.label()  # type: ignore[union-attr]
        for run_id in (one[0], two[0])
    }


def test_a_moved_folder_gives_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos(tmp_path / "img")
    spellings = ("img", "./img", "img/", str(tmp_path / "img"), "../" + tmp_path.name + "/img")
    ids = {named(on_photos(path)).run_id for path in spellings}
    assert len(ids) == 1
    shutil.move(tmp_path / "img", tmp_path / "moved")
    assert named(on_photos("moved")).run_id in ids
    photos(tmp_path / "elsewhere/img", seed=1)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert named(on_photos("img")).run_id not in ids


def test_images_changed_in_place_are_another_run(tmp_path: Path) -> None:
    photos(tmp_path / "img")
    before = computed("dataset=folder:img", "batch_size=2", "clients=2", "partition=iid")
    (path, *_) = (tmp_path / "img/train/a").iterdir()
    path.write_bytes(encode(pixels(1, (3, 8, 8), 99)[0]))
    after = computed("dataset=folder:img", "batch_size=2", "clients=2", "partition=iid")
    assert before[0] != after[0] and after[1]


def test_a_class_without_images_is_another_content(tmp_path: Path) -> None:
    photos(tmp_path / "img")
    two = load(DATASETS.parse("folder:img"))
    (tmp_path / "img/classes.txt").write_text("a\nb\nc\n")
    assert load(DATASETS.parse("folder:img")).fingerprint != two.fingerprint, "a model would have an output more"


def test_a_subset_and_the_full_set_are_different_runs(tmp_path: Path) -> None:
    write_images(tmp_path / "part/tinyimagenet", (3, 64, 64), seed=1, count=200, classes=200)
    write_images(tmp_path / "full/tinyimagenet", (3, 64, 64), seed=1, count=400, classes=200)
    tiny = request(dataset="tinyimagenet", model="cnn", partition="iid")
    part, full = (named(tiny, data=tmp_path / name) for name in ("part", "full"))
    assert len({tiny.run_id, part.run_id, full.run_id}) == 3


def test_one_content_under_two_paths_is_one_run_of_a_sweep(tmp_path: Path) -> None:
    photos(tmp_path / "img")
    spec = sweep_file(tmp_path, "['folder:img', 'folder:./img']")
    sweep = load_sweep(spec)
    assert len(sweep.experiments) == 2
    assert len(resolve_data(sweep.experiments, tmp_path / "store", None, "data").experiments) == 1


# Machines without the data.


def sweep_file(folder: Path, datasets: str, **base: Any) -> Path:
    spec = folder / "data.yaml"
    fields = {"rounds": 4, "eval_every": 4, "clients": 2, "batch_size": 2, "partition": "iid", **base}
    spec.write_text(f"version: 1\nname: data\nbase: {json.dumps(fields)}\naxes: {{dataset: {datasets}}}\n")
    return spec


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_missing_data_are_one_error_and_nothing_is_written(command: str, tmp_path: Path) -> None:
    spec = sweep_file(tmp_path, "[digits, cifar10]")
    result = (
        run("dataset=cifar10")
        if command == "run"
        else CliRunner().invoke(app, ["sweep", str(spec), "--backend", "inline"])
    )
    assert isinstance(result.exception, DataMissing) and result.exception.exit_code == 2
    assert not (tmp_path / "store").exists()


def test_damaged_data_are_one_error_and_nothing_is_written(tmp_path: Path) -> None:
    for half in ("train", "test"):
        path = tmp_path / f"data/cifar10/{half}-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"no parquet")
    error = run("dataset=cifar10").exception
    assert isinstance(error, UserError) and error.exit_code == 2
    assert not (tmp_path / "store").exists()


def test_finished_runs_need_no_data(tmp_path: Path) -> None:
    first = cifar(tmp_path / "d1", 1)
    run_id, _ = computed("dataset=cifar10", "--data", str(first))
    assert computed("dataset=cifar10") == (run_id, False), "the only content that is stored"
    assert isinstance(run("dataset=cifar10", "seed=1").exception, DataMissing)


def test_planning_without_data_assumes_the_official_content(tmp_path: Path) -> None:
    official = request(dataset="cifar10")
    assert named(official, "content") is official
    with pytest.raises(DataMissing):
        named(official, "data")


def test_planning_without_data_asks_for_unknown_content(tmp_path: Path) -> None:
    tiny = request(dataset="tinyimagenet", model="cnn", partition="iid")
    with pytest.raises(UserError, match=r"not known here.*dataset\.content=FINGERPRINT"):
        named(tiny, "content")
    assert named(tiny, "nothing") is tiny
    pinned = request(dataset={"name": "tinyimagenet", "content": OTHER}, model="cnn", partition="iid")
    assert named(pinned, "content") is pinned


def test_a_named_content_is_compared_with_the_local_data(tmp_path: Path) -> None:
    cifar(tmp_path / "data", 1)
    with pytest.raises(OtherData, match=rf"expected cifar10 with the content {OTHER}, found"):
        named(request(dataset={"name": "cifar10", "content": OTHER}))


def test_stored_runs_determine_the_content(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    tiny = request(dataset="tinyimagenet", model="cnn", partition="iid")
    first = tiny.having(dataset=tiny.dataset.holding(OTHER))  # type: ignore[union-attr]
    finish(store, first, 0.5, fingerprint=OTHER)
    assert named(tiny, "content") == first
    (found,) = collect(StoreSource(store), [tiny]).runs
    assert (found.run_id, found.state) == (first.run_id, "done")
    finish(store, tiny.having(dataset=tiny.dataset.holding(THIRD)), 0.6, fingerprint=THIRD)  # type: ignore[union-attr]
    with pytest.raises(UserError, match=f"several contents.*{OTHER}.*{THIRD}|several contents.*{THIRD}.*{OTHER}"):
        collect(StoreSource(store), [tiny])
    (chosen,) = collect(StoreSource(store), [first]).runs
    assert chosen.record is not None and chosen.record["acc"] == 0.5


def test_among_several_stored_contents_the_local_one_is_used(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    for seed in (1, 2):
        shutil.rmtree(tmp_path / "img", ignore_errors=True)
        photos(tmp_path / "img", seed)
        last = named(on_photos("img"))
        finish(store, last, 0.1 * seed, fingerprint=str(last.dataset.content))  # type: ignore[union-attr]
    (found,) = collect(StoreSource(store), [on_photos("./img")]).runs
    assert found.run_id == last.run_id


def test_official_runs_precede_others_of_that_name(tmp_path: Path) -> None:
    store, official = Store(tmp_path / "store"), request(dataset="cifar10", model="cnn")
    other = official.having(dataset=official.dataset.holding(OTHER))  # type: ignore[union-attr]
    finish(store, other, 0.1, fingerprint=OTHER)
    (found,) = collect(StoreSource(store), [official]).runs
    assert found.run_id == other.run_id
    finish(store, official, 0.7, fingerprint=OFFICIAL)
    (found,) = collect(StoreSource(store), [official]).runs
    assert found.run_id == official.run_id
    assert len(collect(StoreSource(store)).runs) == 2


def test_a_sweep_file_finds_its_plans_for_any_data(tmp_path: Path) -> None:
    store, spec = Store(tmp_path / "store"), sweep_file(tmp_path, "[cifar10]")
    plans = []
    for seed in (1, 2):
        data = cifar(tmp_path / f"d{seed}", seed)
        loaded = load_sweep(spec)
        sweep = loaded.planned_as(resolve_data(loaded.experiments, store.root, data, "data").experiments)
        plans.append(write_plan(store, sweep))
        assert with_planned_data(load_sweep(spec), plans[-1]) == sweep
    assert plans[0] != plans[1]
    assert find_plans(store, str(spec)) == sorted(plans)


# Before a run is reused, and before it is computed.


def test_a_result_on_other_data_is_not_reused(tmp_path: Path) -> None:
    store, official = Store(tmp_path / "store"), request(dataset="cifar10")
    finish(store, official, 0.1, fingerprint=OTHER)  # stored before runs named their data
    run = store.run(official.run_id)
    assert run.state(official).status == "pending"
    finish(store, official, 0.7, fingerprint=OFFICIAL)
    state = run.state(official)
    assert state.result is not None and state.result.final["acc"] == 0.7
    assert len(run.results()) == 2, "nothing is lost"
    (found,) = collect(StoreSource(store), [official]).runs
    assert found.record is not None and found.record["acc"] == 0.7


def test_earlier_results_of_a_set_without_official_content_are_reused(tmp_path: Path) -> None:
    store, tiny = Store(tmp_path / "store"), request(dataset="tinyimagenet", model="cnn", partition="iid")
    finish(store, tiny, 0.4, fingerprint=OTHER)
    same, other = (tiny.having(dataset=tiny.dataset.holding(content)) for content in (OTHER, THIRD))  # type: ignore[union-attr]
    prepare_runs(store, [same, other])
    assert store.run(same.run_id).state(same).status == "done"
    assert store.run(other.run_id).state(other).status == "pending"
    assert store.run(tiny.run_id).state(tiny).status == "done", "it stays where it is"


def test_export_and_import_keep_results_on_different_data_apart(tmp_path: Path) -> None:
    official, files = request(dataset="cifar10", model="cnn"), []
    for name, content in (("a", OFFICIAL), ("b", OTHER)):
        store = Store(tmp_path / name)
        finish(store, official, 0.5, fingerprint=content)
        exported, _ = transfer.export_runs(store, [official.run_id])
        exports.write(tmp_path / f"{name}.parquet", exported)
        files.append(tmp_path / f"{name}.parquet")
    target = Store(tmp_path / "both")
    verdicts = transfer.import_runs(target, [one for file in files for one in exports.read(file)], Lease.here())
    assert [verdict for _, verdict in verdicts] == ["imported", "imported"]
    ids = {official.run_id, official.having(dataset=official.dataset.holding(OTHER)).run_id}  # type: ignore[union-attr]
    assert {*target.run_ids()} == ids
    for source in (StoreSource(target), FilesSource(files)):
        assert {found.run_id for found in collect(source).runs} == ids


def checking(check: Callable[[Experiment], None]) -> OneByOne:
    class Checking(OneByOne):
        def check(self, experiment: Experiment) -> None:
            check(experiment)

    return Checking(execute)


def test_a_worker_claims_no_run_whose_data_are_missing(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    absent, there = request(dataset="cifar10"), request()
    engine = checking(Runner(Settings()).check)
    go = partial(work, store, Plan.of([absent, there]), Lease.here(), Options(), should_stop=lambda: False)
    assert go(load=lambda _: engine) == 1, "the others are executed"
    with pytest.raises(DataMissing):
        go(load=lambda _: engine)
    assert not store.run(absent.run_id).path.exists()
    assert store.run(there.run_id).state(there).status == "done"


def test_a_worker_computes_nothing_on_other_data(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    cifar(tmp_path / "data", 1)
    with pytest.raises(OtherData):
        Runner(Settings()).check(request(dataset="cifar10"))
    with pytest.raises(OtherData):
        load_named(DATASETS.parse("cifar10"))
    engine = checking(Runner(Settings()).check)
    with pytest.raises(OtherData):
        work(
            store,
            Plan.of([request(dataset="cifar10")]),
            Lease.here(),
            Options(),
            should_stop=lambda: False,
            load=lambda _: engine,
        )
    assert [*store.run_ids()] == []


# Executing runs again.


def test_rerun_executes_a_finished_run_again(tmp_path: Path) -> None:
    run_id, _ = computed()
    assert computed() == (run_id, False)
    assert computed("--rerun") == (run_id, True)
    assert computed() == (run_id, False)
    found = Store(tmp_path / "store").run(run_id)
    assert [result.attempt for result in found.results()] == [2]
    assert [path.name for path in (found.path / "superseded").iterdir()] == ["00000004-0001.json"]
    rounds = [len((attempt.path / "executed").read_text().split()) for attempt in found.attempts()]
    assert rounds == [4, 4], "from the beginning, not from a checkpoint"


def test_rerun_of_a_sweep_applies_to_its_selected_runs(tmp_path: Path) -> None:
    spec = sweep_file(tmp_path, "[digits]")

    def sweep(*options: str) -> int:
        command = ["sweep", str(spec), "--backend", "inline", "--set", "seeds=[0,1,2]", *options]
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
        return sum(1 for _ in (tmp_path / "store").glob("runs/*/*/attempts/*"))

    assert [sweep(), sweep(), sweep("--limit", "1", "--rerun"), sweep("--rerun"), sweep()] == [3, 3, 4, 7, 7]


@pytest.mark.parametrize("command", [["run", "dataset=cifar10", "rounds=2", "eval_every=2"], ["sweep", "spec.yaml"]])
def test_missing_data_leave_no_attempt(command: list[str], tmp_path: Path) -> None:
    """Use the real engine, in a separate process."""
    spec = "version: 1\nname: missing\nbase: {dataset: cifar10, rounds: 2, eval_every: 2}\naxes: {norm: [none, ln]}\n"
    (tmp_path / "spec.yaml").write_text(spec)
    program = [warm_python(), "-c", "from flbench.cli import main; main()"]
    done = subprocess.run([*program, *command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "flbench data download cifar10" in done.stderr
    assert not list(tmp_path.glob("store/runs/*/*/attempts/*"))
