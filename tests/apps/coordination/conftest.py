"""A live cluster for the tests of a file that need one. One at a time: a process has one Spark session, and in it there
is room for one cluster."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tara.live.spark import Cluster
from tests.apps.coordination.live import endpoints, start_cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = start_cluster(tmp_path_factory.mktemp("coordination"))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def hosts(cluster: Cluster) -> str:
    return endpoints(cluster)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    directory = tmp_path_factory.mktemp("tls")
    for name in ("server", "client"):
        command = (
            f"openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -keyout {name}.key -out {name}.pem"
        )
        command += " -addext subjectAltName=DNS:localhost,IP:127.0.0.1"
        subprocess.run(command.split(), cwd=directory, check=True, capture_output=True)
    return directory
