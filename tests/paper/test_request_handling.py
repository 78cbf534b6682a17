"""Section III-C (Request Handling): the consensus process, and the execution of commands."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tara.application import AppendRegister
from tara.protocol import tuples as t
from tara.protocol.backoff import BACKOFF_MAX
from tara.protocol.execution import REQUEST_BYTES
from tara.protocol.graph import Stage
from tara.protocol.nodes.committer import Committer
from tara.protocol.nodes.executor import Executor
from tara.protocol.nodes.proposer import Mode, Proposer
from tara.protocol.nodes.request_source import RequestSource
from tests.protocol.driver import (
    Bench,
    Driven,
    batch,
    commits,
    identity,
    open_session,
    request,
    requests,
    session_id,
)


def active_proposer(bench: Bench, view: int = 1) -> Driven[Proposer]:
    """The proposer of the view, after a view change in which nothing had been accepted before."""
    index = bench.graph.proposer_of(view)
    assert index is not None
    proposer = bench.make(Proposer, Stage.PROPOSER, index)
    records = [bench.record(committer, view) for committer in range(bench.limits.quorum)]
    proposer.feed(*bench.views(view), *records)
    assert proposer.node.mode is Mode.ACTIVE
    return proposer


def started_committer(bench: Bench, view: int = 1, replica: int = 0) -> Driven[Committer]:
    """A committer that has entered the view and has seen its start."""
    committer = bench.make(Committer, Stage.COMMITTER, replica)
    committer.feed(*bench.views(view), bench.start(view))
    return committer


def test_a_source_wraps_commands_in_requests_with_rising_numbers() -> None:
    """A command becomes a request with its source's identity and a monotonic number, and goes to the proposers. With
    us the identity includes the epoch, so that a restarted source may begin at 0 again (L6)."""
    bench = Bench()
    source = bench.make(RequestSource, Stage.REQUEST_SOURCE, 2, life=7)
    commands = [t.Command(1, number, 0, b"%d" % number) for number in range(3)]
    first = source.feed(t.Submit(commands[:2]))
    second = source.feed(t.Submit(commands[2:]))
    sent = [item for step in (first, second) for tuple_ in step.of(t.Requests) for item in tuple_.requests]
    assert [identity(item) for item in sent] == [(2, 7, 0), (2, 7, 1), (2, 7, 2)]
    assert [t.decode_commands(item.body) for item in sent] == [[command] for command in commands]
    assert set(first.receivers(t.Requests)) == {bench.graph.all(Stage.PROPOSER)}


def test_a_batch_is_one_request() -> None:
    """Not in the paper (the design): several commands may share a request, and thus a sequence number."""
    source = Bench(batch_size=3).make(RequestSource, Stage.REQUEST_SOURCE)
    commands = [t.Command(1, number, 0, b"") for number in range(4)]
    (tuple_,) = source.feed(t.Submit(commands)).of(t.Requests)
    assert [len(t.decode_commands(item.body)) for item in tuple_.requests] == [3, 1]


def test_a_batch_of_long_commands_has_fewer_of_them() -> None:
    """Not in the paper (the design): or a batch size would ask for frames that hold as many of the longest commands."""
    source = Bench(batch_size=10, run_bytes_max=1_000).make(RequestSource, Stage.REQUEST_SOURCE)
    commands = [t.Command(1, number, 0, bytes(400)) for number in range(10)]
    sent = source.feed(t.Submit(commands)).of(t.Requests)
    for turn in range(5):
        sent += source.tick(1.0 * turn).of(t.Requests)
    requests = [item for tuple_ in sent for item in tuple_.requests]
    assert [len(t.decode_commands(item.body)) for item in requests] == [3, 3, 3, 1]
    assert [command for item in requests for command in t.decode_commands(item.body)] == commands


def numbers_of(tuples: list[t.Requests]) -> list[int]:
    return [item.number for tuple_ in tuples for item in tuple_.requests]


def test_a_source_takes_a_bounded_number_of_commands() -> None:
    """Not in the paper (the design): undecided requests are bounded; beyond them commands wait, up to a bound."""
    bench = Bench(source_pending_max=3, source_backlog_max=4)
    source = bench.make(RequestSource, Stage.REQUEST_SOURCE)
    commands = [t.Command(1, number, 0, b"") for number in range(20)]
    assert source.node.capacity == 4
    assert numbers_of(source.feed(t.Submit(commands[:4])).of(t.Requests)) == [0, 1, 2]
    assert source.node.capacity == 3
    assert source.feed(t.Submit(commands[4:])).of(t.Requests) == []
    assert (source.node.pending, source.node.capacity) == (3, 0)
    decided = bench.status(0, progress=[[(1, 2), (0, 0), (0, 0)]])
    step = source.feed(*bench.stables(0, [0], executors=[decided]))
    assert numbers_of(step.of(t.Requests)) == [3, 4]


def test_a_source_sends_again_what_does_not_move() -> None:
    """III-B asks for retransmission, here to the proposers and to the other sources. What is decided, or of another
    epoch, is not sent again."""
    bench = Bench()
    source = bench.make(RequestSource, Stage.REQUEST_SOURCE, life=2)
    source.feed(t.Submit([t.Command(1, number, 0, b"") for number in range(3)]))
    progress = [[(2, 1), (0, 0), (0, 0)]]
    source.feed(*bench.stables(0, [0], executors=[bench.status(0, progress=progress)]))
    source.feed(*bench.stables(0, [0], executors=[bench.status(1, progress=[[(1, 99), (0, 0), (0, 0)]])]))
    again = [numbers_of(source.tick(100.0 * turn).of(t.Requests)) for turn in range(8)]
    assert [numbers for numbers in again if numbers][:2] == [[1, 2, 1, 2], [1, 2, 1, 2]]


def test_a_source_passes_on_what_other_sources_cannot_deliver() -> None:
    """Not in the paper (liveness): to the active proposer, in tuples of bounded length."""
    bench = Bench(run_bytes_max=1_000)
    source = bench.make(RequestSource, Stage.REQUEST_SOURCE)
    source.feed(*bench.views(1, [0, 1]))
    others = [t.Request(1, 1, number, 0, bytes(400)) for number in range(6)]
    sent = source.feed(t.Requests(others)).of(t.Requests)
    assert [item for tuple_ in sent for item in tuple_.requests] == others
    assert all(sum(len(item.body) for item in tuple_.requests) <= 1_400 for tuple_ in sent)


def test_a_source_whose_requests_do_not_move_sends_them_less_and_less_often() -> None:
    """Up to a limit; and with the next movement the pauses are short again."""
    bench = Bench()
    rounds = bench.limits.resend_rounds
    source = bench.make(RequestSource, Stage.REQUEST_SOURCE)
    source.feed(t.Submit([t.Command(1, number, 0, b"") for number in range(3)]))
    sent = [turn for turn in range(150) if source.tick(100.0 * turn).of(t.Requests)]
    pauses = [later - earlier for earlier, later in pairwise(sent)]
    assert pauses[:5] == [rounds * factor for factor in (2, 4, 8, 16, 16)]
    assert max(pauses) == BACKOFF_MAX * rounds
    source.feed(*bench.stables(0, [0], executors=[bench.status(0, progress=[[(1, 1), (0, 0), (0, 0)]])]))
    sent = [turn for turn in range(150, 170) if source.tick(100.0 * turn).of(t.Requests)]
    assert [later - earlier for earlier, later in pairwise([150, *sent])] == [rounds, 2 * rounds, 4 * rounds]


@pytest.mark.parametrize("view", [1, 2, 3, 4])
def test_the_view_decides_who_proposes(view: int) -> None:
    """Only one proposer is active: the one with index v mod (f+1)."""
    bench = Bench()
    modes = []
    for replica in range(bench.graph.replicas(Stage.PROPOSER)):
        proposer = bench.make(Proposer, Stage.PROPOSER, replica)
        proposer.feed(*bench.views(view), *(bench.record(committer, view) for committer in range(2)))
        modes.append(proposer.node.mode)
    expected = [Mode.ACTIVE if replica == view % 2 else Mode.IDLE for replica in range(2)]
    assert modes == expected


def test_view_0_has_no_proposer() -> None:
    """We deviate: in the paper the proposer of view 0 is active from the start, so one that restarts there would
    propose twice for one slot (S5). With us everybody starts idle, and the first view is 1."""
    bench = Bench()
    for replica in range(2):
        proposer = bench.make(Proposer, Stage.PROPOSER, replica)
        assert proposer.node.mode is Mode.IDLE
        assert proposer.feed(t.Requests(requests(0, 3))).emitted == []


def test_the_active_proposer_assigns_rising_sequence_numbers_and_tells_all_committers() -> None:
    """Each new request gets the next sequence number, in a proposal to all committers that names the view."""
    bench = Bench()
    proposer = active_proposer(bench)
    step = proposer.feed(t.Requests(requests(0, 2)), t.Requests(requests(0, 1, source=1)))
    proposals = step.of(t.Proposal)
    slots = [proposal.first + offset for proposal in proposals for offset in range(len(proposal.requests))]
    proposed = [identity(item) for proposal in proposals for item in proposal.requests]
    assert slots == [0, 1, 2]
    assert sorted(proposed) == [(0, 1, 0), (0, 1, 1), (1, 1, 0)]
    assert {(proposal.proposer, proposal.view) for proposal in proposals} == {(1, 1)}
    assert set(step.receivers(t.Proposal)) == {bench.graph.all(Stage.COMMITTER)}


def test_a_request_is_proposed_once_however_often_it_comes() -> None:
    """A source sends again what does not move; within a view that must not take a second sequence number."""
    proposer = active_proposer(Bench())
    proposer.feed(t.Requests(requests(0, 2)))
    assert proposer.feed(t.Requests(requests(0, 2))).of(t.Proposal) == []


def test_requests_of_a_source_are_proposed_in_the_order_of_their_numbers() -> None:
    """L7: one that comes early waits for the one before; nothing is skipped within an epoch."""
    proposer = active_proposer(Bench())
    assert proposer.feed(t.Requests([request(1)])).of(t.Proposal) == []
    proposal = proposer.feed(t.Requests([request(0)])).only(t.Proposal)
    assert [item.number for item in proposal.requests] == [0, 1]


@pytest.mark.parametrize("busy", [0, 1, 2])
def test_no_source_starves_behind_another(busy: int) -> None:
    """Not in the paper: where the window has no room for all, each source gets a fair share; what is left of the room
    goes to those that have more."""
    proposer = active_proposer(Bench(window=8))
    quiet = (busy + 1) % 3
    step = proposer.feed(t.Requests([*requests(0, 20, source=busy), *requests(0, 2, source=quiet)]))
    proposed = [item for proposal in step.of(t.Proposal) for item in proposal.requests]
    assert sorted(item.number for item in proposed if item.source == quiet) == [0, 1]
    assert [item.number for item in proposed if item.source == busy] == list(range(6))


def test_the_proposer_stamps_requests_with_its_time() -> None:
    """Not in the paper (the design, agreed time)."""
    proposer = active_proposer(Bench())
    proposer.tick(1234.5)
    proposal = proposer.feed(t.Requests([request(0)])).only(t.Proposal)
    assert [item.time for item in proposal.requests] == [1234]


def test_an_idle_proposer_is_silent_but_remembers() -> None:
    """Requests go to all proposers, so that the next one can take over (L7, L8)."""
    bench = Bench()
    proposer = bench.make(Proposer, Stage.PROPOSER, 0)
    assert proposer.feed(*bench.views(1), t.Requests(requests(0, 3))).of(t.Proposal) == []
    step = proposer.feed(*bench.views(2), bench.record(0, 2), bench.record(1, 2))
    assert [item.number for proposal in step.of(t.Proposal) for item in proposal.requests] == [0, 1, 2]


def test_a_committer_stores_a_proposal_of_its_view_and_attests_it_to_all_executors() -> None:
    """The commit repeats sequence number, view and request. With us, the vote is persisted in the same step, so it is
    on disk before the commit leaves."""
    bench = Bench()
    committer = started_committer(bench, replica=2)
    run = requests(0, 3)
    step = committer.feed(bench.proposal(1, 0, run))
    assert step.emitted == [(t.Commit(2, 0, 1, 0, run), bench.graph.commit_receivers(2, 0, 1))]
    assert step.written(t.Voted) == [t.Voted(1, 0, run)]
    assert committer.node.acceptor.commits.slice(0, 3) == run


@pytest.mark.parametrize("view", [1, 3])
def test_a_committer_accepts_nothing_from_another_view(view: int) -> None:
    """A committer in view 2 takes no proposal of a lower or of a higher view."""
    bench = Bench()
    committer = started_committer(bench, view=2)
    step = committer.feed(bench.proposal(view, 0, requests(0, 1)))
    assert (step.emitted, step.persisted) == ([], [])


def test_a_committer_votes_only_after_the_start_of_the_view() -> None:
    """We deviate (R3): being in the view is not enough; the proposer's start has to name this very committer."""
    bench = Bench()
    committer = bench.make(Committer, Stage.COMMITTER)
    committer.feed(*bench.views(1))
    assert committer.feed(bench.proposal(1, 0, requests(0, 1))).of(t.Commit) == []
    committer.feed(bench.start(1))
    assert len(committer.feed(bench.proposal(1, 0, requests(0, 1))).of(t.Commit)) == 1


def test_a_committer_takes_sequence_numbers_in_order_and_each_once() -> None:
    """Appendix, committer: only the next sequence number can be appended. Runs may overlap with what it has."""
    bench = Bench()
    committer = started_committer(bench)
    assert committer.feed(bench.proposal(1, 1, requests(1, 3))).of(t.Commit) == []
    committer.feed(bench.proposal(1, 0, requests(0, 2)))
    assert committer.feed(bench.proposal(1, 0, requests(0, 2))).of(t.Commit) == []
    commit = committer.feed(bench.proposal(1, 0, requests(0, 4))).only(t.Commit)
    assert (commit.first, commit.requests) == (2, requests(2, 4))


def appending_executor(bench: Bench, replica: int = 0) -> tuple[Driven[Executor], int]:
    """An executor that shows its order of execution, and the id of a session that slot 0 has opened."""
    executor = bench.make(Executor, Stage.EXECUTOR, replica, application=AppendRegister)
    step = executor.feed(*commits([batch(0, [open_session()])]))
    (result,) = step.only(t.Results).results
    return executor, session_id(result)


def log_of(executor: Driven[Executor]) -> list[bytes]:
    application = executor.node.application
    assert isinstance(application, AppendRegister)
    (chunk,) = application.snapshot()
    return msgspec.msgpack.decode(chunk, type=list[bytes])


def append(session: int, number: int) -> t.Command:
    return t.Command(session, number, 0, b"c%d" % number)


def test_f_plus_1_commits_of_different_committers_complete_the_consensus() -> None:
    """One committer is not enough, however often it says so; the second one is."""
    executor, session = appending_executor(Bench())
    run = [batch(1, [append(session, 0)])]
    executor.feed(*commits(run, first=1, committers=(0, 0)))
    assert log_of(executor) == []
    executor.feed(*commits(run, first=1, committers=(2,)))
    assert log_of(executor) == [b"c0"]


@pytest.mark.parametrize("f", [1, 2])
def test_exactly_f_plus_1_are_needed(f: int) -> None:
    executor = Bench(f).make(Executor, Stage.EXECUTOR)
    for committer in range(f):
        assert executor.feed(*commits([batch(0, [open_session()])], committers=[committer])).of(t.Results) == []
    step = executor.feed(*commits([batch(0, [open_session()])], committers=[f]))
    assert len(step.of(t.Results)) == 1


def test_commits_of_different_views_do_not_add_up() -> None:
    """We deviate: the paper's executor follows the view and counts only commits of its own. Ours has no view; it
    compares the commits with each other (the design: an executor is a learner)."""
    executor, session = appending_executor(Bench())
    run = [batch(1, [append(session, 0)])]
    executor.feed(*commits(run, first=1, view=1, committers=(0,)), *commits(run, first=1, view=2, committers=(1,)))
    assert log_of(executor) == []
    executor.feed(*commits(run, first=1, view=2, committers=(2,)))
    assert log_of(executor) == [b"c0"]


def test_different_requests_for_one_slot_and_view_halt_the_executor() -> None:
    """S9: the paper counts commits by their place only."""
    executor, _ = appending_executor(Bench())
    executor.feed(*commits([request(1)], first=1, committers=(0,)))
    step = executor.feed(*commits([request(2)], first=1, committers=(1,)))
    assert ["NodeHalted" in halted.reason for halted in step.of(t.Halted)] == [True, True], "its store and its clients"


@given(st.permutations([(committer, slot) for committer in (0, 1) for slot in range(1, 5)]), st.data())
def test_requests_execute_in_the_order_of_their_sequence_numbers(
    order: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Whatever the order in which commits arrive; those beyond a gap are sent again."""
    executor, session = appending_executor(Bench())
    seen = log_of(executor)
    for _ in range(4):
        for committer, slot in order:
            if slot >= executor.node.next:
                run = [batch(slot, [append(session, slot - 1)])]
                executor.feed(*commits(run, first=slot, committers=[committer]))
            assert log_of(executor)[: len(seen)] == seen
            seen = log_of(executor)
        order = data.draw(st.permutations(order))
    assert seen == [b"c0", b"c1", b"c2", b"c3"]


def test_a_gap_stops_the_execution() -> None:
    executor, session = appending_executor(Bench())
    executor.feed(*commits([batch(2, [append(session, 0)])], first=2))
    assert (executor.node.next, log_of(executor)) == (1, [])


def test_the_result_goes_to_the_reply_sink_of_the_site() -> None:
    """The executor sends the result to the client by way of the reply sinks; with us, the one on its own site."""
    bench = Bench()
    executor, session = appending_executor(bench, replica=2)
    step = executor.feed(*commits([batch(1, [append(session, 0)])], first=1))
    results = step.only(t.Results)
    assert [(result.session, result.number, result.payload) for result in results.results] == [(session, 0, b"\x01")]
    assert step.receivers(t.Results) == [bench.graph.one(Stage.REPLY_SINK, 2)]


def test_the_log_says_what_came_of_each_request() -> None:
    """Not in the paper: per request its results, and the agreed time after it."""
    executor, session = appending_executor(Bench(session_clock_step_ms_max=500))
    run = [
        batch(1, [append(session, 0), append(session, 1)], time=1_000),
        batch(2, [], time=900),
        batch(3, [append(session, 2)], time=1_200),
    ]
    executed = executor.feed(*commits(run, first=1)).only(t.Executed)
    assert (executed.first, executed.requests, executed.times) == (1, run, [1_000, 1_000, 1_200])
    numbers = [result.number for result in executed.results]
    assert [numbers[:end] for end in executed.ends] == [[0, 1], [0, 1], [0, 1, 2]]


def test_the_log_of_a_run_across_a_checkpoint_comes_in_two_parts() -> None:
    """Each with its own results only: the store may cut its log where a checkpoint is."""
    executor, session = appending_executor(Bench())
    run = [batch(slot, [append(session, slot - 1)], time=10 * slot) for slot in range(1, 6)]
    parts = executor.feed(*commits(run, first=1)).of(t.Executed)
    assert [(part.first, part.times) for part in parts] == [(1, [10, 20, 30]), (4, [40, 50])]
    assert [part.ends for part in parts] == [[1, 2, 3], [1, 2]]
    assert [[result.number for result in part.results] for part in parts] == [[0, 1, 2], [3, 4]]


def test_results_leave_in_tuples_that_fit_a_frame() -> None:
    bench = Bench(command_bytes_max=1_000, result_bytes_max=1_000, run_bytes_max=1_000, frame_bytes_max=8_000)
    executor = bench.make(Executor, Stage.EXECUTOR, application=AppendRegister)
    executor.feed(*commits([batch(0, [open_session()]), batch(1, [t.Command(1, 0, 0, bytes(900))])]))
    reads = [t.Command(1, number, 0, b"", t.QUERY) for number in range(1, 9)]
    step = executor.feed(*commits([batch(2, reads)], first=2))
    assert sum(len(tuple_.results) for tuple_ in step.of(t.Results)) == len(reads)
    assert max(len(t.encode(tuple_)) for tuple_ in step.of(t.Results)) <= bench.limits.frame_bytes_max // 2


def test_a_duplicate_does_not_execute_and_gets_the_cached_result() -> None:
    """The same command in two sequence numbers, by way of two sources, executes once; both times the same result."""
    executor, session = appending_executor(Bench())
    first = executor.feed(*commits([batch(1, [append(session, 0)])], first=1)).only(t.Results)
    again = executor.feed(*commits([batch(0, [append(session, 0)], source=1)], first=2)).only(t.Results)
    assert again.results == first.results
    assert log_of(executor) == [b"c0"]


def test_the_filter_works_inside_a_batch() -> None:
    """L16: a batch that repeats a command, or mixes old and new ones."""
    executor, session = appending_executor(Bench())
    commands = [append(session, 0), append(session, 0), append(session, 1)]
    executor.feed(*commits([batch(1, commands), batch(2, [append(session, 1), append(session, 2)])], first=1))
    assert log_of(executor) == [b"c0", b"c1", b"c2"]


def test_a_command_that_is_ordered_before_its_predecessor_waits() -> None:
    """We deviate (L16): the paper keeps the highest executed timestamp per client, so an overtaken command would
    never execute. Ours execute in number order."""
    executor, session = appending_executor(Bench())
    executor.feed(*commits([batch(1, [append(session, 1)]), batch(2, [append(session, 0)])], first=1))
    assert log_of(executor) == [b"c0", b"c1"]


def test_commands_of_different_sessions_are_not_confused() -> None:
    """Client and number together identify a command."""
    executor, session = appending_executor(Bench())
    step = executor.feed(*commits([batch(1, [open_session()])], first=1))
    other = session_id(step.only(t.Results).results[0])
    run = [batch(2, [t.Command(session, 0, 0, b"one"), t.Command(other, 0, 0, b"other")])]
    executor.feed(*commits(run, first=2))
    assert log_of(executor) == [b"one", b"other"]


def test_a_body_that_is_no_list_of_commands_is_skipped() -> None:
    """Every replica has the same bytes and skips them alike: nobody may crash of it (L18)."""
    executor, _ = appending_executor(Bench())
    executor.feed(*commits([request(1, body=b"\xff")], first=1))
    assert executor.node.next == 2


def test_executors_agree_on_results() -> None:
    """Executors that process the same sequence stay consistent: equal results, whoever the committers were."""
    answers = []
    for replica, committers in enumerate([(0, 1), (1, 2), (2, 0)]):
        executor, session = appending_executor(Bench(), replica)
        run = [batch(1, [append(session, 1)]), batch(2, [append(session, 0)], time=77)]
        answers.append(executor.feed(*commits(run, first=1, committers=committers)).only(t.Results).results)
    assert answers[0] == answers[1] == answers[2]
    assert [result.counter for result in answers[0]] == [2, 3]


def test_a_source_takes_a_command_once_while_it_is_undecided() -> None:
    """A client that loses patience sends again; numbering every copy would let an overload feed itself."""
    bench = Bench()
    source = bench.make(RequestSource, Stage.REQUEST_SOURCE, 0)
    command = t.Command(7, 0, 0, b"x")
    assert len(source.feed(t.Submit([command, command])).only(t.Requests).requests) == 1
    assert source.feed(t.Submit([command])).of(t.Requests) == []
    alive = t.Command(7, 0, 0, b"", t.KEEPALIVE)
    assert len(source.feed(t.Submit([alive])).only(t.Requests).requests) == 1, "it is another command"

    decided = bench.status(0, progress=[[(source.node.epoch, 2), (0, 0), (0, 0)]])
    source.feed(*bench.stables(0, [0], executors=[decided]))
    assert source.node.pending == 0
    assert len(source.feed(t.Submit([command])).only(t.Requests).requests) == 1, "its result may have been lost"


def test_a_source_lets_no_time_pass_while_nothing_is_decided() -> None:
    """A proposer that is up stamps what it is sent. If the committers stood still meanwhile, all the time of the stall
    would pass at once at its end, and sessions would expire whose clients could not have done anything about it."""
    bench = Bench(keepalive_interval_ms=500)
    source = bench.make(RequestSource, Stage.REQUEST_SOURCE, 0)

    def kept_alive(until_ms: int, decided: int) -> int:
        reach = bench.status(0, progress=[[(source.node.epoch, decided), (0, 0), (0, 0)]], sessions=1)
        source.feed(*bench.stables(0, [0], executors=[reach]))
        for now_ms in range(until_ms - 10_000, until_ms, 10):
            source.tick(now_ms)
        return source.node.next

    assert kept_alive(10_000, 0) == 1
    assert kept_alive(20_000, 0) == 1
    assert kept_alive(30_000, 1) == 2


def test_a_proposer_of_large_requests_skips_to_the_next_checkpoint() -> None:
    """Or windows, journals and records would have as many large requests as they have slots."""
    bench = Bench(checkpoint_interval=8, window=16, checkpoint_bytes_max=100)
    proposer = active_proposer(bench)
    large = [t.Request(0, 1, number, 0, bytes(60)) for number in range(3)]
    step = proposer.feed(t.Requests(large[:2]))
    assert [len(item.requests) for item in step.of(t.Proposal)] == [2]
    step = proposer.feed(t.Requests(large[2:]))
    skipped, following = step.of(t.Proposal)
    assert (skipped.first, skipped.requests) == (2, [t.NOOP] * 6)
    assert (following.first, [item.number for item in following.requests]) == (8, [2])


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_proposer_skips_to_the_next_checkpoint_when_what_is_answered_is_long(partitions: int) -> None:
    """Or a segment of the log would be as long as all results of an interval. Only executors know them."""
    bench = Bench(partitions=partitions, checkpoint_interval=8 * partitions, window=16, checkpoint_bytes_max=100)
    proposer = active_proposer(bench)
    short = [t.Request(0, 1, number, 0, bytes(10)) for number in range(4)]
    proposer.feed(t.Requests(short[:2]))

    def hear(round_: int, passed: int, bytes_: int) -> list[t.Proposal]:
        report = bench.status(round_ % 3, round_, passed=passed, bytes=bytes_)
        return proposer.feed(*bench.stables(0, executors=[report])).of(t.Proposal)

    long = 100 * partitions + REQUEST_BYTES * 8 * partitions
    assert hear(1, 0, long) == []
    (skipped,) = hear(2, 0, long + 1)
    assert (skipped.first, skipped.requests) == (2, [t.NOOP] * 6)
    # That was another interval than the one in which it goes on.
    assert hear(3, 0, 2 * long) == []
    (following,) = proposer.feed(t.Requests(short[2:])).of(t.Proposal)
    assert (following.first, len(following.requests)) == (8, 2)
    assert len(hear(4, 1, 2 * long)) == 1


def test_the_slots_that_a_proposer_skips_are_no_reason_to_skip_more() -> None:
    """Else signs of life alone would fill interval after interval where intervals are meant to be short."""
    bench = Bench(checkpoint_interval=128, window=256, checkpoint_bytes_max=200)
    proposer = active_proposer(bench)
    for number in range(8):
        proposer.feed(t.Requests([t.Request(0, 1, number, 0, bytes(11))]))
        report = bench.status(0, number + 1, passed=0, bytes=(number + 1) * (11 + REQUEST_BYTES))
        assert proposer.feed(*bench.stables(0, executors=[report])).of(t.Proposal) == []
