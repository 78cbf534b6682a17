"""What a new era begins with."""

from pathlib import Path

import msgspec

from tara.protocol.execution import ExecutionState
from tara.protocol.graph import Graph
from tara.protocol.sessions import ERA_COMMANDS, SessionsState
from tara.storage.base_format import base_directory, base_path, read_base
from tara.storage.new_era import first_sessions, first_threshold, install
from tests.live.data_directories import StoredReplica
from tests.live.histories import INTERVAL, puts


def test_an_executor_begins_with_what_was_installed(tmp_path: Path) -> None:
    replica = StoredReplica(tmp_path, 1)
    replica.execute(puts(20))
    sessions = first_sessions(replica.node.sessions.state(), 5_000)

    base = install(tmp_path, 1, 2, 7, Graph(1, 1), INTERVAL, sessions, replica.node.application.snapshot, range(3))

    for site in range(3):
        found = read_base(base_path(base_directory(tmp_path, site), 7), 1, 2)
        state = msgspec.msgpack.decode(found.state, type=ExecutionState)
        assert (found.id, state.digest, state.next, state.bytes) == (base, base.digest, 7 * INTERVAL, 0)
    again = StoredReplica(tmp_path, 1, 2, threshold=7)
    assert (again.node.restored, again.node.next, again.node.sessions.counter) == (True, 7 * INTERVAL, ERA_COMMANDS)
    assert list(again.node.application.snapshot()) == list(replica.node.application.snapshot())
    assert again.node.checkpoints == [base]
    again.execute(puts(20), first=7 * INTERVAL)
    assert again.node.next == 7 * INTERVAL + 20
    assert [number.number for number in again.node.checkpoints] == [7, 8]


def test_the_counter_leaves_out_what_the_old_era_may_have_handed_out_and_sessions_have_their_full_time() -> None:
    old = SessionsState(ERA_COMMANDS + 7, 100, 3, 5, [])

    new = first_sessions(old, 90)

    assert (new.counter, new.time_ms, new.clock_ms) == (2 * ERA_COMMANDS, 100, 5)
    assert first_threshold([3, 9, 4]) == 10
