"""An operator has a command skipped: by all replicas, or by none."""

from collections.abc import Iterable

import pytest

from tara.protocol import skips
from tara.protocol import tuples as t
from tara.protocol.graph import Stage
from tara.protocol.nodes.executor import Executor
from tara.protocol.nodes.request_source import ORDERS_MAX, RequestSource
from tara.protocol.skips import ASKED, ENDED, Barred, Skips
from tests.protocol.driver import Bench, Driven, Step, batch, commits, loaded_nothing, open_session
from tests.protocol.test_halting import Fragile, Replica, answers_of, halts, results_of

ASK, CONFIRM, WITHDRAW = t.ASK_SKIP, t.CONFIRM_SKIP, t.WITHDRAW_SKIP
OPERATOR = b"o" + bytes(16)
STRANGER = b"s" + bytes(16)


def order(step: int, counter: int = 3, number: int = 1, principal: bytes = OPERATOR) -> t.Command:
    return t.Command(0, number, 0, skips.encode(counter, step), t.SKIP, principal)


def looked(*steps: int, barred: Iterable[int] = ()) -> Skips:
    known = Skips(barred)
    for number, step in enumerate(steps):
        known.look([order(step, number=number)])
    return known


@pytest.mark.parametrize(
    ("steps", "asked", "confirmed"),
    [
        ([ASK], True, False),
        ([ASK, CONFIRM], False, True),
        ([CONFIRM], False, False),
        ([ASK, WITHDRAW], False, False),
        ([ASK, WITHDRAW, CONFIRM], False, False),
        ([ASK, CONFIRM, WITHDRAW], False, True),
        ([ASK, WITHDRAW, ASK, CONFIRM], False, True),
        ([ASK, ASK, CONFIRM, ASK, WITHDRAW], False, True),
    ],
)
def test_the_first_of_confirmation_and_withdrawal_behind_the_question_counts(
    steps: list[int], asked: bool, confirmed: bool
) -> None:
    known = looked(*steps)
    assert (3 in known.asked, 3 in known.confirmed) == (asked, confirmed)
    assert (3 in known.known) == (asked or confirmed)


@pytest.mark.parametrize(
    "command",
    [
        order(ASK, principal=STRANGER),
        t.Command(0, 1, 0, skips.encode(3, ASK), t.EXECUTE, OPERATOR),
        t.Command(0, 1, 0, b"tara-skip", t.SKIP, OPERATOR),
        t.Command(0, 1, 0, t.encode(t.Skip(b"another", 3, ASK)), t.SKIP, OPERATOR),
    ],
)
def test_only_orders_of_operators_count(command: t.Command) -> None:
    known = Skips()
    known.look([command])
    assert known.known == set()


def test_why_a_command_is_barred() -> None:
    with pytest.raises(Barred, match=ENDED):
        looked(barred=[3]).is_skipped(3)
    with pytest.raises(Barred, match=ASKED):
        looked(ASK, barred=[3]).is_skipped(3)
    assert looked(ASK, CONFIRM, barred=[3]).is_skipped(3)


def test_an_order_that_stands_before_its_command_counts_for_nothing() -> None:
    """Others had executed it before they saw the command. What stands behind the command counts all the same."""
    known = looked(ASK, ASK, CONFIRM)
    known.came_early(order(ASK, number=0), t.Skip(skips.MARK, 3, ASK))
    assert known.confirmed == {3}
    known = looked(ASK, CONFIRM)
    known.came_early(order(ASK, number=0), t.Skip(skips.MARK, 3, ASK))
    assert known.known == set()
    known = looked(ASK, CONFIRM)
    known.came_early(order(ASK, number=99), t.Skip(skips.MARK, 3, ASK))
    assert known.confirmed == {3}


def halted(bench: Bench | None = None, replica: int = 0) -> Replica:
    """At command 3, behind which there are others."""
    found = Replica(bench or Bench(window=64, checkpoint_interval=32), replica)
    found.feed(found.commands(b"a"), found.commands(b"memory", b"cd"), found.commands(b"e"))
    assert found.node.halted is not None
    assert found.node.halted.counter == 3
    return found


def replay(replica: Replica, requests: list[t.Request], loaded: t.Loaded | None = None) -> Step:
    """The store and the committers give it what they have."""
    replica.driven.feed(loaded or loaded_nothing())
    return replica.driven.feed(*commits(requests, replica.node.next))


def log_of(replica: Replica) -> list[t.Request]:
    """The requests of `halted`, once more."""
    again = Replica(replica.bench, replica.node.index)
    again.number = 0
    first = [open_session(1)]
    return [
        batch(0, first, time=1_000_000),
        batch(1, again.commands(b"a"), time=1_000_000),
        batch(2, again.commands(b"memory", b"cd"), time=1_000_000),
        batch(3, again.commands(b"e"), time=1_000_000),
    ]


def test_a_question_alone_is_noted_and_changes_nothing() -> None:
    replica = halted()
    assert not replica.node.skip_asked
    replica.feed([order(ASK)])
    assert replica.node.skip_asked
    assert replica.node.halted is not None


def test_another_commands_question_is_not_its_own() -> None:
    replica = halted()
    replica.feed([order(ASK, counter=4)])
    assert not replica.node.skip_asked


def test_a_confirmed_skip_starts_over_and_passes_the_command_by() -> None:
    replica = halted()
    before = replica.application
    replica.feed([order(ASK)])
    step = replica.feed([order(CONFIRM, number=2)])
    assert step.of(t.Load) == [t.Load(0, 0, 0, (0,))]
    assert halts(step) == [(0, 0, "", Stage.STORE), (0, 0, "", Stage.REPLY_SINK)]
    assert replica.application is not before
    orders = [batch(4, [order(ASK)], time=1_000_000), batch(5, [order(CONFIRM, number=2)], time=1_000_000)]
    step = replay(replica, [*log_of(replica), *orders])
    found = [(result.number, result.counter, result.status) for result in results_of(step) if result.session]
    assert found == [(0, 2, t.OK), (1, 3, t.SKIPPED), (2, 4, t.OK), (3, 5, t.OK)]
    assert answers_of(step)[1:5] == [b"1", b"skipped by an operator", b"3", b"4"]
    # The orders themselves are answered when it is their turn.
    assert [(result.number, result.status) for result in results_of(step)[5:]] == [(1, t.OK), (2, t.OK)]
    assert replica.node.halted is None
    assert replica.application.value == 4


def test_without_the_question_a_confirmation_is_nothing() -> None:
    replica = halted()
    replica.feed([order(CONFIRM)])
    assert replica.node.halted is not None


def test_a_stranger_has_nothing_skipped() -> None:
    replica = halted()
    replica.feed([order(ASK, principal=STRANGER)], [order(CONFIRM, principal=STRANGER)])
    assert replica.node.halted is not None
    assert not replica.node.skip_asked


def test_a_withdrawal_has_the_command_executed_again() -> None:
    replica = halted()
    replica.feed([order(ASK)])
    step = replica.feed([order(WITHDRAW, number=2)])
    assert step.only(t.Unbarred).counter == 3
    assert step.of(t.Load) == [t.Load(0, 0, 0, (0,))]
    assert replica.node.halted is None
    step = replay(replica, log_of(replica))
    assert halts(step)[0] == (3, 0, "the application raised MemoryError", Stage.STORE)


def test_a_withdrawal_also_frees_a_command_that_has_ended_the_process() -> None:
    replica = Replica(Bench(window=64, checkpoint_interval=32), barred=frozenset([3]))
    replica.feed(replica.commands(b"a", b"bc"))
    assert replica.node.halted is not None
    assert replica.feed([order(WITHDRAW)]).only(t.Unbarred).counter == 3
    log = [batch(0, [open_session(1)], time=1_000_000)]
    replica.number = 0
    log.append(batch(1, replica.commands(b"a", b"bc"), time=1_000_000))
    assert answers_of(replay(replica, log))[1:] == [b"1", b"3"]


def test_orders_about_commands_that_were_executed_or_are_not_there_are_refused() -> None:
    replica = Replica(Bench(window=64, checkpoint_interval=32))
    step = replica.feed(replica.commands(b"a"), [order(ASK, counter=2), order(ASK, counter=9)])
    refused = [(result.status, result.payload) for result in results_of(step)[1:]]
    assert refused == [(t.REJECTED, b"command 2 has been executed"), (t.REJECTED, b"there is no command 9 yet")]
    (refusal,) = results_of(replica.feed([order(ASK, principal=STRANGER)]))
    assert refusal.status == t.FORBIDDEN


def test_what_was_skipped_is_part_of_the_state() -> None:
    known = Skips()
    known.look([order(ASK), order(CONFIRM, number=2)])
    bench = Bench(window=64, checkpoint_interval=4)
    replica = Replica(bench)
    replica.node.skips.look([order(ASK), order(CONFIRM, number=2)])
    base = replica.base(replica.commands(b"a", b"bc"), [], [])
    other = Replica(bench, 1)
    other.driven.feed(base)
    (result,) = results_of(other.feed([order(CONFIRM)]))
    assert result.status == t.OK


@pytest.mark.parametrize("barred", [2, 3])
def test_the_opening_and_the_end_of_a_session_can_be_skipped_too(barred: int) -> None:
    replica = Replica(Bench(window=64, checkpoint_interval=32))
    replica.node.skips.look([order(ASK, barred), order(CONFIRM, barred, number=2)])
    opening = open_session(7)
    step = replica.feed([opening], [t.Command(replica.session, 0, 0, b"", t.CLOSE)])
    statuses = [(result.counter, result.status) for result in results_of(step)]
    assert statuses == [(2, t.SKIPPED if barred == 2 else t.OK), (3, t.SKIPPED if barred == 3 else t.OK)]
    assert len(replica.node.sessions) == (0 if barred == 2 else 1)


def started(bench: Bench, *orders: t.Command) -> tuple[Driven[Executor], list[t.Request]]:
    """One that has lost what it knew, and the log, with orders at its end."""
    driven = bench.make(Executor, Stage.EXECUTOR, 0, genesis=False, life=2, application=Fragile)
    log = log_of(Replica(bench))
    log += [batch(len(log) + offset, [command], time=1_000_000) for offset, command in enumerate(orders)]
    driven.take()
    return driven, log


def indexes(bench: Bench, position: int, committers: Iterable[int] = (0, 1), life: int = 2) -> list[t.ReadIndex]:
    return [t.ReadIndex(c, 0, 1, bench.incarnations, 0, life, t.START_NONCE, position) for c in committers]


def test_it_asks_how_far_something_may_be_decided_and_executes_nothing_before_it_knows() -> None:
    bench = Bench(window=64, checkpoint_interval=32)
    driven, log = started(bench)
    step = driven.feed(loaded_nothing())
    assert step.only(t.StartIndexRequest) == t.StartIndexRequest(0, 2)
    source = bench.make(RequestSource, Stage.REQUEST_SOURCE)
    asked = source.feed(t.StartIndexRequest(0, 2))
    assert asked.only(t.IndexRequest) == t.IndexRequest(0, 2, t.START_NONCE, 0)
    assert asked.receivers(t.IndexRequest) == [bench.graph.everywhere(Stage.COMMITTER)]
    assert results_of(driven.feed(*commits(log[:2]))) == []
    # Again with every tick, until it is known.
    assert len(driven.tick(10_000).of(t.StartIndexRequest)) == 1
    assert results_of(driven.feed(*indexes(bench, 2, committers=[0]))) == []
    assert results_of(driven.feed(*indexes(bench, 2, committers=[1], life=1))) == []
    assert len(results_of(driven.feed(*indexes(bench, 2, committers=[1])))) == 2
    assert driven.node.ready
    assert driven.tick(20_000).of(t.StartIndexRequest) == []


def test_it_executes_nothing_before_it_has_looked_through_all_that() -> None:
    bench = Bench(window=64, checkpoint_interval=32)
    driven, log = started(bench, order(ASK), order(CONFIRM, number=2))
    driven.feed(loaded_nothing(), *indexes(bench, 6))
    assert results_of(driven.feed(*commits(log[:5]))) == []
    step = driven.feed(*commits(log[5:], 5))
    assert [result.status for result in results_of(step)][:5] == [t.OK, t.OK, t.SKIPPED, t.OK, t.OK]


def test_it_halts_at_a_command_that_is_to_be_skipped_and_is_not_yet() -> None:
    """It may have promised so in a life before, of which nothing is left."""
    bench = Bench(window=64, checkpoint_interval=32)
    driven, log = started(bench, order(ASK))
    driven.feed(loaded_nothing(), *indexes(bench, 5))
    step = driven.feed(*commits(log))
    assert halts(step)[0] == (3, 0, ASKED, Stage.STORE)
    assert driven.node.skip_asked


def test_the_very_first_start_looks_at_nothing() -> None:
    replica = Replica(Bench())
    assert replica.node.ready
    assert replica.driven.tick(10_000).of(t.StartIndexRequest) == []


@pytest.mark.parametrize("partitions", [2, 3])
def test_what_is_decided_is_looked_through_in_the_order_of_execution(partitions: int) -> None:
    bench = Bench(partitions=partitions, window=64, checkpoint_interval=12 * partitions)
    driven = bench.make(Executor, Stage.EXECUTOR, 0, application=Fragile)
    node = driven.node
    for learner in node._learners:
        learner.position = 2
        learner.decided.extend(
            batch(number, []) for number in range(learner._partition, learner._partition + 2 * partitions, partitions)
        )
    node._learners[-1].decided.pop()
    node._learners[-1].position = 1
    whole = [request.number for request in node._undone(0)]
    assert whole == list(range(2 * partitions - 1))
    assert [request.number for request in node._undone(1)] == whole[1:]
    assert node._undone(2 * partitions - 1) == []


def test_a_source_numbers_nothing_but_an_operators_orders_while_its_executor_has_halted() -> None:
    source = Bench(window=64, checkpoint_interval=32).make(RequestSource, Stage.REQUEST_SOURCE)
    source.feed(t.Halted(0, 3, 0, "no memory"))
    command = t.Command(1, 0, 0, b"x")
    assert source.feed(t.Submit([command])).of(t.Requests) == []
    (requests,) = source.feed(t.Submit([order(ASK)])).of(t.Requests)
    assert [t.decode_commands(request.body) for request in requests.requests] == [[order(ASK)]]
    # What waits is numbered when the executor goes on; or when it has said nothing for long.
    (requests,) = source.feed(t.Halted(0, 0, 0, ""), t.Submit([])).of(t.Requests)
    assert [t.decode_commands(request.body) for request in requests.requests] == [[command]]
    source.feed(t.Halted(0, 3, 0, "no memory"), t.Submit([t.Command(1, 1, 0, b"y")]))
    assert len(source.tick(100_000).of(t.Requests)) == 1


def test_an_order_goes_before_everything_that_waits() -> None:
    bench = Bench(window=64, checkpoint_interval=32, source_pending_max=1)
    source = bench.make(RequestSource, Stage.REQUEST_SOURCE)
    source.feed(t.Submit([t.Command(1, number, 0, b"x") for number in range(3)]))
    (requests,) = source.feed(t.Submit([order(ASK)])).of(t.Requests)
    assert t.decode_commands(requests.requests[0].body) == [order(ASK)]


def decided(source: Driven[RequestSource], bench: Bench, low: int) -> Step:
    """An executor reports that the source's requests below this number are decided."""
    return source.feed(*bench.stables(0, [0], executors=[bench.status(1, progress=[[(1, low), (0, 0), (0, 0)]])]))


def test_orders_that_are_not_decided_have_a_bound_of_their_own() -> None:
    """However much an operator orders while nothing is decided."""
    bench = Bench(window=64, checkpoint_interval=32, source_pending_max=2)
    source = bench.make(RequestSource, Stage.REQUEST_SOURCE)
    source.feed(t.Submit([t.Command(1, number, 0, b"x") for number in range(3)]))
    for counter in range(3 * ORDERS_MAX):
        source.feed(t.Submit([order(ASK, counter)]))
    assert source.node.pending == 2 + ORDERS_MAX
    late = order(ASK, 1_000)
    assert source.feed(t.Submit([late])).of(t.Refused) == [t.Refused([late])]
    decided(source, bench, 3)
    assert source.node.pending == 2 + ORDERS_MAX - 3
    assert source.feed(t.Submit([late])).of(t.Refused) == []
    decided(source, bench, source.node.next)
    assert (source.node.pending, source.node.backlog) == (1, 0)


def test_an_order_that_comes_again_is_taken_once() -> None:
    source = Bench(window=64, checkpoint_interval=32).make(RequestSource, Stage.REQUEST_SOURCE)
    for number in range(3):
        source.feed(t.Submit([order(ASK, number=number)]))
    source.feed(t.Submit([order(CONFIRM, number=3)]))
    assert source.node.pending == 2


def test_a_full_backlog_does_not_keep_an_order_out() -> None:
    """The executor has halted at a command that the operator wants skipped, and clients have filled the backlog."""
    bench = Bench(window=64, checkpoint_interval=32, source_backlog_max=2)
    source = bench.make(RequestSource, Stage.REQUEST_SOURCE)
    source.feed(t.Halted(0, 3, 0, "no memory"), t.Submit([t.Command(1, number, 0, b"x") for number in range(5)]))
    assert source.node.capacity == 0
    assert len(source.feed(t.Submit([order(ASK)])).of(t.Requests)) == 1


def test_what_looks_like_an_order_and_is_no_operators_waits_like_any_command() -> None:
    bench = Bench(window=64, checkpoint_interval=32, source_backlog_max=2)
    source = bench.make(RequestSource, Stage.REQUEST_SOURCE)
    source.feed(t.Halted(0, 3, 0, "no memory"))
    strange = [order(ASK, number=number, principal=STRANGER) for number in range(3)]
    step = source.feed(t.Submit(strange))
    assert (step.of(t.Refused), step.of(t.Requests)) == ([t.Refused(strange[2:])], [])


@pytest.mark.parametrize(("position", "stable", "numbered"), [(7, 0, 1), (8, 0, 0), (30, 0, 0), (11, 1, 1), (12, 1, 0)])
def test_where_nobody_executes_windows_do_not_fill(position: int, stable: int, numbered: int) -> None:
    """Executors learn what is decided, end in a command, and come back, twice, before they can say that they halt."""
    bench = Bench(window=64, checkpoint_interval=4)
    source = bench.make(RequestSource, Stage.REQUEST_SOURCE)
    source.feed(*bench.stables(stable, [0], executors=[bench.status(1, positions=[position])]))
    source.feed(*bench.stables(0, [1], executors=[bench.status(2, positions=[0])]))
    source.feed(t.Submit([t.Command(1, 0, 0, b"x")]))
    assert source.node.pending == numbered
    source.feed(t.Submit([order(ASK)]))
    assert source.node.pending == numbered + 1
    source.feed(*bench.stables(stable + 8, [0]))
    assert source.node.pending == 2


@pytest.mark.parametrize(
    ("positions", "halted", "silent", "wanted"),
    [((30, 3), False, 0, 1), ((30, 4), False, 0, 0), ((30, 3), True, 0, 0), ((30, 4), False, 2_000, 1)],
)
def test_what_is_held_back_where_nobody_executes_is_wanted_if_executors_lack_something(
    positions: tuple[int, int], halted: bool, silent: int, wanted: int
) -> None:
    """The proposer may be gone, and an executor lack what only the next view brings: somebody has to wait for
    something, or no controller suspects. Where f+1 have it that are alive, it is the store that takes its time. An
    executor that says that it has halted is another matter."""
    bench = Bench(window=64, checkpoint_interval=4)
    source = bench.make(RequestSource, Stage.REQUEST_SOURCE)
    reports = [bench.status(executor, positions=[position]) for executor, position in enumerate(positions)]
    source.feed(*bench.stables(0, [0], executors=reports))
    if halted:
        source.feed(t.Halted(0, 3, 0, "no memory"))
    source.feed(t.Submit([t.Command(1, number, 0, b"x") for number in range(3)]))
    told = source.tick(silent + bench.limits.report_interval_ms).of(t.Target)
    assert (source.node.pending, told[0].reach[1]) == (0, wanted)


def test_an_executor_that_looks_for_orders_lets_no_time_pass() -> None:
    """Nobody executes what would."""
    bench = Bench()
    executor = bench.make(Executor, Stage.EXECUTOR, 0)
    executor.feed(*commits([batch(0, [open_session()])]))
    assert [status.sessions for status in executor.tick(100).of(t.ExecutorStatus)] == [1]
    executor.node._must_look = True
    assert [status.sessions for status in executor.tick(200).of(t.ExecutorStatus)] == [0]
