"""How deep an application may recurse does not depend on how deep the replica is in its own stack."""

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar
from unittest import mock

import msgspec
import pytest

from tara.application import Context, KeyValueStore, StateMachine
from tara.protocol import depth
from tara.protocol import tuples as t
from tara.protocol.graph import Stage
from tara.protocol.limits import Limits
from tara.protocol.nodes.executor import Executor
from tara.simulator.container import Parcel, SimulatedContainer
from tara.simulator.scene import Scene
from tests.protocol.driver import Bench, Driven, open_session, session_id

Value = TypeVar("Value")
DEEP = 700


def nested(levels: int) -> bytes:
    """Put("k", b"v"), and something more, so many levels deep."""
    return b"\x94\x01\xa1k\xc4\x01v" + b"\x91" * levels + b"\xc0"


def deeper(levels: int, action: Callable[[], Value]) -> Value:
    return action() if levels == 0 else deeper(levels - 1, action)


def through_c(levels: int, action: Callable[[], Value]) -> Value:
    """Each level is a call of Python by C."""
    return action() if levels == 0 else next(through_c(rest, action) for rest in [levels - 1])


class Recursive(StateMachine):
    """A command is the number of calls within each other that it takes, or a list that is nested."""

    def __init__(self) -> None:
        self.restored = 0

    def apply(self, command: bytes, context: Context) -> bytes:
        wanted = msgspec.msgpack.decode(command)
        return str(self._recurse(wanted) if isinstance(wanted, int) else "decoded").encode()

    def _recurse(self, levels: int) -> int:
        return 0 if levels == 0 else 1 + self._recurse(levels - 1)

    def query(self, question: bytes, context: Context) -> bytes:
        return self.apply(question, context)

    def snapshot(self) -> Iterator[bytes]:
        yield b""

    def restore(self, chunks: Iterable[bytes]) -> None:
        self.restored += 1


def executing() -> tuple[Driven[Executor], int]:
    """An executor that has a session; its id."""
    executor = Bench(checkpoint_interval=10_000, window=20_000).make(Executor, Stage.EXECUTOR, application=Recursive)
    (result,) = execute(executor, open_session(1))
    return executor, session_id(result)


def execute(executor: Driven[Executor], *commands: t.Command) -> list[t.Result]:
    slot = executor.node.next
    request = t.Request(0, 1, slot, 1_000_000, t.encode(list(commands)))
    step = executor.feed(*(t.Commit(committer, 0, 1, slot, [request]) for committer in range(2)))
    return [result for results in step.of(t.Results) for result in results.results]


def outcome(levels: int | bytes, around: Callable[[Callable[[], list[t.Result]]], list[t.Result]]) -> tuple[int, bytes]:
    executor, session = executing()
    payload = levels if isinstance(levels, bytes) else msgspec.msgpack.encode(levels)
    (result,) = around(lambda: execute(executor, t.Command(session, 0, 0, payload)))
    return result.status, result.payload


SURROUNDINGS: list[Callable[[Callable[[], list[t.Result]]], list[t.Result]]] = [
    lambda action: action(),
    lambda action: deeper(1, action),
    lambda action: deeper(2, action),
    lambda action: deeper(DEEP, action),
    lambda action: through_c(50, action),
]


def deepest(succeeds: Callable[[int], bool]) -> int:
    low, high = 10, 10 * depth.APPLICATION_DEPTH
    assert succeeds(low)
    assert not succeeds(high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if succeeds(middle) else (low, middle)
    return low


def test_the_deepest_recursion_that_succeeds_is_the_same_at_every_depth_of_the_stack() -> None:
    found = {
        deepest(lambda levels: outcome(levels, around)[0] == t.OK)  # noqa: B023 - used at once
        for around in SURROUNDINGS
    }
    assert len(found) == 1
    assert depth.APPLICATION_DEPTH - 50 < found.pop() < depth.APPLICATION_DEPTH


def test_the_deepest_bytes_that_can_be_decoded_are_the_same_at_every_depth_of_the_stack() -> None:
    found = {
        deepest(lambda levels: outcome(b"\x91" * levels + b"\xc0", around)[0] == t.OK)  # noqa: B023 - used at once
        for around in SURROUNDINGS
    }
    assert len(found) == 1


def test_what_is_too_deep_fails_and_the_next_command_executes() -> None:
    executor, session = executing()
    first, second = msgspec.msgpack.encode(10**6), msgspec.msgpack.encode(5)
    results = execute(executor, t.Command(session, 0, 0, first), t.Command(session, 1, 0, second))
    assert [(result.status, result.payload) for result in results] == [
        (t.FAILED, b"the application raised RecursionError"),
        (t.OK, b"5"),
    ]


def test_the_bound_is_what_it_was_when_the_run_is_over() -> None:
    before = sys.getrecursionlimit()
    outcome(10**6, SURROUNDINGS[0])
    assert sys.getrecursionlimit() == before


def test_the_depth_is_the_interpreters() -> None:
    here = depth.depth()
    assert deeper(0, depth.depth) == here + 1
    assert deeper(5, depth.depth) == here + 6


@pytest.mark.parametrize("levels", [0, 10, 500, 100_000])
def test_the_store_refuses_more_than_a_command_has_however_deep_it_is(levels: int) -> None:
    context = Context([])
    with pytest.raises(Exception, match="not a key-value command: Expected `array` of at most length 2, got 3"):
        KeyValueStore().apply(nested(levels), context)


@pytest.mark.parametrize("levels", [0, 10, 500, 100_000])
def test_a_request_refuses_more_than_a_command_has_however_deep_it_is(levels: int) -> None:
    body = b"\x91\x97\x01\x00\x00\xc4\x01x\x00\xc4\x00" + b"\x91" * levels + b"\xc0"
    assert t.decode_commands(body) == []


class Held:
    """Keeps commits from one executor."""

    def __init__(self, executor: int) -> None:
        self._executor = executor
        self.kept: list[tuple[SimulatedContainer, Parcel]] = []
        self.holds = True

    def take(self, sender: SimulatedContainer, peer: SimulatedContainer, parcel: Parcel) -> bool:
        if self.holds and isinstance(parcel[0], t.Commit) and parcel[1] == self._executor:
            self.kept.append((peer, parcel))
            return True
        return False


class Loose(StateMachine):
    """Decodes whatever it is given. Its state is the sum of what went well."""

    def __init__(self) -> None:
        self.value = 0

    def apply(self, command: bytes, context: Context) -> bytes:
        msgspec.msgpack.decode(command)
        self.value += 1
        return b"%d" % self.value

    def query(self, question: bytes, context: Context) -> bytes:
        return b""

    def snapshot(self) -> Iterator[bytes]:
        yield b"%d" % self.value

    def restore(self, chunks: Iterable[bytes]) -> None:
        self.value = int(b"".join(chunks))


def test_a_replica_that_executes_right_after_it_has_come_to_a_checkpoint_agrees_with_the_others() -> None:
    """It is deeper in its stack then than the others were."""
    limits = Limits(
        checkpoint_interval=32, window=64, report_interval_ms=20.0, controller_timeout_ms=300.0,
        keepalive_interval_ms=1e6,
    )  # fmt: skip
    scene = Scene(limits, application=Loose)
    world = scene.world
    session, number = scene.open(site=0), 0

    def send(levels: int) -> t.Result:
        nonlocal number
        scene.submit(0, [t.Command(session, number, 0, b"\x91" * levels + b"\xc0")])
        number += 1
        return scene.wait((session, number - 1))

    limit = deepest(lambda levels: send(levels).status == t.OK)
    executor = world.graph.number(Stage.EXECUTOR, 2)
    lagging = scene.node(Executor, Stage.EXECUTOR, 2)
    held = Held(executor)
    world.stories.append(held)  # type: ignore[arg-type]
    world.stores.trouble("store_failing", world.now_ms + 1e6)
    while lagging.next // 32 >= scene.executors()[0].next // 32 or scene.executors()[0].next % 32 > 8:
        send(1)
    assert send(limit).status == t.OK
    assert send(limit + 1).status == t.FAILED
    world.stores.trouble("store_failing", 0)
    to_store = world.stores.submit

    def late(container: SimulatedContainer, life: int, number: int, job: t.Tuple) -> None:
        """The commits that it has missed arrive after the threshold, before what leads to the checkpoint is there."""
        if number == executor and isinstance(job, t.Load) and job.minimum:
            held.holds = False
            for peer, parcel in held.kept:
                assert isinstance(parcel[0], t.Commit)
                if parcel[0].first >= 32:
                    world.deliver(peer, [parcel])
        to_store(container, life, number, job)

    with mock.patch.object(world.stores, "submit", late):
        scene.run(2_000)
    assert world.replayed > 0
    assert scene.states_equal()
