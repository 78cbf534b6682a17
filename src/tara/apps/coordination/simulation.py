"""What the simulator does to the coordination service: clients with sessions that create, change, delete and read a few
nodes, ephemeral and sequential ones among them."""

import random

import msgspec

from tara.application import Execute, Query, Simulation
from tara.apps.coordination import commands, jute
from tara.apps.coordination.acl import OPEN
from tara.apps.coordination.codes import Code, Mode, Op
from tara.apps.coordination.service import CoordinationService

_PASSWORD = bytes(commands.PASSWORD_BYTES)
_TIMEOUT_MS = 2_000
_MODES = (Mode.PERSISTENT, Mode.EPHEMERAL, Mode.PERSISTENT_SEQUENTIAL, Mode.EPHEMERAL_SEQUENTIAL, Mode.CONTAINER)


class CoordinationSimulation(Simulation):
    wire = "tara.apps.coordination.wire_simulation:ZooKeeperWire"

    def __init__(self) -> None:
        #: Its session; 0 if it has none. The attachment of a session that was never attached anew is its own id.
        self._session = 0

    def next(self, draw: random.Random) -> Execute | Query:
        if self._session == 0:
            return Execute(commands.create_session(_TIMEOUT_MS, _PASSWORD))
        path = "/" + "/".join(draw.choice("abc") for _ in range(draw.randrange(1, 4)))
        kind = draw.random()
        if kind < 0.05:
            return Execute(commands.touch([self._session], collect=True))
        if kind < 0.4:
            return Query(self._envelope(draw.choice((Op.EXISTS, Op.GET_CHILDREN2, Op.GET_DATA))) + jute.pack_text(path))
        if kind < 0.65:
            mode = jute.pack_int(draw.choice(_MODES))
            body = jute.pack_text(path) + jute.pack_buffer(draw.randbytes(2)) + jute.pack_acl(OPEN) + mode
            return Execute(self._envelope(Op.CREATE2) + body)
        version = jute.pack_int(draw.choice((-1, -1, 0, 1)))
        if kind < 0.85:
            body = jute.pack_text(path) + jute.pack_buffer(draw.randbytes(2)) + version
            return Execute(self._envelope(Op.SET_DATA) + body)
        if kind < 0.98:
            return Execute(self._envelope(Op.DELETE) + jute.pack_text(path) + version)
        return Execute(self._envelope(Op.CLOSE_SESSION))

    def _envelope(self, op: Op) -> bytes:
        return commands.envelope(op, self._session, self._session)

    def heard(self, call: Execute | Query, answer: bytes | None) -> None:
        if answer is None:
            return
        op, session, *_ = commands.open_envelope(call.payload)
        code = commands.error_of(answer)
        if op == Op.CREATE_SESSION and code == Code.OK:
            self._session = msgspec.msgpack.decode(answer[len(commands.DONE) :], type=tuple[int, int, int])[0]
        elif session == self._session and (op == Op.CLOSE_SESSION or code == Code.SESSION_EXPIRED):
            self._session = 0

    @classmethod
    def check(cls, application: CoordinationService) -> None:
        for session, paths in application.tree.ephemerals.items():
            assert session in application.sessions or not paths, f"nodes {paths} outlive their session {session}"
