"""A client's session without I/O: what it sends when, and what becomes of its calls."""

import msgspec
import pytest

from tara.client.errors import (
    ClientError,
    CommandFailed,
    CommandTooLarge,
    Forbidden,
    Overloaded,
    ServiceHalted,
    SessionExpired,
    TimedOut,
)
from tara.client.session import (
    IN_FLIGHT_MAX,
    ON_WAY_BYTES_FIRST,
    ON_WAY_BYTES_MAX,
    ON_WAY_BYTES_MIN,
    PATIENCE_BYTES_PER_S,
    PATIENCE_S,
    QUICK_S,
    UNACKNOWLEDGED_S,
    Session,
    Submission,
)
from tara.protocol import tuples as t


def opened(session: Session, now_s: float = 0.0, id_: int = 9) -> None:
    (opening,) = session.due(now_s)
    session.hear(t.Result(0, opening.number, 1, t.OK, msgspec.msgpack.encode((id_, 30_000))), now_s)


def make(name: str = "") -> Session:
    nonces = iter(range(1, 100))
    return Session(30_000, lambda: next(nonces), name)


def call(session: Session, outcomes: list[bytes | ClientError], deadline_s: float = 10.0) -> None:
    session.submit(Submission(b"do", t.EXECUTE, deadline_s, outcomes.append))


def test_commands_wait_for_the_session_and_are_numbered() -> None:
    session, outcomes = make(), list[bytes | ClientError]()
    call(session, outcomes)
    call(session, outcomes)
    opened(session)

    commands = session.due(0.1)

    assert [(c.session, c.number, c.acknowledged) for c in commands] == [(9, 0, 0), (9, 1, 0)]


def test_an_answer_finishes_its_call_and_is_acknowledged_with_the_next() -> None:
    session, outcomes = make(), list[bytes | ClientError]()
    opened(session)
    call(session, outcomes)
    session.due(0.1)
    session.hear(t.Result(9, 0, 2, t.OK, b"done"), 0.2)
    call(session, outcomes)

    assert outcomes == [b"done"]
    assert [(c.number, c.acknowledged) for c in session.due(0.3)] == [(1, 1)]


def test_who_needs_a_session_no_more_ends_it() -> None:
    session = make()
    assert session.farewell() == []
    opened(session)
    call(session, [])
    session.due(0.1)
    # The end would come behind a command that may never come.
    assert session.farewell() == []
    session.hear(t.Result(9, 0, 2, t.OK, b"done"), 0.2)

    assert session.farewell() == [t.Command(9, 1, 1, b"", t.CLOSE)]


def test_a_session_with_a_name_outlives_its_clients() -> None:
    session = make("batches")
    opened(session)

    assert session.farewell() == []


def test_a_late_command_is_sent_again_elsewhere_with_growing_patience() -> None:
    session = make()
    opened(session)
    call(session, [], deadline_s=100.0)
    first = session.due(0.0)

    assert session.due(PATIENCE_S / 2) == []
    assert session.due(PATIENCE_S) == first
    assert session.move_on
    assert session.due(PATIENCE_S * 2) == []
    assert session.due(PATIENCE_S * 3) == first


def test_a_service_that_is_slow_is_waited_for_longer() -> None:
    session = make()
    opened(session)
    now_s = 0.0
    for number in range(30):
        call(session, [], deadline_s=100.0)
        assert [command.number for command in session.due(now_s)] == [number]
        now_s += PATIENCE_S * 0.9
        session.hear(t.Result(9, number, 2, t.OK, b""), now_s)
    call(session, [], deadline_s=100.0)
    session.due(now_s)

    assert session.due(now_s + PATIENCE_S * 2) == []
    assert not session.move_on
    assert len(session.due(now_s + PATIENCE_S * 3)) == 1


def test_an_outage_makes_nobody_patient_afterwards() -> None:
    session = make()
    opened(session)
    now_s = 0.0
    for number in range(8):
        call(session, [], deadline_s=1000.0)
        sent_s = -1.0
        for _ in range(200):
            now_s += 0.1
            if any(command.kind == t.EXECUTE for command in session.due(now_s)):
                sent_s = now_s
        now_s = sent_s + 0.05
        session.hear(t.Result(9, number, 2, t.OK, b""), now_s)
    call(session, [], deadline_s=1000.0)
    assert [command.number for command in session.due(now_s)] == [8]

    assert [command.number for command in session.due(now_s + 1.01 * PATIENCE_S)] == [8]


def test_long_commands_wait_until_others_are_answered() -> None:
    session = make()
    opened(session)
    long = ON_WAY_BYTES_MAX // 2
    for length in (ON_WAY_BYTES_MAX + 1, long, long, 1):
        session.submit(Submission(bytes(length), t.EXECUTE, 100.0, lambda outcome: None))

    def numbers_due() -> list[int]:
        return [command.number for command in session.due(0.1)]

    assert numbers_due() == [0]
    session.hear(t.Result(9, 0, 2, t.OK, b""), 0.1)
    assert numbers_due() == [1, 2]
    session.hear(t.Result(9, 1, 0, t.TOO_LARGE, b""), 0.1)
    # The read that takes the refused one's number, and what there is room for now.
    assert numbers_due() == [1, 3]
    for number in (1, 2, 3):
        session.hear(t.Result(9, number, 3, t.OK, b""), 0.1)
    assert session.idle


def late_s(on_way_bytes: int) -> float:
    """How long the first answer may take when so much is on its way."""
    return PATIENCE_S + (on_way_bytes - ON_WAY_BYTES_MIN) / PATIENCE_BYTES_PER_S


def test_less_is_on_its_way_when_answers_are_late_and_more_again_when_they_come() -> None:
    session = make()
    opened(session)
    quarter = ON_WAY_BYTES_FIRST // 4
    for _ in range(12):
        session.submit(Submission(bytes(quarter), t.EXECUTE, 1000.0, lambda outcome: None))

    def numbers_due(now_s: float) -> list[int]:
        return [command.number for command in session.due(now_s)]

    assert numbers_due(0.0) == [0, 1, 2, 3]
    now_s = late_s(4 * quarter)
    assert numbers_due(now_s - 0.1) == []
    assert numbers_due(now_s) == [0, 1]
    now_s += PATIENCE_S + late_s(2 * quarter)
    assert numbers_due(now_s) == [0]
    # The answer to what was sent first makes room for two; then they are sent in their order.
    session.hear(t.Result(9, 0, 2, t.OK, b""), now_s)
    session.move_on = False
    assert numbers_due(now_s) == [1, 2]
    # One that was answered by what was sent long ago is not sent again.
    session.hear(t.Result(9, 3, 2, t.OK, b""), now_s)
    session.hear(t.Result(9, 1, 3, t.OK, b""), now_s)
    assert numbers_due(now_s) == [4, 5]
    assert not session.move_on


def test_slow_answers_make_no_room_for_more() -> None:
    """All that is on its way waits in a queue already."""
    for took_s, following in ((QUICK_S / 2, 2), (QUICK_S, 1)):
        session = make()
        opened(session)
        for _ in range(4):
            session.submit(Submission(bytes(ON_WAY_BYTES_FIRST), t.EXECUTE, 1000.0, lambda outcome: None))
        assert len(session.due(0.0)) == 1
        session.hear(t.Result(9, 0, 2, t.OK, b""), took_s)
        assert len(session.due(took_s)) == following


def test_a_long_command_that_is_said_to_wait_is_waited_for() -> None:
    """It would be ordered a second time."""
    session = make()
    opened(session)
    session.submit(Submission(bytes(ON_WAY_BYTES_FIRST), t.EXECUTE, 1000.0, lambda outcome: None))
    assert len(session.due(0.0)) == 1
    now_s = 0.0
    for _ in range(60):
        now_s += 0.5
        session.hear(t.Result(9, 0, 0, t.WAITING, b""), now_s)
        assert [command for command in session.due(now_s) if command.kind != t.KEEPALIVE] == []
    assert not session.move_on

    again = [command for command in session.due(now_s + 10.0) if command.kind != t.KEEPALIVE]
    assert [command.number for command in again] == [0]
    assert session.move_on


def test_after_a_refusal_nothing_is_sent_for_a_while_but_signs_of_life() -> None:
    """What follows would be refused, too. And a command that was refused has not kept the session alive."""
    session = make()
    opened(session)
    for _ in range(5):
        call(session, [], deadline_s=1000.0)
    assert [command.number for command in session.due(0.0)] == [0, 1, 2, 3, 4]
    for number in range(5):
        session.hear(t.Result(9, number, 0, t.OVERLOADED, b""), 0.1)
    call(session, [], deadline_s=1000.0)
    assert session.due(0.1 + PATIENCE_S / 2) == []
    kinds = []
    for tenth in range(10, 150):
        for command in session.due(tenth / 10):
            kinds.append(command.kind)
            session.hear(t.Result(9, command.number, 0, t.OVERLOADED, b""), tenth / 10)
    assert kinds.count(t.KEEPALIVE) >= 1
    # The pauses grow, also from one front end to the next.
    assert kinds.count(t.EXECUTE) <= 6 * 6


def test_a_call_times_out_but_its_command_lives_on() -> None:
    session, outcomes = make(), list[bytes | ClientError]()
    opened(session)
    call(session, outcomes, deadline_s=1.0)
    (command,) = session.due(0.0)

    again = session.due(1.5)

    assert isinstance(outcomes[0], TimedOut)
    assert again == [command]


def test_an_overloaded_front_end_is_named_when_the_time_is_up() -> None:
    session, outcomes = make(), list[bytes | ClientError]()
    opened(session)
    call(session, outcomes, deadline_s=1.0)
    session.due(0.0)
    session.hear(t.Result(9, 0, 0, t.OVERLOADED, b""), 0.1)
    session.due(1.5)

    assert isinstance(outcomes[0], Overloaded)


def test_what_every_front_end_refused_never_executes_once_that_is_said() -> None:
    session, outcomes = make(), list[bytes | ClientError]()
    opened(session)
    call(session, outcomes, deadline_s=1.0)
    for now_s in (0.0, PATIENCE_S):
        session.due(now_s)
        session.hear(t.Result(9, 0, 0, t.OVERLOADED, b""), now_s + 0.1)
    session.due(1.1)
    (again,) = [command for command in session.due(10.0) if command.kind != t.KEEPALIVE]

    assert isinstance(outcomes[0], Overloaded)
    assert (again.number, again.kind, again.payload) == (0, t.QUERY, b"")


def test_a_command_that_one_front_end_may_have_taken_is_not_said_to_be_refused() -> None:
    session, outcomes = make(), list[bytes | ClientError]()
    opened(session)
    call(session, outcomes, deadline_s=1.0)
    session.due(0.0)
    session.due(PATIENCE_S)
    session.hear(t.Result(9, 0, 0, t.OVERLOADED, b""), PATIENCE_S)
    session.due(1.1)

    assert isinstance(outcomes[0], TimedOut)


def test_a_command_that_is_refused_as_too_long_after_its_time_does_not_stop_the_others() -> None:
    session, outcomes = make(), list[bytes | ClientError]()
    opened(session)
    session.submit(Submission(bytes(2 * ON_WAY_BYTES_MAX), t.EXECUTE, 0.3, outcomes.append))
    call(session, outcomes)
    session.due(0.0)
    assert session.due(0.35) == []
    session.hear(t.Result(9, 0, 0, t.TOO_LARGE, b""), 0.36)

    assert isinstance(outcomes[0], TimedOut)
    assert [(c.number, c.kind) for c in session.due(0.36)] == [(0, t.QUERY), (1, t.EXECUTE)]


def test_a_claim_that_is_too_long_leaves_nothing_behind() -> None:
    session, outcomes = make("name"), list[bytes | ClientError]()
    opened(session)
    session.submit(Submission(b"claim", t.CLAIM, 10.0, outcomes.append))
    call(session, outcomes)
    (claim,) = session.due(0.0)
    session.hear(t.Result(9, claim.number, 0, t.TOO_LARGE, b""), 0.1)

    assert isinstance(outcomes[0], CommandTooLarge)
    assert [(c.number, c.kind) for c in session.due(0.1)] == [(0, t.EXECUTE)]


@pytest.mark.parametrize("status", [t.OVERLOADED, t.TOO_LARGE])
def test_nothing_takes_the_place_of_a_command_that_others_may_send_too(status: int) -> None:
    """All who know a session's name have the same numbers for the same commands: what replaced one of them here would
    be executed instead of theirs, and they would be told that it was theirs."""
    session, outcomes = make("name"), list[bytes | ClientError]()
    opened(session)
    call(session, outcomes, deadline_s=1.0)
    sent = session.due(0.0)
    session.hear(t.Result(9, 0, 0, status, b""), 0.1)
    for tenth in range(2, 100):
        sent += session.due(tenth / 10)

    assert isinstance(outcomes[0], TimedOut if status == t.OVERLOADED else CommandTooLarge)
    assert {(c.kind, c.payload) for c in sent if c.kind != t.KEEPALIVE} == {(t.EXECUTE, b"do")}


def test_what_is_refused_is_tried_again_soon_and_then_elsewhere() -> None:
    """Also by a client that is used to wait for long."""
    session = make()
    opened(session)
    now_s = 0.0
    for number in range(30):
        call(session, [], deadline_s=1000.0)
        session.due(now_s)
        now_s += 3.0
        session.hear(t.Result(9, number, 2, t.OK, b""), now_s)
        session.move_on = False
    for _ in range(2):
        call(session, [], deadline_s=1000.0)
    pauses = (0.0, PATIENCE_S, 2 * PATIENCE_S)
    for pause_s in pauses:
        assert session.due(now_s + 0.9 * pause_s) == [] or pause_s == 0.0
        now_s += pause_s
        session.due(now_s)
        assert not session.move_on
        for number in (30, 31):
            session.hear(t.Result(9, number, 0, t.OVERLOADED, b""), now_s)
        assert 0 < session.wait_s(now_s) <= 4 * PATIENCE_S
    assert [command.number for command in session.due(now_s + 4 * PATIENCE_S)] == [30, 31]
    assert session.move_on


def test_numbers_do_not_run_away_from_one_that_is_not_answered() -> None:
    """The replicas keep only so many results for a client that does not acknowledge them."""
    session = make()
    opened(session)
    for _ in range(3 * IN_FLIGHT_MAX):
        call(session, [], deadline_s=1000.0)
    highest = 0
    for _ in range(3):
        for command in session.due(0.1):
            highest = max(highest, command.number)
            if command.number > 0:
                session.hear(t.Result(9, command.number, 2, t.OK, b""), 0.1)

    assert highest == IN_FLIGHT_MAX - 1


def test_reads_with_long_answers_are_not_ordered_all_at_once() -> None:
    session = make()
    opened(session)
    for _ in range(8):
        session.submit(Submission(b"?", t.QUERY, 10.0, lambda outcome: None, expected=ON_WAY_BYTES_FIRST // 3))

    assert len(session.due(0.0)) == 2


def test_an_expired_session_fails_what_is_in_flight_and_keeps_what_waits() -> None:
    session, outcomes = make(), list[bytes | ClientError]()
    opened(session)
    call(session, outcomes)
    session.due(0.0)
    call(session, outcomes)
    session.hear(t.Result(9, 0, 5, t.EXPIRED, b""), 0.1)
    opened(session, 0.2, id_=12)

    assert isinstance(outcomes[0], SessionExpired)
    assert [(c.session, c.number) for c in session.due(0.3)] == [(12, 0)]


def test_a_failed_command_raises_its_message() -> None:
    session, outcomes = make(), list[bytes | ClientError]()
    opened(session)
    call(session, outcomes)
    session.due(0.0)
    session.hear(t.Result(9, 0, 2, t.FAILED, b"no money"), 0.1)

    assert isinstance(outcomes[0], CommandFailed)
    assert str(outcomes[0]) == "no money"


def test_an_opening_that_is_answered_late_is_as_good_as_the_next_one() -> None:
    """A service that always takes longer than a client's patience would never be reached otherwise."""
    session, outcomes = make(), list[bytes | ClientError]()
    call(session, outcomes)
    (first,) = session.due(0.0)
    (second,) = session.due(PATIENCE_S)
    assert first.number != second.number
    for number, id_ in ((first.number, 9), (second.number, 12)):
        session.hear(t.Result(0, number, 1, t.OK, msgspec.msgpack.encode((id_, 30_000))), PATIENCE_S * 1.5)

    assert [(c.session, c.number) for c in session.due(PATIENCE_S * 1.5)] == [(9, 0)]


def test_an_idle_session_gives_signs_of_life() -> None:
    session = make()
    opened(session)
    session.due(0.0)

    assert [c.kind for c in session.due(11.0)] == [t.KEEPALIVE]
    assert session.due(11.1) == []


def test_an_opening_is_a_sign_of_life() -> None:
    session = make()
    (opening,) = session.due(50.0)
    session.hear(t.Result(0, opening.number, 1, t.OK, msgspec.msgpack.encode((9, 30_000))), 50.1)

    assert session.due(50.2) == []


def test_the_pipeline_is_bounded() -> None:
    session = make()
    opened(session)
    for _ in range(IN_FLIGHT_MAX + 10):
        call(session, [])

    assert len(session.due(0.0)) == IN_FLIGHT_MAX


def test_a_result_of_another_session_or_a_second_copy_changes_nothing() -> None:
    session, outcomes = make(), list[bytes | ClientError]()
    opened(session)
    call(session, outcomes)
    session.due(0.0)
    for result in (t.Result(8, 0, 2, t.OK, b"foreign"), t.Result(9, 0, 2, t.OK, b"own"), t.Result(9, 0, 2, t.OK, b"x")):
        session.hear(result, 0.1)

    assert outcomes == [b"own"]


def test_a_command_that_is_too_large_leaves_no_hole() -> None:
    session, outcomes = make(), list[bytes | ClientError]()
    opened(session)
    call(session, outcomes)
    session.due(0.0)
    session.hear(t.Result(9, 0, 0, t.TOO_LARGE, b"too long"), 0.1)

    (filler,) = session.due(0.2)

    assert isinstance(outcomes[0], CommandTooLarge)
    assert (filler.number, filler.kind, filler.payload) == (0, t.QUERY, b"")


def test_a_named_session_goes_on_where_it_stopped() -> None:
    session = Session(30_000, lambda: 1, name="orders")
    (opening,) = session.due(0.0)
    session.hear(t.Result(0, 1, 0, t.OK, msgspec.msgpack.encode((9, 0, 17))), 0.0)
    call(session, [])

    assert msgspec.msgpack.decode(opening.payload) == "orders"
    assert [c.number for c in session.due(0.1)] == [17]


def test_nothing_else_is_on_its_way_with_a_claim_which_sets_the_next_number() -> None:
    nonces = iter((1, 4711))
    session, outcomes = Session(30_000, lambda: next(nonces), name="orders"), list[bytes | ClientError]()
    session.due(0.0)
    session.hear(t.Result(0, 1, 0, t.OK, msgspec.msgpack.encode((9, 0, 5))), 0.0)
    session.submit(Submission(b"claim", t.CLAIM, 10.0, outcomes.append))
    call(session, outcomes)

    assert [(c.kind, c.number) for c in session.due(0.1)] == [(t.CLAIM, 4711)]
    answer = msgspec.msgpack.encode(t.Claim(1, b"theirs", base=5, next=8))
    session.hear(t.Result(9, 5, 0, t.OK, b"the answer to an older claim"), 0.15)
    session.hear(t.Result(9, 4711, 0, t.OK, answer), 0.2)
    assert outcomes == [answer]
    assert [(c.kind, c.number) for c in session.due(0.3)] == [(t.EXECUTE, 8)]


def test_who_may_not_open_a_session_is_told_at_once() -> None:
    session, outcomes = make("orders"), list[bytes | ClientError]()
    call(session, outcomes)
    (opening,) = session.due(0.0)
    session.hear(t.Result(0, opening.number, 1, t.FORBIDDEN, b"not yours"), 0.1)
    assert [type(outcome) for outcome in outcomes] == [Forbidden]
    assert str(outcomes[0]) == "not yours"
    # Each opening is ordered: nobody asks again and again while there is nothing to send.
    assert session.due(0.15) == session.due(100.0) == []
    assert session.wait_s(100.0) > PATIENCE_S
    # Another try asks anew: an operator may have closed the session meanwhile.
    call(session, outcomes)
    assert [command.kind for command in session.due(0.2)] == [t.OPEN]


def test_a_session_that_is_somebody_else_s_is_given_up() -> None:
    session, outcomes = make(), list[bytes | ClientError]()
    opened(session)
    call(session, outcomes)
    session.due(0.1)
    session.hear(t.Result(9, 0, 2, t.FORBIDDEN, b"not yours"), 0.2)
    assert [type(outcome) for outcome in outcomes] == [Forbidden]
    assert session.id == 0


def test_an_answer_shortens_the_pause_after_many_refusals() -> None:
    """It says that there is room."""
    session = make()
    opened(session)

    def numbers_due(now_s: float) -> list[int]:
        return [command.number for command in session.due(now_s) if command.kind == t.EXECUTE]

    call(session, [], deadline_s=100.0)
    now_s = 0.0
    for _ in range(8):
        while not numbers_due(now_s):
            now_s += 0.1
        session.hear(t.Result(9, 0, 0, t.OVERLOADED, b""), now_s)
    while not numbers_due(now_s):
        now_s += 0.1
    call(session, [], deadline_s=100.0)
    assert numbers_due(now_s) == [1]
    session.hear(t.Result(9, 1, 0, t.OVERLOADED, b""), now_s)
    assert numbers_due(now_s + PATIENCE_S / 2) == []
    session.hear(t.Result(9, 0, 2, t.OK, b""), now_s + PATIENCE_S / 2)

    assert numbers_due(now_s + 2 * PATIENCE_S) == [1]


def test_however_often_a_command_was_refused_it_is_tried_again_within_seconds() -> None:
    """Nobody tells it that there is room."""
    session = make()
    opened(session)
    call(session, [], deadline_s=1000.0)
    now_s, pauses = 0.0, []
    for _ in range(12):
        refused_s = now_s
        while not any(command.kind == t.EXECUTE for command in session.due(now_s)):
            now_s += 0.1
        pauses.append(now_s - refused_s)
        session.hear(t.Result(9, 0, 0, t.OVERLOADED, b""), now_s)
    assert max(pauses) == pytest.approx(3.0, abs=0.2)


def test_a_front_end_whose_replica_executes_nothing_is_left_and_the_command_comes_again() -> None:
    session, outcomes = make(), list[bytes | ClientError]()
    opened(session)
    call(session, outcomes)
    first = session.due(0.1)
    session.hear(t.Result(9, 0, 0, t.HALTED, b"halted at command 7"), 0.2)
    assert session.halted == "halted at command 7"
    session.take_back()
    assert session.due(0.2) == first
    session.hear(t.Result(9, 0, 3, t.OK, b"done"), 0.3)
    assert outcomes == [b"done"]


def test_an_opening_that_is_refused_by_a_replica_that_executes_nothing_tells_the_owner() -> None:
    session = make()
    (opening,) = session.due(0.0)
    session.hear(t.Result(0, opening.number, 0, t.HALTED, b"halted at command 7"), 0.1)
    assert session.halted == "halted at command 7"
    session.halted = None
    session.hear(t.Result(0, 12345, 0, t.HALTED, b"of somebody else"), 0.1)
    assert session.halted is None


def test_when_no_replica_executes_everybody_is_told_and_only_what_was_passed_on_lives_on() -> None:
    session, outcomes = make(), list[bytes | ClientError]()
    opened(session)
    call(session, outcomes)
    session.due(0.0)
    session.take_back()  # The connection broke: somebody may have taken the first one.
    call(session, outcomes)
    session.due(0.1)
    for number in range(2):
        session.hear(t.Result(9, number, 0, t.HALTED, b"x"), 0.2)
    call(session, outcomes)
    session.stop(ServiceHalted("no replica executes: x"))
    assert [type(outcome) for outcome in outcomes] == [ServiceHalted] * 3
    session.take_back()
    assert [(c.number, c.kind, c.payload) for c in session.due(0.3)] == [(0, t.EXECUTE, b"do"), (1, t.QUERY, b"")]


def test_what_the_replicas_have_no_room_for_is_sent_again_with_what_we_have() -> None:
    session, outcomes = make(), list[bytes | ClientError]()
    opened(session)
    for _ in range(20):
        call(session, outcomes)
    assert len(session.due(0.1)) == 20
    for number in range(4):
        session.hear(t.Result(9, number, 2, t.OK, b""), 0.2)
    for number in range(4, 20):
        session.hear(t.Result(9, number, 2, t.UNACKNOWLEDGED, b"acknowledge"), 0.2)
    assert session.due(0.21) == []
    again = session.due(0.2 + UNACKNOWLEDGED_S)
    # Fewer at once, and each says that we have the first four.
    assert [command.number for command in again] == list(range(4, 12))
    assert {command.acknowledged for command in again} == {4}
    for number in range(4, 12):
        session.hear(t.Result(9, number, 2, t.OK, b""), 0.3)
    assert [command.number for command in session.due(0.3)] == list(range(12, 20))
    assert len(outcomes) == 12


def test_a_command_that_was_held_back_may_still_execute() -> None:
    """Another copy of it may be on its way: it is not replaced by something else when its time is up."""
    session, outcomes = make(), list[bytes | ClientError]()
    opened(session)
    call(session, outcomes, deadline_s=1.0)
    session.due(0.1)
    session.hear(t.Result(9, 0, 2, t.UNACKNOWLEDGED, b"acknowledge"), 0.2)
    session.due(1.0)
    assert [type(outcome) for outcome in outcomes] == [TimedOut]
    assert [command.payload for command in session.due(1.5)] == [b"do"]


@pytest.mark.parametrize(("name", "acknowledged"), [("", 1), ("shared", 0)])
def test_a_sign_of_life_says_what_we_have(name: str, acknowledged: int) -> None:
    session = make(name)
    opened(session)
    call(session, [])
    session.due(0.1)
    session.hear(t.Result(9, 0, 2, t.OK, b""), 0.2)
    (alive,) = session.due(20.0)
    assert (alive.kind, alive.acknowledged) == (t.KEEPALIVE, acknowledged)


def test_who_gets_no_session_is_told_why() -> None:
    session, outcomes = make(), list[bytes | ClientError]()
    call(session, outcomes, deadline_s=1.0)
    (opening,) = session.due(0.0)
    session.hear(t.Result(0, opening.number, 1, t.FULL, b"you have 2 sessions"), 0.1)
    session.due(1.0)
    assert [type(outcome) for outcome in outcomes] == [Overloaded]
    assert "you have 2 sessions" in str(outcomes[0])


def test_a_long_command_that_was_refused_goes_first_whatever_is_on_its_way_behind_it() -> None:
    """The others wait for its number at the replicas; if it waited for room here, nothing would move any more."""
    session, outcomes = make(), list[bytes | ClientError]()
    session.submit(Submission(bytes(200_000), t.EXECUTE, 100.0, outcomes.append))
    for _ in range(3):
        call(session, outcomes, 100.0)
    opened(session)
    # All of them are on their way; only the first one is refused, and less is sent at once from then on.
    session._room_bytes, session._patience_s = 300_000, 6.0
    assert [command.number for command in session.due(0.1)] == [0, 1, 2, 3]
    session.hear(t.Result(9, 0, 0, t.OVERLOADED, b""), 0.2)
    session._room_bytes = 1_000
    again = session.due(0.2 + PATIENCE_S)
    assert [command.number for command in again] == [0]


def test_a_command_that_is_longer_than_the_front_end_takes_is_not_sent() -> None:
    """The front end would hang up without a word, and again when it comes again: no other command would get through."""
    session, outcomes = make(), list[bytes | ClientError]()
    opened(session)
    session.bytes_max = 10
    session.submit(Submission(bytes(11), t.EXECUTE, 10.0, outcomes.append))
    call(session, outcomes)

    commands = session.due(0.1)

    assert [(command.number, command.payload) for command in commands] == [(0, b"do")]
    assert [str(outcome) for outcome in outcomes] == ["a command may have 10 bytes"]
    assert isinstance(outcomes[0], CommandTooLarge)
