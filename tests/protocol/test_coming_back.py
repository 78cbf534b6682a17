"""Coming back to a checkpoint: a base, and the requests behind it executed again; also onto a state that goes on."""

import random
import re

import msgspec
import pytest

from tara.application import KeyValueStore, Put
from tara.protocol import tuples as t
from tara.protocol.execution import ExecutionState
from tara.protocol.graph import Stage
from tara.protocol.nodes.executor import LOAD_PAUSE_MS, Executor
from tests.protocol.driver import (
    Bench,
    Driven,
    Step,
    base_of,
    batch,
    commits,
    loaded_nothing,
    open_session,
    replays,
)
from tests.protocol.test_halting import Replica, answers_of

INTERVAL = 6


def bench(partitions: int = 1) -> Bench:
    return Bench(partitions=partitions, window=64, checkpoint_interval=INTERVAL * partitions)


def puts(count: int) -> list[t.Request]:
    """One session that writes, one command a request; some come early."""
    payloads = [msgspec.msgpack.encode(Put(f"key-{number % 4}", b"%d" % number)) for number in range(count)]
    commands = [t.Command(1, number, max(number - 3, 0), payload) for number, payload in enumerate(payloads)]
    for place in range(4, count - 1, 5):
        commands[place], commands[place + 1] = commands[place + 1], commands[place]
    opened = batch(0, [open_session(timeout_ms=3_600_000)], time=1_000)
    return [opened, *(batch(number, [command], time=1_000 + number) for number, command in enumerate(commands[:-1], 1))]


def votes(requests: list[t.Request], first: int, end: int, partitions: int = 1) -> list[t.Commit]:
    """What decides the execution numbers [first, end)."""
    return [
        commit
        for number in range(first, end)
        for commit in commits([requests[number]], first=number // partitions, partition=number % partitions)
    ]


class Original:
    """An executor that has executed it all, with a base after the first interval."""

    def __init__(self, made_by: Bench, requests: list[t.Request]) -> None:
        self.executor = made_by.make(Executor, Stage.EXECUTOR, 0, application=KeyValueStore)
        partitions, interval = made_by.limits.partitions, made_by.limits.checkpoint_interval
        self.executor.feed(t.TakeBase(1))
        self.marks: list[t.Mark] = []
        #: Per checkpoint, what leads to it.
        self.replays: dict[int, list[t.Replay]] = {}
        step = Step([], [])
        for number in range(len(requests)):
            one = self.executor.feed(*votes(requests, number, number + 1, partitions))
            step.emitted += one.emitted
            if (number + 1) % interval == 0:
                self.marks += step.of(t.Mark)
                self.replays[(number + 1) // interval] = replays(step, last=False)
                if step.of(t.Base):
                    self.base = base_of(self.executor, step)
                self.executor.feed(t.Saved(self.marks[-1].checkpoint))
                step = Step([], [])

    def led(self, first: int, until: int) -> list[t.Replay]:
        """From this checkpoint to that one."""
        found = [replay for number in range(first + 1, until + 1) for replay in self.replays[number]]
        return [*found, t.Replay(0, [], [], None, False, True)]

    @property
    def digest(self) -> bytes:
        return self.executor.node.digest()


def restarted(made_by: Bench, replica: int = 1) -> Driven[Executor]:
    executor = made_by.make(Executor, Stage.EXECUTOR, replica, genesis=False, life=2, application=KeyValueStore)
    executor.take()
    # There is nothing to look through.
    executor.node._must_look = False
    return executor


def until(loaded: t.Loaded, number: int) -> t.Loaded:
    return msgspec.structs.replace(loaded, until=number)


@pytest.mark.parametrize("with_base", [True, False])
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_base_and_the_log_lead_to_the_newest_checkpoint(partitions: int, with_base: bool) -> None:
    made_by, requests = bench(partitions), puts(4 * INTERVAL * partitions)
    original, executor = Original(made_by, requests), restarted(made_by)
    loaded, first = (until(original.base, 4), 1) if with_base else (loaded_nothing(4), 0)
    step = executor.feed(loaded)
    assert len(step.of(t.More)) == 1
    assert not executor.node.restored
    step = executor.feed(*original.led(first, 4))
    assert executor.node.digest() == original.digest
    assert executor.node.checkpoints[-1] == original.marks[-1].checkpoint
    assert (step.of(t.Results), step.of(t.Executed), step.of(t.Mark)) == ([], [], [])
    assert executor.node.restored
    assert step.of(t.ExecutorStatus)[-1].positions == [4 * INTERVAL] * partitions
    # It goes on where the log ends.
    slots = [batch(4 * INTERVAL, [], time=1)] * partitions
    step = executor.feed(
        *(vote for partition in range(partitions) for vote in commits(slots[:1], 4 * INTERVAL, partition=partition))
    )
    assert step.of(t.Executed)[0].first == 4 * INTERVAL * partitions


def test_controllers_hear_how_far_it_is_while_it_executes_again() -> None:
    made_by, requests = bench(), puts(4 * INTERVAL)
    original, executor = Original(made_by, requests), restarted(made_by)
    executor.feed(until(original.base, 4))
    told = []
    for replay in original.led(1, 3)[:-1]:
        executor.feed(replay)
        step = executor.tick(executor.node.now_ms + made_by.limits.report_interval_ms)
        told += [progress.position for progress in step.of(t.Progress)]
        assert step.of(t.ExecutorStatus) == []
    assert told == sorted(told)
    assert told[-1] == 3 * INTERVAL


def test_it_asks_for_more_when_the_store_waits_for_that() -> None:
    made_by, requests = bench(), puts(2 * INTERVAL)
    original, executor = Original(made_by, requests), restarted(made_by)
    executor.feed(until(original.base, 2))
    first, *rest = original.led(1, 2)
    assert executor.feed(first).of(t.More) == []
    assert len(executor.feed(msgspec.structs.replace(rest[0], asks=True)).of(t.More)) == 1


def test_a_log_that_ends_early_leads_as_far_as_it_goes() -> None:
    made_by, requests = bench(), puts(4 * INTERVAL)
    original, executor = Original(made_by, requests), restarted(made_by)
    executor.feed(until(original.base, 4), *original.led(1, 2))
    assert (executor.node.restored, executor.node.next) == (True, 2 * INTERVAL)


def test_commits_do_nothing_before_the_state_is_known() -> None:
    made_by, requests = bench(), puts(2 * INTERVAL)
    original, executor = Original(made_by, requests), restarted(made_by)
    executor.feed(until(original.base, 2))
    executor.feed(*votes(requests, INTERVAL, INTERVAL + 3))
    assert executor.node.next == INTERVAL


def test_what_the_log_answers_otherwise_than_before_halts_the_executor() -> None:
    made_by, requests = bench(), puts(2 * INTERVAL)
    original, executor = Original(made_by, requests), restarted(made_by)
    executor.feed(until(original.base, 2))
    *run, mark, _ = original.led(1, 2)
    assert mark.checkpoint is not None
    named = t.CheckpointId(2, b"another")
    step = executor.feed(*run, msgspec.structs.replace(mark, checkpoint=named))
    assert step.only(t.Doubted) == t.Doubted(named, original.marks[1].checkpoint.digest)
    executor.feed(t.Settled(named, again=False))
    assert executor.node.halted is not None
    assert re.search(r"checkpoint 2: executing the log again .* not deterministic", executor.node.halted.reason)


def test_a_log_that_does_not_lead_to_its_checkpoint_halts_the_executor() -> None:
    """It must not announce what it has not come to."""
    made_by, requests = bench(), puts(2 * INTERVAL)
    original, executor = Original(made_by, requests), restarted(made_by)
    *run, mark, _ = original.led(1, 2)
    step = executor.feed(until(original.base, 2), *run[:-1], mark)
    executor.feed(t.Settled(step.only(t.Doubted).checkpoint, again=False))
    assert executor.node.halted is not None
    assert "does not lead to checkpoint 2" in executor.node.halted.reason
    assert executor.node.checkpoints == [original.marks[0].checkpoint]


def test_where_others_have_something_else_it_begins_again() -> None:
    """Until then it says nothing and executes nothing, because its state is not what was decided."""
    made_by, requests = bench(), puts(2 * INTERVAL)
    original, executor = Original(made_by, requests), restarted(made_by)
    executor.feed(until(original.base, 2))
    *run, mark, last = original.led(1, 2)
    named = t.CheckpointId(2, b"another")
    executor.feed(*run, msgspec.structs.replace(mark, checkpoint=named))

    assert executor.feed(last, t.Saved(named), *votes(requests, INTERVAL, 2 * INTERVAL)).emitted == []
    assert executor.tick(10_000.0).emitted == []
    assert not executor.node.restored

    assert executor.feed(t.Settled(named, again=True)).only(t.Load).next == 0
    executor.feed(until(original.base, 2), *original.led(1, 2))
    assert (executor.node.halted, executor.node.checkpoints[-1]) == (None, original.marks[1].checkpoint)
    assert executor.node.digest() == original.executor.node.digest()


def test_who_has_come_elsewhere_is_no_holder() -> None:
    made_by = bench()
    agreed, another = t.CheckpointId(2, b"agreed"), t.CheckpointId(2, b"another")
    statuses = [
        made_by.status(0, checkpoints=[another]),
        made_by.status(1, checkpoints=[agreed]),
        made_by.status(2, checkpoints=[t.CheckpointId(1, b""), t.CheckpointId(3, b"newer")]),
    ]
    executor = restarted(made_by)
    executor.feed(t.Loaded(None, b"", (), b"", 0, 0))
    executor.tick(10_000.0)
    load = executor.feed(*made_by.stables(2, digest=b"agreed", executors=statuses)).only(t.Load)
    assert load.holders == [1, 2]


def test_a_log_with_a_gap_halts_the_executor() -> None:
    made_by, requests = bench(), puts(3 * INTERVAL)
    original, executor = Original(made_by, requests), restarted(made_by)
    executor.feed(until(original.base, 3), *original.led(2, 3))
    assert executor.node.halted is not None
    assert f"requests [{INTERVAL}, {2 * INTERVAL}) are missing" in executor.node.halted.reason


@pytest.mark.parametrize("what", ["number", "digest"])
def test_a_base_that_is_not_what_it_says_halts_the_executor(what: str) -> None:
    made_by = bench()
    original, executor = Original(made_by, puts(INTERVAL)), restarted(made_by)
    assert original.base.base is not None
    known = original.base.base
    base = t.CheckpointId(2, known.digest) if what == "number" else t.CheckpointId(1, b"another")
    executor.feed(msgspec.structs.replace(original.base, base=base))
    assert executor.node.halted is not None
    assert "of another history" in executor.node.halted.reason


def test_a_base_says_when_the_next_one_is_due() -> None:
    """As with those who took it."""
    made_by = bench()
    original, executor = Original(made_by, puts(INTERVAL)), restarted(made_by)
    executor.feed(original.base)
    schedule = executor.node.bases._schedule
    state = msgspec.msgpack.decode(original.base.state, type=ExecutionState)
    assert (schedule._length, schedule._bytes) == (original.base.length, state.bytes)
    assert executor.node.bases.known == [t.CheckpointId(1, original.base.digest)]


@pytest.mark.parametrize(("threshold", "next_"), [(0, 0), (5, -1)])
def test_an_era_that_was_founded_with_a_base_has_no_state_before_it(threshold: int, next_: int) -> None:
    made_by = bench()
    executor = made_by.make(Executor, Stage.EXECUTOR, 1, genesis=threshold > 0, life=2, threshold=threshold)
    assert executor.tick(made_by.limits.report_interval_ms).of(t.Load) == [t.Load(0, next_, 0, (1,))]


@pytest.mark.parametrize("partitions", [1, 3])
def test_one_that_was_away_long_asks_the_others_before_it_restores_what_it_has(partitions: int) -> None:
    """It hears of them with their next reports, and its own base may be of no use."""
    made_by, requests = bench(partitions), puts(4 * INTERVAL * partitions)
    original, executor = Original(made_by, requests), restarted(made_by)
    assert executor.tick(made_by.limits.report_interval_ms - 1).of(t.Load) == []
    newest = original.marks[-1].checkpoint
    holder = made_by.status(0, checkpoints=[newest])
    stables = made_by.stables(newest.number, digest=newest.digest, executors=[holder])
    assert executor.feed(*stables).of(t.Load) == [t.Load(newest.number, 0, 0, [0])]
    executor.feed(until(original.base, 4), *original.led(1, 4))
    assert executor.node.digest() == original.digest


def test_one_that_hears_of_nobody_does_not_wait_for_long() -> None:
    """After a total loss there is nobody who could say anything."""
    made_by = bench()
    executor = restarted(made_by)
    executor.feed(*made_by.stables(0))
    (load,) = executor.tick(made_by.limits.report_interval_ms).of(t.Load)
    assert (load.minimum, list(load.holders)) == (0, [1])


def lagging(made_by: Bench, original: Original, requests: list[t.Request], position: int) -> Driven[Executor]:
    """It has executed so much, and asked for what it cannot get from the committers any more."""
    executor = made_by.make(Executor, Stage.EXECUTOR, 1, application=KeyValueStore)
    executor.feed(*votes(requests, 0, position, made_by.limits.partitions))
    newest = original.marks[-1].checkpoint
    holder = made_by.status(0, checkpoints=[newest])
    step = executor.feed(*made_by.stables(newest.number, digest=newest.digest, executors=[holder]))
    assert step.of(t.Load) == [t.Load(newest.number, position, 0, [0])]
    return executor


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("position", [0, 3, INTERVAL, INTERVAL + 1])
def test_the_log_leads_on_from_the_state_that_is_there(partitions: int, position: int) -> None:
    """And clients are told what they have waited for."""
    made_by, requests = bench(partitions), puts(3 * INTERVAL * partitions)
    original = Original(made_by, requests)
    executor = lagging(made_by, original, requests, position)
    step = executor.feed(loaded_nothing(3), *original.led(position // (INTERVAL * partitions), 3))
    assert executor.node.digest() == original.digest
    answered = [result for results in step.of(t.Results) for result in results.results]
    assert len(answered) == 3 * INTERVAL * partitions - position - _waiting(requests, position)
    assert step.of(t.Executed) == [], "the store has it already"


def _waiting(requests: list[t.Request], position: int) -> int:
    """Commands at the end that still wait for their turn, less those that waited at this position."""
    kinds = [t.decode_commands(request.body)[0] for request in requests]
    waiting = []
    for end in (position, len(requests)):
        executed = [command.number for command in kinds[1:end]]
        waiting.append(sum(number >= len(executed) for number in executed))
    return waiting[1] - waiting[0]


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("seed", range(10))
def test_commits_may_come_late_while_the_log_is_executed_again(seed: int, partitions: int) -> None:
    """In any order: some of what the log has, and what stands behind it; and the executor makes checkpoints of its
    own."""
    made_by, requests = bench(partitions), puts(5 * INTERVAL * partitions)
    draw = random.Random(seed)
    original = Original(made_by, requests[: 4 * INTERVAL * partitions])
    executor = lagging(made_by, original, requests, draw.randrange(2 * INTERVAL))
    start = executor.node.next // (INTERVAL * partitions)
    late = votes(requests, executor.node.next, len(requests), partitions)
    executor.feed(loaded_nothing(4))
    for replay in original.led(start, 4):
        for _ in range(draw.choice((0, 0, 1, 9))):
            step = executor.feed(*late[:2])
            del late[:2]
            executor.feed(*(t.Saved(mark.checkpoint) for mark in step.of(t.Mark)))
        executor.feed(replay)
    executor.feed(*votes(requests, 4 * INTERVAL * partitions, len(requests), partitions))
    whole = Original(made_by, requests)
    assert executor.node.halted is None
    assert executor.node.digest() == whole.digest
    assert executor.node.execution.checkpoint == whole.marks[-1].checkpoint


def test_a_base_that_is_overtaken_while_it_was_looked_for_is_not_restored() -> None:
    made_by, requests = bench(), puts(3 * INTERVAL)
    original = Original(made_by, requests)
    executor = lagging(made_by, original, requests, 0)
    executor.feed(*votes(requests, 0, INTERVAL + 2))
    before = executor.node.application
    executor.feed(until(original.base, 3), *original.led(1, 3))
    assert executor.node.application is before
    assert executor.node.digest() == original.digest


def test_it_loads_once_more_at_once_if_it_was_not_led_far_enough() -> None:
    """The others go on. If it waited before it asks again, they could be out of reach each time."""
    made_by, requests = bench(), puts(3 * INTERVAL)
    original = Original(made_by, requests)
    executor = lagging(made_by, original, requests, 2)
    executor.feed(loaded_nothing(3), *original.led(0, 1))
    assert executor.node.next == INTERVAL
    newest = original.marks[-1].checkpoint
    holders = [made_by.status(0, checkpoints=[newest])]
    step = executor.feed(*made_by.stables(3, digest=newest.digest, executors=holders))
    assert step.of(t.Load) == [t.Load(3, INTERVAL, 0, [0])]


def test_it_waits_before_it_loads_once_more_if_it_got_no_further() -> None:
    made_by, requests = bench(), puts(3 * INTERVAL)
    original = Original(made_by, requests)
    executor = lagging(made_by, original, requests, 2)
    executor.feed(loaded_nothing(0))
    newest = original.marks[-1].checkpoint
    stables = made_by.stables(3, digest=newest.digest, executors=[made_by.status(0, checkpoints=[newest])])
    assert executor.feed(*stables).of(t.Load) == []
    executor.tick(LOAD_PAUSE_MS)
    assert len(executor.feed(*stables).of(t.Load)) == 1


def test_a_base_in_the_middle_of_being_drawn_is_given_up_for_another_state() -> None:
    """Its application has another state now."""
    made_by, requests = bench(), puts(2 * INTERVAL)
    original = Original(made_by, requests[:INTERVAL])
    executor = made_by.make(Executor, Stage.EXECUTOR, 1, application=KeyValueStore)
    executor.feed(t.TakeBase(1))
    step = executor.feed(*votes(requests, 0, INTERVAL))
    assert len(step.of(t.Base)) == 1
    original.executor.feed(t.TakeBase(2))
    step = original.executor.feed(*votes(requests, INTERVAL, 2 * INTERVAL))
    executor.feed(base_of(original.executor, step))
    assert executor.node.next == 2 * INTERVAL
    assert executor.feed(t.Draw(1)).emitted == []


def test_what_was_asked_for_before_it_started_over_does_no_harm() -> None:
    """The store answers one after the other: also what the former state was to be led on with."""
    made_by = Bench(window=64, checkpoint_interval=4)
    replica = Replica(made_by)
    replica.feed(replica.commands(b"a"))
    replica.driven.feed(*made_by.stables(1, executors=[made_by.status(1, checkpoints=[t.CheckpointId(1, b"digest")])]))
    fatal = replica.commands(b"memory")
    replica.feed(fatal)
    replica.node._start_over()
    log = [batch(0, [open_session(1)], time=1_000_000)]
    log += [batch(1, [t.Command(1, 0, 0, b"a")], time=1_000_000), batch(2, [], time=1), batch(3, [], time=1)]
    step = replica.driven.feed(loaded_nothing(1), loaded_nothing(1))
    assert len(step.of(t.More)) == 2
    whole, last = t.Replay(0, log, [], None, False, False), t.Replay(0, [], [], None, False, True)
    step = replica.driven.feed(whole, last, last)
    assert (replica.node.next, replica.node.halted, replica.application.value) == (4, None, 1)
    assert answers_of(step) == []


def test_nothing_is_announced_while_it_starts_over() -> None:
    """Also if its store has made something durable meanwhile."""
    replica = Replica(Bench(window=64, checkpoint_interval=4))
    (mark,) = replica.feed([], [], []).of(t.Mark)
    replica.feed(replica.commands(b"memory"))
    replica.node._start_over()
    assert replica.driven.feed(t.Saved(mark.checkpoint)).of(t.ExecutorStatus) == []
    step = replica.driven.feed(loaded_nothing(0))
    assert step.only(t.ExecutorStatus).checkpoints == [mark.checkpoint]
