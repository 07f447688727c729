"""The sweep of NIID-Bench has the benchmark's settings."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from flbench.config import Federated
from flbench.sweeps import load_sweep

SPEC = Path(__file__).parents[1] / "sweeps/niid_bench/label_skew.yaml"


def test_every_run_has_the_benchmarks_settings() -> None:
    runs = [run for run in load_sweep(SPEC).experiments if isinstance(run, Federated)]
    for run in runs:
        assert (run.lr, run.momentum, run.weight_decay, run.batch_size) == (0.01, 0.9, 1e-5, 64)
        assert (run.local_epochs, run.rounds, run.clients, run.drop_last, run.eval_every) == (10, 50, 10, False, 1)
        assert (run.model.label(), run.bias, run.participation, run.norm.label()) == ("lenet", True, 1, "none")
        assert run.min_size == (10 if run.partition.name == "dirichlet" else 1)
    cells = Counter((run.dataset.name, run.partition.label(), run.method.name) for run in runs)
    assert len({(dataset, partition) for dataset, partition, _ in cells}) == 8
    assert {count for (_, _, method), count in cells.items() if method != "fedprox"} == {3}  # seeds
    assert {count for (_, _, method), count in cells.items() if method == "fedprox"} == {12}  # and four mu
