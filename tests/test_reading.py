"""Reading a store: fast checks agree with the slow ones behind them, and each file is read once."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from flbench import regular
from flbench.config import parse_experiment
from flbench.progress import Watch
from flbench.report import tuning
from flbench.report.runs import collect
from flbench.run_sources import StoreSource
from flbench.store import Store, encode_plan, read_plan, records, results, strict_json
from flbench.store.plans import Plan
from tests.report.stores import claim

TEXTS = [
    *("1e400", "-1e400", "[1e309]", '{"a": {"b": [0, 1e999]}}', "1" * 400 + ".0", "NaN", "Infinity", "[-Infinity]"),
    *('"\\ud800"', '"\\ud83d\\ude00"', '"\\u0000"', "-0", "-0.0", "1.0", "01", "1E5", "1" * 30, "1" * 5000),
    *("[" * 500 + "]" * 500, "[" * 100_000, '{"a":1,"b":2,"a":3}', "\ufeff1", " 1 ", '"\x01"', "1.", ".5", "[1,]"),
    *("9007199254740993.0", "2.2250738585072011e-308", "1e-400", "4.9e-324", "1e+308", "1\0", "", "nul", '"\ud800"'),
]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_both_parsers_of_json_agree(text: str) -> None:
    def read(loads: Any) -> str:
        try:
            return repr(loads(text.encode(errors="surrogatepass")))
        except ValueError as error:
            return f"{type(error)} {error}"

    assert read(strict_json.loads) == read(strict_json.loads_by_json)


VALUES = [0, 1, -1, 2**63, 0.5, -0.5, 1.5, math.nan, math.inf, None, True, "a", [], [0.5], [0.5, None], [1.5], [1]]


@pytest.mark.parametrize("name", ["round", "acc", "loss", "clients", "recall", "probes", "bytes_up", "unknown"])
def test_a_record_that_is_usual_is_right(name: str) -> None:
    seen = set()
    for value in (*VALUES, [math.nan], [math.inf], [[0.5]], {}, {"features": {}}):
        raw = {"round": 5, "acc": 0.5, "clients": [0.5, 0.25], "loss": 1.0, name: value}
        if records._is_usual(raw):
            records.check_by_rules(raw)
            seen.add(repr(value))
    assert len(seen) >= (name != "probes")


def test_a_result_that_is_usual_is_what_pydantic_makes_of_it(store: Store) -> None:
    finish(store, 1)
    (found,) = store.run(next(store.run_ids())).results()
    raw = found.to_json()
    fields = {**{name: value for name, value in raw.items() if name not in ("schema", "sha256")}, "file": found.file}
    assert repr(results._usual(fields)) == repr(results.validated(fields)) == repr(found)
    seen = 0
    for name in fields:
        for value in (*VALUES, "diverged", [1, 2], [True], ["a"], [-1], {}, {"a": [1]}, {"a": 1.0}, {"samples": "1"}):
            changed = {**fields, name: value}
            if (usual := results._usual(changed)) is not None:
                assert repr(usual) == repr(results.validated(changed))
                seen += 1
            else:
                try:
                    results.validated(changed)
                except ValidationError:
                    seen += 1
    assert seen > 200


def test_facts_that_are_equal_but_of_other_types_stay_apart() -> None:
    whole, real, truth = (results.shared_facts({"a": value}) for value in (1, 1.0, True))
    assert [type(facts["a"]) for facts in (whole, real, truth)] == [int, float, bool]
    assert results.shared_facts({"a": 1}) is whole
    with pytest.raises(ValueError, match="b: expected a plain value"):
        results.shared_facts({"a": 1, "b": []})


def test_plans_are_read_the_same_in_order_and_one_by_one(tmp_path: Path) -> None:
    experiments = [parse_experiment({"rounds": 5, "lr": lr, "seed": s}) for lr in (0.1, 0.2) for s in (0, 1, 10)]
    lines = encode_plan(experiments).decode().splitlines()
    head, _, rest = lines[0].partition('"seed":0')
    strange = [
        lines[0],
        head + '"seed":007' + rest,
        head + '"seed":-1' + rest,
        head + '"seed":2.0' + rest,
        head + '"seed":3, "note":"\\"seed\\":4"' + rest,
        head + '"seed":5, "note":{"seed":6}' + rest,
        head + '"seed":5, "note":{"seed":7}' + rest,
        head + '"seed":8, "run_id":"0123456789abcdef"' + rest,
        lines[1],
    ]
    path = tmp_path / "plan.jsonl"
    for text in (lines, *([lines[0], one, lines[2]] for one in strange)):
        plan = Plan(path, "".join(f"{line}\n" for line in text).encode())

        def outcome(read: Any) -> str:
            try:
                return repr(read())
            except Exception as error:  # the same error, whichever it is
                return repr(error)

        assert outcome(lambda plan=plan: list(plan)) == outcome(lambda plan=plan: [*plan[:]])
    path.write_bytes(encode_plan(experiments))
    assert [entry.run_id for entry in read_plan(path)] == [one.run_id for one in experiments]


def finish(store: Store, runs: int) -> list[Any]:
    """Finish runs that differ in their seed."""
    experiments = [parse_experiment({"rounds": 20, "eval_every": 5, "seed": seed}) for seed in range(runs)]
    for experiment in experiments:
        attempt = claim(store, experiment)
        for round in sorted(experiment.evaluated_rounds()):
            attempt.record({"round": round, "acc": round / 100, "clients": [0.5]})
        numerics = {"device": "cpu"}
        attempt.publish(status="done", rounds=20, seconds=1.5, fingerprint="e3713c9c6ae47b99", numerics=numerics)
        attempt.end("ok", round=20)
    return experiments


def test_status_and_report_read_one_file_a_run(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    experiments = finish(store, 7)
    plan = Plan.of(experiments)
    opened: list[str] = []
    monkeypatch.setattr(
        regular, "_open", lambda path, flags, open=regular._open: opened.append(path) or open(path, flags)
    )
    monkeypatch.setattr(results, "validated", lambda fields: pytest.fail("pydantic validated a usual result"))
    monkeypatch.setattr(strict_json, "loads_by_json", lambda data: pytest.fail("json parsed a usual file"))
    assert Watch(store, plan, 1).update().done == 7
    assert len(opened) == len({*opened}) == 7
    opened.clear()
    assert {run.state for run in collect(StoreSource(store), experiments).runs} == {"done"}
    assert len(opened) == len({*opened}) == 7


def test_the_odds_of_drawn_settings_are_computed_once() -> None:
    tuning.first_of_drawn.cache_clear()
    for _ in range(3):
        for drawn in range(1, 6):
            tuning.first_of_drawn(5, drawn)
    assert tuning.first_of_drawn.cache_info().misses == 5


def test_json_of_a_plan_is_what_json_reads() -> None:
    (line,) = encode_plan([parse_experiment({})]).splitlines()
    assert strict_json.loads(line) == json.loads(line)
