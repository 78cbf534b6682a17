"""What sessions keep is bounded, in bytes and in numbers: per session, per principal, and over all of them."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tara.protocol import tuples as t
from tara.protocol.errors import ConfigurationError
from tara.protocol.limits import Limits
from tara.protocol.principals import gateway_of, principal_of
from tara.protocol.session_quotas import OVERHEAD_BYTES
from tara.protocol.sessions import Sessions, SessionsState
from tests.protocol.driver import session_id
from tests.protocol.test_sessions import Recorder

ALICE = principal_of(b"the secret of alice")
BOB = principal_of(b"the secret of bob  ")
OPERATOR = b"o" + bytes(16)
#: What an executed command with a result of this length takes.
RESULT_BYTES = 1_000
KEPT_BYTES = RESULT_BYTES + OVERHEAD_BYTES


class Echo(Recorder):
    """A result is as long as the command says."""

    def apply(self, command: bytes, context: Any) -> bytes:
        super().apply(command, context)
        return bytes(int(command))


class Service:
    def __init__(self, **limits: int) -> None:
        self.application = Echo()
        defaults = {"session_bytes_max": 1 << 20, "principal_bytes_max": 1 << 20, "sessions_bytes_max": 1 << 20}
        self.limits = Limits(**{**defaults, **limits})
        self.sessions = Sessions(self.application, self.limits)
        self.sessions.pass_time(1_000_000)

    def run(self, *commands: t.Command) -> list[t.Result]:
        for command in commands:
            self.sessions.execute(command)
        results = self.sessions.results.copy()
        self.sessions.results.clear()
        return results

    def open(self, principal: bytes = ALICE, name: str = "") -> int:
        (result,) = self.run(opening(principal, name))
        return session_id(result)

    def executed(self) -> list[bytes]:
        return [payload for what, payload, *_ in self.application.log if what == "apply"]


def opening(principal: bytes, name: str = "") -> t.Command:
    return t.Command(0, 1, 0, msgspec.msgpack.encode(name or 30_000), t.OPEN, principal)


def command(
    session: int, number: int, acknowledged: int = 0, size: int = RESULT_BYTES, principal: bytes = ALICE
) -> t.Command:
    return t.Command(session, number, acknowledged, b"%d" % size, t.EXECUTE, principal)


def alive(session: int, acknowledged: int, principal: bytes = ALICE) -> t.Command:
    return t.Command(session, 0, acknowledged, b"", t.KEEPALIVE, principal)


def statuses(results: list[t.Result]) -> list[int]:
    return [result.status for result in results]


def test_a_session_that_keeps_too_much_executes_nothing_until_results_are_acknowledged() -> None:
    service = Service(session_bytes_max=3 * KEPT_BYTES)
    session = service.open()
    results = service.run(*(command(session, number) for number in range(4)))
    assert statuses(results) == [t.OK] * 3 + [t.UNACKNOWLEDGED]
    assert b"acknowledge them first" in results[3].payload
    assert len(service.executed()) == 3
    # One that is acknowledged makes room for one.
    assert statuses(service.run(command(session, 3, acknowledged=1), command(session, 4))) == [t.OK, t.UNACKNOWLEDGED]
    assert statuses(service.run(command(session, 4, acknowledged=4))) == [t.OK]
    assert len(service.executed()) == 5


def test_one_result_may_be_beyond_the_bound() -> None:
    service = Service(session_bytes_max=2 * KEPT_BYTES)
    session = service.open()
    results = service.run(command(session, 0), command(session, 1, size=100_000), command(session, 2, size=0))
    assert statuses(results) == [t.OK, t.OK, t.UNACKNOWLEDGED]


def test_empty_results_take_room_too() -> None:
    service = Service(session_bytes_max=10 * OVERHEAD_BYTES)
    session = service.open()
    assert statuses(service.run(*(command(session, number, size=0) for number in range(12)))).count(t.OK) == 10


def test_what_has_executed_is_answered_however_much_is_kept() -> None:
    service = Service(session_bytes_max=KEPT_BYTES)
    session = service.open()
    (first,) = service.run(command(session, 0))
    assert service.run(command(session, 0)) == [first]


def test_a_sign_of_life_acknowledges() -> None:
    """A client that has nothing more to send would otherwise keep its last results for ever."""
    service = Service(principal_bytes_max=KEPT_BYTES, session_bytes_max=KEPT_BYTES)
    session, other = service.open(), service.open()
    service.run(command(session, 0))
    assert statuses(service.run(command(other, 0))) == [t.UNACKNOWLEDGED]
    assert service.run(alive(session, 7), alive(session, 1, BOB)) == []
    assert statuses(service.run(command(other, 0))) == [t.UNACKNOWLEDGED]
    assert service.run(alive(session, 1)) == []
    assert statuses(service.run(command(other, 0))) == [t.OK]


def test_a_session_can_be_closed_however_much_is_kept() -> None:
    service = Service(session_bytes_max=KEPT_BYTES)
    session = service.open()
    service.run(command(session, 0))
    assert statuses(service.run(t.Command(session, 1, 0, b"", t.CLOSE, ALICE))) == [t.OK]


def test_one_principal_leaves_room_for_others() -> None:
    service = Service(
        principal_bytes_max=2 * KEPT_BYTES, session_bytes_max=2 * KEPT_BYTES, sessions_bytes_max=3 * KEPT_BYTES
    )
    sessions = [service.open() for _ in range(3)]
    results = service.run(*(command(session, 0) for session in sessions))
    assert statuses(results) == [t.OK, t.OK, t.UNACKNOWLEDGED]
    assert b"principal_bytes_max" in results[2].payload
    bobs = [service.open(BOB) for _ in range(2)]
    results = service.run(*(command(session, 0, principal=BOB) for session in bobs))
    assert statuses(results) == [t.OK, t.UNACKNOWLEDGED]
    assert b"sessions_bytes_max" in results[1].payload
    # An operator can end what takes the room.
    service.run(t.Command(sessions[0], 9, 0, b"", t.CLOSE, OPERATOR))
    assert statuses(service.run(command(bobs[1], 0, principal=BOB))) == [t.OK]


def test_a_gateway_that_opens_a_session_ends_those_of_its_former_lives() -> None:
    """Nobody acknowledges what they keep: a gateway that restarts often would have no room for its results."""
    service = Service(session_bytes_max=3 * KEPT_BYTES, principal_bytes_max=3 * KEPT_BYTES)
    gateway, beside = gateway_of(1), gateway_of(2)
    other = service.open(beside)
    for _ in range(5):
        session = service.open(gateway)
        assert statuses(service.run(*(command(session, number, principal=gateway) for number in (0, 1)))) == [
            t.OK,
            t.OK,
        ]
        expired = [each.session for each in service.sessions.executed if each.kind == t.EXPIRE]
        assert other not in expired
        assert session not in expired
    assert len(expired) == 4
    assert statuses(service.run(command(expired[-1], 2, principal=gateway))) == [t.EXPIRED]
    assert statuses(service.run(command(other, 0, principal=beside))) == [t.OK]


def test_early_commands_of_a_session_are_bounded_in_bytes() -> None:
    long = b"1".rjust(1_000, b"0")
    service = Service(session_bytes_max=2 * (len(long) + OVERHEAD_BYTES))
    session = service.open()
    early = [t.Command(session, number, 0, long, t.EXECUTE, ALICE) for number in (1, 2, 3)]
    (refused,) = service.run(*early, *early[:2])
    assert (refused.number, refused.status) == (3, t.UNACKNOWLEDGED)
    assert b"send the next one first" in refused.payload
    # The next one is taken however much waits; then there is room again.
    assert [result.number for result in service.run(command(session, 0, size=1))] == [0, 1, 2]
    assert statuses(service.run(early[2])) == [t.OK]


def test_early_commands_of_a_principal_and_of_all_are_bounded() -> None:
    size = 4 + OVERHEAD_BYTES
    service = Service(session_bytes_max=2 * size, principal_bytes_max=2 * size, sessions_bytes_max=3 * size)
    sessions = [service.open(), service.open(), service.open(BOB), service.open(BOB)]
    owners = [ALICE, ALICE, BOB, BOB]
    results = []
    for number in (5, 6):
        for session, owner in zip(sessions, owners, strict=True):
            results += service.run(command(session, number, size=1_000, principal=owner))
    assert [(result.session, result.number) for result in results] == [(sessions[3], 5), *((s, 6) for s in sessions)]
    assert {result.status for result in results} == {t.UNACKNOWLEDGED}


def test_what_waits_for_its_turn_comes_again_if_its_result_cannot_be_kept() -> None:
    """It is told so. In silence, it would wait for an acknowledgement that nothing else may bring."""
    service = Service(session_bytes_max=2 * KEPT_BYTES)
    session = service.open()
    results = service.run(*(command(session, number) for number in (3, 2, 1, 0)))
    refused = t.Result(session, 2, 3, t.UNACKNOWLEDGED, *_refusal(service, session))
    assert [(result.number, result.status) for result in results[:2]] == [(0, t.OK), (1, t.OK)]
    assert results[2:] == [refused]
    assert service.run(command(session, 2)) == [refused]
    # A sign of life acknowledges, too. Command 3 has waited since it came.
    assert service.run(alive(session, 2)) == []
    assert [result.number for result in service.run(command(session, 2))] == [2, 3]
    assert len(service.executed()) == 4


def _refusal(service: Service, session: int) -> tuple[bytes, bytes]:
    kept = 2 * KEPT_BYTES
    return f"the session keeps {kept} bytes of results (session_bytes_max): acknowledge them first".encode(), ALICE


def test_one_principal_has_a_bounded_number_of_sessions() -> None:
    service = Service(principal_sessions_max=2, sessions_max=3)
    first, _ = service.open(), service.open(name="named")
    for refused in (opening(ALICE), opening(ALICE, "another")):
        (result,) = service.run(refused)
        assert (result.status, b"as many as one may have" in result.payload) == (t.FULL, True)
    service.open(BOB)
    (result,) = service.run(opening(BOB))
    assert (result.status, b"sessions_max" in result.payload) == (t.FULL, True)
    service.run(t.Command(first, 0, 0, b"", t.CLOSE, ALICE))
    service.open()


def test_claims_are_bounded_over_the_sessions_of_a_principal() -> None:
    service = Service(session_bytes_max=1_000, principal_bytes_max=3_000)
    sessions = [service.open(name=name) for name in ("a", "b")]

    def claim(session: int, key: int, size: int) -> t.Result:
        payload = t.encode(t.Claim(key, bytes(size)))
        (result,) = service.run(t.Command(session, 4711, 0, payload, t.CLAIM, ALICE))
        return result

    assert claim(sessions[0], 1, 2_000).status == t.OK
    refused = claim(sessions[1], 1, 1_000)
    assert (refused.status, b"bytes of claims" in refused.payload) == (t.REJECTED, True)
    # A newer claim takes the place of the older one.
    assert claim(sessions[0], 2, 100).status == t.OK
    assert claim(sessions[1], 1, 1_000).status == t.OK


Step = tuple[int, int, int, int]


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 12), st.integers(0, 12), st.integers(0, 9)), min_size=1, max_size=80
    )
)
def test_the_sums_are_what_is_kept_also_after_a_checkpoint(steps: list[Step]) -> None:
    limits = {"session_bytes_max": 4 * KEPT_BYTES, "principal_bytes_max": 6 * KEPT_BYTES}
    limits["sessions_bytes_max"] = 9 * KEPT_BYTES
    service = Service(**limits)
    sessions = [service.open(ALICE), service.open(ALICE, "named"), service.open(BOB), service.open(BOB)]
    owners = [ALICE, ALICE, BOB, BOB]
    for which, number, acknowledged, kind in steps:
        size = RESULT_BYTES * (number % 3)
        sent = command(sessions[which], number, acknowledged, size, owners[which])
        if kind == 0:
            sent = msgspec.structs.replace(sent, kind=t.CLOSE)
        elif kind == 1:
            sent = msgspec.structs.replace(sent, kind=t.KEEPALIVE)
        elif kind == 2:
            sent = msgspec.structs.replace(sent, kind=t.CLAIM, payload=t.encode(t.Claim(number, bytes(size))))
        service.run(sent)
        state = service.sessions.state()
        for session in state.sessions:
            results = sum(len(result.payload) + OVERHEAD_BYTES for result in session.results.values())
            early = sum(len(waiting.payload) + OVERHEAD_BYTES for waiting in session.early.values())
            assert (session.results_bytes, session.early_bytes) == (results, early)
            assert results < limits["session_bytes_max"] + KEPT_BYTES + RESULT_BYTES
            assert early <= limits["session_bytes_max"]
        kept = service.sessions._quotas.all
        assert kept.results_bytes == sum(session.results_bytes for session in state.sessions)
        assert kept.early_bytes == sum(session.early_bytes for session in state.sessions)
    restored = Service(**limits)
    restored.sessions.restore(msgspec.msgpack.decode(t.encode(service.sessions.state()), type=SessionsState))
    for id_, owner in zip(sessions, owners, strict=True):
        both = [machine.run(command(id_, 3, principal=owner)) for machine in (service, restored)]
        assert both[0] == both[1]
    assert t.encode(restored.sessions.state()) == t.encode(service.sessions.state())


def test_the_bounds_have_to_fit_each_other() -> None:
    with pytest.raises(ConfigurationError, match=r"session_bytes_max = 2000: must be at most principal_bytes_max"):
        Limits(session_bytes_max=2_000, principal_bytes_max=1_000)
    with pytest.raises(ConfigurationError, match=r"must be at most sessions_bytes_max"):
        Limits(session_bytes_max=500, principal_bytes_max=2_000, sessions_bytes_max=1_000)
