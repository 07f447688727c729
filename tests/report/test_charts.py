"""The data of a page's charts: what they hold, their size, and strings that would end the script."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from flbench.config import parse_experiment
from flbench.report.blocks import Charts, Heading
from flbench.report.charts import Points, charts
from flbench.report.parts import Part
from flbench.report.runs import Collection, Run, collect
from flbench.report.write.html import to_html
from flbench.run_sources import StoreSource
from flbench.store import Store
from flbench.sweeps.layout import Layout
from tests.report.stores import accuracy, claim, experiment, fail, finish, small_sweep
from tests.report.test_html import PageReader


def stored_charts(store: Store, **layout: Any) -> dict[str, Any]:
    collection = collect(StoreSource(store), small_sweep())

    def points_of(run: Run, metric: str) -> Points:
        attempts = store.run(run.run_id).attempts()
        return {record["round"]: record[metric] for record in attempts[-1].records()} if attempts else {}

    return charts([Part(Layout(**layout), collection)], points_of)


def embedded(page: str) -> Any:
    """The data in a page, as its script reads them."""
    found = re.search(r'<script type="application/json" id="charts-data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


@pytest.fixture
def half_done(tmp_path: Path) -> Store:
    """``small_sweep`` with the cells of FedAvg done, but for a failed and a running run."""
    store = Store(tmp_path / "store")
    first, second, third, *others = small_sweep()
    finish(store, first, 0.6, lines=[{"round": r, "acc": 0.03 * r} for r in (0, 10, 20)])
    fail(store, second)
    attempt = claim(store, third)
    for r in (0, 10):
        attempt.record({"round": r, "acc": 0.01 * r})
    for request in others[:9]:
        finish(store, request, accuracy(request))
    return store


def test_cells_have_settings_results_and_curves(half_done: Store) -> None:
    found = stored_charts(half_done)
    (group,) = found["groups"]
    assert [(axis["name"], axis["labels"]) for axis in group["axes"]] == [
        ("method", ["fedavg", "scaffold"]),
        ("norm", ["none", "ln"]),
        ("partition", ["classes:1", "dirichlet:0.1"]),
    ]
    assert group["axes"][1]["colors"] == [0, 1], "those of figures"
    assert (group["title"], group["metric"], group["percent"]) == ("digits, mlp", "accuracy", True)
    cells = {tuple(cell["at"]): cell for cell in group["cells"]}
    assert len(cells) == 8
    started = cells[0, 0, 0]
    assert started["value"] == 60.0 and started["gaps"] == "1/3: 1 failed (oom), 1 running"
    assert started["rounds"] == [0, 10, 20]
    assert started["mean"] == [0.0, 30.0, 60.0], "of the finished seed alone"
    assert started["runs"] == [[0, "done", [0.0, 30.0, 60.0]], [2, "running", [0.0, 10.0]]]
    waiting = cells[1, 1, 1]
    assert (waiting["value"], waiting["mean"], waiting["gaps"]) == (None, [], "not run")
    (table,) = group["tables"]
    assert table["rows"] == ["fedavg none", "fedavg ln", "scaffold none", "scaffold ln"]
    at = {(r, c): group["cells"][number]["value"] for r, c, number, _ in table["cells"]}
    assert (at[0, 0], at[1, 1], at[3, 1]) == (60.0, 81.0, None)


def test_studies_and_sweeps_with_other_options_have_groups_of_their_own(half_done: Store) -> None:
    study = parse_experiment({"kind": "sharpness"})
    finish(half_done, study, lines=[{"round": 0, "lambda_max": 30.0}])
    source = StoreSource(half_done)
    places = frozenset({("digits", "mlp")})
    parts = [
        Part(Layout(), collect(source, small_sweep()), {"small": places}),
        Part(Layout(metric="loss"), collect(source, [*small_sweep()[:6], study]), {"other": places}),
    ]
    groups = charts(parts, lambda run, metric: {})["groups"]
    assert [(group["title"], group["metric"], len(group["tables"])) for group in groups] == [
        ("digits, mlp (small)", "accuracy", 1),
        ("digits, mlp (other)", "test loss", 1),
        ("sharpness (other)", "lambda_max", 0),
    ]


def test_names_cannot_end_the_data_or_become_tags() -> None:
    hostile = "</script><script>alert(1)</script><!-- \" ' & <b>\u2028"
    data = {"groups": [{"title": hostile}], "colors": []}
    page = to_html([Heading(1, "t"), Charts(data)], "t")
    assert embedded(page) == data
    reader = PageReader()
    reader.feed(page)
    assert reader.tags.count("script") == 2 and "b" not in reader.tags
    assert hostile not in html.unescape(page)


@pytest.mark.parametrize("seeds", [5, pytest.param(100, marks=pytest.mark.slow)])
def test_the_size_of_a_page_is_bounded(seeds: int) -> None:
    """500 runs of 1000 evaluations, and 10,000: docs/live.md says 200 kB."""
    runs = tuple(
        Run(
            experiment(norm=norm, lr=lr, method=method, E=steps, seed=seed, rounds=1000, eval_every=1),
            1000,
            "done",
            record={"acc": 0.5 + 0.001 * seed},
        )
        for norm in ("none", "ln", "fn", "gn", "bn")
        for lr in (0.001, 0.003, 0.01, 0.03, 0.1)
        for method in ("fedavg", "scaffold")
        for steps in (1, 10)
        for seed in range(seeds)
    )
    points = {at: 0.123456 + at / 2000 for at in range(1001)}
    found = charts([Part(Layout(), Collection(runs))], lambda run, metric: points)
    (group,) = found["groups"]
    assert len(group["cells"]) == 100
    assert all(cell["rounds"][0] == 0 and cell["rounds"][-1] == 1000 for cell in group["cells"])
    assert len(to_html([Charts(found)], "t")) < 205_000
