"""Apache ZooKeeper and Tara side by side, and ZooKeeper's own command line on Tara."""

import os
import subprocess
from collections.abc import Iterator

import pytest

from evaluation import zookeeper_peer
from evaluation.zookeeper_peer import ZooKeeperEnsemble
from tests.apps.coordination.differential import Player, Script
from tests.apps.coordination.live import endpoints, start_cluster
from tests.patience import DEADLINE_S

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(
        not zookeeper_peer.installed(), reason="Apache ZooKeeper is not installed (Debian: apt-get install zookeeper)"
    ),
]

SEEDS = int(os.environ.get("TARA_DIFFERENTIAL_SEEDS", "12"))


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ZooKeeperEnsemble(tmp_path_factory.mktemp("zookeeper"), servers=1) as ensemble:
        yield ensemble.addresses[0]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Containers are not collected in the middle of a script, as they are not by ZooKeeper with its usual settings."""
    cluster = start_cluster(tmp_path_factory.mktemp("beside"), collect_interval_ms=600_000)
    yield endpoints(cluster)
    cluster.stop()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_requests_get_the_same_answers(hosts: str, zookeeper: str, seed: int) -> None:
    script = Script(seed, 150)
    theirs, ours = (play(script, address) for address in (zookeeper, hosts.split(",")[seed % 3]))
    for number, (their, our) in enumerate(zip(theirs, ours, strict=True)):
        assert our == their, f"request {number}: {script.steps[number]}"


def play(script: Script, address: str) -> list[object]:
    player = Player(address)
    answers = player.play(script.steps)
    player.close()
    return answers


def zk_cli(hosts: str, *commands: str) -> list[str]:
    """What zkCli.sh prints for commands on its standard input."""
    finished = subprocess.run(
        [str(zookeeper_peer.CLI), "-server", hosts, "-timeout", "10000"],
        input="\n".join((*commands, "quit")) + "\n",
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
        check=False,
        env={**os.environ, "JVMFLAGS": "-Dlog4j.rootLogger=ERROR"},
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    return (finished.stdout + finished.stderr).splitlines()


def test_zookeepers_own_command_line(hosts: str) -> None:
    lines = zk_cli(
        hosts,
        "create /cli hello",
        "create -s -e /cli/job- x",
        "create -c /cli/box",
        "create -t 60000 /cli/ttl",
        "get -w /cli",
        "set -s /cli world",
        "get /cli",
        "ls /cli",
        "stat /cli",
        "getAcl /cli",
        "setAcl /cli world:anyone:cdrwa",
        "addauth digest ann:secret",
        "whoami",
        "getEphemerals /cli",
        "getAllChildrenNumber /cli",
        "addWatch -m PERSISTENT /cli",
        "set /cli again",
        "removewatches /cli",
        "sync /cli",
        "delete /cli",
        "get /nowhere",
        "deleteall /cli",
        "ls /",
    )
    text = "\n".join(lines)
    for wanted in (
        "Created /cli",
        "Created /cli/job-0000000000",
        "world",
        "[box, job-0000000000, ttl]",
        "dataVersion = 1",
        "numChildren = 3",
        "'world,'anyone",
        "WatchedEvent state:SyncConnected type:NodeDataChanged path:/cli",
        "digest: ann",
        "Sync is OK",
        "Node not empty: /cli",
        "Node does not exist: /nowhere",
        "zookeeper]",
    ):
        assert wanted in text, f"{wanted}\n{text}"
