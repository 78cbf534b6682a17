"""Sessions: every command once, in number order, with one and the same answer on every replica."""

import random
from collections.abc import Callable, Iterable, Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tara.application import StateMachine
from tara.protocol import sessions as sessions_module
from tara.protocol import tuples as t
from tara.protocol.limits import Limits
from tara.protocol.principals import OPERATOR
from tara.protocol.sessions import ERA_COMMANDS, ApplicationError, Context, Sessions, SessionsState
from tests.protocol.driver import open_session, session_id

LIMITS = Limits(
    session_pipeline_max=4,
    sessions_max=5,
    session_timeout_ms_min=1_000,
    session_timeout_ms_max=60_000,
    session_clock_step_ms_max=500,
    result_bytes_max=100,
)
STEP_MS = LIMITS.session_clock_step_ms_max
#: When a replica's first request is stamped.
BEGIN_MS = 1_000_000


class Nameless(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise SystemExit("no name")


class Untellable(BaseException, metaclass=Nameless):
    """Nothing can be learned of it without its help."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise SystemExit("no class")


class Mute(ApplicationError):
    def __str__(self) -> str:
        raise SystemExit("no message")


class Recorder(StateMachine):
    """Writes down what happens to it. A command that begins with `!` names what goes wrong."""

    def __init__(self) -> None:
        self.log: list[tuple[str, bytes, int, int, int]] = []
        self.principals: list[tuple[str, bytes]] = []

    def _note(self, what: str, payload: bytes, context: Context) -> None:
        self.log.append((what, payload, context.session, context.counter, context.time_ms))
        self.principals.append((what, context.principal))

    def apply(self, command: bytes, context: Context) -> bytes:
        self._note("apply", command, context)
        match command:
            case b"!refuse":
                raise ApplicationError("no such key: ключ")
            case b"!crash":
                raise ValueError(f"object at {id(self):#x}")
            case b"!none":
                return None  # type: ignore[return-value]
            case b"!view":
                return memoryview(b"abc")  # type: ignore[return-value]
            case b"!large":
                return bytes(LIMITS.result_bytes_max + 1)
            case b"!largest":
                return bytes(LIMITS.result_bytes_max)
            case b"!memory":
                raise MemoryError
            case b"!exit":
                raise SystemExit(3)
            case b"!interrupt":
                raise KeyboardInterrupt
            case b"!generator":
                raise GeneratorExit
            case b"!own":
                raise Untellable
            case b"!mute":
                raise Mute("anything")
            case b"!surrogate":
                raise ApplicationError("file \udc80")
            case b"!long":
                raise ApplicationError("x" * (LIMITS.result_bytes_max + 1))
            case b"!publish":
                context.publish(b"to all")
                context.publish(b"to one", context.session)
        return b"result of " + command

    def query(self, question: bytes, context: Context) -> bytes:
        self._note("query", question, context)
        return b"answer to " + question

    def snapshot(self) -> Iterator[bytes]:
        raise NotImplementedError

    def restore(self, chunks: Iterable[bytes]) -> None:
        raise NotImplementedError

    def opened(self, context: Context) -> None:
        self._note("opened", b"", context)

    def closed(self, context: Context) -> None:
        self._note("closed", b"", context)


class Replica:
    """Sessions with a recording application; `run` gives the results of one command."""

    def __init__(self, application: Recorder | None = None, begin_ms: int = BEGIN_MS) -> None:
        self.application = application or Recorder()
        self.sessions = Sessions(self.application, LIMITS)
        #: The last stamp.
        self.now_ms = begin_ms
        self.sessions.pass_time(begin_ms)

    def run(self, *commands: t.Command) -> list[t.Result]:
        for command in commands:
            self.sessions.execute(command)
        results = self.sessions.results.copy()
        self.sessions.results.clear()
        return results

    def open(self, nonce: int = 0, timeout_ms: int = 10_000) -> int:
        (result,) = self.run(open_session(nonce, timeout_ms))
        return session_id(result)

    def wait(self, milliseconds: int, moves_sessions: bool = True) -> list[t.Result]:
        """A request comes that is stamped so much later."""
        self.now_ms += milliseconds
        self.sessions.pass_time(self.now_ms, moves_sessions)
        return self.run()

    def executed(self) -> list[bytes]:
        return [payload for what, payload, *_ in self.application.log if what == "apply"]

    def ended(self) -> list[int]:
        return [session for what, _, session, *_ in self.application.log if what == "closed"]


@pytest.fixture
def replica() -> Replica:
    return Replica()


def command(session: int, number: int, payload: bytes = b"", acknowledged: int = 0, kind: int = t.EXECUTE) -> t.Command:
    return t.Command(session, number, acknowledged, payload or b"c%d" % number, kind)


def test_the_id_of_a_session_is_the_counter_of_its_opening(replica: Replica) -> None:
    session = replica.open()
    replica.run(command(session, 0), command(session, 1))
    assert (session, replica.open()) == (1, 4)


def test_the_same_open_twice_gives_two_sessions(replica: Replica) -> None:
    """S10: a replayed OPEN must not give a second client the first one's session."""
    assert replica.open(nonce=7) != replica.open(nonce=7)
    assert len(replica.sessions) == 2


def test_the_result_of_an_open_names_the_nonce(replica: Replica) -> None:
    (result,) = replica.run(open_session(nonce=42))
    assert (result.session, result.number) == (0, 42)


@pytest.mark.parametrize(("asked", "given_"), [(-5, 1_000), (10, 1_000), (5_000, 5_000), (10**12, 60_000)])
def test_the_time_out_is_held_within_the_limits(replica: Replica, asked: int, given_: int) -> None:
    (result,) = replica.run(open_session(timeout_ms=asked))
    assert msgspec.msgpack.decode(result.payload) == [1, given_]


@pytest.mark.parametrize("payload", [b"\xc0", b"\x90", b"\xff\xff", b"\x91\x01"])
def test_an_open_without_a_time_out_is_rejected(replica: Replica, payload: bytes) -> None:
    (result,) = replica.run(t.Command(0, 0, 0, payload, t.OPEN))
    assert (result.status, len(replica.sessions), replica.sessions.counter) == (t.REJECTED, 0, 0)


def test_no_more_sessions_than_the_limit(replica: Replica) -> None:
    for _ in range(LIMITS.sessions_max):
        replica.open()
    (result,) = replica.run(open_session())
    assert result.status == t.FULL
    assert len(replica.sessions) == LIMITS.sessions_max


@given(st.permutations(range(LIMITS.session_pipeline_max)), st.data())
def test_commands_execute_once_in_number_order_whatever_the_log_says(order: list[int], data: st.DataObject) -> None:
    replica = Replica()
    session = replica.open()
    log = data.draw(st.permutations([*order, *data.draw(st.lists(st.sampled_from(order)))]))
    results = replica.run(*(command(session, number) for number in log))
    assert replica.executed() == [b"c0", b"c1", b"c2", b"c3"]
    assert {result.number: result for result in results}.keys() == set(order)
    assert all(result.payload == b"result of c%d" % result.number for result in results)


def test_an_early_command_waits(replica: Replica) -> None:
    session = replica.open()
    assert replica.run(command(session, 1)) == []
    results = replica.run(command(session, 0))
    assert [result.number for result in results] == [0, 1]
    assert [result.counter for result in results] == [2, 3]


def test_a_duplicate_gets_the_identical_result(replica: Replica) -> None:
    session = replica.open()
    (first,) = replica.run(command(session, 0))
    replica.run(command(session, 1))
    (again,) = replica.run(command(session, 0))
    assert again == first
    assert replica.executed() == [b"c0", b"c1"]


def test_a_duplicate_of_a_failed_command_fails_alike(replica: Replica) -> None:
    session = replica.open()
    (first,) = replica.run(command(session, 0, b"!crash"))
    (again,) = replica.run(command(session, 0, b"!crash"))
    assert again == first
    assert replica.executed() == [b"!crash"]


def test_sessions_do_not_share_numbers(replica: Replica) -> None:
    one, other = replica.open(), replica.open()
    results = replica.run(command(one, 0, b"a"), command(other, 0, b"b"))
    assert [result.payload for result in results] == [b"result of a", b"result of b"]


def test_queries_take_their_turn(replica: Replica) -> None:
    session = replica.open()
    (result,) = replica.run(command(session, 0, b"how many?", kind=t.QUERY))
    assert result.payload == b"answer to how many?"
    assert replica.executed() == []


def test_the_context_names_session_counter_and_agreed_time(replica: Replica) -> None:
    replica.wait(123)
    session = replica.open()
    replica.run(command(session, 0, b"x"))
    now_ms = BEGIN_MS + 123
    assert replica.application.log == [("opened", b"", 1, 1, now_ms), ("apply", b"x", 1, 2, now_ms)]


def test_events_carry_the_counter_of_their_command(replica: Replica) -> None:
    session = replica.open()
    replica.run(command(session, 0, b"!publish"))
    assert replica.sessions.events == [t.Event(0, 2, b"to all"), t.Event(session, 2, b"to one")]


def test_an_acknowledged_result_is_forgotten(replica: Replica) -> None:
    session = replica.open()
    replica.run(command(session, 0), command(session, 1), command(session, 2, acknowledged=2))
    (kept,) = replica.sessions.state().sessions
    assert kept.results.keys() == {2}
    assert replica.run(command(session, 0), command(session, 1)) == []
    assert replica.executed() == [b"c0", b"c1", b"c2"]


def test_an_acknowledgement_beyond_what_executed_is_not_believed(replica: Replica) -> None:
    session = replica.open()
    replica.run(command(session, 0), command(session, 2, acknowledged=100))
    (kept,) = replica.sessions.state().sessions
    assert kept.acknowledged == 1
    assert [result.number for result in replica.run(command(session, 1))] == [1, 2]


def begin_era(replica: Replica) -> None:
    """As `tara recover` does: the sessions stay, and the counter leaves out what another era may have handed out."""
    state = replica.sessions.state()
    replica.sessions.restore(msgspec.structs.replace(state, counter=ERA_COMMANDS))


def test_a_session_of_a_former_era_answers_what_it_has_and_goes_on(replica: Replica) -> None:
    session = replica.open()
    (first,) = replica.run(command(session, 0))
    begin_era(replica)

    assert replica.run(command(session, 0)) == [first]
    (second,) = replica.run(command(session, 1, acknowledged=1))
    assert (second.status, second.counter) == (t.OK, ERA_COMMANDS + 1)


def test_a_session_of_a_former_era_ends_when_its_client_has_results_that_are_lost(replica: Replica) -> None:
    session = replica.open()
    replica.run(command(session, 0), command(session, 2))
    begin_era(replica)

    results = replica.run(command(session, 4, acknowledged=4))
    assert [(result.number, result.status) for result in results] == [(4, t.EXPIRED), (2, t.EXPIRED)]
    assert replica.run(command(session, 1))[0].status == t.EXPIRED
    assert replica.executed() == [b"c0"]
    assert replica.open() > ERA_COMMANDS


def test_a_command_beyond_the_pipeline_has_to_come_again(replica: Replica) -> None:
    session = replica.open()
    bound = LIMITS.session_pipeline_max
    (result,) = replica.run(command(session, bound))
    assert (result.number, result.status) == (bound, t.UNACKNOWLEDGED)
    replica.run(*(command(session, number) for number in range(bound)))
    (result,) = replica.run(command(session, bound, acknowledged=1))
    assert (result.number, result.status) == (bound, t.OK)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=40))
def test_a_session_keeps_a_bounded_number_of_results_and_early_commands(log: list[tuple[int, int]]) -> None:
    """A client that never acknowledges may go on in order; what waits out of order is bounded."""
    replica = Replica()
    session = replica.open()
    for number, acknowledged in log:
        replica.run(command(session, number, acknowledged=acknowledged))
        (kept,) = replica.sessions.state().sessions
        assert len(kept.early) < LIMITS.session_pipeline_max
        assert all(number > kept.next for number in kept.early)
        assert all(kept.acknowledged <= number < kept.next for number in kept.results)
    assert replica.executed() == [b"c%d" % number for number in range(len(replica.executed()))]


def test_results_that_nobody_acknowledges_are_bounded(replica: Replica) -> None:
    """The bound is on commands without an acknowledged result, not on early commands only."""
    session = replica.open()
    replica.run(*(command(session, number) for number in range(10 * LIMITS.session_pipeline_max)))
    (kept,) = replica.sessions.state().sessions
    assert len(kept.results) <= LIMITS.session_pipeline_max


def test_a_command_of_an_unknown_session_does_not_execute(replica: Replica) -> None:
    (result,) = replica.run(command(77, 0))
    assert (result.session, result.number, result.status) == (77, 0, t.EXPIRED)
    assert replica.executed() == []
    assert replica.sessions.counter == 0


def test_close_takes_its_turn_and_ends_the_session(replica: Replica) -> None:
    session = replica.open()
    assert replica.run(command(session, 1, kind=t.CLOSE)) == []
    results = replica.run(command(session, 0))
    assert [(result.number, result.status) for result in results] == [(0, t.OK), (1, t.OK)]
    assert replica.ended() == [session]
    (late,) = replica.run(command(session, 2))
    assert late.status == t.EXPIRED


def test_what_waits_behind_a_close_does_not_execute(replica: Replica) -> None:
    session = replica.open()
    replica.run(command(session, 1), command(session, 0, kind=t.CLOSE))
    assert replica.executed() == []


def test_a_second_close_behind_a_close_harms_nobody(replica: Replica) -> None:
    session = replica.open()
    replica.run(command(session, 1, kind=t.CLOSE), command(session, 0, kind=t.CLOSE))
    assert replica.ended() == [session]


def advance(replica: Replica, milliseconds: int) -> None:
    """Let the session clock run, in steps that count in full."""
    for _ in range(milliseconds // STEP_MS):
        replica.wait(STEP_MS)
    replica.wait(milliseconds % STEP_MS)


def test_a_silent_session_expires_when_its_time_is_up(replica: Replica) -> None:
    session = replica.open(timeout_ms=2_000)
    advance(replica, 1_999)
    assert replica.ended() == []
    advance(replica, 1)
    assert replica.ended() == [session]
    (result,) = replica.run(command(session, 0))
    assert result.status == t.EXPIRED


@pytest.mark.parametrize("kind", [t.EXECUTE, t.QUERY, t.KEEPALIVE])
def test_any_command_renews_its_session(replica: Replica, kind: int) -> None:
    session, silent = replica.open(timeout_ms=2_000), replica.open(timeout_ms=2_000)
    advance(replica, 1_500)
    replica.run(command(session, 0, kind=kind))
    advance(replica, 1_500)
    assert replica.ended() == [silent]


def test_a_keepalive_without_session_and_answer(replica: Replica) -> None:
    assert replica.run(command(0, 0, kind=t.KEEPALIVE)) == []
    assert replica.sessions.counter == 0


def test_commands_alone_do_not_let_time_pass(replica: Replica) -> None:
    silent, busy = replica.open(timeout_ms=1_000), replica.open()
    replica.run(*(command(busy, number) for number in range(100)))
    assert replica.ended() == []
    assert replica.run(command(silent, 0))[0].status == t.OK


@pytest.mark.parametrize("jump_ms", [10**6, 10**15])
def test_a_stall_does_not_expire_sessions(replica: Replica, jump_ms: int) -> None:
    """However long nothing was ordered: one request moves the session clock by a step only. A session lives at least
    two steps, so its client has a request more to show that it is there."""
    session = replica.open(timeout_ms=1_000)
    replica.wait(jump_ms)
    assert replica.ended() == []
    assert replica.run(command(session, 0))[0].status == t.OK


stamps = st.integers(0, 10**4)


@given(st.lists(st.tuples(stamps, st.booleans()), max_size=20))
def test_agreed_time_follows_the_stamps_by_steps_and_never_falls(log: list[tuple[int, bool]]) -> None:
    """Proposers' clocks differ: a stamp from the past does not turn time back, and one from the future, which one bad
    clock is enough for, moves it by a step only. The very first sets it. Whose stamp it is makes no difference."""
    sessions = Sessions(Recorder(), LIMITS)
    for stamp, moves_sessions in log:
        before = sessions.time_ms
        sessions.pass_time(stamp, moves_sessions)
        follow = stamp if before == 0 else min(stamp, before + STEP_MS)
        assert sessions.time_ms == max(before, follow)


def test_one_stamp_from_the_far_future_does_little() -> None:
    replica = Replica()
    replica.sessions.pass_time(BEGIN_MS + 10**12)
    assert replica.sessions.time_ms == BEGIN_MS + STEP_MS
    replica.sessions.pass_time(BEGIN_MS + STEP_MS + 1)
    assert replica.sessions.time_ms == BEGIN_MS + STEP_MS + 1


@pytest.mark.parametrize("ahead_ms", [-(10**6) + 1, -300, 300, 10**12])
def test_a_clock_that_is_wrong_does_not_stop_the_session_clock(replica: Replica, ahead_ms: int) -> None:
    """After a stamp of a proposer whose clock is far off, the session clock runs on by the differences of the next
    proposer's stamps; it does not wait until they have caught up."""
    session = replica.open(timeout_ms=2_000)
    replica.sessions.pass_time(BEGIN_MS + ahead_ms)
    replica.now_ms = BEGIN_MS + 1
    advance(replica, 1_499)
    assert replica.ended() == []
    advance(replica, 502)
    assert replica.ended() == [session]


def test_requests_of_other_partitions_do_not_move_the_session_clock(replica: Replica) -> None:
    """Clocks of several proposers differ, and going back and forth between them must not pass for time."""
    session = replica.open(timeout_ms=1_000)
    for turn in range(100):
        replica.sessions.pass_time(BEGIN_MS + 10**6 + turn * STEP_MS, moves_sessions=False)
        replica.sessions.pass_time(BEGIN_MS + turn)
    assert replica.sessions.time_ms > BEGIN_MS + 10_000
    advance(replica, 999)
    assert replica.ended() == []
    advance(replica, 1)
    assert replica.ended() == [session]


def test_the_very_first_stamp_lets_no_time_pass() -> None:
    """There is nothing that it could be later than."""
    replica = Replica(begin_ms=0)
    session = replica.open(timeout_ms=1_000)
    replica.sessions.pass_time(10**12)
    replica.now_ms = 10**12
    advance(replica, 999)
    assert replica.ended() == []
    advance(replica, 1)
    assert replica.ended() == [session]


def test_sessions_expire_in_the_order_of_their_ids_and_count(replica: Replica) -> None:
    first, second = replica.open(timeout_ms=2_000), replica.open(timeout_ms=1_000)
    before = replica.sessions.counter
    advance(replica, 1_500)
    assert replica.ended() == [second]
    advance(replica, 1_500)
    assert replica.ended() == [second, first]
    assert replica.sessions.counter == before + 2


def test_an_expired_session_makes_room(replica: Replica) -> None:
    for _ in range(LIMITS.sessions_max):
        replica.open(timeout_ms=1_000)
    advance(replica, 1_000)
    assert len(replica.sessions) == 0
    replica.open()


@pytest.mark.parametrize(
    ("payload", "status", "result"),
    [
        (b"!refuse", t.FAILED, "no such key: ключ".encode()),
        (b"!crash", t.FAILED, b"the application raised ValueError"),
        (b"!exit", t.FAILED, b"the application raised SystemExit"),
        (b"!interrupt", t.FAILED, b"the application raised KeyboardInterrupt"),
        (b"!generator", t.FAILED, b"the application raised GeneratorExit"),
        (b"!own", t.FAILED, b"the application raised Untellable"),
        (b"!mute", t.FAILED, b"the application raised SystemExit"),
        (b"!none", t.FAILED, b"the application returned something other than bytes"),
        (b"!view", t.FAILED, b"the application returned something other than bytes"),
        (b"!large", t.FAILED, b"the result is too large"),
        (b"!largest", t.OK, bytes(LIMITS.result_bytes_max)),
    ],
)
def test_an_applications_mistake_is_a_result_that_all_replicas_share(
    payload: bytes, status: int, result: bytes
) -> None:
    """L18. Only the message of an ApplicationError is passed on: others may hold addresses."""
    answers = []
    for _ in range(2):
        replica = Replica()
        answers += replica.run(command(replica.open(), 0, payload))
    assert answers[0] == answers[1]
    assert (answers[0].status, answers[0].payload) == (status, result)


def test_the_session_goes_on_after_a_failure(replica: Replica) -> None:
    session = replica.open()
    results = replica.run(command(session, 0, b"!crash"), command(session, 1))
    assert [result.status for result in results] == [t.FAILED, t.OK]


def test_no_memory_is_the_replicas_problem_not_the_commands(replica: Replica) -> None:
    """It would not happen on the others, so it must not become a result: this replica crashes."""
    session = replica.open()
    with pytest.raises(MemoryError):
        replica.run(command(session, 0, b"!memory"))


def test_a_message_that_is_not_unicode_is_a_failure_like_any_other(replica: Replica) -> None:
    session = replica.open()
    (result,) = replica.run(command(session, 0, b"!surrogate"))
    assert result.status == t.FAILED


def test_a_message_is_bounded_like_a_result(replica: Replica) -> None:
    session = replica.open()
    (result,) = replica.run(command(session, 0, b"!long"))
    assert result.status == t.FAILED
    assert len(result.payload) <= LIMITS.result_bytes_max


class BadHooks(Recorder):
    def opened(self, context: Context) -> None:
        raise ValueError

    def closed(self, context: Context) -> None:
        raise ValueError


def test_a_hook_that_raises_changes_nothing() -> None:
    replica = Replica(BadHooks())
    session = replica.open()
    (result,) = replica.run(command(session, 0, kind=t.CLOSE))
    assert (result.status, len(replica.sessions)) == (t.OK, 0)


def reloaded(replica: Replica) -> Replica:
    """Another replica, from the bytes of this one's state."""
    other = Replica(begin_ms=replica.now_ms)
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(replica.sessions.state()), type=SessionsState)
    other.sessions.restore(state)
    return other


#: What two replicas do alike: a command (session, number, acknowledged, kind), or the time of a request.
Act = Callable[[Replica], list[t.Result]]
acts: st.SearchStrategy[Act] = st.one_of(
    st.builds(
        lambda session, number, acknowledged, kind: (
            lambda replica: replica.run(command(session, number, acknowledged=acknowledged, kind=kind))
        ),
        st.integers(1, 4),
        st.integers(0, 4),
        st.integers(0, 4),
        st.sampled_from([t.EXECUTE, t.QUERY, t.KEEPALIVE]),
    ),
    st.integers(1_000, 4_000).map(lambda timeout: lambda replica: replica.run(open_session(0, timeout))),
    st.integers(-100, 700).map(lambda step: lambda replica: replica.wait(step)),
    st.integers(-100, 700).map(lambda step: lambda replica: replica.wait(step, moves_sessions=False)),
)


@given(st.lists(acts, max_size=25), st.lists(acts, max_size=25))
def test_a_restored_replica_goes_on_like_the_one_it_came_from(before: list[Act], after: list[Act]) -> None:
    """State, clock, filter, results and waiting commands are all in the snapshot."""
    original = Replica()
    for act in before:
        act(original)
    copy = reloaded(original)
    assert msgspec.msgpack.encode(copy.sessions.state()) == msgspec.msgpack.encode(original.sessions.state())
    seen = len(original.application.log)
    for act in after:
        assert act(copy) == act(original)
    assert copy.application.log == original.application.log[seen:]
    assert copy.sessions.state() == original.sessions.state()


@given(st.permutations([1, 2, 3]))
def test_the_state_is_canonical_whatever_the_order_of_early_commands(order: list[int]) -> None:
    replica, other = Replica(), Replica()
    for one, numbers in ((replica, [1, 2, 3]), (other, order)):
        session = one.open()
        one.run(*(command(session, number) for number in numbers))
    assert msgspec.msgpack.encode(replica.sessions.state()) == msgspec.msgpack.encode(other.sessions.state())


def test_a_state_is_not_changed_by_later_commands(replica: Replica) -> None:
    """S11: a snapshot must not be a live object."""
    session = replica.open()
    replica.run(command(session, 0), command(session, 2))
    state = replica.sessions.state()
    before = msgspec.msgpack.encode(state)
    replica.run(command(session, 1, acknowledged=1))
    assert msgspec.msgpack.encode(state) == before


@pytest.mark.parametrize("seed", range(20))
def test_sessions_are_captured_at_once_and_encoded_while_they_change(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Piece by piece, and the bytes are those of the moment of the capture."""
    monkeypatch.setattr(sessions_module, "SESSIONS_PER_PIECE", 1)
    draw, replica = random.Random(seed), Replica()
    (named,) = replica.run(t.Command(0, 9, 0, msgspec.msgpack.encode("name"), t.OPEN))
    ids = [session_id(named), *(replica.open() for _ in range(LIMITS.sessions_max - 1))]
    numbers = dict.fromkeys(ids, 0)

    def change() -> None:
        session = draw.choice(ids)
        number = numbers[session]
        kind = draw.choice([t.EXECUTE, t.EXECUTE, t.EXECUTE, t.KEEPALIVE, t.CLOSE, t.CLAIM])
        if kind == t.CLOSE and draw.random() < 0.8:
            return
        skip = draw.choice([0, 0, 1])
        payload = msgspec.msgpack.encode(t.Claim(number, b"value", 0)) if kind == t.CLAIM else b"payload"
        operator = OPERATOR if kind == t.CLOSE and draw.random() < 0.5 else b""
        replica.wait(5)
        replica.run(t.Command(session, number + skip, draw.randrange(number + 1), payload, kind, operator))
        if kind == t.EXECUTE:
            numbers[session] += not skip

    for _ in range(30):
        change()
    expected, capture = t.encode(replica.sessions.state()), replica.sessions.capture()
    pieces: list[bytes] = []
    for piece in capture.pieces():
        pieces.append(piece)
        for _ in range(10):
            change()
    assert len(pieces) > 3
    assert b"".join(pieces) == expected
    assert expected != t.encode(replica.sessions.state())


def test_a_capture_that_nobody_draws_any_more_costs_nothing() -> None:
    replica = Replica()
    session = replica.open()
    capture = replica.sessions.capture()
    replica.sessions.execute(t.Command(session, 0, 0, b"a"))
    assert len(replica.sessions._captures) == 1
    del capture
    replica.sessions.execute(t.Command(session, 1, 0, b"a"))
    assert replica.sessions._captures == []
