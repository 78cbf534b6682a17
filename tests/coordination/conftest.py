"""One live cluster for all tests of this directory that need one."""

from collections.abc import Iterator

import pytest

from tara.runtime.spark import Cluster
from tests.coordination.live import endpoints, start_cluster


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = start_cluster(tmp_path_factory.mktemp("coordination"))
    yield running
    running.stop()


@pytest.fixture(scope="package")
def hosts(cluster: Cluster) -> str:
    return endpoints(cluster)
