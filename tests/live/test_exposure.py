"""What a stranger finds of a running cluster: nothing listens beyond loopback, and Spark cannot be told to end it."""

import contextlib
import json
import os
import re
import socket
import struct
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tara.configuration.settings import load_settings
from tara.drills.standalone import Standalone
from tara.live.spark import hosting_settings
from tara.live.spark_session import SparkError, open_context, safe_settings
from tara.net.keygen import make_client_keys, make_cluster_keys
from tara.operations.deployment import Deployment
from tara.protocol.errors import ConfigurationError
from tests.live.listeners import Listener, listeners, process_tree
from tests.patience import DEADLINE_S, patient

#: Frames of Spark's RPC: their length, a type, then what belongs to it.
_RPC_REQUEST, _RPC_FAILURE = 3, 5


class Running:
    """A cluster as an operator runs it."""

    def __init__(self, deployment: Deployment, keys: Path | None = None) -> None:
        self.deployment = deployment
        self.driver = deployment.pids()["driver"]
        self.ui = str(deployment.status()["spark_ui"])
        self._keys = keys

    @property
    def listeners(self) -> list[Listener]:
        return listeners(process_tree(self.driver))

    def put(self, key: str) -> None:
        with patient(self.deployment.endpoints, keys=self._keys) as client:
            client.put(key, b"value")

    def lives(self) -> list[int]:
        return [container["life"] for container in self.deployment.status()["containers"]]

    def spark(self, path: str) -> Any:
        """From Spark's API, which has no login."""
        with urllib.request.urlopen(f"{self.ui}/api/v1/applications{path}", timeout=DEADLINE_S) as answer:
            return json.load(answer)

    def page(self, path: str, method: str = "GET") -> str:
        """Of Spark's UI; also what it says when it refuses."""
        request = urllib.request.Request(f"{self.ui}/{path}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            return error.read().decode()

    def spark_settings(self) -> dict[str, str]:
        application = self.spark("")[0]["id"]
        return dict(self.spark(f"/{application}/environment")["sparkProperties"])


@contextlib.contextmanager
def running(directory: Path, client: Path | None = None, **settings: str) -> Iterator[Running]:
    deployment = Deployment(directory, settings)
    deployment.start()
    try:
        yield Running(deployment, client)
    finally:
        deployment.stop()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("exposure")
    make_cluster_keys(root / "keys")
    make_client_keys(root / "keys", "alice")
    return root


@pytest.fixture(scope="module")
def plain(root: Path) -> Iterator[Running]:
    with running(root / "plain") as found:
        yield found


@pytest.fixture(scope="module")
def keyed(root: Path) -> Iterator[Running]:
    # At an address of its own, which only what others need may bind.
    settings = {"keys": str(root / "keys"), "host": "127.0.0.9"}
    with running(root / "keyed", root / "keys" / "clients" / "alice", **settings) as found:
        yield found


def ask_rpc(host: str, port: int, body: bytes) -> str:
    """What a stranger is told who sends this to Spark's RPC; nothing, if it closes the connection."""
    request = struct.pack(">bqi", _RPC_REQUEST, 7, len(body)) + body
    with socket.create_connection((host, port), timeout=DEADLINE_S) as connection:
        connection.sendall(struct.pack(">q", 8 + len(request)) + request)
        answer = b""
        while True:
            piece = connection.recv(65536)
            answer += piece
            if not piece or (len(answer) >= 8 and len(answer) >= struct.unpack(">q", answer[:8])[0]):
                break
    if not answer:
        return ""
    assert answer[8] == _RPC_FAILURE, answer
    return answer[21:].decode(errors="replace")


@pytest.mark.spark
def test_no_process_of_a_cluster_listens_beyond_loopback(plain: Running) -> None:
    found = plain.listeners
    commands = " ".join(listener.command for listener in found)

    # The registry and the metrics; the JVM; the daemon of Python workers; three ports of each container.
    assert len(found) >= 2 + 4 + 1 + 9
    assert "java" in commands
    assert "worker_daemon" in commands
    assert [listener for listener in found if not listener.on_loopback] == []


@pytest.mark.spark
def test_the_ui_kills_nothing(plain: Running) -> None:
    application = plain.spark("")[0]["id"]
    jobs = plain.spark(f"/{application}/jobs?status=running")
    before = plain.lives()
    requests = [("jobs/job", job["jobId"]) for job in jobs]
    requests += [("stages/stage", stage) for job in jobs for stage in job["stageIds"]]
    assert len(requests) == 6

    for what, number in requests:
        # Where there is a kill link, there is the token that it needs.
        token = re.search(r"csrfToken\W+value=\W(\w+)", plain.page(f"{what.partition('/')[0]}/"))
        for method in ("GET", "POST"):
            plain.page(f"{what}/kill/?id={number}&csrfToken={token[1] if token else ''}", method)
    plain.put("after")

    assert {job["jobId"] for job in plain.spark(f"/{application}/jobs?status=running")} == {j["jobId"] for j in jobs}
    assert plain.lives() == before
    assert "kill" not in plain.page("jobs/")


@pytest.mark.spark
def test_with_keys_only_what_others_need_has_the_clusters_address(keyed: Running) -> None:
    found = keyed.listeners

    assert all(listener.on_loopback for listener in found)
    assert {listener.host for listener in found if "java" in listener.command} == {"127.0.0.1"}
    # The registry, and three ports of each container.
    assert sum(listener.host == "127.0.0.9" for listener in found) == 1 + 9
    keyed.put("key")


@pytest.mark.spark
def test_with_keys_sparks_rpc_refuses_strangers(keyed: Running) -> None:
    settings = keyed.spark_settings()
    assert settings["spark.authenticate"] == settings["spark.network.crypto.enabled"] == "true"
    assert settings["spark.ui.killEnabled"] == "false"
    assert "spark.authenticate.secret" not in settings

    told = ask_rpc("127.0.0.1", int(settings["spark.driver.port"]), b"\0" * 64)

    # It takes what we say for the beginning of a handshake, and for a bad one. Java's deserialization never saw it.
    assert "Unknown challenge message" in told
    assert "ObjectInputStream" not in told
    keyed.put("after")


#: Opens a session as `tara stream` and `tara bench stream` do, and shows who listens.
SESSION = """
import os
from tara.streaming.run import session
from tests.live.listeners import listeners, process_tree
spark = session("local[1]")
spark.sparkContext.parallelize([1], 1).map(lambda x: x).collect()
print("LISTENERS", [tuple(each) for each in listeners(process_tree(os.getpid()))])
print("UI", spark.sparkContext.uiWebUrl)
spark.stop()
"""


def run_session(script: str, environment: dict[str, str] | None = None) -> list[str]:
    path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": path, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.spark
def test_a_session_of_the_streaming_runtime_stays_on_loopback() -> None:
    said = run_session(SESSION, {"SPARK_LOCAL_IP": "0.0.0.0"})
    (line,) = [line for line in said if line.startswith("LISTENERS ")]
    found = [Listener(*each) for each in eval(line.removeprefix("LISTENERS "))]

    assert len(found) >= 5
    assert [listener for listener in found if not listener.on_loopback] == []
    assert any(line.startswith("UI http://127.0.0.1:") for line in said)


#: Somebody has a session already; and then, that one is stopped, but its JVM was not started by us.
FOREIGN = """
from pyspark.sql import SparkSession
from tara.live.spark_session import SparkError, open_session
theirs = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
before = dict(theirs.sparkContext.getConf().getAll())
try:
    open_session("ours", "local[1]", {"spark.x": "1"})
except SparkError as error:
    print("REFUSED", error)
print("UNCHANGED", dict(theirs.sparkContext.getConf().getAll()) == before)
theirs.stop()
ours = open_session("ours", "local[1]", {})
print("UI", ours.sparkContext.uiWebUrl)
ours.stop()
"""


@pytest.mark.spark
def test_a_session_of_somebody_else_is_left_alone() -> None:
    said = run_session(FOREIGN)

    assert any(line.startswith("REFUSED there is a Spark session in this process already") for line in said)
    assert "UNCHANGED True" in said
    # In a JVM that others started, the UI would listen at all addresses.
    assert "UI None" in said


def test_a_driver_is_bound_where_it_is_needed() -> None:
    local = safe_settings("local[4,9]", "127.0.0.1", keyed=False)
    assert (local["spark.driver.bindAddress"], local["spark.authenticate"]) == ("127.0.0.1", "true")

    remote = safe_settings("spark://10.0.0.1:7077", "10.0.0.2", keyed=True)
    assert (remote["spark.driver.bindAddress"], remote["spark.driver.host"]) == ("10.0.0.2", "10.0.0.2")
    assert (remote["spark.authenticate"], remote["spark.io.encryption.enabled"]) == ("true", "true")
    # Master and workers say what else is spoken; elsewhere the strictest is.
    assert "spark.network.crypto.saslFallback" not in remote
    assert safe_settings("yarn", "10.0.0.2", keyed=True)["spark.network.crypto.saslFallback"] == "false"
    assert "spark.authenticate" not in safe_settings("yarn", "127.0.0.1", keyed=False)
    assert "spark.driver.host" not in safe_settings("yarn", None, keyed=False)

    for settings in (local, remote):
        assert settings["spark.ui.killEnabled"] == "false"
        assert not [key for key in settings if "secret" in key]


def test_spark_neither_ends_nor_bans_a_container_that_does_nothing_wrong() -> None:
    settings = hosting_settings("")
    assert settings["spark.python.worker.killOnIdleTimeout"] == "false"
    assert {value for key, value in settings.items() if key.startswith("spark.excludeOnFailure")} == {"false"}
    assert hosting_settings("tara")["spark.task.resource.tara.amount"] == "1"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "auto", "$HOST"])
def test_the_ui_has_one_address(host: str) -> None:
    with pytest.raises(ConfigurationError, match="ui_host = "):
        load_settings(environment={}, flags={"ui_host": host})


@pytest.mark.soak
def test_a_standalone_cluster_with_keys_needs_a_secret_and_stays_on_loopback(root: Path, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        unkeyed = Standalone(tmp_path / "unkeyed")
        stack.callback(unkeyed.stop)
        unkeyed.start(1)
        with pytest.raises(SparkError, match=r"set spark.authenticate.secret in the spark-defaults.conf"):
            open_context("refused", unkeyed.url, {}, driver_host="127.0.0.1", keyed=True)
        unkeyed.stop()

        spark = Standalone(tmp_path / "keyed", secret="known to workers only")
        stack.callback(spark.stop)
        spark.start(3)
        deployment = Deployment(
            tmp_path / "data", {**spark.settings, "keys": str(root / "keys")}, environment=spark.environment
        )
        stack.callback(deployment.stop)
        deployment.start()
        found = Running(deployment, root / "keys" / "clients" / "alice")
        found.put("key")
        daemons = [*filter(None, [spark.master]), *spark.workers.values()]
        pids = [pid for daemon in daemons for pid in daemon.pids()]
        everywhere = [*found.listeners, *listeners(pids)]

        assert len({listener.pid for listener in everywhere}) >= 2 + 1 + 3 * 3
        assert [listener for listener in everywhere if not listener.on_loopback] == []
        assert found.spark_settings()["spark.authenticate.secret"] == "*********(redacted)"
        told = ask_rpc("127.0.0.1", int(found.spark_settings()["spark.driver.port"]), b"\0" * 64)
        assert "SaslMessage" in told or "challenge" in told
        assert "ObjectInputStream" not in told
        for pid in (*process_tree(found.driver), *pids):
            assert b"known to workers only" not in Path(f"/proc/{pid}/cmdline").read_bytes()
