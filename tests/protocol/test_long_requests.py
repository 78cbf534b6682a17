"""Requests that are long: what is held, sent again and waited for is bounded in bytes."""

import msgspec
import pytest

from tara.protocol import tuples as t
from tara.protocol.graph import Receivers, Stage
from tara.protocol.limits import Limits
from tara.protocol.nodes.committer import Committer
from tara.protocol.nodes.controller import CALM_TIMEOUTS, CALM_TIMES, Controller
from tara.protocol.nodes.request_source import LONG_BYTES, OVERTAKEN_MS, STANDSTILL_MS, TOLD_BYTES, RequestSource
from tara.protocol.resend import burst
from tests.protocol.driver import Bench, Driven, Step


def command(number: int, length: int, session: int = 1) -> t.Command:
    return t.Command(session, number, 0, bytes(length))


def numbered(step_requests: list[t.Requests]) -> int:
    return sum(len(run.requests) for run in step_requests)


def test_a_source_numbers_no_more_than_it_may_have_to_send_to_a_new_proposer() -> None:
    bench = Bench(source_pending_bytes_max=250)
    source = bench.make(RequestSource, Stage.REQUEST_SOURCE, life=1)
    step = source.feed(t.Submit([command(number, 100) for number in range(5)]))

    assert numbered(step.of(t.Requests)) == 3
    assert (source.node.pending, source.node.backlog, source.node.backlog_bytes) == (3, 2, 200)
    # One is decided: there is room for the next.
    decided = bench.status(0, progress=[[(1, 1), (0, 0), (0, 0)]])
    step = source.feed(*bench.stables(0, executors=[decided]))
    assert numbered(step.of(t.Requests)) == 1
    assert (source.node.pending, source.node.backlog, source.node.backlog_bytes) == (3, 1, 100)


def refused(source: Driven[RequestSource], commands: list[t.Command], bytes_max: int = 0) -> list[t.Command]:
    """What it has no room for."""
    step = source.feed(t.Submit(commands, bytes_max))
    return [command for refusal in step.of(t.Refused) for command in refusal.commands]


#: While the executor has halted, everything waits.
HALTED = t.Halted(0, 3, 0, "no memory")


def test_a_source_gives_back_what_it_has_no_room_for() -> None:
    source = Bench().make(RequestSource, Stage.REQUEST_SOURCE)
    source.feed(HALTED)
    commands = [command(number, 100) for number in range(4)]
    keepalive = t.Command(2, 0, 0, b"", t.KEEPALIVE)

    # The bound is passed by the second one. What has no bytes always fits, and what it has already is no refusal.
    assert refused(source, [*commands, keepalive], bytes_max=150) == commands[2:]
    assert refused(source, commands, bytes_max=150) == commands[2:]
    assert refused(source, [*commands[2:], commands[0]]) == []
    assert (source.node.backlog, source.node.backlog_bytes) == (5, 400)


def test_a_source_that_is_full_by_number_gives_back_the_rest() -> None:
    source = Bench(source_backlog_max=3).make(RequestSource, Stage.REQUEST_SOURCE)
    source.feed(HALTED)
    commands = [command(number, 0) for number in range(5)]
    assert refused(source, commands) == commands[3:]


@pytest.mark.parametrize(
    ("count", "length", "expected"), [(10, 10, 8), (3, 10, 3), (10, 400, 2), (10, 5_000, 1), (0, 0, 0)]
)
def test_a_burst_is_bounded_in_requests_and_bytes_and_never_empty(count: int, length: int, expected: int) -> None:
    limits = Limits(resend_burst=8, resend_bytes_max=1_000)
    requests = [t.Request(0, 1, number, 0, bytes(length)) for number in range(count)]
    assert burst(iter(requests), limits) == requests[:expected]


@pytest.mark.parametrize(("length", "pause"), [(10, 2), (300, 4), (100_000, 2 * 5)])
def test_a_long_record_is_given_more_time_before_it_is_sent_again(length: int, pause: int) -> None:
    """In reports: twice as long for twice `resend_bytes_max`, but all sinks have a turn within the longest pause."""
    bench = Bench(resend_bytes_max=1_000)
    committer = bench.make(Committer, Stage.COMMITTER)
    committer.feed(*bench.views(1), bench.start(1))
    committer.feed(bench.proposal(1, 0, [t.Request(0, 1, number, 0, bytes(length)) for number in range(4)]))
    committer.feed(*bench.views(2))

    rounds = [
        round_ for round_ in range(1, 40) if committer.tick(round_ * bench.limits.report_interval_ms).of(t.Record)
    ]
    assert rounds[0] == pause
    assert rounds[1] == 2 * pause


class LongRecord:
    """A committer in view 2 whose record is longer than what may wait for a link: eight slots, three at a time. Sent at
    once, its end would be dropped each time, and no view would ever start."""

    def __init__(self) -> None:
        self.bench = Bench(command_bytes_max=100, run_bytes_max=150, frame_bytes_max=1_000, link_bytes_max=1_000)
        self.committer = self.bench.make(Committer, Stage.COMMITTER)
        self.committer.feed(*self.bench.views(1), self.bench.start(1))
        requests = [t.Request(0, 1, number, 0, bytes(100)) for number in range(8)]
        self.committer.feed(self.bench.proposal(1, 0, requests))
        self.now_ms = 0.0
        self.ways: list[Receivers] = []
        self.entering = self.sent(self.committer.feed(*self.bench.views(2)))

    def sent(self, step: Step) -> list[int]:
        """The slots of the record that it sends."""
        self.ways += step.receivers(t.Record)
        return [slot for part in step.of(t.Record) for slot in range(part.first, part.first + len(part.slots))]

    def has_come(self, missing: int) -> list[int]:
        """The proposer says so; what is sent then."""
        return self.sent(self.committer.feed(t.Collecting(0, 0, 2, [(0, missing)])))

    def has_not_come(self) -> list[int]:
        return self.sent(self.committer.feed(t.Collecting(0, 0, 2, [])))

    def wait(self, rounds: int) -> list[int]:
        """The first slots that it sends again within so many reports."""
        for _ in range(rounds):
            self.now_ms += self.bench.limits.report_interval_ms
            if sent := self.sent(self.committer.tick(self.now_ms)):
                return sent
        return []


def test_a_long_record_goes_portion_by_portion_as_fast_as_it_comes() -> None:
    record = LongRecord()
    assert record.entering == [0, 1, 2]
    assert record.has_come(2) == []
    assert record.has_come(3) == [3, 4, 5]
    assert record.has_come(3) == [], "it is on its way"
    assert record.has_come(6) == [6, 7]
    assert record.has_come(8) == []
    assert record.wait(200) == []
    assert len(set(record.ways)) == 1, "a record takes one way"


def test_a_record_of_which_nothing_comes_goes_another_way() -> None:
    record = LongRecord()
    assert record.wait(40) == [0, 1, 2]
    assert record.wait(40) == [0, 1, 2]
    assert len(set(record.ways)) == 3


def test_what_is_lost_of_a_record_is_sent_again_from_there_on() -> None:
    record = LongRecord()
    record.has_come(2)
    assert record.wait(40) == [2, 3, 4]
    assert record.has_come(5) == [5, 6, 7]


def test_what_is_still_coming_of_a_record_is_not_sent_again() -> None:
    record = LongRecord()
    for missing in (1, 2):
        assert record.wait(record.bench.limits.resend_rounds - 1) == []
        assert record.has_come(missing) == []
    assert record.wait(record.bench.limits.resend_rounds - 1) == []
    assert record.wait(40) == [2, 3, 4]


def test_a_proposer_that_has_lost_the_record_is_sent_it_anew() -> None:
    record = LongRecord()
    record.has_come(3)
    record.has_come(6)
    record.has_come(8)
    assert record.has_not_come() == []
    assert record.wait(40) == [0, 1, 2]


def test_a_record_that_has_come_in_another_view_is_not_meant() -> None:
    record = LongRecord()
    assert record.sent(record.committer.feed(t.Collecting(0, 0, 1, [(0, 3)]))) == []


class Watched:
    """A controller that watches one source, whose requests are decided one after the other."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.controller: Driven[Controller] = self.bench.make(Controller, Stage.CONTROLLER)
        self.view = 0
        self.now_ms = 0.0
        self.decided = 0
        self._enter()

    def _enter(self) -> None:
        self.view += 1
        self.controller.feed(*self.bench.views(self.view))

    def go_on(self, duration_ms: float, stall_ms: float, waiting: bool = True) -> int:
        """One request is decided every `stall_ms`, or all are and no more come; says how many views it asked for."""
        before, end_ms, due_ms = self.view, self.now_ms + duration_ms, self.now_ms + stall_ms
        self.decided += not waiting
        while self.now_ms < end_ms:
            self.now_ms += 10.0
            if self.now_ms >= due_ms:
                due_ms, self.decided = self.now_ms + stall_ms, self.decided + 1
            reach = (1, self.decided)
            reports = [self.bench.progress(executor, {0: reach}, self.decided) for executor in range(3)]
            wanted = self.decided + waiting
            targets = [t.Target(source, 0, (1, wanted if source == 0 else 0), 0) for source in range(3)]
            self.controller.feed(*targets, *reports)
            if self.controller.tick(self.now_ms).of(t.Vote):
                self._enter()
        return self.view - before


@pytest.mark.parametrize("stall_ms", [300.0, 600.0, 1200.0, 3000.0])
def test_where_everything_takes_long_views_stop_changing(stall_ms: float) -> None:
    watched = Watched()
    watched.go_on(30_000.0, stall_ms)
    assert watched.go_on(30_000.0, stall_ms) == 0


def test_where_it_stalls_now_and_then_views_stop_changing() -> None:
    """As where a disk is busy with a checkpoint every few seconds."""
    watched = Watched()
    changes = []
    for _ in range(6):
        watched.go_on(3_000.0, 20.0)
        changes.append(watched.go_on(1_000.0, 1_000.0))
    assert changes[-3:] == [0, 0, 0]


def test_the_time_out_falls_back_when_less_would_do() -> None:
    watched = Watched()
    shortest = watched.bench.limits.controller_timeout_ms
    watched.go_on(20_000.0, 3_000.0)
    longest = watched.controller.node.timeout_ms
    assert longest >= 8 * shortest
    watched.go_on(2 * CALM_TIMES * longest + 2 * CALM_TIMEOUTS * shortest, 20.0)
    assert watched.controller.node.timeout_ms == shortest


def test_the_time_out_falls_back_when_nothing_waits() -> None:
    watched = Watched()
    shortest = watched.bench.limits.controller_timeout_ms
    watched.go_on(20_000.0, 3_000.0)
    longest = watched.controller.node.timeout_ms
    watched.go_on(2 * CALM_TIMES * longest + 2 * CALM_TIMEOUTS * shortest, 1e9, waiting=False)
    assert watched.controller.node.timeout_ms == shortest


def test_signs_of_life_do_not_wait_behind_long_commands() -> None:
    bench = Bench(source_pending_bytes_max=100, source_pending_max=4)
    source = bench.make(RequestSource, Stage.REQUEST_SOURCE, life=1)
    alive = [t.Command(session, 0, 0, b"", t.KEEPALIVE) for session in (2, 3)]
    source.feed(t.Submit([command(number, 100) for number in range(5)]))
    assert (source.node.pending, source.node.backlog) == (1, 4)

    step = source.feed(t.Submit([*alive, *alive]))

    (request,) = step.only(t.Requests).requests
    assert t.decode_commands(request.body) == alive
    assert (source.node.pending, source.node.backlog) == (2, 4)
    # They are requests like others, of which there may be only so many.
    for session in (4, 5, 6):
        source.feed(t.Submit([t.Command(session, 0, 0, b"", t.KEEPALIVE)]))
    assert (source.node.pending, source.node.backlog) == (4, 5)


def test_a_source_tells_which_commands_wait_until_its_own_site_has_them_and_while_something_moves() -> None:
    bench = Bench(source_pending_bytes_max=LONG_BYTES)
    source = bench.make(RequestSource, Stage.REQUEST_SOURCE, life=1)
    source.tick(1_000.0)
    source.feed(t.Submit([command(0, LONG_BYTES), command(1, 10), command(2, LONG_BYTES)]))

    def waiting(now_ms: float) -> list[int]:
        commands = [command for told in source.tick(now_ms).of(t.Waiting) for command in told.commands]
        assert not any(command.payload for command in commands)
        return sorted(command.number for command in commands)

    assert waiting(1_200.0) == [], "not at once"
    # Also the short one, which waits behind what is long.
    assert waiting(1_400.0) == [0, 1, 2]
    assert waiting(1_500.0) == [], "not that often"
    # Another executor has decided the first one; the one that answers here has not.
    source.feed(*bench.stables(0, executors=[bench.status(1, progress=[[(1, 1), (0, 0), (0, 0)]])]))
    assert waiting(1_800.0) == [0], "the others have just become requests"
    assert waiting(2_000.0) == [0, 1, 2]
    source.feed(*bench.stables(0, executors=[bench.status(0, progress=[[(1, 1), (0, 0), (0, 0)]])]))
    assert waiting(2_200.0) == [1, 2]
    assert waiting(1_499.0 + STANDSTILL_MS) == [1, 2]
    assert waiting(1_900.0 + STANDSTILL_MS) == []


def test_clients_wait_while_requests_of_others_are_decided_but_not_for_ever() -> None:
    """Over slow links one of another source may take seconds; that this one's do not move is no reason to send them
    again."""
    bench = Bench()
    source = bench.make(RequestSource, Stage.REQUEST_SOURCE, life=1)
    source.tick(1_000.0)
    source.feed(t.Submit([command(0, LONG_BYTES)]))
    source.tick(1_200.0)
    told = []
    for slots, now_ms in enumerate(range(2_000, 2_000 + 2 * int(OVERTAKEN_MS), 2_000), 1):
        source.feed(*bench.stables(0, executors=[bench.status(1, positions=[slots])]))
        if source.tick(now_ms).of(t.Waiting):
            told.append(now_ms)
    assert told[-1] > 1_000.0 + STANDSTILL_MS
    assert told == list(range(2_000, int(1_000.0 + OVERTAKEN_MS), 2_000))


def test_who_waits_for_little_is_not_told() -> None:
    """To send it again costs no more."""
    source = Bench().make(RequestSource, Stage.REQUEST_SOURCE, life=1)
    source.feed(t.Submit([command(number, TOLD_BYTES - 100) for number in range(200)]))
    assert 200 * (TOLD_BYTES - 100) > LONG_BYTES
    assert not [told for now_ms in range(200, 2_000, 200) for told in source.tick(now_ms).of(t.Waiting)]


def test_what_the_replicas_did_not_keep_is_ordered_again() -> None:
    """That the first copy is decided, the source hears with the next reports; its client has heard, and repeats it."""
    source = Bench().make(RequestSource, Stage.REQUEST_SOURCE)
    command = t.Command(7, 3, 0, b"payload", t.EXECUTE, b"owner")
    assert len(source.feed(t.Submit([command])).emitted) == 1
    again = msgspec.structs.replace(command, acknowledged=3)
    assert source.feed(t.Submit([again])).emitted == []

    source.feed(t.Unkept(7, 3, b"owner"))

    assert len(source.feed(t.Submit([again])).emitted) == 1
