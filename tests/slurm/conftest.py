"""What tests on a cluster share. They run on ``slurm/dev-cluster`` alone: they fill nodes, and take them down."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flbench.slurm import config_value
from flbench.slurm.commands import ask
from flbench.store import Store
from tests.slurm.toys import Cluster


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test here; those that use up a node follow one another in one process."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slurm)


@pytest.fixture(scope="session")
def dev_cluster() -> None:
    name = config_value("ClusterName")
    if name is None:
        pytest.skip('no SLURM answers here; to have one: slurm/dev-cluster start; eval "$(slurm/dev-cluster env)"')
    if name != "flbench-dev":
        pytest.skip(f"the cluster {name} is for work, not for tests; slurm/dev-cluster makes one for them")


@pytest.fixture
def cluster(dev_cluster: None, tmp_path: Path) -> Iterator[Cluster]:
    """A store, and whatever its jobs are called; no job is left afterwards."""
    cluster = Cluster(Store(tmp_path / "store"))
    yield cluster
    if names := cluster.names():
        ask("scancel", f"--name={','.join(names)}")
