from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from flbench.cli.sync import sweep_view
from flbench.config import parse_experiment
from flbench.store import Store
from flbench.sweeps import load_sweep
from flbench.tracking.run_view import RunView, failed_view, finished_view, name_of, running_view
from tests.report.stores import claim, experiment, finish


def test_a_run_has_its_id_cell_kind_tags_and_experiment(store: Store) -> None:
    request = experiment(method="scaffold", norm="ln", lr=0.1, seed=3)
    finish(store, request)
    found = finished_view(store.run(request.run_id), ("first", "second"))
    assert found is not None
    view, result = found
    assert (view.run_id, view.job_type) == (request.run_id, "federated")
    assert view.group == "scaffold ln classes:1 lr=0.1 E=10"
    assert view.tags == ("first", "second", "scaffold", "ln", "digits", "classes:1")
    assert view.name == "scaffold ln classes:1 lr=0.1 E=10 s3"
    assert view.config == {**request.to_json(), "cell_id": request.cell_id}
    assert view.summary["status"] == "done"
    assert view.summary["rounds"] == 20
    assert view.summary["data_fingerprint"] == "e3713c9c6ae47b99"
    assert "somebody" not in str(view)  # neither the machine nor paths of the command line
    assert view.stamp == result.metrics_sha256
    assert view.exit_code == 0


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({}, "fedavg none classes:1 lr=0.01 E=10 s0"),
        ({"momentum": 0.9}, "fedavg none classes:1 lr=0.01 E=10 momentum=0.9 s0"),
        ({"kind": "rank"}, "rank none s0"),
        ({"kind": "deep", "lr": 0.1}, "deep none lr=0.1 s0"),
    ],
)
def test_names_show_what_differs_from_the_defaults(fields: dict[str, Any], name: str) -> None:
    assert name_of(parse_experiment(fields).to_json()) == name


def test_studies_are_named_by_their_kind_and_normalization(store: Store) -> None:
    study = parse_experiment({"kind": "sharpness", "width": 50, "normalized": "bn-last", "seed": 2})
    assert name_of(study.to_json()) == "sharpness bn-last width=50 s2"
    attempt = claim(store, study)
    attempt.record({"round": 0, "lambda_max": 7.5, "spectrum": [7.5, 1.0]})
    attempt.publish(status="done", rounds=0, seconds=1.0, fingerprint="gaussian", numerics={})
    attempt.end("ok")
    found = finished_view(store.run(study.run_id), ("why",))
    assert found is not None
    assert (found[0].job_type, found[0].tags, found[0].exit_code) == ("sharpness", ("why", "bn-last"), 0)
    assert found[0].config == {**study.to_json(), "cell_id": study.cell_id}


def test_what_changes_the_digest(store: Store) -> None:
    def view(*sweeps: str) -> RunView:
        found = finished_view(store.run(experiment().run_id), sweeps)
        assert found is not None
        return found[0]

    finish(store, experiment())
    before = view("a")
    assert before.digest == view("a").digest != view("a", "b").digest
    finish(store, experiment(rounds=40))
    assert (before.config["rounds"], view("a").config["rounds"]) == (20, 40), "the longest result counts"
    assert before.digest != view("a").digest


def test_diverged_and_failed_runs_say_so(store: Store) -> None:
    finish(store, request := experiment(lr=10.0), status="diverged")
    found = finished_view(store.run(request.run_id), ())
    assert found is not None
    assert (found[0].status, found[0].exit_code, "diverged" in found[0].tags) == ("diverged", 0, True)
    request = experiment(lr=1.0)
    claim(store, request).end("oom", "FileNotFoundError: /home/somebody/data/digits.parquet")
    run = store.run(request.run_id)
    assert finished_view(run, ()) is None
    view = failed_view(run, (), run.state(request))
    assert view is not None
    assert (view.status, view.exit_code, view.summary["failure"]) == ("failed", 1, "oom")
    assert view.summary["message"] == "FileNotFoundError: digits.parquet", "it names no directory"


def test_a_run_without_its_experiment_has_no_view(store: Store) -> None:
    claim(store, request := experiment()).end("ok")
    run = store.run(request.run_id)
    (run.path / "experiment.json").write_text("{")
    assert running_view(run, (), run.state(request), 20) is None


def test_names_are_bounded_and_nothing_names_a_directory(store: Store) -> None:
    """The two sets differ in their directories, and the widths of one model are more text than W&B accepts."""
    views = []
    changed: tuple[dict[str, Any], ...] = ({}, {"model": {"name": "mlp", "widths": [64] * 100}})
    for place, changes in product(("/home/somebody/one", "/home/somebody/two"), changed):
        for seed in (0, 1):
            request = experiment(dataset=f"folder:{place}/my pets", seed=seed, **changes)
            finish(store, request)
            found = finished_view(store.run(request.run_id), ("sweep",))
            assert found is not None
            views.append(found[0])
    for view in views:
        assert "somebody" not in str(view), "in no name, group, tag or setting"
        assert len(view.name) <= 128 and len(view.group) <= 128
        assert view.name.endswith(view.run_id) and view.group.endswith(str(view.config["cell_id"]))
        assert "folder:my pets" in view.tags
    assert len({view.name for view in views}) == len(views)
    assert len({view.group for view in views}) == len(views) / 2, "the seeds of a cell have one"
    assert views[0].name == f"fedavg none classes:1 folder:my pets lr=0.01 E=10 s0 {views[0].run_id}"
    cut = views[2].name
    assert len(cut) == 128 and cut.startswith("fedavg none classes:1 folder:my pets mlp(") and " s0 " in cut, cut


def test_the_table_of_a_sweep_names_no_directory(store: Store, tmp_path: Path) -> None:
    spec = tmp_path / "pets.yaml"
    spec.write_text(
        "version: 1\nname: pets\nbase: {rounds: 20}\naxes: {dataset: ['folder:/home/somebody/a', 'folder:~/b']}\n"
    )
    sweep = load_sweep(spec)
    for request in sweep.experiments:
        finish(store, request)
    view = sweep_view(store, sweep, tmp_path / "figures", print)
    place = list(view.columns).index("dataset")
    assert [row[place] for row in view.rows] == ["folder:a", "folder:b"]
    assert "somebody" not in str(view)
