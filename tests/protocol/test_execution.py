"""One copy of the application: what comes of executing, and that it is the same however, wherever and whenever."""

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import msgspec
import pytest

from tara.application import Context, KeyValueStore, Put, StateMachine
from tara.protocol import skips
from tara.protocol import tuples as t
from tara.protocol.errors import NodeHalted
from tara.protocol.execution import REQUEST_BYTES, Execution, ExecutionState, Run, RunningDigest
from tara.protocol.limits import Limits
from tara.protocol.skips import Skips
from tara.storage.log_format import encode_run
from tests.protocol.driver import batch, open_session, request

SOURCES = 3
OPERATOR = b"o" + bytes(16)


def limits(partitions: int = 1, interval: int = 12) -> Limits:
    return Limits(
        partitions=partitions,
        checkpoint_interval=interval,
        sessions_max=6,
        session_pipeline_max=4,
        session_timeout_ms_min=1_000,
    )


class Recorder(StateMachine):
    """Keeps all that an application is told."""

    def __init__(self) -> None:
        self.told: list[bytes] = []

    def apply(self, command: bytes, context: Context) -> bytes:
        self._note(b"apply", command, context)
        context.publish(command, context.session)
        return b"%d" % len(self.told)

    def query(self, question: bytes, context: Context) -> bytes:
        return b"%d" % len(self.told)

    def opened(self, context: Context) -> None:
        self._note(b"opened", b"", context)

    def closed(self, context: Context) -> None:
        self._note(b"closed", b"", context)

    def _note(self, what: bytes, command: bytes, context: Context) -> None:
        where = (context.counter, context.time_ms, context.clock_ms, context.session)
        self.told.append(b"%b %b %b" % (what, command, repr(where).encode()))

    def snapshot(self) -> Iterator[bytes]:
        yield msgspec.msgpack.encode(self.told)

    def restore(self, chunks: Iterable[bytes]) -> None:
        self.told = msgspec.msgpack.decode(b"".join(chunks), type=list[bytes])


def new(of: Limits, known: Skips | None = None) -> Execution:
    return Execution(Recorder, of, SOURCES, skips=known)


def history(seed: int, count: int) -> list[t.Request]:
    """Requests with all that can happen to a command, and stamps of proposers whose clocks are far apart."""
    draw = random.Random(seed)
    reference = new(limits())
    sessions: dict[int, int] = {}
    found: list[t.Request] = []
    time_ms, numbers = 1_000_000, [0] * SOURCES
    for _ in range(count):
        time_ms += draw.choice((0, 0, 0, 1, 300))
        stamp = draw.choice((time_ms, time_ms, time_ms, time_ms - 2_000, time_ms + 5_000))
        commands = [_some_command(draw, sessions) for _ in range(draw.choice((0, 1, 1, 2, 5)))]
        source = draw.randrange(SOURCES)
        made = batch(numbers[source], commands, source, stamp)
        numbers[source] += 1
        if draw.random() < 0.1:
            made = draw.choice((t.NOOP, msgspec.structs.replace(made, body=b"broken")))
        found.append(made)
        run = reference.execute([made])
        for result in run.results:
            if result.session == 0 and result.status == t.OK:
                sessions.setdefault(msgspec.msgpack.decode(result.payload)[0], 0)
    return found


def _some_command(draw: random.Random, sessions: dict[int, int]) -> t.Command:
    if not sessions or draw.random() < 0.1:
        return open_session(nonce=draw.randrange(2**64), timeout_ms=draw.choice((1_000, 100_000)))
    session = draw.choice(sorted(sessions))
    number = max(sessions[session] + draw.choice((-1, 0, 0, 0, 0, 1, 1, 2, 9)), 0)
    if number <= sessions[session]:
        sessions[session] = number + 1
    acknowledged = max(number - 2, 0)
    kind = draw.choice((t.EXECUTE,) * 12 + (t.QUERY, t.KEEPALIVE, t.CLOSE))
    return t.Command(session, number, acknowledged, b"%d" % draw.randrange(100), kind)


def cut(requests: Sequence[t.Request], ends: Iterable[int], interval: int = 12) -> list[list[t.Request]]:
    """In runs with these ends; none goes across a checkpoint."""
    borders = sorted({0, len(requests), *ends, *range(0, len(requests), interval)})
    return [list(requests[begin:end]) for begin, end in pairwise(borders)]


def checkpoints(execution: Execution, runs: Iterable[list[t.Request]]) -> tuple[list[t.CheckpointId], list[Run]]:
    """What it comes by, and what comes of each run."""
    found, done = [execution.checkpoint], []
    for run in runs:
        done.append(execution.execute(run))
        if execution.checkpoint != found[-1]:
            found.append(execution.checkpoint)
    return found, done


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("seed", range(12))
def test_the_state_and_the_digests_do_not_depend_on_how_runs_are_cut(seed: int, partitions: int) -> None:
    requests = history(seed, 120)
    draw = random.Random(seed)
    outcomes = []
    for ends in (range(120), (), draw.sample(range(120), 15)):
        execution = new(limits(partitions))
        found, runs = checkpoints(execution, cut(requests, ends))
        rows = [row for run in runs for row in run.executed.command_of().items()]
        answers = [result for run in runs for result in run.results]
        clocks = [clock for run in runs for clock in zip(run.executed.times, run.executed.clocks, strict=True)]
        state = t.encode(execution.state())
        outcomes.append((found, execution.digest(), execution.progress, state, rows, answers, clocks))
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert [checkpoint.number for checkpoint in outcomes[0][0]] == list(range(11))


def test_that_the_time_of_a_proposer_is_behind_again_is_noticed_in_the_middle_of_a_run() -> None:
    """The clock of the sessions moves by what passes between stamps that follow each other, also backwards ones."""
    stamps = [1_000_000, 1_020_000, 1_000_000, 1_000_300]
    requests = [request(number, time=stamp) for number, stamp in enumerate(stamps)]
    at_once, one_by_one = new(limits()), new(limits())
    at_once.execute(requests)
    for each in requests:
        one_by_one.execute([each])
    assert at_once.sessions.clock_ms == one_by_one.sessions.clock_ms == 500 + 300


@pytest.mark.parametrize("what", ["body", "order"])
def test_other_requests_have_another_digest(what: str) -> None:
    session = [batch(0, [open_session()], time=1)]
    one = [t.Command(1, 0, 0, b"x"), t.Command(1, 1, 0, b"y")]
    other = one[::-1] if what == "order" else [t.Command(1, 0, 0, b"x"), t.Command(1, 1, 0, b"z")]
    digests = set()
    for commands in (one, other):
        execution = new(limits())
        rest = [batch(1, commands, time=1), *(request(number) for number in range(2, 12))]
        execution.execute(session + rest)
        digests.add(execution.checkpoint.digest)
    assert len(digests) == 2


def test_another_answer_to_the_same_requests_has_another_digest() -> None:
    class Other(Recorder):
        def apply(self, command: bytes, context: Context) -> bytes:
            return super().apply(command, context) + b"!"

    requests = [batch(0, [open_session(), t.Command(1, 0, 0, b"x")], time=1), *map(request, range(1, 12))]
    one, other = new(limits()), Execution(Other, limits(), SOURCES)
    for execution in (one, other):
        execution.execute(requests)
    assert one.checkpoint.digest != other.checkpoint.digest


@pytest.mark.parametrize("count", [0, 1, 15, 16, 70_000])
def test_results_are_digested_one_after_the_other_however_many_they_are(count: int) -> None:
    """The length of a list stands before it, in more or fewer bytes."""
    results = [t.Result(1, number, number, t.OK, b"") for number in range(count)]
    at_once, in_two = RunningDigest(b"last"), RunningDigest(b"last")
    at_once.add(b"bodies", results, [1, 2])
    in_two.add(b"bod", results[: count // 3], [1])
    in_two.add(b"ies", results[count // 3 :], [2])
    assert at_once.close() == in_two.close()


def test_a_digest_is_that_of_everything_since_the_beginning() -> None:
    one, other = RunningDigest(), RunningDigest()
    one.add(b"first", [], [])
    for digest in (one, other):
        digest.close()
        digest.add(b"second", [], [])
    assert one.close() != other.close()


def test_what_the_log_gets_is_counted() -> None:
    execution = new(limits())
    execution.execute([request(0, body=b"\x90"), t.NOOP, request(1, body=bytes(100))])
    assert execution.bytes == 101 + 3 * REQUEST_BYTES


@pytest.mark.parametrize("length", [0, 100, 10_000])
def test_the_measure_is_about_what_a_run_takes_in_the_log(length: int) -> None:
    """Also where what is answered is long, and what asks for it is short."""

    class Long(Recorder):
        def query(self, question: bytes, context: Context) -> bytes:
            return bytes(length)

    execution = Execution(Long, limits(), SOURCES)
    execution.execute([batch(0, [open_session()], time=1_700_000_000_000)])
    before = execution.bytes
    asked = [
        batch(number, [t.Command(1, number - 1, 0, b"?", t.QUERY)], time=1_700_000_000_000) for number in range(1, 12)
    ]
    executed = execution.execute(asked).executed
    counted, written = execution.bytes - before, len(encode_run(executed))
    assert written <= counted <= 1.5 * written


def test_what_the_log_has_got_since_the_last_checkpoint_is_known() -> None:
    execution = new(limits())
    execution.execute([t.NOOP] * 12)
    assert (execution.bytes, execution.bytes_since) == (12 * REQUEST_BYTES, 0)
    execution.execute([t.NOOP] * 2)
    assert execution.bytes_since == 2 * REQUEST_BYTES


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("seed", range(8))
def test_a_base_and_what_follows_lead_to_the_same_state(seed: int, partitions: int) -> None:
    requests, at = history(seed, 120), limits(partitions)
    original = new(at)
    bases: dict[int, tuple[ExecutionState, list[bytes]]] = {}
    runs = []
    for run in cut(requests, random.Random(seed).sample(range(120), 20)):
        runs.append(original.execute(run).executed)
        if original.next % 12 == 0:
            bases[original.next] = (original.state(), list(original.application.snapshot()))
    for next_, (state, chunks) in bases.items():
        again = new(at)
        again.application.restore(chunks)
        again.restore(msgspec.msgpack.decode(t.encode(state), type=ExecutionState))
        assert again.checkpoint.number == next_ // 12
        for executed in runs:
            if executed.first >= next_:
                assert again.replay(executed.first, executed.requests, executed.skipped).executed == executed
        assert (again.digest(), t.encode(again.state())) == (original.digest(), t.encode(original.state()))
        assert again.checkpoint == original.checkpoint


def test_what_was_executed_before_is_passed_over() -> None:
    requests = [batch(0, [open_session()], time=1), *map(request, range(1, 12))]
    execution = new(limits())
    execution.execute(requests[:5])
    assert execution.replay(0, requests[:3], []).executed.requests == []
    run = execution.replay(2, requests[2:], [])
    assert (run.executed.first, run.executed.requests) == (5, requests[5:])
    straight = new(limits())
    straight.execute(requests)
    assert execution.checkpoint == straight.checkpoint


def test_what_is_missing_is_not_passed_over() -> None:
    with pytest.raises(NodeHalted, match=r"requests \[0, 3\) are missing"):
        new(limits()).replay(3, [request(3)], [])


@pytest.mark.parametrize("kind", ["a command", "an opening", "a closing", "the end of a session"])
def test_what_was_skipped_is_skipped_again(kind: str) -> None:
    """Whoever executes the log again has not looked at the orders, which stand behind the command."""
    counter = {"an opening": 1, "a command": 2, "a closing": 2, "the end of a session": 2}[kind]
    commands = {"a command": [t.Command(1, 0, 0, b"x")], "a closing": [t.Command(1, 0, 0, b"", t.CLOSE)]}
    requests = [batch(0, [open_session(timeout_ms=1_000)], time=1_000)]
    requests += [batch(1, commands.get(kind, []), time=1_001)]
    requests += [batch(2 + number, [], time=1_300 + 300 * number) for number in range(6)]
    orders = [
        t.Command(0, number, 0, skips.encode(counter, step), t.SKIP, OPERATOR)
        for number, step in enumerate((t.ASK_SKIP, t.CONFIRM_SKIP))
    ]
    requests += [batch(8, orders, time=3_100), *(request(number, time=3_100) for number in range(9, 12))]
    known = Skips()
    known.look(orders)
    original, again = new(limits(), known), new(limits())
    executed = original.execute(requests).executed
    assert executed.skipped == [counter]
    run = again.replay(0, requests, executed.skipped)
    assert run.executed == executed
    assert again.digest() == original.digest()
    assert again.checkpoint == original.checkpoint


def test_what_was_skipped_is_skipped_again_whatever_is_found_about_it() -> None:
    """An order that came early counts for nothing; that must not undo what the log says."""
    early = t.Command(0, 0, 0, skips.encode(2, t.ASK_SKIP), t.SKIP, OPERATOR)
    known = Skips()
    known.look([early])
    execution = new(limits(), known)
    requests = [batch(0, [early, open_session()], time=1), batch(1, [t.Command(1, 0, 0, b"x")], time=1)]
    run = execution.replay(0, requests, [2])
    assert [result.status for result in run.results] == [t.REJECTED, t.OK, t.SKIPPED]
    known.look([early])
    assert known.confirmed == {2}


def test_commands_that_execute_as_they_come_are_not_named_once_more() -> None:
    execution = new(limits())
    executed = execution.execute([batch(0, [open_session()]), batch(1, [t.Command(1, 0, 0, b"x")])]).executed
    assert executed.commands is None
    assert [command.kind for command in executed.command_of().values()] == [t.OPEN, t.EXECUTE]


def test_a_command_that_waited_within_a_run_is_named_by_its_place() -> None:
    execution = new(limits())
    execution.execute([batch(0, [open_session()])])
    early, first = t.Command(1, 1, 0, b"second"), t.Command(1, 0, 0, b"first")
    executed = execution.execute([batch(1, [early]), batch(2, [first])]).executed
    assert executed.commands == [1, 0]
    assert executed.command_of() == {2: first, 3: early}


def test_a_command_that_waited_since_another_run_is_there_itself() -> None:
    """Also if the run before is in another interval: whoever reads this one need not read that."""
    execution = new(limits())
    early, first = t.Command(1, 1, 0, b"second"), t.Command(1, 0, 0, b"first")
    execution.execute([batch(0, [open_session(), early]), *map(request, range(1, 12))])
    executed = execution.execute([batch(12, [first])]).executed
    assert executed.commands == [0, early]
    assert executed.command_of() == {2: first, 3: early}


def test_a_command_that_came_twice_or_not_at_all_is_told_from_one_that_executed() -> None:
    execution = new(limits())
    command, strange = t.Command(1, 0, 0, b"x"), t.Command(9, 0, 0, b"x")
    executed = execution.execute([batch(0, [open_session(), strange]), batch(1, [command, command])]).executed
    assert executed.commands == [0, 2]
    assert [found.kind for found in executed.command_of().values()] == [t.OPEN, t.EXECUTE]


def test_the_end_of_a_sessions_time_is_there_itself() -> None:
    execution = new(limits())
    execution.execute([batch(0, [open_session(timeout_ms=1_000)], time=1_000)])
    executed = execution.execute([request(number, time=1_000 + 400 * number) for number in range(1, 4)]).executed
    assert executed.commands == [t.Command(1, 0, 0, b"", t.EXPIRE)]
    assert executed.counters == [1, 1, 2]


class Forgetful(Recorder):
    def apply(self, command: bytes, context: Context) -> bytes:
        answer = super().apply(command, context)
        if command == b"memory":
            raise MemoryError
        return answer


def test_whole_requests_are_logged_and_clients_are_told_what_stands_before_the_command() -> None:
    execution = Execution(Forgetful, limits(), SOURCES)
    execution.execute([batch(0, [open_session()])])
    commands = [t.Command(1, number, 0, payload) for number, payload in enumerate((b"a", b"b", b"memory", b"c"))]
    run = execution.execute([batch(1, commands[:1]), batch(2, commands[1:]), batch(3, [])])
    assert run.failure == "the application raised MemoryError"
    assert [result.number for result in run.results] == [0, 1]
    assert [event.payload for event in run.events] == [b"a", b"b"]
    executed = run.executed
    assert (executed.first, len(executed.requests), executed.counters) == (1, 1, [2])
    assert ([result.number for result in executed.results], executed.command_of()) == ([0], {2: commands[0]})
    assert (execution.next, execution.sessions.counter) == (2, 4)


def test_nothing_of_the_first_request_is_logged_if_that_one_fails() -> None:
    execution = Execution(Forgetful, limits(), SOURCES)
    execution.execute([batch(0, [open_session()])])
    run = execution.execute([batch(1, [t.Command(1, 0, 0, b"a"), t.Command(1, 1, 0, b"memory")])])
    executed = run.executed
    assert (executed.requests, executed.results, executed.counters, executed.command_of()) == ([], [], [], {})
    assert len(run.results) == 1


def test_the_digest_knows_nothing_of_a_request_that_failed() -> None:
    """Whoever has the memory executes it in another life, in the same interval."""
    payloads = [b"a", b"memory", b"b"]
    requests = [batch(0, [open_session()])]
    requests += [batch(1 + n, [t.Command(1, n, 0, payload)]) for n, payload in enumerate(payloads)]
    forgetful, whole = Execution(Forgetful, limits(), SOURCES), new(limits())
    done = len(forgetful.execute(requests).executed.requests)
    rest = [*requests[2:], *map(request, range(4, 12))]
    whole.execute(requests[:2])
    assert done == 2
    assert forgetful._digest.close() == whole._digest.close()
    whole.execute(rest)
    assert whole.checkpoint.number == 1


def test_a_key_value_store_comes_back_from_its_pieces() -> None:
    execution, again = (Execution(KeyValueStore, limits(), SOURCES) for _ in range(2))
    puts = [msgspec.msgpack.encode(Put(f"key-{number}", b"v")) for number in range(3)]
    commands = [t.Command(1, number, 0, payload) for number, payload in enumerate(puts)]
    execution.execute([batch(0, [open_session()]), batch(1, commands), *map(request, range(2, 12))])
    again.application.restore(list(execution.application.snapshot()))
    again.restore(execution.state())
    assert again.digest() == execution.digest()
