"""Sessions belong to somebody: who a sender is, and what a stranger cannot do in another's session."""

import msgspec
import pytest

from tara.protocol import tuples as t
from tara.protocol.principals import (
    PRINCIPAL_BYTES_MAX,
    SECRET_BYTES_MAX,
    describe,
    digest_of_secret,
    gateway_of,
    is_gateway,
    is_operator,
    principal_of,
)
from tara.protocol.sessions import SessionsState
from tests.protocol.test_named_sessions import open_named
from tests.protocol.test_sessions import STEP_MS, Replica, session_id

ALICE = principal_of(b"the secret of alice")
MALLORY = principal_of(b"the secret of mallory")
OPERATOR = principal_of(b"the operator's secret", operator=digest_of_secret(b"the operator's secret"))
GATEWAY = gateway_of(2)


def by(principal: bytes, command: t.Command) -> t.Command:
    return msgspec.structs.replace(command, principal=principal)


def command(principal: bytes, session: int, number: int, kind: int = t.EXECUTE, acknowledged: int = 0) -> t.Command:
    return t.Command(session, number, acknowledged, b"c%d" % number, kind, principal)


def opened(replica: Replica, principal: bytes, timeout_ms: int = 10_000) -> int:
    payload = msgspec.msgpack.encode(timeout_ms)
    (result,) = replica.run(t.Command(0, 7, 0, payload, t.OPEN, principal))
    assert (result.status, result.principal) == (t.OK, principal)
    return session_id(result)


@pytest.fixture
def replica() -> Replica:
    return Replica()


def test_a_secret_makes_a_principal_that_does_not_show_it() -> None:
    assert principal_of(b"the secret of alice") == ALICE
    assert len({ALICE, MALLORY, OPERATOR, GATEWAY, gateway_of(1)}) == 5
    assert all(len(principal) <= PRINCIPAL_BYTES_MAX for principal in (ALICE, OPERATOR, GATEWAY))
    assert b"alice" not in ALICE


@pytest.mark.parametrize("secret", [b"", b"x" * 15, b"x" * (SECRET_BYTES_MAX + 1)])
def test_a_secret_that_can_be_guessed_makes_nobody(secret: bytes) -> None:
    assert principal_of(secret) == b""


def test_a_key_counts_more_than_a_secret() -> None:
    key = bytes(range(32))
    assert principal_of(b"", key) == principal_of(b"the secret of alice", key) != ALICE
    assert not is_operator(principal_of(b"the operator's secret", key, operator=digest_of_secret(b"x" * 16)))


def test_a_key_of_the_cluster_or_the_right_secret_makes_an_operator() -> None:
    key = bytes(range(32))
    assert is_operator(principal_of(b"", key, member=True))
    assert is_operator(OPERATOR)
    assert not is_operator(principal_of(b"another secret  ", operator=digest_of_secret(b"the operator's secret")))
    # Without an operator's secret there is no operator, whatever is presented.
    assert not is_operator(principal_of(b"the operator's secret"))


def test_a_gateway_is_told_from_clients() -> None:
    assert is_gateway(GATEWAY)
    assert not is_gateway(ALICE)
    assert not is_gateway(OPERATOR)
    assert not is_gateway(b"")


def test_listings_show_the_kind_and_little_more() -> None:
    assert describe(GATEWAY) == "gateway 2"
    assert describe(ALICE) == f"secret {ALICE[1:5].hex()}"
    assert describe(b"") == "nobody"


def test_a_stranger_does_not_execute_in_a_session(replica: Replica) -> None:
    session = opened(replica, ALICE)
    (refused,) = replica.run(command(MALLORY, session, 0))
    assert (refused.status, refused.principal) == (t.FORBIDDEN, MALLORY)
    assert refused.payload == b"the session belongs to somebody else"
    assert replica.executed() == []
    (result,) = replica.run(command(ALICE, session, 0))
    assert (result.status, result.payload, result.principal) == (t.OK, b"result of c0", ALICE)


@pytest.mark.parametrize("kind", [t.EXECUTE, t.QUERY, t.CLOSE, t.CLAIM, t.KEEPALIVE])
@pytest.mark.parametrize("number", [0, 1, 3, 100])
def test_a_stranger_changes_nothing(replica: Replica, kind: int, number: int) -> None:
    session = opened(replica, ALICE)
    replica.run(command(ALICE, session, 0), command(ALICE, session, 2))
    replica.wait(STEP_MS)
    before = t.encode(replica.sessions.state())
    replica.run(command(MALLORY, session, number, kind, acknowledged=number))
    assert t.encode(replica.sessions.state()) == before


def test_a_stranger_does_not_keep_a_session_alive(replica: Replica) -> None:
    session = opened(replica, ALICE, timeout_ms=1_000)
    for _ in range(1_000 // STEP_MS + 1):
        replica.run(command(MALLORY, session, 0, t.KEEPALIVE), command(MALLORY, session, 0))
        replica.wait(STEP_MS)
    assert replica.ended() == [session]


def test_a_stranger_does_not_get_a_named_session(replica: Replica) -> None:
    (first,) = replica.run(by(ALICE, open_named("orders")))
    (again,) = replica.run(by(ALICE, open_named("orders", nonce=2)))
    (refused,) = replica.run(by(MALLORY, open_named("orders", nonce=3)))
    assert session_id(first) == session_id(again)
    assert (refused.status, refused.number, refused.principal) == (t.FORBIDDEN, 3, MALLORY)


def test_whoever_guesses_a_session_before_it_is_there_gets_the_answer_himself(replica: Replica) -> None:
    """Otherwise a replica that lags would tell the owner that the session is gone."""
    (result,) = replica.run(command(MALLORY, 1, 0))
    assert (result.status, result.principal) == (t.EXPIRED, MALLORY)
    assert opened(replica, ALICE) == 1


def test_results_are_for_the_owner_however_often_they_are_asked_for(replica: Replica) -> None:
    session = opened(replica, ALICE)
    results = replica.run(*(command(ALICE, session, number) for number in (1, 0, 0, 100)))
    assert [result.status for result in results] == [t.OK, t.OK, t.OK, t.UNACKNOWLEDGED]
    assert {result.principal for result in results} == {ALICE}


def test_the_owner_survives_a_checkpoint(replica: Replica) -> None:
    session = opened(replica, ALICE)
    restored = Replica()
    restored.sessions.restore(msgspec.msgpack.decode(t.encode(replica.sessions.state()), type=SessionsState))
    assert restored.run(command(MALLORY, session, 0))[0].status == t.FORBIDDEN
    assert restored.run(command(ALICE, session, 0))[0].status == t.OK


def test_an_operator_closes_any_session_without_knowing_its_numbers(replica: Replica) -> None:
    (result,) = replica.run(by(ALICE, open_named("orders")))
    session = session_id(result)
    replica.run(command(ALICE, session, 0), command(ALICE, session, 2))
    counter = replica.sessions.counter
    results = replica.run(command(OPERATOR, session, 4711, t.CLOSE))
    assert [(found.status, found.number, found.principal) for found in results] == [
        (t.OK, 4711, OPERATOR),
        (t.EXPIRED, 2, ALICE),
    ]
    assert (replica.ended(), len(replica.sessions), replica.sessions.counter) == ([session], 0, counter + 1)
    (free,) = replica.run(by(MALLORY, open_named("orders")))
    assert free.status == t.OK


def test_an_operator_does_nothing_else_in_a_session(replica: Replica) -> None:
    session = opened(replica, ALICE)
    for kind in (t.EXECUTE, t.QUERY, t.CLAIM):
        assert replica.run(command(OPERATOR, session, 0, kind))[0].status == t.FORBIDDEN


def test_the_context_tells_who_sent_the_command(replica: Replica) -> None:
    session, other = opened(replica, ALICE), opened(replica, GATEWAY)
    replica.run(command(ALICE, session, 0), command(GATEWAY, other, 0), command(OPERATOR, session, 9, t.CLOSE))
    assert replica.application.principals == [
        ("opened", ALICE),
        ("opened", GATEWAY),
        ("apply", ALICE),
        ("apply", GATEWAY),
        ("closed", OPERATOR),
    ]


def test_an_event_is_for_the_owner_of_its_session(replica: Replica) -> None:
    session = opened(replica, ALICE)
    replica.run(t.Command(session, 0, 0, b"!publish", t.EXECUTE, ALICE))
    assert [(event.session, event.principal) for event in replica.sessions.events] == [(0, b""), (session, ALICE)]


def test_a_list_tells_what_each_session_keeps(replica: Replica) -> None:
    session = opened(replica, ALICE, timeout_ms=5_000)
    replica.run(by(MALLORY, open_named("orders")))
    replica.wait(STEP_MS)
    replica.run(command(ALICE, session, 0), command(ALICE, session, 2))
    replica.wait(STEP_MS)
    first, second = listed(replica, 0)
    assert first == t.SessionRow(
        session, "", ALICE, 5_000, 2 * STEP_MS, STEP_MS, 1, 1, len(b"result of c0"), 1, len(b"c2")
    )
    assert (second.name, second.owner, second.timeout_ms) == ("orders", MALLORY, 0)
    assert listed(replica, session) == [second]
    assert listed(replica, second.id) == []
    assert replica.sessions.listing(b"\xc0")[0] == t.REJECTED


def listed(replica: Replica, after: int) -> list[t.SessionRow]:
    status, payload = replica.sessions.listing(t.encode(t.ListSessions(after)))
    assert status == t.OK
    return msgspec.msgpack.decode(payload, type=list[t.SessionRow])
