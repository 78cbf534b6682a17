"""A live cluster for the tests of a file that need one. One at a time: a process has one Spark session, and in it there
is room for one cluster."""

from collections.abc import Iterator

import pytest

from tara.runtime.spark import Cluster
from tests.coordination.live import endpoints, start_cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = start_cluster(tmp_path_factory.mktemp("coordination"))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def hosts(cluster: Cluster) -> str:
    return endpoints(cluster)
