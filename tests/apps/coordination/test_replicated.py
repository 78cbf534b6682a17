"""Three replicas of the service on the simulator, with crashes and loaded bases: equal to the last bit."""

from random import Random

import msgspec
import pytest

from tara.apps.coordination import commands
from tara.apps.coordination.codes import Op
from tara.apps.coordination.service import CoordinationService
from tara.protocol.limits import Limits
from tara.protocol.principals import gateway_of
from tara.protocol.tuples import EXECUTE, OK, Command, Result
from tara.simulator.scene import Scene
from tests.apps.coordination.machine import PASSWORD, create_body, multi_body, set_body, versioned_body


def random_command(random: Random, sessions: list[int]) -> bytes:
    path = "/" + "/".join(random.choice("abc") for _ in range(random.randrange(1, 4)))
    session = random.choice(sessions)
    create, change = create_body(path, b"x", random.randrange(5)), set_body(path, random.randbytes(3))
    delete = versioned_body(path)
    kind = random.randrange(7)
    if kind == 0:
        return commands.touch([random.choice(sessions)], collect=True)
    if kind == 1:
        return commands.attach(session, PASSWORD)
    op, body = random.choice(
        [
            (Op.CREATE2, create),
            (Op.CREATE2, create),
            (Op.SET_DATA, change),
            (Op.DELETE, delete),
            (Op.MULTI, multi_body((Op.CREATE, create), (Op.SET_DATA, change), (Op.DELETE, delete))),
            (Op.MULTI, multi_body((Op.DELETE, delete), (Op.CREATE, create), (Op.CHECK, versioned_body("/", 9)))),
        ]
    )
    return commands.envelope(op, session, session) + body


@pytest.mark.parametrize("seed", range(4))
def test_replicas_agree_through_crashes_and_checkpoints(seed: int) -> None:
    random = Random(seed)
    gateway = gateway_of(2)
    limits = Limits(checkpoint_interval=4, window=8, batch_size=3)
    scene = Scene(limits, application=CoordinationService, principal=gateway)
    scene.run(300)
    # Proposers are at sites 0 and 1: this one is never the leader.
    log_session = scene.open(2)
    number = 0

    def order(payload: bytes) -> Result:
        nonlocal number
        scene.submit(2, [Command(log_session, number, number, payload, EXECUTE, gateway)])
        number += 1
        return scene.wait((log_session, number - 1))

    sessions = []
    for timeout_ms in (4_000, 8_000, 1_000_000):
        answer = order(commands.create_session(timeout_ms, PASSWORD)).payload
        sessions.append(msgspec.msgpack.decode(answer[4:], type=tuple[int, int, int])[0])
    for _ in range(3):
        for _ in range(25):
            assert order(random_command(random, sessions)).status == OK
        leader = scene.leader()
        assert leader is not None
        scene.crash(leader)
        for _ in range(25):
            assert order(random_command(random, sessions)).status == OK
        scene.restart(leader)
        scene.run(3_000)
    order(commands.touch([sessions[2]], collect=True))
    # A keep-alive may be on its way at any moment.
    for _ in range(20):
        scene.run(90)
        if scene.states_equal():
            break
    else:
        pytest.fail("the replicas differ")
    assert scene.world.replayed > 0
