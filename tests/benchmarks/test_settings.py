from __future__ import annotations

import pytest

from benchmarks.common import experiment_of
from benchmarks.settings import SETTINGS, chosen, line
from flbench.bench.timing import Comparison, Spread
from flbench.errors import UserError


def test_every_setting_is_an_experiment_of_its_own() -> None:
    assert len(SETTINGS) == 55
    assert len({experiment_of(setting).run_id for setting in SETTINGS.values()}) == 55
    assert experiment_of("E=2").partition.label() == "iid"
    assert experiment_of("partition=dirichlet:0.5").partition.label() == "dirichlet:0.5"


def test_settings_are_chosen_by_names_and_patterns() -> None:
    assert chosen(["cifar-resnet18-*", "digits-mlp128"]) == [
        "digits-mlp128", "cifar-resnet18-gn", "cifar-resnet18-bn"
    ]  # fmt: skip
    with pytest.raises(UserError, match=r"did you mean 'digits-mlp64'\?"):
        chosen(["digits-mlp128", "digits-mlp46"])


def test_a_line_has_milliseconds_and_ratios() -> None:
    seconds = {"flbench": [0.001, 0.002, 0.004], "plain loop": [0.01, 0.01, 0.01]}
    done = Comparison("stacked", 1, seconds, {"flbench": Spread(5.0, 2.5, 10.0, 3)})
    assert "digits (stacked), ms: flbench 2, plain loop 10; flbench x 5 (2.5 to 10); load " in line("digits", done)
