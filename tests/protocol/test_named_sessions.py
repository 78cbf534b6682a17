"""Sessions with names: a client that comes back goes on where it stopped, and two of its lives cannot disagree."""

import msgspec
import pytest

from tara.protocol import tuples as t
from tara.protocol.sessions import NAME_BYTES_MAX, SessionsState
from tests.protocol.test_sessions import LIMITS, STEP_MS, Replica, command


def open_named(name: str, nonce: int = 0) -> t.Command:
    return t.Command(0, nonce, 0, msgspec.msgpack.encode(name), t.OPEN)


def opened(replica: Replica, name: str) -> tuple[int, int, int]:
    """Session id, time-out, next number."""
    (result,) = replica.run(open_named(name))
    assert result.status == t.OK, result
    return msgspec.msgpack.decode(result.payload, type=tuple[int, int, int])


def claim(session: int, key: int, value: bytes) -> t.Command:
    return t.Command(session, 0, 0, msgspec.msgpack.encode(t.Claim(key, value)), t.CLAIM)


def claimed(result: t.Result) -> t.Claim:
    assert result.status == t.OK, result
    return msgspec.msgpack.decode(result.payload, type=t.Claim)


@pytest.fixture
def replica() -> Replica:
    return Replica()


def test_a_name_opens_the_same_session_again(replica: Replica) -> None:
    session, timeout_ms, following = opened(replica, "orders")
    assert (timeout_ms, following) == (0, 0)
    replica.run(command(session, 0), command(session, 1))
    assert opened(replica, "orders") == (session, 0, 2)
    assert opened(replica, "payments")[0] != session


def test_it_never_expires(replica: Replica) -> None:
    session, *_ = opened(replica, "orders")
    other = replica.open(timeout_ms=1_000)
    for _ in range(10 * LIMITS.session_timeout_ms_max // STEP_MS):
        replica.wait(STEP_MS)
    assert replica.ended() == [other]
    assert replica.run(command(session, 0))[0].status == t.OK


def test_its_end_frees_the_name(replica: Replica) -> None:
    session, *_ = opened(replica, "orders")
    replica.run(command(session, 0, kind=t.CLOSE))
    assert opened(replica, "orders")[0] > session


@pytest.mark.parametrize("name", ["", "x" * (NAME_BYTES_MAX + 1), "é" * NAME_BYTES_MAX])
def test_a_name_has_a_length(replica: Replica, name: str) -> None:
    (result,) = replica.run(open_named(name))
    assert result.status == t.REJECTED
    assert len(replica.sessions) == 0


def test_names_count_as_sessions(replica: Replica) -> None:
    for number in range(LIMITS.sessions_max):
        opened(replica, f"stream-{number}")
    assert replica.run(open_named("one more"))[0].status == t.FULL
    assert opened(replica, "stream-0")[0] == 1


def test_the_first_claim_of_a_key_wins(replica: Replica) -> None:
    session, *_ = opened(replica, "orders")
    mine, theirs = replica.run(claim(session, 3, b"mine"), claim(session, 3, b"theirs"))
    assert claimed(mine) == claimed(theirs) == t.Claim(3, b"mine", 0)


def test_a_claim_says_where_its_commands_begin(replica: Replica) -> None:
    session, *_ = opened(replica, "orders")
    replica.run(command(session, 0), command(session, 1))
    (first,) = replica.run(claim(session, 1, b"two rows"))
    replica.run(command(session, 2))
    (again,) = replica.run(claim(session, 1, b"another order of the rows"))
    assert claimed(first) == t.Claim(1, b"two rows", base=2, next=2)
    assert claimed(again) == t.Claim(1, b"two rows", base=2, next=3)


def test_a_claim_takes_no_number_and_is_no_command_of_the_application(replica: Replica) -> None:
    session, *_ = opened(replica, "orders")
    replica.run(claim(session, 1, b"x"))
    assert replica.executed() == []
    assert opened(replica, "orders") == (session, 0, 0)


def test_an_older_claim_is_refused(replica: Replica) -> None:
    """A former life that wakes up late must not get its batch in once more."""
    session, *_ = opened(replica, "orders")
    replica.run(claim(session, 7, b"new"))
    (result,) = replica.run(claim(session, 6, b"old"))
    assert (result.status, result.payload) == (t.REJECTED, b"claim 6 is older than claim 7")


@pytest.mark.parametrize("payload", [b"", b"\x90", b"\xc1", b"\x92\xff\xc4\x00"])
def test_what_is_no_claim_is_refused(replica: Replica, payload: bytes) -> None:
    session, *_ = opened(replica, "orders")
    (result,) = replica.run(t.Command(session, 0, 0, payload, t.CLAIM))
    assert result.status == t.REJECTED


def test_a_session_without_a_name_has_no_claims(replica: Replica) -> None:
    session = replica.open()
    assert replica.run(claim(session, 1, b"x"))[0].status == t.REJECTED
    assert replica.run(claim(99, 1, b"x"))[0].status == t.EXPIRED


def test_names_and_claims_are_part_of_the_snapshot(replica: Replica) -> None:
    session, *_ = opened(replica, "orders")
    replica.run(command(session, 0), claim(session, 5, b"five"))
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(replica.sessions.state()), type=SessionsState)
    other = Replica()
    other.sessions.restore(state)
    assert opened(other, "orders") == (session, 0, 1)
    assert claimed(other.run(claim(session, 5, b"late"))[0]) == t.Claim(5, b"five", 1, 1)
