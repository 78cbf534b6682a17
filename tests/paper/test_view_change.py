"""Section III-E (View Change): triggering it, publishing the view, and entering it. What the paper does not have: the
restarts of nodes (S5, S6 and §1 of `docs/protocol.md`)."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec
import pytest

from tara.protocol import tuples as t
from tara.protocol.backoff import BACKOFF_MAX
from tara.protocol.graph import Stage
from tara.protocol.nodes.committer import Committer
from tara.protocol.nodes.controller import CALM_TIMEOUTS, OVERTAKEN_TIMES, Controller
from tara.protocol.nodes.executor import Executor
from tara.protocol.nodes.proposer import Mode, Proposer
from tara.protocol.nodes.request_source import RequestSource
from tara.protocol.nodes.sink import RecordSource
from tara.protocol.nodes.view_source import ViewSource
from tests.paper.test_request_handling import active_proposer, started_committer
from tests.protocol.driver import Bench, Driven, commits, identity, request, requests

TIMEOUT_MS = 250.0


@pytest.fixture
def bench() -> Bench:
    return Bench(controller_timeout_ms=TIMEOUT_MS, controller_timeout_ms_max=4 * TIMEOUT_MS)


def target(number: int, source: int = 0, epoch: int = 1) -> t.Target:
    return t.Target(source, 0, (epoch, number), 0)


def watching_controller(bench: Bench, view: int = 1) -> Driven[Controller]:
    controller = bench.make(Controller, Stage.CONTROLLER)
    controller.feed(*bench.views(view))
    return controller


def first_vote_ms(
    controller: Driven[Controller], until_ms: float, reports: Sequence[t.Progress] = (), step_ms: float = 10.0
) -> float | None:
    """When the controller asks for a new view, if it does, while executors go on reporting."""
    now_ms = controller.node.now_ms
    while now_ms < until_ms:
        controller.feed(*reports)
        now_ms += step_ms
        if controller.tick(now_ms).of(t.Vote):
            return now_ms
    return None


def test_sources_report_periodically_how_many_requests_there_are(bench: Bench) -> None:
    """Each source tells all controllers the number it has reached, again and again."""
    source = bench.make(RequestSource, Stage.REQUEST_SOURCE, 2, life=4)
    source.feed(t.Submit([t.Command(1, number, 0, b"") for number in range(3)]))
    for now_ms in (0, 100, 200):
        step = source.tick(now_ms)
        assert step.of(t.Target) == [t.Target(2, 0, (4, 3), 0)]
        assert step.receivers(t.Target) == [bench.graph.all(Stage.CONTROLLER)]


def test_executors_report_periodically_what_is_decided(bench: Bench) -> None:
    """Per source. (The paper takes the highest number; ours is the number below which nothing is missing.)"""
    executor = bench.make(Executor, Stage.EXECUTOR, 1)
    executor.feed(*commits([request(0), request(1), request(0, source=2), request(5)]))
    for now_ms in (0, 100):
        step = executor.tick(now_ms)
        progress = step.only(t.Progress)
        assert (progress.executor, progress.progress) == (1, [(1, 2), (0, 0), (1, 1)])
        assert step.receivers(t.Progress) == [bench.graph.all(Stage.CONTROLLER)]


def test_outstanding_requests_without_progress_trigger_a_view_change(bench: Bench) -> None:
    """After the time-out, and not before, the controller announces the next view to all view sinks."""
    controller = watching_controller(bench, view=4)
    controller.feed(target(3))
    assert controller.tick(TIMEOUT_MS - 1).of(t.Vote) == []
    step = controller.tick(TIMEOUT_MS)
    assert step.of(t.Vote) == [t.Vote(0, 0, 1, 1, 5)]
    assert step.receivers(t.Vote) == [bench.graph.all(Stage.VIEW_SINK)]


def test_nothing_outstanding_triggers_nothing(bench: Bench) -> None:
    controller = watching_controller(bench)
    controller.feed(target(3), *(bench.progress(executor, {0: (1, 3)}, position=3) for executor in range(2)))
    assert first_vote_ms(controller, 10_000) is None


def test_f_executors_are_no_progress_and_f_plus_1_are(bench: Bench) -> None:
    """Progress has to be reported by at least f+1 executors."""
    controller = watching_controller(bench)
    controller.feed(target(3), bench.progress(0, {0: (1, 3)}), bench.progress(1), bench.progress(2))
    assert first_vote_ms(controller, 1_000) == TIMEOUT_MS
    controller = watching_controller(bench)
    controller.feed(target(3), bench.progress(0, {0: (1, 3)}), bench.progress(1), bench.progress(2, {0: (1, 4)}))
    assert first_vote_ms(controller, 1_000) is None


def test_each_source_counts_by_itself(bench: Bench) -> None:
    """The corresponding source: progress for one does not hide that another is stuck. But it shows that the proposer
    is alive: with long requests, one source may well be overtaken for a while."""
    controller = watching_controller(bench)
    controller.feed(*(bench.progress(executor) for executor in range(2)))
    controller.feed(target(3, source=0), target(100, source=1))
    end_ms = OVERTAKEN_TIMES * TIMEOUT_MS
    for turn in range(1, int(end_ms / 50)):
        assert controller.tick(50.0 * turn).of(t.Vote) == []
        controller.feed(*(bench.progress(executor, {1: (1, turn)}) for executor in range(2)))
    assert first_vote_ms(controller, 2 * end_ms) == end_ms


def test_a_source_that_was_overtaken_is_stuck_when_the_others_are_too(bench: Bench) -> None:
    controller = watching_controller(bench)
    controller.feed(*(bench.progress(executor) for executor in range(2)))
    controller.feed(target(3, source=0), target(4, source=1))
    for turn in range(1, 5):
        controller.tick(50.0 * turn)
        controller.feed(*(bench.progress(executor, {1: (1, turn)}) for executor in range(2)))
    assert first_vote_ms(controller, 1_000) == 200 + TIMEOUT_MS


def test_progress_restarts_the_clock(bench: Bench) -> None:
    controller = watching_controller(bench)
    controller.feed(target(3))
    controller.tick(200)
    controller.feed(*(bench.progress(executor, {0: (1, 1)}) for executor in range(2)))
    assert first_vote_ms(controller, 1_000) == 200 + TIMEOUT_MS


def test_new_requests_do_not_put_the_deadline_off(bench: Bench) -> None:
    """We deviate (L3): in the paper each new request restarts the clock, and so hides a dead proposer."""
    controller = watching_controller(bench)
    votes = []
    for turn in range(1, 31):
        controller.feed(target(turn))
        votes += [10.0 * turn for _ in controller.tick(10.0 * turn).of(t.Vote)]
    assert votes[0] == TIMEOUT_MS


def test_progress_never_counts_backwards(bench: Bench) -> None:
    """L5: an executor that starts again reports less; that makes nothing outstanding again."""
    controller = watching_controller(bench)
    controller.feed(target(3), *(bench.progress(executor, {0: (1, 3)}) for executor in range(2)))
    controller.feed(*(bench.progress(executor, {0: (1, 1)}) for executor in range(3)))
    assert first_vote_ms(controller, 10_000) is None


def test_a_new_epoch_of_a_source_counts_from_0(bench: Bench) -> None:
    """L6: a restarted source's requests are new ones, whatever the old ones had reached."""
    controller = watching_controller(bench)
    controller.feed(target(9, epoch=1), *(bench.progress(executor, {0: (1, 9)}) for executor in range(2)))
    controller.feed(target(1, epoch=2))
    assert first_vote_ms(controller, 1_000) == TIMEOUT_MS


def test_fruitless_views_double_the_time_out_up_to_its_maximum(bench: Bench) -> None:
    """Appendix, controller: the time-out doubles with each view change. Ours has a maximum (L3)."""
    controller = watching_controller(bench)
    controller.feed(target(3))
    waits = []
    for view in range(2, 7):
        before = controller.node.now_ms
        voted = first_vote_ms(controller, before + 10_000)
        assert voted is not None
        waits.append(voted - before)
        controller.feed(*bench.views(view), target(3))
    assert waits == [TIMEOUT_MS, 2 * TIMEOUT_MS, 4 * TIMEOUT_MS, 4 * TIMEOUT_MS, 4 * TIMEOUT_MS]


def test_progress_brings_the_time_out_back(bench: Bench) -> None:
    """Appendix, controller: with progress the time-out is the configured one again. (Ours is when half of the longer
    one would have been enough for a while: one request that is decided may be followed by as long a stall.)"""
    controller = watching_controller(bench)
    controller.feed(target(3))
    first_vote_ms(controller, 1_000)
    controller.feed(*bench.views(2), target(1_000))
    controller.feed(*(bench.progress(executor, {0: (1, 1)}) for executor in range(2)))
    assert controller.node.timeout_ms == 2 * TIMEOUT_MS
    now_ms = controller.node.now_ms
    for decided in range(2, 2 + CALM_TIMEOUTS * 4):
        now_ms += TIMEOUT_MS / 4
        controller.tick(now_ms)
        controller.feed(*(bench.progress(executor, {0: (1, decided)}) for executor in range(2)))
    assert controller.node.timeout_ms == TIMEOUT_MS
    assert first_vote_ms(controller, now_ms + 1_000) == now_ms + TIMEOUT_MS


def test_reports_without_progress_do_not_reset_the_time_out(bench: Bench) -> None:
    """After a view change, executors may report before the sources do: that is not progress."""
    controller = watching_controller(bench)
    controller.feed(target(3))
    assert first_vote_ms(controller, 1_000) == TIMEOUT_MS
    controller.feed(*bench.views(2))
    controller.feed(*(bench.progress(executor) for executor in range(3)), target(3))
    assert first_vote_ms(controller, 2_000) == TIMEOUT_MS + 2 * TIMEOUT_MS


def test_a_view_change_forgets_the_targets(bench: Bench) -> None:
    """Appendix, controller: sources that live report again. A dead one's requests, which nobody else may have, must not
    cause one view change after another."""
    controller = watching_controller(bench)
    controller.feed(target(3))
    assert first_vote_ms(controller, 1_000) == TIMEOUT_MS
    controller.feed(*bench.views(2))
    assert first_vote_ms(controller, 20_000) is None


def test_a_controller_repeats_its_vote_until_the_view_comes(bench: Bench) -> None:
    """We deviate (L4): the paper's controller says it once and is then idle, for ever if the tuple is lost."""
    controller = watching_controller(bench)
    controller.feed(target(3))
    first_vote_ms(controller, 1_000)
    votes = [controller.tick(now_ms).only(t.Vote) for now_ms in (400.0, 500.0)]
    assert votes == [t.Vote(0, 0, 1, number, 2) for number in (2, 3)]
    controller.feed(*bench.views(2))
    assert controller.tick(600).of(t.Vote) == []


def test_progress_makes_a_vote_needless(bench: Bench) -> None:
    controller = watching_controller(bench)
    controller.feed(target(3))
    first_vote_ms(controller, 1_000)
    step = controller.feed(*(bench.progress(executor, {0: (1, 3)}) for executor in range(2)))
    assert step.of(t.Vote) == [t.Vote(0, 0, 1, 2, 0)], "it takes its vote back"
    assert controller.tick(1_000).of(t.Vote) == []


@pytest.mark.parametrize("genesis", [True, False])
def test_a_controller_that_knows_no_view_may_ask_for_the_first(bench: Bench, genesis: bool) -> None:
    """We deviate: view 0 is before the first start. Whoever crashed right after genesis may have taken the news of
    view 1 along, so somebody has to ask for it. It does not go on to view 2 by itself."""
    controller = bench.make(Controller, Stage.CONTROLLER, genesis=genesis)
    controller.feed(target(3))
    assert first_vote_ms(controller, 2_000) == TIMEOUT_MS
    votes = [vote for turn in range(1, 20) for vote in controller.tick(TIMEOUT_MS + 100.0 * turn).of(t.Vote)]
    assert {(vote.controller, vote.view) for vote in votes} == {(0, 1)}


def test_a_vote_for_view_1_moves_nobody_who_is_further(bench: Bench) -> None:
    """L4: what a restarted controller asks for is old news, and it goes on from the view that it learns."""
    source = bench.make(ViewSource, Stage.VIEW_SOURCE)
    source.feed(t.Vote(0, 0, 1, 7, 7), t.Vote(1, 0, 1, 7, 7))
    assert source.feed(t.Vote(2, 0, 1, 1, 1), t.Vote(0, 0, 1, 1, 1)).of(t.View) == []
    controller = bench.make(Controller, Stage.CONTROLLER, genesis=False)
    controller.feed(target(3))
    assert first_vote_ms(controller, 2_000) is not None
    controller.feed(*bench.views(7), target(3))
    assert first_vote_ms(controller, controller.node.now_ms + 2 * TIMEOUT_MS + 1) is not None
    assert controller.node.asked == 8


def test_a_view_source_that_knows_no_view_publishes_the_first_when_f_plus_1_controllers_ask(bench: Bench) -> None:
    source = bench.make(ViewSource, Stage.VIEW_SOURCE, genesis=False)
    assert source.feed(t.Vote(0, 0, 1, 1, 1)).of(t.View) == []
    assert published(source.feed(t.Vote(2, 0, 1, 1, 1)).of(t.View)) == {1}


def test_who_is_taken_for_dead_is_voted_out_at_once(bench: Bench) -> None:
    """By hand, too: an operator, or a fault injector. It counts like any other suspicion."""
    controller = watching_controller(bench, view=4)
    controller.node.suspect()
    assert controller.take().of(t.Vote) == [t.Vote(0, 0, 1, 1, 5)]
    assert controller.node.timeout_ms == 2 * TIMEOUT_MS
    assert controller.tick(100).of(t.Vote) == [t.Vote(0, 0, 1, 2, 5)]


def test_only_what_was_waited_for_makes_the_allowance_for_long_requests_longer(bench: Bench) -> None:
    """Who is voted out by hand has not used it up: that says nothing about links."""
    controller = watching_controller(bench)
    controller.feed(t.Target(0, 0, (1, 3), 100_000))
    allowance_ms = controller.node.patience_ms - TIMEOUT_MS
    assert allowance_ms > 0
    controller.node.suspect()
    assert controller.node.patience_ms == 2 * TIMEOUT_MS + allowance_ms
    controller.feed(*bench.views(2), t.Target(0, 0, (1, 3), 100_000))
    assert first_vote_ms(controller, 10_000) == pytest.approx(2 * TIMEOUT_MS + allowance_ms, abs=10)
    assert controller.node.patience_ms == 4 * TIMEOUT_MS + 2 * allowance_ms


def test_the_crash_of_one_proposer_does_not_make_the_next_one_last_longer(bench: Bench) -> None:
    """Each was alone with a long request. In between all went well, for long enough."""
    controller = watching_controller(bench)
    waited_ms = []
    for crash in range(4):
        controller.feed(t.Target(0, 0, (1, crash + 1), 60_000))
        began_ms = controller.node.now_ms
        voted_ms = first_vote_ms(controller, began_ms + 60_000)
        assert voted_ms is not None
        waited_ms.append(voted_ms - began_ms)
        decided = [bench.progress(executor, {0: (1, crash + 1)}) for executor in range(3)]
        targets = [t.Target(source, 0, (1, crash + 1 if source == 0 else 0), 0) for source in range(3)]
        controller.feed(*bench.views(crash + 2), *targets)
        assert first_vote_ms(controller, voted_ms + 20_000, decided) is None
    assert waited_ms == [pytest.approx(waited_ms[0], abs=10)] * 4


def test_a_clock_that_jumps_makes_the_allowance_for_long_requests_longer_once(bench: Bench) -> None:
    """However often that wait makes it lose patience, and whatever is decided then."""
    controller = watching_controller(bench)
    controller.feed(t.Target(0, 0, (1, 3), 100_000), t.Target(1, 0, (1, 3), 100_000))
    controller.feed(*[bench.progress(executor) for executor in range(3)])
    allowance_ms = controller.node.patience_ms - TIMEOUT_MS
    assert controller.tick(20_000).of(t.Vote)
    assert controller.node.patience_ms == 2 * TIMEOUT_MS + 2 * allowance_ms
    for executor in range(3):
        # What it asked for is needless; but the other source still waits.
        decided = bench.progress(executor, {0: (1, 3)}, position=3)
        controller.feed(msgspec.structs.replace(decided, bytes=100_000))
    assert controller.tick(20_100).of(t.Vote)
    assert controller.node.patience_ms == 4 * TIMEOUT_MS + 2 * allowance_ms


def full(bench: Bench, executor: int, position: int = 8) -> t.Progress:
    """An executor of a partition whose window is full."""
    return msgspec.structs.replace(bench.progress(executor, position=position), window_end=position)


def test_a_full_window_is_not_the_proposers_fault(bench: Bench) -> None:
    """It waits for a checkpoint to become stable, and so would the next proposer."""
    controller = watching_controller(bench)
    controller.feed(target(100))
    assert first_vote_ms(controller, 5_000, [full(bench, executor) for executor in range(3)]) is None
    roomy = [bench.progress(executor, position=8) for executor in range(3)]
    assert first_vote_ms(controller, 10_000, roomy) == 5_000 + TIMEOUT_MS


def test_f_executors_that_know_no_newer_threshold_excuse_nobody(bench: Bench) -> None:
    controller = watching_controller(bench)
    controller.feed(target(100), full(bench, 0), *(bench.progress(executor, position=8) for executor in (1, 2)))
    assert first_vote_ms(controller, 10_000) == TIMEOUT_MS


def test_f_executors_accuse_nobody(bench: Bench) -> None:
    """One that lags behind sees room where the others see none."""
    controller = watching_controller(bench)
    controller.feed(target(100))
    reports = [full(bench, 0), full(bench, 1), bench.progress(2, position=5)]
    assert first_vote_ms(controller, 5_000, reports) is None


def test_only_an_executors_newest_report_counts(bench: Bench) -> None:
    """An older one that comes late takes nothing back: it would accuse a partition whose window is full by now."""
    controller = watching_controller(bench)
    old = [bench.progress(executor, position=4) for executor in range(3)]
    controller.feed(target(100))
    assert first_vote_ms(controller, 5_000, [*old, *(full(bench, executor) for executor in range(3)), *old]) is None


def test_in_a_new_view_the_time_out_falls_back_only_when_f_plus_1_sources_were_heard(bench: Bench) -> None:
    """The targets were forgotten with the old view, so at first it looks as if nobody waited for anything."""
    controller = watching_controller(bench)
    executors = [bench.progress(executor) for executor in range(3)]
    controller.feed(*executors, target(3))
    assert first_vote_ms(controller, 1_000) == TIMEOUT_MS
    controller.feed(*bench.views(2), target(0, source=1), *executors)
    silent_ms = controller.node.now_ms

    def wait(until_ms: float) -> None:
        now_ms = controller.node.now_ms
        while now_ms < until_ms:
            now_ms += TIMEOUT_MS / 4
            controller.tick(now_ms)
            controller.feed(*executors)

    calm_ms = CALM_TIMEOUTS * TIMEOUT_MS
    wait(silent_ms + 2 * calm_ms)
    assert controller.node.timeout_ms == 2 * TIMEOUT_MS
    controller.feed(target(0, source=2))
    wait(silent_ms + 4 * calm_ms)
    assert controller.node.timeout_ms == TIMEOUT_MS


def published(views: Iterable[t.View]) -> set[int]:
    return {view.view for view in views}


@pytest.mark.parametrize("f", [1, 2])
def test_a_view_source_publishes_what_f_plus_1_controllers_ask_for(f: int) -> None:
    """The same principle as for the threshold: the f+1-highest view."""
    bench = Bench(f)
    source = bench.make(ViewSource, Stage.VIEW_SOURCE)
    for controller in range(f):
        assert source.feed(t.Vote(controller, 0, 1, 3, 3)).of(t.View) == []
    assert published(source.feed(t.Vote(2 * f, 0, 1, 2, 2)).of(t.View)) == {2}
    assert published(source.feed(t.Vote(2 * f, 0, 1, 5, 5)).of(t.View)) == {3}


def test_one_controller_alone_changes_nothing(bench: Bench) -> None:
    source = bench.make(ViewSource, Stage.VIEW_SOURCE)
    assert source.feed(t.Vote(0, 0, 1, 2, 2), t.Vote(0, 0, 1, 3, 3), t.Vote(0, 0, 1, 4, 4)).of(t.View) == []


def test_suspicions_count_only_together(bench: Bench) -> None:
    """We deviate: with the paper, a vote counts until the view comes, so two controllers that were each wrong once, an
    hour apart, depose a proposer."""
    source = bench.make(ViewSource, Stage.VIEW_SOURCE)
    source.feed(t.Vote(0, 0, 1, 1, 2))
    source.tick(bench.limits.controller_timeout_ms + 1)
    assert source.feed(t.Vote(1, 0, 1, 1, 2)).of(t.View) == [], "the first one was not repeated"
    source.feed(t.Vote(1, 0, 1, 2, 0))
    assert source.feed(t.Vote(2, 0, 1, 1, 2)).of(t.View) == [], "the second one was taken back"
    assert source.feed(t.Vote(1, 0, 1, 1, 2)).of(t.View) == [], "and comes late once more"
    assert published(source.feed(t.Vote(1, 0, 2, 1, 2)).of(t.View)) == {2}, "a new life of it asks again"


def test_a_vote_that_is_repeated_counts(bench: Bench) -> None:
    source = bench.make(ViewSource, Stage.VIEW_SOURCE)
    for number in range(1, 20):
        source.tick(100.0 * number)
        assert source.feed(t.Vote(0, 0, 1, number, 2)).of(t.View) == []
    assert published(source.feed(t.Vote(2, 0, 1, 1, 2)).of(t.View)) == {2}


def test_the_view_goes_to_proposers_committers_and_controllers(bench: Bench) -> None:
    """With us not to executors, who need no view, but to request sources, who send again what may be lost."""
    source = bench.make(ViewSource, Stage.VIEW_SOURCE, 1)
    receivers = source.feed(t.Vote(0, 0, 1, 2, 2), t.Vote(1, 0, 1, 2, 2)).receivers(t.View)
    for stage in (Stage.PROPOSER, Stage.COMMITTER, Stage.CONTROLLER, Stage.REQUEST_SOURCE):
        assert bench.graph.all(stage) in receivers
    assert Stage.EXECUTOR not in {to.stage for to in receivers}


def test_where_there_is_no_other_view_source_nothing_is_sent_to_one() -> None:
    """With f = 0 there is one of each."""
    source = Bench(0).make(ViewSource, Stage.VIEW_SOURCE)
    step = source.feed(t.Vote(0, 0, 1, 2, 2))
    assert published(step.of(t.View)) == {2}
    assert Stage.VIEW_SOURCE not in {receivers.stage for receivers in step.receivers(t.View)}
    assert all(receivers.numbers for _, receivers in [*step.emitted, *source.tick(0).emitted])


def test_the_view_of_a_source_never_falls(bench: Bench) -> None:
    source = bench.make(ViewSource, Stage.VIEW_SOURCE)
    source.feed(t.Vote(0, 0, 1, 6, 6), t.Vote(1, 0, 1, 6, 6))
    assert source.feed(t.Vote(2, 0, 1, 3, 3), t.Vote(0, 0, 1, 2, 2), t.Vote(1, 0, 1, 2, 2)).of(t.View) == []
    assert source.node.view == 6


def test_old_votes_do_not_pull_a_source_back_that_learned_a_higher_view(bench: Bench) -> None:
    """S4: what was learned by another way than votes must outlast the votes."""
    source = bench.make(ViewSource, Stage.VIEW_SOURCE)
    source.feed(*bench.views(6, [2]))
    assert source.feed(t.Vote(0, 0, 1, 3, 3), t.Vote(1, 0, 1, 3, 3)).of(t.View) == []
    assert source.node.view == 6


def test_genesis_is_view_1_and_any_other_start_knows_no_view(bench: Bench) -> None:
    """We deviate: the paper starts in view 0, and again after every restart (S5, L4)."""
    assert bench.make(ViewSource, Stage.VIEW_SOURCE).node.view == 1
    assert bench.make(ViewSource, Stage.VIEW_SOURCE, genesis=False, life=2).node.view == 0


def test_the_view_is_published_again_and_again(bench: Bench) -> None:
    """Rarely when nothing changes, but it is."""
    source = bench.make(ViewSource, Stage.VIEW_SOURCE)
    rounds = [bool(source.tick(100.0 * turn).of(t.View)) for turn in range(12)]
    assert rounds.count(True) >= 3


def test_a_source_learns_the_view_from_other_sources(bench: Bench) -> None:
    """Appendix: view sources put what they publish into each other's queues."""
    source = bench.make(ViewSource, Stage.VIEW_SOURCE, 0, genesis=False)
    assert published(source.feed(*bench.views(5, [2])).of(t.View)) == {5}


def test_a_committer_corrects_sources_that_lag(bench: Bench) -> None:
    """Not in the paper (L17): after a total restart the durable committers know the view, and the rest learn it
    from them, instead of climbing up to it one time-out at a time."""
    committer = started_committer(bench, view=5)
    committer.tick(0)
    committer.feed(*bench.views(1, [0]))
    step = committer.tick(100)
    presence = step.only(t.Presence)
    assert presence.view == 5
    assert step.receivers(t.Presence) == [bench.graph.all(Stage.VIEW_SINK)]
    source = bench.make(ViewSource, Stage.VIEW_SOURCE, genesis=False)
    assert published(source.feed(presence).of(t.View)) == {5}


def test_a_restarted_active_proposer_gets_a_new_view(bench: Bench) -> None:
    """Not in the paper (R1): in the old view it may not become active again, so nobody would."""
    source = bench.make(ViewSource, Stage.VIEW_SOURCE)
    proposer = bench.make(Proposer, Stage.PROPOSER, 1, genesis=False, life=2, incarnation=2)
    presence = proposer.tick(0).only(t.Presence)
    views = source.feed(presence).of(t.View)
    assert max(published(views)) > 1
    assert views[-1].incarnations == [1, 2, 1, 1, 1]


def test_a_restarted_idle_proposer_changes_no_view(bench: Bench) -> None:
    source = bench.make(ViewSource, Stage.VIEW_SOURCE)
    proposer = bench.make(Proposer, Stage.PROPOSER, 0, genesis=False, life=2, incarnation=2)
    views = source.feed(proposer.tick(0).only(t.Presence)).of(t.View)
    assert published(views) == {1}
    assert views[-1].incarnations == [2, 1, 1, 1, 1]


def test_an_idle_proposer_that_knows_a_newer_view_teaches_just_that_view(bench: Bench) -> None:
    """It must not depose the proposer that is active there."""
    proposer = bench.make(Proposer, Stage.PROPOSER, 0, genesis=False, life=2, incarnation=2)
    status = bench.committer_status(0, view=5)
    proposer.feed(*bench.stables(0, [0], committers=[status]))
    presence = proposer.tick(0).only(t.Presence)
    source = bench.make(ViewSource, Stage.VIEW_SOURCE)
    assert max(published(source.feed(presence).of(t.View))) == 5


@pytest.mark.parametrize("sources", [[0], [0, 0], [2, 2, 2]])
def test_one_view_source_alone_moves_nobody(bench: Bench, sources: list[int]) -> None:
    proposer, committer = active_proposer(bench), started_committer(bench)
    controller = watching_controller(bench)
    views = bench.views(2, sources)
    proposer.feed(*views)
    step = committer.feed(*views)
    controller.feed(target(1), *views)
    controller.tick(TIMEOUT_MS)
    assert (proposer.node.mode, committer.node.acceptor.view, step.of(t.Record)) == (Mode.ACTIVE, 1, [])
    assert controller.node.asked == 2


def test_f_plus_1_view_sources_depose_the_proposer(bench: Bench) -> None:
    proposer = active_proposer(bench)
    proposer.feed(*bench.views(2))
    assert proposer.node.mode is Mode.IDLE
    assert proposer.feed(t.Requests(requests(0, 2))).of(t.Proposal) == []


def record_of(committer: Driven[Committer], bench: Bench, view: int) -> t.Record:
    return committer.feed(*bench.views(view)).only(t.Record)


def test_a_committer_records_what_it_accepted_with_its_view(bench: Bench) -> None:
    """When it learns of a higher view, it emits, for every sequence number in its window, request and view. With us it
    has persisted its promise in the same step."""
    committer = started_committer(bench, replica=2)
    committer.feed(bench.proposal(1, 0, requests(0, 3)))
    step = committer.feed(*bench.views(2))
    record = step.only(t.Record)
    assert (record.committer, record.view, record.minimum, record.end) == (2, 2, 0, 3)
    assert record.slots == [t.Accepted(1, item) for item in requests(0, 3)]
    assert step.written(t.Promised) == [t.Promised(2, bench.incarnations)]
    assert {receivers.stage for receivers in step.receivers(t.Record)} == {Stage.RECORD_SINK}


def test_a_record_holds_the_newest_view_of_each_slot(bench: Bench) -> None:
    """The record has the most recent view. The paper's pseudocode keeps the oldest one instead (S1): slot 0 was
    accepted again with another request; slots 1 and 2 were not, and keep what they had."""
    committer = started_committer(bench, view=1)
    committer.feed(bench.proposal(1, 0, requests(0, 3)))
    committer.feed(*bench.views(2), bench.start(2))
    other = request(7, source=1)
    committer.feed(bench.proposal(2, 0, [other]))
    record = record_of(committer, bench, 3)
    assert record.slots == [t.Accepted(2, other), t.Accepted(1, request(1)), t.Accepted(1, request(2))]


def test_a_record_covers_the_window_only(bench: Bench) -> None:
    committer = started_committer(bench)
    committer.feed(bench.proposal(1, 0, requests(0, 6)), *bench.stables(1))
    record = record_of(committer, bench, 2)
    assert (record.minimum, record.end, len(record.slots)) == (4, 6, 2)


def test_a_committer_that_skips_views_records_once(bench: Bench) -> None:
    committer = started_committer(bench)
    committer.feed(bench.proposal(1, 0, requests(0, 1)))
    assert record_of(committer, bench, 9).slots == [t.Accepted(1, request(0))]


def test_a_committer_accepts_nothing_of_the_old_view_after_its_record(bench: Bench) -> None:
    """Otherwise the record would not contain what the old view may have decided."""
    committer = started_committer(bench)
    record_of(committer, bench, 2)
    step = committer.feed(bench.start(1), bench.proposal(1, 0, requests(0, 1)))
    assert (step.emitted, step.persisted) == ([], [])


def test_a_committer_never_goes_back_to_a_lower_view(bench: Bench) -> None:
    committer = started_committer(bench, view=3)
    step = committer.feed(*bench.views(2, range(3)), bench.start(2))
    assert (committer.node.acceptor.view, step.of(t.Record), step.persisted) == (3, [], [])


def test_a_record_is_sent_again_unchanged_until_the_view_starts(bench: Bench) -> None:
    """Not in the paper (the rules of recovery, §2). Through another sink each time: f of them may be down."""
    committer = started_committer(bench)
    committer.feed(bench.proposal(1, 0, requests(0, 2)))
    first = committer.feed(*bench.views(2))
    later = [committer.tick(100.0 * turn) for turn in range(1, 9)]
    records = [record for step in [first, *later] for record in step.of(t.Record)]
    sinks = {receivers for step in [first, *later] for receivers in step.receivers(t.Record)}
    assert len(records) >= 3
    assert records == [records[0]] * len(records)
    assert len(sinks) == 3
    committer.feed(bench.start(2))
    assert [record for turn in range(9, 15) for record in committer.tick(100.0 * turn).of(t.Record)] == []


def test_a_record_that_changes_nothing_is_sent_less_and_less_often(bench: Bench) -> None:
    """It may be a whole window of requests: sent too often, it would block the link that it has to go through. But all
    sinks get their turn first, and in the next view the pauses are short again."""
    committer = started_committer(bench)
    committer.feed(bench.proposal(1, 0, requests(0, 2)))
    now_ms = 0.0
    for view in (2, 3):
        committer.feed(*bench.views(view))
        sent = [0]
        for turn in range(1, 200):
            now_ms += 100.0
            if committer.tick(now_ms).of(t.Record):
                sent.append(turn)
        pauses = [later - earlier for earlier, later in pairwise(sent)]
        assert pauses[:9] == [bench.limits.resend_rounds * factor for factor in (1, 1, 1, 2, 2, 2, 4, 4, 4)]
        assert max(pauses) == BACKOFF_MAX * bench.limits.resend_rounds


@pytest.mark.parametrize(("view", "proposer"), [(2, 0), (3, 1)])
def test_records_go_to_the_proposer_of_the_view_only(bench: Bench, view: int, proposer: int) -> None:
    """Record sources forward them to the active proposer of the new view."""
    source = bench.make(RecordSource, Stage.RECORD_SOURCE, 2)
    record = bench.record(1, view)
    assert source.feed(record).emitted == [(record, bench.graph.one(Stage.PROPOSER, proposer))]


def collecting_proposer(bench: Bench, view: int = 2, incarnation: int = 1) -> Driven[Proposer]:
    proposer_index = bench.graph.proposer_of(view)
    assert proposer_index is not None
    proposer = bench.make(Proposer, Stage.PROPOSER, proposer_index, incarnation=incarnation)
    proposer.feed(*bench.views(view))
    assert proposer.node.mode is Mode.COLLECTING
    return proposer


def accepted(view: int, *numbers: int, source: int = 0) -> list[t.Accepted]:
    return [t.Accepted(view, request(number, source)) for number in numbers]


def proposals_by_slot(proposals: list[t.Proposal]) -> dict[int, tuple[int, int, int]]:
    """Slot → identity of the request; fails if a slot occurs twice."""
    found: dict[int, tuple[int, int, int]] = {}
    for proposal in proposals:
        for slot, item in enumerate(proposal.requests, proposal.first):
            assert slot not in found
            found[slot] = identity(item)
    return found


@pytest.mark.parametrize("f", [1, 2])
def test_the_new_proposer_waits_for_f_plus_1_records_of_different_committers(f: int) -> None:
    """Any f+1 committers share one with those that decided something."""
    bench = Bench(f)
    view = f + 1
    proposer = collecting_proposer(bench, view)
    for committer in range(f):
        record = bench.record(committer, view, accepted(1, 0))
        assert proposer.feed(record, record).emitted == []
    step = proposer.feed(bench.record(2 * f, view))
    assert proposer.node.mode is Mode.ACTIVE
    assert proposals_by_slot(step.of(t.Proposal)) == {0: (0, 1, 0)}


def test_records_of_another_view_do_not_count(bench: Bench) -> None:
    proposer = collecting_proposer(bench, view=4)
    proposer.feed(bench.record(0, 2), bench.record(1, 4), bench.record(2, 2))
    assert proposer.node.mode is Mode.COLLECTING


def test_per_slot_the_request_of_the_highest_view_is_proposed_again(bench: Bench) -> None:
    """Whichever record comes first. The proposals name the new view."""
    for order in ([0, 1], [1, 0]):
        records = [
            bench.record(0, 4, [*accepted(1, 0), *accepted(3, 5), *accepted(1, 2)]),
            bench.record(1, 4, [*accepted(2, 4), *accepted(1, 1)]),
        ]
        proposer = collecting_proposer(bench, view=4)
        step = proposer.feed(*(records[index] for index in order))
        proposals = step.of(t.Proposal)
        assert proposals_by_slot(proposals) == {0: (0, 1, 4), 1: (0, 1, 5), 2: (0, 1, 2)}
        assert {proposal.view for proposal in proposals} == {4}


def test_new_requests_follow_beyond_what_the_records_cover(bench: Bench) -> None:
    """Only after the records are dealt with, and only for sequence numbers that they do not cover. What the records
    hold is not proposed a second time, although this proposer holds those requests, too."""
    proposer = collecting_proposer(bench)
    assert proposer.feed(t.Requests(requests(0, 5))).of(t.Proposal) == []
    step = proposer.feed(bench.record(0, 2, accepted(1, 1, 0)), bench.record(1, 2, accepted(1, 1)))
    expected = {0: (0, 1, 1), 1: (0, 1, 0), 2: (0, 1, 2), 3: (0, 1, 3), 4: (0, 1, 4)}
    assert proposals_by_slot(step.of(t.Proposal)) == expected


def test_records_that_fill_the_window_leave_no_slot_to_use_twice(bench: Bench) -> None:
    """We deviate (S3): the paper's loop ends on the last slot that it proposed, and would propose it again."""
    window = bench.limits.window
    proposer = collecting_proposer(bench)
    full = accepted(1, *range(window))
    step = proposer.feed(t.Requests(requests(0, window + 2)), bench.record(0, 2, full), bench.record(1, 2))
    again = step.of(t.Proposal)
    step = proposer.feed(*bench.stables(1))
    found = proposals_by_slot([*again, *step.of(t.Proposal)])
    assert found == {slot: (0, 1, slot) for slot in range(window + 2)}


def test_the_records_minimum_is_the_new_proposers_threshold(bench: Bench) -> None:
    """A committer that knows a higher threshold teaches it: below there is nothing to propose. It is not forgotten
    when an older threshold is published again (S4)."""
    proposer = collecting_proposer(bench)
    step = proposer.feed(bench.record(0, 2, accepted(1, 0, 1, 2, 3, 4)), bench.record(1, 2, minimum=4))
    assert proposals_by_slot(step.of(t.Proposal)) == {4: (0, 1, 4)}
    assert step.only(t.Start).first == 4
    proposer.feed(*bench.stables(0, range(3)))
    step = proposer.feed(t.Requests([request(0, source=1)]))
    assert proposals_by_slot(step.of(t.Proposal)) == {5: (1, 1, 0)}


def test_what_the_old_proposer_had_not_placed_is_not_lost(bench: Bench) -> None:
    """L8: proposers hold requests until they are decided, not until they are proposed."""
    proposer = active_proposer(bench, view=2)
    proposer.feed(t.Requests(requests(0, 4)))
    proposer.feed(*bench.views(3), *bench.views(4))
    step = proposer.feed(bench.record(0, 4, accepted(2, 0)), bench.record(2, 4))
    assert proposals_by_slot(step.of(t.Proposal)) == {slot: (0, 1, slot) for slot in range(4)}


def test_what_is_decided_is_not_proposed_again(bench: Bench) -> None:
    proposer = collecting_proposer(bench)
    proposer.feed(t.Requests(requests(0, 4)))
    decided = bench.status(1, progress=[[(1, 3), (0, 0), (0, 0)]])
    proposer.feed(*bench.stables(0, [0], executors=[decided]))
    step = proposer.feed(bench.record(0, 2), bench.record(1, 2))
    assert proposals_by_slot(step.of(t.Proposal)) == {0: (0, 1, 3)}


def test_a_request_keeps_its_stamp_when_it_is_proposed_again(bench: Bench) -> None:
    """Not in the paper: it may have been decided, so not a bit of it may change."""
    proposer = collecting_proposer(bench)
    proposer.tick(9_999)
    original = request(0, time=17)
    step = proposer.feed(bench.record(0, 2, [t.Accepted(1, original)]), bench.record(1, 2))
    assert step.only(t.Proposal).requests == [original]


def test_the_start_names_the_records_it_came_from(bench: Bench) -> None:
    """Not in the paper (R3). It goes to all committers, before any proposal of the view."""
    proposer = collecting_proposer(bench)
    step = proposer.feed(bench.record(2, 2, accepted(1, 0, 1)), bench.record(0, 2))
    start = step.only(t.Start)
    assert (start.view, start.first, start.next, start.incarnations) == (2, 0, 2, bench.incarnations)
    assert {credential.committer for credential in start.credentials} == {0, 2}
    assert step.receivers(t.Start) == [bench.graph.all(Stage.COMMITTER)]
    assert isinstance(step.emitted[0][0], t.Start)


def test_a_record_in_parts_counts_when_it_is_complete() -> None:
    """Not in the paper: a record may be larger than a tuple may be. Parts may come twice and in any order."""
    bench = Bench(run_length_max=2)
    committer = started_committer(bench)
    committer.feed(bench.proposal(1, 0, requests(0, 5)))
    parts = committer.feed(*bench.views(2)).of(t.Record)
    assert [(part.first, len(part.slots)) for part in parts] == [(0, 2), (2, 2), (4, 1)]
    proposer = collecting_proposer(bench)
    proposer.feed(bench.record(1, 2), parts[2], parts[0], parts[2])
    assert proposer.node.mode is Mode.COLLECTING
    step = proposer.feed(parts[1])
    assert proposals_by_slot(step.of(t.Proposal)) == {slot: (0, 1, slot) for slot in range(5)}


def part(record: t.Record, first: int, end: int) -> t.Record:
    return msgspec.structs.replace(record, first=first, slots=record.slots[first:end])


@pytest.mark.parametrize(
    ("cuts", "complete"),
    [
        ([(0, 2), (2, 4)], True),
        ([(0, 3), (2, 4)], True),
        ([(0, 2), (1, 3)], False),
        ([(1, 4), (3, 4)], False),
        ([(0, 2), (2, 2), (3, 4), (1, 2)], False),
        ([(0, 3), (1, 2), (3, 4)], True),
    ],
)
def test_a_record_is_complete_when_its_parts_cover_it_without_a_gap(
    bench: Bench, cuts: list[tuple[int, int]], complete: bool
) -> None:
    """Counting what comes would not do: parts of a record that was cut in different ways may overlap."""
    whole = bench.record(0, 2, accepted(1, 0, 1, 2, 3))
    proposer = collecting_proposer(bench)
    step = proposer.feed(bench.record(1, 2), *(part(whole, first, end) for first, end in cuts))
    assert (proposer.node.mode is Mode.ACTIVE) is complete
    expected = {slot: (0, 1, slot) for slot in range(4)} if complete else {}
    assert proposals_by_slot(step.of(t.Proposal)) == expected


def test_a_record_that_has_begun_to_come_outlives_a_checkpoint(bench: Bench) -> None:
    """What it says of a slot is frozen: that its lower end moves in between is no reason to begin anew."""
    whole = bench.record(0, 2, accepted(1, 0, 1, 2, 3, 4, 5))
    later = msgspec.structs.replace(whole, minimum=4)
    proposer = collecting_proposer(bench)
    proposer.feed(bench.record(1, 2), part(whole, 0, 2), part(whole, 5, 6))
    step = proposer.feed(part(later, 4, 5))
    assert proposals_by_slot(step.of(t.Proposal)) == {4: (0, 1, 4), 5: (0, 1, 5)}
    assert step.only(t.Start).first == 4


def test_a_proposer_tells_the_committers_how_far_their_records_have_come(bench: Bench) -> None:
    """Not in the paper: what is long goes portion by portion."""
    whole = bench.record(0, 2, accepted(1, 0, 1, 2, 3))
    proposer = collecting_proposer(bench)
    interval_ms = bench.limits.report_interval_ms
    step = proposer.tick(interval_ms)
    assert step.of(t.Collecting) == [t.Collecting(0, 0, 2, [])]
    assert step.receivers(t.Collecting) == [bench.graph.all(Stage.COMMITTER)]
    proposer.feed(part(whole, 0, 2), part(whole, 3, 4))
    assert proposer.tick(2 * interval_ms).of(t.Collecting) == [t.Collecting(0, 0, 2, [(0, 2)])]
    proposer.feed(part(whole, 2, 3), bench.record(1, 2))
    assert proposer.tick(3 * interval_ms).of(t.Collecting) == []


def named(bench: Bench, stage: Stage, index: int, incarnation: int) -> list[int]:
    """Incarnations in which one node has another one than at genesis."""
    incarnations = bench.incarnations
    incarnations[bench.graph.member(stage, index)] = incarnation
    return incarnations


def test_r1_a_restarted_proposer_does_not_use_records_of_its_former_life(bench: Bench) -> None:
    """Its former life may have been active in this view: two of them must not both propose."""
    proposer = collecting_proposer(bench, incarnation=2)
    old = [bench.record(committer, 2) for committer in range(3)]
    assert proposer.feed(*old).of(t.Start) == []
    incarnations = named(bench, Stage.PROPOSER, 0, 2)
    proposer.feed(*bench.views(4, incarnations=incarnations))
    step = proposer.feed(*(bench.record(committer, 4, incarnations=incarnations) for committer in range(2)))
    assert step.only(t.Start).view == 4


def test_r2_a_record_of_a_committers_former_life_does_not_count(bench: Bench) -> None:
    """Another record knows that its sender has lost its journal since."""
    proposer = collecting_proposer(bench)
    newer = named(bench, Stage.COMMITTER, 0, 2)
    step = proposer.feed(bench.record(0, 2, accepted(1, 0)), bench.record(1, 2, incarnations=newer))
    assert (step.of(t.Start), proposer.node.mode) == ([], Mode.COLLECTING)
    step = proposer.feed(bench.record(2, 2))
    start = step.only(t.Start)
    assert {credential.committer for credential in start.credentials} == {1, 2}
    assert start.incarnations == newer


def test_r3_a_committer_takes_no_start_that_names_another_life_of_it(bench: Bench) -> None:
    committer = bench.make(Committer, Stage.COMMITTER, 0)
    start = bench.start(1, incarnations=named(bench, Stage.COMMITTER, 0, 2))
    committer.feed(*bench.views(1), start)
    assert committer.feed(bench.proposal(1, 0, requests(0, 1))).of(t.Commit) == []


def test_a_start_teaches_the_view(bench: Bench) -> None:
    """Its proposer has seen f+1 committers in the view. The promise comes before everything else in the journal."""
    committer = bench.make(Committer, Stage.COMMITTER)
    step = committer.feed(bench.start(4), bench.proposal(4, 0, requests(0, 1)))
    assert [type(entry) for entry in step.persisted] == [t.Resumed, t.Promised, t.Started, t.Voted]
    assert step.only(t.Commit).view == 4


def test_a_committer_without_its_memory_gives_no_record(bench: Bench) -> None:
    """What it had accepted is unknown, so an empty record from it would let decided requests be forgotten. Only the
    start of a view that f+1 others have recorded for makes it full again."""
    committer = bench.make(Committer, Stage.COMMITTER, 1, genesis=False, life=2, incarnation=2)
    step = committer.feed(*bench.views(2, incarnations=named(bench, Stage.COMMITTER, 1, 2)))
    assert step.of(t.Record) == []


def first_life(bench: Bench) -> tuple[Driven[Committer], list[t.JournalEntry]]:
    """A committer with a past (two views, a threshold, votes), and everything that it persisted."""
    committer = bench.make(Committer, Stage.COMMITTER)
    step = committer.feed(
        *bench.views(1),
        bench.start(1),
        bench.proposal(1, 0, requests(0, 7)),
        *bench.stables(1),
        *bench.views(2),
        bench.start(2, first=4),
        bench.proposal(2, 4, requests(4, 6)),
    )
    return committer, step.persisted


def next_life(bench: Bench, journal: list[t.JournalEntry]) -> Driven[Committer]:
    return bench.make(Committer, Stage.COMMITTER, genesis=False, life=2, journal=journal)


def test_a_committer_with_its_journal_is_the_same_committer(bench: Bench) -> None:
    """It keeps its incarnation, goes on voting where it stopped, and would give the same record."""
    original, journal = first_life(bench)
    copy = next_life(bench, journal)
    assert (copy.node.acceptor.view, copy.node.acceptor.started) == (2, True)
    duplicates = copy.feed(bench.proposal(1, 0, requests(0, 9)), bench.proposal(2, 4, requests(4, 6)))
    assert duplicates.of(t.Commit) == []
    following = bench.proposal(2, 6, [request(42)])
    assert copy.feed(following).of(t.Commit) == original.feed(following).of(t.Commit) != []
    records = [record_of(committer, bench, 3) for committer in (original, copy)]
    assert records[0] == records[1]
    assert [(slot.view, slot.request.number) for slot in records[1].slots] == [(2, 4), (2, 5), (2, 42)]


def test_any_prefix_of_a_journal_restores_a_committer(bench: Bench) -> None:
    """A torn tail was promised to nobody; what is left must still make sense, and the view never falls."""
    _, journal = first_life(bench)
    copies = [next_life(bench, journal[:length]) for length in range(1, len(journal) + 1)]
    views = [copy.node.acceptor.view for copy in copies]
    assert views == sorted(views)
    assert views[-1] == 2
    ends = [record_of(copy, bench, 9).end for copy in copies]
    assert ends == sorted(ends)
    assert ends[-1] == 7


def test_a_new_segment_changes_nothing_while_the_old_ones_are_there(bench: Bench) -> None:
    """Each segment begins with what was promised by then; after other entries that says nothing new."""
    original, journal = first_life(bench)
    for place in range(1, len(journal) + 1):
        rolled = [*journal[:place], next_life(bench, journal[:place]).node.acceptor.resumed(), *journal[place:]]
        copy = next_life(bench, rolled)
        assert copy.node.acceptor.resumed() == original.node.acceptor.resumed()
        assert record_of(copy, bench, 9) == record_of(next_life(bench, journal), bench, 9)


def test_old_segments_may_go_when_a_stable_checkpoint_covers_them(bench: Bench) -> None:
    """The committer that starts from the newer ones has promised the same, and votes where it stopped."""
    original, _ = first_life(bench)
    newest: list[t.JournalEntry] = [original.node.acceptor.resumed()]
    newest += original.feed(bench.proposal(2, 6, requests(6, 10)), *bench.stables(2)).persisted
    copy = next_life(bench, newest)
    assert copy.node.acceptor.resumed() == original.node.acceptor.resumed()
    following = bench.proposal(2, 10, [request(42)])
    assert copy.feed(following).of(t.Commit) == original.feed(following).of(t.Commit) != []
    assert record_of(copy, bench, 3) == record_of(original, bench, 3)


def test_a_journal_that_lacks_votes_gives_no_record(bench: Bench) -> None:
    """A segment is missing that no stable checkpoint covers: its votes are lost, and the node must not guess."""
    original, _ = first_life(bench)
    copy = next_life(bench, [original.node.acceptor.resumed()])
    assert copy.node.acceptor.holes == {4, 5, 6}
    assert copy.feed(*bench.views(3)).of(t.Record) == []


def test_a_fresh_journal_begins_with_nothing_promised(bench: Bench) -> None:
    fresh = bench.make(Committer, Stage.COMMITTER)
    copy = next_life(bench, [fresh.node.acceptor.resumed()])
    assert (copy.node.acceptor.view, copy.node.acceptor.started, copy.node.acceptor.commits.pos) == (0, False, 0)


def test_a_new_view_makes_a_source_send_its_undecided_requests_again(bench: Bench) -> None:
    """Not in the paper, whose sources send requests to all proposers: only the active one gets them."""
    source = bench.make(RequestSource, Stage.REQUEST_SOURCE)
    source.feed(t.Submit([t.Command(1, number, 0, b"") for number in range(4)]))
    decided = msgspec.structs.replace(bench.status(2), progress=[[(1, 3), (0, 0), (0, 0)]])
    source.feed(*bench.stables(0, [0], executors=[decided]))
    step = source.feed(*bench.views(2))
    assert [item.number for tuple_ in step.of(t.Requests) for item in tuple_.requests] == [3]
    assert step.receivers(t.Requests) == [bench.graph.request_receivers(0, 2)]
