"""The documented bytes of what stays on 1,000 clients, of checkpoints and of a round."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flbench.config import parse_experiment
from flbench.data.datasets import load
from flbench.engine.federated import FederatedTrainer
from flbench.engine.setup import make_trainer
from flbench.methods.base import Tree

PAGE = (Path(__file__).parents[2] / "docs" / "engine.md").read_text(encoding="utf-8").partition("| method | kept |")[2]
ROWS = re.findall(r"^\| ([a-z-]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", PAGE, re.MULTILINE)


def size(*trees: Tree) -> int:
    return sum(leaf.numel() * leaf.element_size() for tree in trees for leaf in tree.values())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_documented_bytes(row: tuple[str, ...]) -> None:
    """Ten clients, a hundred times; the server's part of a checkpoint counts once."""
    experiment = parse_experiment({"method": row[0], "clients": 10, "E": 1, "partition": "iid"})
    trainer, _ = make_trainer(experiment, load(experiment.dataset), device="cpu", executor="stacked", pool=1)
    assert isinstance(trainer, FederatedTrainer)
    kept, whole = size(trainer.states, trainer.local, trainer.velocity), size(*trainer.state()["trees"].values())
    trainer.step()
    found = 100 * kept, whole - kept + 100 * kept, 100 * trainer.bytes_down, 100 * trainer.bytes_up
    assert [f"{number / 1e6:.1f}" for number in found] == list(row[1:])


def test_the_table_is_found() -> None:
    assert {"fedavg", "ditto", "scaffold", "feddc", "fedper", "fedproto"} <= {row[0] for row in ROWS}
