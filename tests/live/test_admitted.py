"""What a container takes from its clients and its gateway, and what it refuses: by number, and by bytes."""

from pathlib import Path

from tara.host import client_wire
from tara.live.reporting import node_report
from tara.net.connection import Connection
from tara.protocol import tuples as t
from tara.protocol.graph import Stage
from tara.protocol.nodes.request_source import RequestSource
from tests.live.test_runs import accepted, started, turn
from tests.patience import await_condition
from tests.protocol.driver import Bench

MEGABYTE = bytes(1_000_000)


def test_what_a_gateway_submits_is_neither_refused_nor_lost(tmp_path: Path) -> None:
    """However much it is, and also when it submits twice before the nodes work: it never sends anything again."""
    with started(tmp_path, "memory") as container:
        before = accepted(container)
        for first in (0, 10):
            container.site.submit([t.Command(9, first + number, 0, MEGABYTE) for number in range(10)])

        def all_accepted() -> bool:
            turn(container)
            return accepted(container) == before + 20

        await_condition(all_accepted, "twenty commands in the order")
        assert container.counters.overloaded == 0


def test_a_client_is_refused_what_there_is_no_room_for_and_nothing_else(tmp_path: Path) -> None:
    limits = {"source_pending_bytes_max": 1_000_000, "source_backlog_bytes_max": 2_000_000}
    with started(tmp_path, "memory", **limits) as container:
        connection = Connection.connect(container.client_address, 1 << 30)
        commands = [t.Command(9, number, 0, MEGABYTE) for number in range(6)]
        alive = t.Command(7, 0, 0, b"", t.KEEPALIVE)
        connection.send(
            client_wire.encode(client_wire.ClientRequest(t.FORMAT_VERSION, [*commands, alive], [], bytes(16)))
        )
        heard: list[t.Result] = []

        def refused() -> bool:
            connection.flush()
            turn(container)
            for message in connection.receive():
                heard.extend(client_wire.decode_reply(message).results)
            return len([result for result in heard if result.status == t.OVERLOADED]) == 4

        await_condition(refused, "four refusals")
        assert sorted(result.number for result in heard if result.status == t.OVERLOADED) == [2, 3, 4, 5]
        assert container.counters.overloaded == 4
        connection.close()


def test_a_source_that_is_full_by_bytes_says_so() -> None:
    source = Bench(source_backlog_bytes_max=len(MEGABYTE)).make(RequestSource, Stage.REQUEST_SOURCE)
    assert node_report(source.node)["state"] == "open"
    # What is not executed is not ordered, and waits.
    source.feed(t.Halted(0, 3, 0, "no memory"), t.Submit([t.Command(9, 0, 0, MEGABYTE)]))
    assert node_report(source.node)["state"] == "full"
