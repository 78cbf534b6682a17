"""Much at once: more than a frame may hold, from clients to their site, between sites, and back."""

from contextlib import ExitStack
from pathlib import Path

import msgspec

from tara.application import Get, Put
from tara.client import Client
from tara.drills.process_cluster import ProcessCluster
from tests.patience import DEADLINE_S

#: The shortest frames that these commands allow.
LIMITS = {"command_bytes_max": 20_000, "run_bytes_max": 20_000, "frame_bytes_max": 160_000}
COMMANDS = 200


def test_a_pipeline_of_long_commands_is_executed_also_when_a_site_dies(tmp_path: Path) -> None:
    value = bytes(19_000)
    with ProcessCluster.whole(tmp_path, LIMITS) as cluster, Client(cluster.endpoints, timeout_s=DEADLINE_S) as client:
        for round_ in range(2):
            puts = [
                client.submit(msgspec.msgpack.encode(Put(f"key-{number}", value + bytes([round_]))))
                for number in range(COMMANDS)
            ]
            if round_ == 1:
                cluster.processes[1].kill()
            for put in puts:
                put.result()
        gets = [client.submit_query(msgspec.msgpack.encode(Get(f"key-{number}"))) for number in range(COMMANDS)]
        assert all(msgspec.msgpack.decode(get.result()) == value + b"\x01" for get in gets)


def test_the_longest_commands_do_not_make_the_sites_depose_each_other(tmp_path: Path) -> None:
    """A hundred megabytes at once, more than the sites can pass on in any patience: everything waits for its turn, and
    nothing is sent again and again. The answers are as long."""
    value = bytes(1_000_000)
    with ProcessCluster.whole(tmp_path, {}) as cluster, Client(cluster.endpoints, timeout_s=DEADLINE_S) as client:
        puts = [client.submit(msgspec.msgpack.encode(Put(f"key-{number}", value))) for number in range(100)]
        for put in puts:
            put.result()
        counters = [container["counters"] for container in cluster.status()["containers"]]
        gets = [client.submit_query(msgspec.msgpack.encode(Get(f"key-{number}"))) for number in range(100)]
        assert all(msgspec.msgpack.decode(get.result()) == value for get in gets)
    # Each was sent about once; before there were bounds in bytes, each came three or four times.
    assert sum(counter["commands"] for counter in counters) < 250


def test_the_longest_commands_are_executed_also_when_a_site_dies(tmp_path: Path) -> None:
    value = bytes(1_000_000)
    with ProcessCluster.whole(tmp_path, {}) as cluster, Client(cluster.endpoints, timeout_s=DEADLINE_S) as client:
        puts = [client.submit(msgspec.msgpack.encode(Put(f"key-{number}", value))) for number in range(60)]
        puts[10].result()
        cluster.processes[1].kill()
        for put in puts:
            put.result()
        gets = [client.submit_query(msgspec.msgpack.encode(Get(f"key-{number}"))) for number in range(60)]
        assert all(msgspec.msgpack.decode(get.result()) == value for get in gets)


def test_many_clients_with_the_longest_commands_are_served_without_sending_them_again(tmp_path: Path) -> None:
    """Together they have more than the sites order in any patience. They wait; nothing is refused or ordered again and
    again, and nobody's session expires."""
    value = bytes(1_000_000)
    with ProcessCluster.whole(tmp_path, {"durability": "memory"}) as cluster, ExitStack() as stack:
        clients = [stack.enter_context(Client(cluster.endpoints, timeout_s=DEADLINE_S)) for _ in range(32)]
        puts = [
            client.submit(msgspec.msgpack.encode(Put(f"key-{index}", value)))
            for _ in range(3)
            for index, client in enumerate(clients)
        ]
        for put in puts:
            put.result()
        containers = cluster.status()["containers"]
    counters = [container["counters"] for container in containers]
    # Each was sent about once, and each client opened its session, some of them twice; before clients were told that
    # their commands wait, each came ten times.
    assert sum(counter["commands"] for counter in counters) < 2 * len(puts) + 3 * len(clients)
    assert sum(counter["overloaded"] for counter in counters) < len(puts) // 4
