"""The state machine: ZooKeeper's rules, determinism, and snapshots."""

from itertools import islice
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tara import table
from tara.apps.coordination import commands, jute, limits, service, tree
from tara.apps.coordination.acl import digest_id
from tara.apps.coordination.codes import CONTAINER_OWNER, Code, Event, Mode, Op
from tara.apps.coordination.service import CoordinationService
from tara.protocol.limits import Limits
from tara.protocol.principals import gateway_of, principal_of
from tara.protocol.sessions import ApplicationError, Context, Sessions
from tests.apps.coordination.machine import Machine, create_body, set_body, versioned_body


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def session(machine: Machine) -> int:
    return machine.open()


def test_a_new_tree_is_that_of_zookeeper(machine: Machine) -> None:
    assert sorted(machine.service.tree.nodes) == ["/", "/zookeeper", "/zookeeper/config", "/zookeeper/quota"]
    assert machine.stat("/").cversion == -1
    assert machine.stat("/zookeeper").cversion == -2
    assert machine.stat("/zookeeper/config").aversion == -1


def test_stats_tell_counters_and_agreed_time(machine: Machine, session: int) -> None:
    machine.create(session, "/a", b"one")
    created = machine.counter
    machine.clock_ms = 50
    machine.set(session, "/a", b"three")
    changed = machine.counter
    machine.create(session, "/a/b")

    stat = machine.stat("/a")
    assert (stat.czxid, stat.mzxid, stat.pzxid) == (created, changed, machine.counter)
    assert (stat.ctime, stat.mtime) == (1_000_000, 1_000_050)
    assert (stat.version, stat.cversion, stat.aversion, stat.data_length, stat.num_children) == (1, 1, 0, 5, 1)
    machine.delete(session, "/a/b")
    assert (machine.stat("/a").cversion, machine.stat("/a").pzxid) == (2, machine.counter)


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/a", Code.NODE_EXISTS),
        ("/", Code.NODE_EXISTS),
        ("/x/y", Code.NO_NODE),
        ("relative", Code.BAD_ARGUMENTS),
        ("", Code.BAD_ARGUMENTS),
        ("/a/", Code.BAD_ARGUMENTS),
        ("/a//b", Code.NO_NODE),
        ("//b", Code.BAD_ARGUMENTS),
        ("/.", Code.BAD_ARGUMENTS),
        ("/a/..", Code.BAD_ARGUMENTS),
        ("/tab\t", Code.BAD_ARGUMENTS),
        ("/nul\0", Code.BAD_ARGUMENTS),
        ("/🙂", Code.BAD_ARGUMENTS),
        ("/ephemeral/child", Code.NO_CHILDREN_FOR_EPHEMERALS),
    ],
)
def test_creations_that_are_refused(machine: Machine, session: int, path: str, code: Code) -> None:
    machine.create(session, "/a")
    machine.create(session, "/ephemeral", mode=Mode.EPHEMERAL)
    before = machine.snapshot()
    assert machine.create(session, path) == (code, "")
    assert machine.snapshot() == before


def test_sequential_nodes_are_numbered_by_creations_in_their_parent(machine: Machine, session: int) -> None:
    machine.create(session, "/q")
    assert machine.create(session, "/q/n-", mode=Mode.PERSISTENT_SEQUENTIAL) == (0, "/q/n-0000000000")
    machine.create(session, "/q/other")
    machine.delete(session, "/q/other")
    assert machine.create(session, "/q/n-", mode=Mode.EPHEMERAL_SEQUENTIAL) == (0, "/q/n-0000000002")
    assert machine.create(session, "/q/", mode=Mode.PERSISTENT_SEQUENTIAL) == (0, "/q/0000000003")


def test_versions_are_checked(machine: Machine, session: int) -> None:
    machine.create(session, "/a")
    assert machine.set(session, "/a", b"", version=1) == Code.BAD_VERSION
    assert machine.set(session, "/a", b"", version=0) == Code.OK
    assert machine.delete(session, "/a", version=0) == Code.BAD_VERSION
    assert machine.delete(session, "/a", version=1) == Code.OK


@pytest.mark.parametrize("path", ["/", "/zookeeper", "/zookeeper/quota", "none", ""])
def test_some_nodes_cannot_be_deleted(machine: Machine, session: int, path: str) -> None:
    assert machine.delete(session, path) == Code.BAD_ARGUMENTS


def test_a_node_with_children_cannot_be_deleted(machine: Machine, session: int) -> None:
    machine.create(session, "/a")
    machine.create(session, "/a/b")
    assert machine.delete(session, "/a") == Code.NOT_EMPTY


@pytest.mark.parametrize("flags", [-1, 7, 99])
def test_unknown_flags_are_refused(machine: Machine, session: int, flags: int) -> None:
    assert machine.create(session, "/a", mode=flags)[0] == Code.BAD_ARGUMENTS


def test_garbage_is_a_marshalling_error_and_changes_nothing(machine: Machine, session: int) -> None:
    before = machine.snapshot()
    assert machine.run(session, Op.CREATE, b"\0\0\0\x09/a")[0] == Code.MARSHALLING_ERROR
    assert machine.run(session, Op.MULTI, b"\0")[0] == Code.MARSHALLING_ERROR
    assert machine.snapshot() == before
    with pytest.raises(ApplicationError, match="not a command"):
        machine.apply(b"")


@pytest.mark.parametrize(
    "principal", [b"", principal_of(b"the secret of somebody"), principal_of(b"", b"k" * 32, True)]
)
def test_only_gateways_are_believed_what_session_they_speak_for(
    machine: Machine, session: int, principal: bytes
) -> None:
    """Otherwise any client of the cluster could end the sessions of others, or read what their access lists hide."""
    machine.create(session, "/lock", mode=Mode.EPHEMERAL)
    before = machine.snapshot()
    context = Context([])
    context.counter, context.principal = 99, principal
    with pytest.raises(ApplicationError, match="from its gateways only"):
        machine.service.apply(commands.envelope(Op.CLOSE_SESSION, session, session), context)
    with pytest.raises(ApplicationError, match="from its gateways only"):
        machine.service.query(commands.envelope(Op.GET_DATA, session, session) + jute.pack_text("/lock"), context)
    assert machine.snapshot() == before
    assert "/lock" in machine.paths


def test_access_lists_bind(machine: Machine, session: int) -> None:
    user = ("digest", digest_id(b"ann:secret"))
    acl = ((31, *user),)
    assert machine.create(session, "/mine", acl=acl) == (0, "/mine")
    body = set_body("/mine", b"x")
    assert machine.run(session, Op.SET_DATA, body)[0] == Code.NO_AUTH
    assert machine.run(session, Op.SET_DATA, body, ids=(("digest", "ann:other"),))[0] == Code.NO_AUTH
    assert machine.run(session, Op.SET_DATA, body, ids=(user,))[0] == Code.OK
    assert machine.create(session, "/mine/child")[0] == Code.NO_AUTH
    assert machine.run(session, Op.CHECK, versioned_body("/mine"))[0] == Code.NO_AUTH


def test_auth_stands_for_who_asks(machine: Machine, session: int) -> None:
    auth = ((31, "auth", ""),)
    assert machine.create(session, "/none", acl=auth)[0] == Code.INVALID_ACL
    ids = (("ip", "127.0.0.1"), ("digest", "u:h"))
    assert machine.run(session, Op.CREATE, create_body("/u", acl=auth), ids)[0] == Code.OK
    assert machine.service.tree.nodes["/u"].acl == ((31, "digest", "u:h"),)


@pytest.mark.parametrize(
    ("network", "address", "allowed"),
    [
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("127.0.0.1", "127.0.0.1", True),
        ("::1", "::1", True),
        ("::1", "127.0.0.1", False),
    ],
)
def test_addresses_and_networks(machine: Machine, session: int, network: str, address: str, allowed: bool) -> None:
    machine.create(session, "/net", acl=((31, "ip", network),))
    code, _ = machine.run(session, Op.SET_DATA, set_body("/net"), ids=(("ip", address),))
    assert code == (Code.OK if allowed else Code.NO_AUTH)


@pytest.mark.parametrize(
    "acl", [(), ((31, "world", "nobody"),), ((31, "ip", "x"),), ((31, "digest", "a"),), ((31, "sasl", "a"),)]
)
def test_bad_access_lists_are_refused(machine: Machine, session: int, acl: jute.Acl) -> None:
    assert machine.create(session, "/a", acl=acl)[0] == Code.INVALID_ACL


def test_set_acl_has_a_version_of_its_own(machine: Machine, session: int) -> None:
    machine.create(session, "/a")
    body = jute.pack_text("/a") + jute.pack_acl(((1, "world", "anyone"),))
    assert machine.run(session, Op.SET_ACL, body + jute.pack_int(3))[0] == Code.BAD_VERSION
    assert machine.run(session, Op.SET_ACL, body + jute.pack_int(0))[0] == Code.OK
    assert (machine.stat("/a").aversion, machine.stat("/a").version) == (1, 0)
    assert machine.run(session, Op.SET_ACL, body + jute.pack_int(-1))[0] == Code.NO_AUTH


def test_a_multi_does_everything(machine: Machine, session: int) -> None:
    results = machine.multi(
        session,
        (Op.CREATE, create_body("/m")),
        (Op.CREATE2, create_body("/m/c")),
        (Op.SET_DATA, set_body("/m", b"x")),
        (Op.CHECK, versioned_body("/m", 1)),
        (Op.DELETE, versioned_body("/m/c")),
    )
    assert results == [(Op.CREATE, 0), (Op.CREATE, 0), (Op.SET_DATA, 0), (Op.CHECK, 0), (Op.DELETE, 0)]
    assert machine.paths == ["/m"]
    assert [told[2] for told in machine.told] == [machine.counter] * 4


def test_a_multi_does_nothing_if_one_part_is_refused(machine: Machine, session: int) -> None:
    machine.create(session, "/m", b"old")
    machine.create(session, "/e", mode=Mode.EPHEMERAL)
    machine.told.clear()
    before, size = machine.snapshot(), machine.service.tree.size
    results = machine.multi(
        session,
        (Op.CREATE, create_body("/m/c", mode=Mode.EPHEMERAL)),
        (Op.SET_DATA, set_body("/m", b"newer")),
        (Op.SET_DATA, set_body("/m", b"newest")),
        (Op.DELETE, versioned_body("/m/c")),
        (Op.CHECK, versioned_body("/m", 99)),
        (Op.CREATE, create_body("/never")),
    )
    assert results == [(-1, 0)] * 4 + [(-1, Code.BAD_VERSION), (-1, Code.RUNTIME_INCONSISTENCY)]
    assert machine.snapshot() == before
    assert machine.service.tree.size == size
    assert machine.told == []
    assert machine.create(session, "/m/n-", mode=Mode.PERSISTENT_SEQUENTIAL)[1] == "/m/n-0000000000"


def test_a_session_that_is_not_renewed_ends_with_its_nodes_at_one_command(machine: Machine) -> None:
    short, long = machine.open(4_000), machine.open(20_000)
    machine.create(short, "/a", mode=Mode.EPHEMERAL)
    machine.create(short, "/b", mode=Mode.EPHEMERAL)
    machine.create(long, "/c", mode=Mode.EPHEMERAL)
    machine.told.clear()
    machine.clock_ms = 3_999
    machine.touch()
    assert machine.paths == ["/a", "/b", "/c"]
    machine.clock_ms = 4_000
    machine.touch(long)
    at = machine.counter
    assert machine.told == [(Event.DELETED, "/a", at), (Event.DELETED, "/b", at), ("ended", short, at)]
    assert machine.set(short, "/c") == Code.SESSION_EXPIRED
    assert machine.attach(short)[0] == Code.SESSION_EXPIRED


def test_what_a_session_does_renews_it(machine: Machine) -> None:
    session, silent = machine.open(4_000), machine.open(4_000)
    machine.clock_ms = 3_000
    machine.set(session, "/")
    machine.clock_ms = 5_000
    machine.touch()
    assert list(machine.service.sessions) == [session]
    assert silent not in machine.service.sessions


def test_an_old_connection_cannot_write_after_the_client_came_back(machine: Machine, session: int) -> None:
    code, attachment = machine.attach(session)
    assert code == 0
    assert machine.run(session, Op.SET_DATA, set_body("/"))[0] == Code.SESSION_MOVED
    assert machine.run(session, Op.SET_DATA, set_body("/"), attachment=attachment)[0] == Code.OK


def test_a_wrong_password_does_not_attach(machine: Machine, session: int) -> None:
    assert machine.attach(session, b"guess")[0] == Code.SESSION_EXPIRED
    assert machine.set(session, "/") == Code.OK


def test_closing_ends_at_once(machine: Machine, session: int) -> None:
    machine.create(session, "/e", mode=Mode.EPHEMERAL)
    assert machine.run(session, Op.CLOSE_SESSION)[0] == Code.OK
    assert machine.paths == []
    assert machine.set(session, "/") == Code.SESSION_EXPIRED


def test_a_stall_of_the_service_ends_no_session() -> None:
    """With the real sessions of the replicated log: minutes pass between two requests, and count as one small step."""
    service = CoordinationService()
    log = Sessions(service, Limits())
    from tara.protocol.tuples import EXECUTE, OPEN, Command

    log.pass_time(1_000_000)
    gateway = gateway_of(0)
    log.execute(Command(0, 1, 0, b"\xcd\x75\x30", OPEN, gateway))
    log.execute(Command(1, 0, 0, commands.create_session(4_000, b"p" * 16), EXECUTE, gateway))
    for number, stamp_ms in enumerate((1_600_000, 1_600_100, 1_600_200), start=1):
        log.pass_time(stamp_ms)
        log.execute(Command(1, number, number, commands.touch([], False), EXECUTE, gateway))
    assert len(service.sessions) == 1
    for number, stamp_ms in enumerate(range(1_600_700, 1_605_700, 500), start=4):
        log.pass_time(stamp_ms)
        log.execute(Command(1, number, number, commands.touch([], False), EXECUTE, gateway))
    assert len(service.sessions) == 0


def test_a_container_goes_when_its_last_child_is_gone(machine: Machine, session: int) -> None:
    machine.run(session, Op.CREATE_CONTAINER, create_body("/box", mode=Mode.CONTAINER))
    assert machine.stat("/box").ephemeral_owner == 0
    machine.touch(session, collect=True)
    assert machine.paths == ["/box"]
    machine.create(session, "/box/c")
    machine.touch(session, collect=True)
    machine.delete(session, "/box/c")
    machine.touch(session)
    assert machine.paths == ["/box"]
    machine.touch(session, collect=True)
    assert machine.paths == []


def test_a_node_with_a_time_to_live_goes_when_it_was_not_changed(machine: Machine, session: int) -> None:
    assert machine.create_ttl(session, "/t", 1_000) == 0
    machine.clock_ms = 900
    machine.set(session, "/t")
    machine.clock_ms = 1_900
    machine.touch(session, collect=True)
    assert machine.paths == ["/t"]
    machine.clock_ms = 1_901
    machine.touch(session, collect=True)
    assert machine.paths == []


@pytest.mark.parametrize("ttl_ms", [0, -1, 1 << 40])
def test_an_impossible_time_to_live_is_refused(machine: Machine, session: int, ttl_ms: int) -> None:
    assert machine.create_ttl(session, "/t", ttl_ms) == Code.BAD_ARGUMENTS


NAMES = st.sampled_from(["/a", "/b", "/a/x", "/a/y", "/a/x/p", "/b/-", "/", "/zookeeper/quota", "bad"])
VERSIONS = st.sampled_from([-1, -1, 0, 1])
PARTS = st.one_of(
    st.tuples(st.just(Op.CREATE), st.builds(create_body, NAMES, st.binary(max_size=3), st.integers(0, 4))),
    st.tuples(st.just(Op.SET_DATA), st.builds(set_body, NAMES, st.binary(max_size=3), VERSIONS)),
    st.tuples(st.just(Op.DELETE), st.builds(versioned_body, NAMES, VERSIONS)),
    st.tuples(st.just(Op.CHECK), st.builds(versioned_body, NAMES, VERSIONS)),
)
STEPS = st.one_of(
    st.tuples(st.just("open"), st.integers(2_000, 6_000)),
    st.tuples(st.just("part"), st.integers(0, 3), PARTS),
    st.tuples(st.just("part"), st.integers(0, 3), PARTS),
    st.tuples(st.just("multi"), st.integers(0, 3), st.lists(PARTS, max_size=4)),
    st.tuples(st.just("close"), st.integers(0, 3)),
    st.tuples(st.just("time"), st.integers(0, 2_500), st.booleans()),
)


def play(machine: Machine, step: Any) -> object:
    sessions = [*machine.service.sessions, 7_777]
    match step:
        case ("open", timeout_ms):
            return machine.open(timeout_ms)
        case ("part", index, (op, body)):
            return machine.run(sessions[index % len(sessions)], op, body)
        case ("multi", index, parts):
            session = sessions[index % len(sessions)]
            return machine.multi(session, *parts) if session in machine.service.sessions else None
        case ("close", index):
            return machine.run(sessions[index % len(sessions)], Op.CLOSE_SESSION)
        case ("time", passed_ms, collect):
            machine.clock_ms += passed_ms
            return machine.touch(sessions[0], collect=collect)
    raise AssertionError(step)


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=40), st.integers(0, 40))
def test_a_restored_replica_goes_on_exactly_like_the_one_that_was_saved(steps: list[Any], cut: int) -> None:
    machine = Machine()
    for step in steps[:cut]:
        play(machine, step)
    twin = machine.copy()
    assert twin.snapshot() == machine.snapshot()
    machine.told.clear()
    for step in steps[cut:]:
        assert play(machine, step) == play(twin, step)
    assert twin.told == machine.told
    assert twin.snapshot() == machine.snapshot()
    assert twin.service.tree.size == machine.service.tree.size


@settings(max_examples=100, deadline=None)
@given(st.lists(STEPS, max_size=40), st.integers(0, 40))
def test_a_snapshot_is_of_the_moment_when_it_was_taken(steps: list[Any], cut: int) -> None:
    machine = Machine()
    for step in steps[:cut]:
        play(machine, step)
    now, drawn_afterwards = machine.snapshot(), machine.service.snapshot()
    for step in steps[cut:]:
        play(machine, step)
    assert b"|".join(drawn_afterwards) == now


@settings(max_examples=100, deadline=None)
@given(st.lists(STEPS, max_size=40), st.lists(STEPS, max_size=40))
def test_a_snapshot_may_be_drawn_in_slices_between_commands(before: list[Any], after: list[Any]) -> None:
    with (
        mock.patch.multiple(table, ENTRIES_PER_PAGE=2, ENTRIES_PER_PAGE_MIN=1),
        mock.patch.object(tree, "NODES_PER_CHUNK", 1),
        mock.patch.object(service, "SESSIONS_PER_CHUNK", 1),
    ):
        machine = Machine()
        for step in before:
            play(machine, step)
        now, snapshot = machine.snapshot(), machine.service.snapshot()
        twin = machine.copy()
        drawn: list[bytes] = []
        for index, step in enumerate(after):
            drawn += islice(snapshot, index % 3)
            assert play(machine, step) == play(twin, step)
        assert b"|".join([*drawn, *snapshot]) == now
        assert twin.snapshot() == machine.snapshot()


def test_ephemeral_nodes_vanish_oldest_first_also_on_a_replica_that_was_restored(
    machine: Machine, session: int
) -> None:
    names = [f"/{name}" for name in "dbeac"]
    for name in names:
        machine.create(session, name, mode=Mode.EPHEMERAL)
    machine.multi(session, *((Op.CREATE, create_body(name, mode=Mode.EPHEMERAL)) for name in ("/z", "/y")))
    twin = machine.copy()
    assert machine.service.tree.ephemerals_of(session) == twin.service.tree.ephemerals_of(session)
    for replica in (machine, twin):
        replica.told.clear()
        replica.run(session, Op.CLOSE_SESSION)
        assert [told[1] for told in replica.told[:-1]] == [*names, "/y", "/z"]


@settings(max_examples=100, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_the_indexes_of_the_tree_agree_with_its_nodes(steps: list[Any]) -> None:
    machine = Machine()
    for step in steps:
        play(machine, step)
    tree = machine.service.tree
    for path, node in tree.nodes.items():
        below = {
            other.rsplit("/", 1)[1] for other in tree.nodes if other != "/" and (other.rsplit("/", 1)[0] or "/") == path
        }
        assert set(node.children or ()) == below
    owned = {path for paths in tree.ephemerals.values() for path in paths}
    assert owned == {path for path, node in tree.nodes.items() if node.owner > 0}
    assert set(tree.ephemerals) <= set(machine.service.sessions)
    assert set(tree.containers) == {path for path, node in tree.nodes.items() if node.owner == CONTAINER_OWNER}
    assert tree.size == sum(len(path) + len(node.data or b"") for path, node in tree.nodes.items())


def test_access_lists_and_paths_are_bounded() -> None:
    """In the replicated state, so the same everywhere."""
    machine = Machine()
    session = machine.open()
    entries = tuple((31, "digest", f"user-{number}:hash") for number in range(limits.ACL_ENTRIES_MAX + 1))
    assert machine.create(session, "/many", acl=entries)[0] == Code.INVALID_ACL
    assert machine.create(session, "/all", acl=entries[1:])[0] == Code.OK
    for scheme, id_ in (("digest", "u:" + "x" * limits.ACL_ID_CHARACTERS_MAX), ("ip", "1" * 1_000)):
        assert machine.create(session, "/long", acl=((31, scheme, id_),))[0] == Code.INVALID_ACL
    path = "/" + "x" * (limits.PATH_CHARACTERS_MAX - 1)
    assert machine.create(session, path)[0] == Code.OK
    assert machine.create(session, path + "x")[0] == Code.BAD_ARGUMENTS
    assert machine.create(session, path + "/x")[0] == Code.BAD_ARGUMENTS


def test_a_multi_that_fails_unexpectedly_leaves_the_tree_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    session = machine.open()
    monkeypatch.setitem(service._WRITES, Op.DELETE, lambda *_: 1 // 0)
    operations = ((Op.CREATE, create_body("/made")), (Op.DELETE, versioned_body("/made")))
    with pytest.raises(ZeroDivisionError):
        machine.multi(session, *operations)
    assert machine.paths == []
    assert machine.create(session, "/after")[0] == Code.OK
    assert machine.service.tree._undo is None
