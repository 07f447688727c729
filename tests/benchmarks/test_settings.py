from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import settings
from benchmarks.common import experiment_of
from benchmarks.settings import PAGES, SETTINGS, chosen, line
from benchmarks.tables import NAMED, ROOT, replaced, settings_sentence, settings_table
from flbench.bench.timing import Comparison, Spread
from flbench.errors import UserError


def test_every_setting_is_an_experiment_of_its_own() -> None:
    assert len(SETTINGS) == 56
    assert len({experiment_of(setting).run_id for setting in SETTINGS.values()}) == 56
    assert experiment_of("E=2").partition.label() == "iid"
    assert experiment_of("partition=dirichlet:0.5").partition.label() == "dirichlet:0.5"


def test_settings_are_chosen_by_names_and_patterns() -> None:
    assert chosen(["cifar-resnet18-*", "digits-mlp128"]) == [
        "digits-mlp128", "cifar-resnet18-gn", "cifar-resnet18-bn", "cifar-resnet18-gn-B8"
    ]  # fmt: skip
    with pytest.raises(UserError, match=r"did you mean 'digits-mlp64'\?"):
        chosen(["digits-mlp128", "digits-mlp46"])


def test_a_line_has_milliseconds_and_ratios() -> None:
    seconds = {"flbench": [0.001, 0.002, 0.004], "plain loop": [0.01, 0.01, 0.01]}
    done = Comparison("stacked", 1, seconds, {"flbench": Spread(5.0, 2.5, 10.0, 3)})
    assert "digits (stacked), ms: flbench 2, plain loop 10; flbench x 5 (2.5 to 10); load " in line("digits", done)


def setting(name: str, ours: float, plain: float, channels_last: float, fused: float | None = None) -> dict[str, Any]:
    """A measurement of two turns, the second of which takes twice as long."""
    ways = {"flbench": ours, **({"flbench, 3 runs together": fused} if fused else {})}
    loops = {"plain loop": plain, "plain loop, channels last": channels_last}
    ratios = {way: min(loops.values()) / own for way, own in ways.items()}
    speed = {way: {"median": ratio, "min": ratio / 2, "max": ratio, "n": 2} for way, ratio in ratios.items()}
    seconds = {way: [one, 2 * one] for way, one in {**ways, **loops}.items()}
    return {"name": name, "executor": "loop", "data": "0123", "seconds": seconds, "speed": speed}


def measured(*others: dict[str, Any]) -> dict[str, Any]:
    """A measurement of the settings that README names, each as fast as its loop, and of others."""
    machine = {"date": "2026-11-22", "cpu": "a processor", "python": "3.11.7", "torch": "2.15.0"}
    found = [*(setting(name, 0.01, 0.01, 0.02) for name in NAMED), *others]
    return {
        "schema": 2, "machine": {**machine, "load_before": 0.1, "load_after": 0.4}, "options": {"repeats": 2},
        "settings": found,
    }  # fmt: skip


def test_the_table_has_the_slowest_setting_first() -> None:
    text = settings_table(measured(setting("slow", 0.02, 0.03, 0.01), setting("mixed", 0.01, 0.02, 0.02, fused=0.03)))
    rows = [line for line in text.splitlines() if line.startswith("|")][2:]
    assert rows[:2] == [
        "| `slow` | loop | 30.0 (20.0 to 40.0) | 15.0 (10.0 to 20.0) | 0.500 (0.250 to 0.500) | – |",
        "| `mixed` | loop | 15.0 (10.0 to 20.0) | 30.0 (20.0 to 40.0) | 2.00 (1.00 to 2.00) | 0.667 (0.333 to 0.667) |",
    ]
    assert len(rows) == 2 + len(NAMED)
    assert "(a processor, load 0.1 to 0.4, Python 3.11.7, torch 2.15.0; n=2 turns)" in " ".join(text.split())


def test_the_sentence_names_the_slowest_setting() -> None:
    text = " ".join(settings_sentence(measured(setting("slow", 0.02, 0.03, 0.01))).split())
    assert "2026-11-22; median of 2 turns, minimum and maximum): Fashion-MNIST, MLP [128], 100 clients" in text
    assert f"The slowest of {1 + len(NAMED)} settings, `slow`, has 0.500 (0.250 to 0.500)." in text


@pytest.mark.parametrize("page", PAGES)
def test_pages_have_the_settings_of_the_committed_measurement(page: str) -> None:
    stored = json.loads((ROOT / "benchmarks/settings.json").read_text(encoding="utf-8"))
    assert [one["name"] for one in stored["settings"]] == list(SETTINGS)
    assert {one["name"]: one["fields"] for one in stored["settings"]} == SETTINGS
    text = (ROOT / page).read_text(encoding="utf-8")
    assert replaced(ROOT / page, "settings", PAGES[page](stored)) == text


@pytest.mark.parametrize(
    "given, said", [(["digits-mlp64"], "leave the names out"), ([], "data download fashion_mnist")]
)
def test_pages_are_written_from_all_settings_on_their_own_data(
    given: list[str], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["settings", *given, "--write", "--data", str(tmp_path)])
    monkeypatch.setattr(settings, "compare", lambda *_, **__: pytest.fail("measured"))
    with pytest.raises(SystemExit) as ended:
        settings.main()
    assert ended.value.code == 2 and said in capsys.readouterr().err
