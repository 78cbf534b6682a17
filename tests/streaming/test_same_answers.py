"""The same commands give the same answers and the same state in a query and in the simulator."""

import random

import msgspec
import pytest

from tara.application import ApplicationError, CompareAndSet, Context, Delete, Get, KeyValueStore, List, Put
from tara.protocol import tuples as t
from tara.protocol.limits import Limits
from tara.protocol.nodes.executor import Executor
from tara.simulator.scene import Scene
from tara.simulator.workload import Audited
from tara.streaming.clients import Clients
from tests.streaming.test_host import Query

COMMANDS = 12
KEYS = ("same/a", "same/b", "same/c")
Answers = list[tuple[str, bytes]]


def sequence(seed: int) -> list[bytes]:
    """Commands of one client: with several, each runtime may choose an order of its own."""
    choice = random.Random(seed)
    makers = [
        lambda key: Put(key, choice.randbytes(5)),
        lambda key: Get(key),
        lambda key: Delete(key),
        lambda key: CompareAndSet(key, None, b"first"),
        lambda key: List("same/"),
    ]
    commands = [msgspec.msgpack.encode(choice.choice(makers)(choice.choice(KEYS))) for _ in range(COMMANDS)]
    return [b"nonsense" if choice.random() < 0.1 else command for command in commands]


def alone(commands: list[bytes]) -> tuple[Answers, bytes]:
    """What a single copy says, and its state."""
    application = KeyValueStore()
    answers: Answers = []
    for command in commands:
        try:
            answers.append(("ok", application.apply(command, Context([]))))
        except ApplicationError as error:
            answers.append(("failed", str(error).encode()))
    return answers, b"".join(application.snapshot())


def streamed(commands: list[bytes], seed: int) -> tuple[Answers, bytes]:
    query = Query(KeyValueStore, seed)
    choice = random.Random(seed)
    numbered = list(enumerate(commands))
    while numbered:
        count = choice.randint(1, 5)
        query.run([("client", number, command) for number, command in numbered[:count]])
        numbered = numbered[count:]
    query.settle()
    states = set()
    for key, name in enumerate(query.graph.names):
        if name.stage == "executor":
            (node,) = query.seat(key).nodes
            assert isinstance(node, Executor)
            assert isinstance(node.application, Clients)
            states.add(b"".join(node.application.application.snapshot()))
    (state,) = states
    return [(status, result) for _, _, _, status, result, _ in query.results], state


def simulated(commands: list[bytes]) -> tuple[Answers, bytes]:
    scene = Scene(Limits())
    session = scene.open()
    answers = []
    for number, command in enumerate(commands):
        payload = msgspec.msgpack.encode((scene.world.next_unique(), command))
        scene.submit(0, [t.Command(session, number, 0, payload)])
        result = scene.wait((session, number))
        answers.append(("ok" if result.status == t.OK else "failed", result.payload))
    scene.run(100)
    stores = [executor.application for executor in scene.executors()]
    (state,) = {b"".join(store.application.snapshot()) for store in stores if isinstance(store, Audited)}
    return answers, state


@pytest.mark.parametrize("seed", range(50))
def test_a_random_sequence(seed: int) -> None:
    commands = sequence(seed)
    answers, state = alone(commands)
    assert streamed(commands, seed) == (answers, state)
    assert simulated(commands) == (answers, state)
