"""Fixtures of the tests on a cluster, which fill nodes and take them down: they run only on ``slurm/dev-cluster``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flbench.slurm import config_value
from flbench.slurm.commands import output_of
from flbench.store import Store
from tests.slurm.toys import Cluster


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test in this folder with ``slurm``."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slurm)


@pytest.fixture(scope="session")
def dev_cluster() -> None:
    name = config_value("ClusterName")
    if name is None:
        pytest.skip('SLURM does not answer; to start one: slurm/dev-cluster start; eval "$(slurm/dev-cluster env)"')
    if name != "flbench-dev":
        pytest.skip(f"the cluster {name} is not for tests; slurm/dev-cluster starts one that is")


@pytest.fixture
def cluster(dev_cluster: None, tmp_path: Path) -> Iterator[Cluster]:
    """Return a cluster with an empty store; cancel all of its jobs at the end."""
    cluster = Cluster(Store(tmp_path / "store"))
    yield cluster
    if names := cluster.names():
        output_of("scancel", f"--name={','.join(names)}")
