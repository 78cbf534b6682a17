"""The client's connection, with real sockets."""

import threading
import time

import msgspec
import pytest

from tara.client import Client, ClientClosed, session, wire
from tara.protocol import tuples as t
from tara.transport.front_end import Address, PlainFrontEnd
from tests.patience import DEADLINE_S


class FrontEnd:
    """Opens sessions, and echoes commands; a sign of life is not answered."""

    def __init__(self) -> None:
        self._front_end = PlainFrontEnd(Address("127.0.0.1", 0), 1 << 20, print)
        self.address = self._front_end.address.removeprefix("tcp://")
        self.heard = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._stop.is_set():
            time.sleep(0.001)
            for name, data in self._front_end.receive():
                self.heard += 1
                commands = [command for command in wire.decode_request(data).commands if command.kind != t.KEEPALIVE]
                results = [self._answer(command) for command in commands]
                self._front_end.send(name, wire.encode(wire.ClientReply(t.FORMAT_VERSION, results)))

    def _answer(self, command: t.Command) -> t.Result:
        payload = msgspec.msgpack.encode([7, 30_000]) if command.kind == t.OPEN else command.payload
        return t.Result(command.session, command.number, 0, t.OK, payload)

    def close(self) -> None:
        if not self._stop.is_set():
            self._stop.set()
            self._thread.join()
            self._front_end.close()


def test_a_session_is_opened_wherever_somebody_answers() -> None:
    """Whichever front end a client tries first, a dead one must not keep it from the living one."""
    front_end = FrontEnd()
    try:
        for _ in range(6):
            with Client(f"127.0.0.1:1,{front_end.address}", timeout_s=DEADLINE_S) as client:
                assert client.execute(b"hello") == b"hello"
    finally:
        front_end.close()


def test_a_client_that_fails_leaves_nobody_waiting() -> None:
    class Broken(FrontEnd):
        def _answer(self, command: t.Command) -> t.Result:
            return t.Result(command.session, command.number, 0, t.OK, b"")

    front_end = Broken()
    try:
        client = Client(front_end.address, timeout_s=DEADLINE_S)
        with pytest.raises(ClientClosed, match="failed"):
            client.execute(b"hello")
        with pytest.raises(ClientClosed):
            client.query(b"hello")
        client.close()
    finally:
        front_end.close()


def test_a_closed_client_says_so_and_can_be_closed_again() -> None:
    front_end = FrontEnd()
    try:
        client = Client(front_end.address)
        assert client.execute(b"hello") == b"hello"
        client.close()
        client.close()
        with pytest.raises(ClientClosed):
            client.execute(b"hello")
    finally:
        front_end.close()


def test_a_client_moves_on_at_once_when_its_front_end_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait until it loses patience: the connection says that nobody is there any more."""
    monkeypatch.setattr(session, "PATIENCE_S", 2 * DEADLINE_S)
    front_ends = [FrontEnd(), FrontEnd()]
    try:
        with Client(",".join(front_end.address for front_end in front_ends), timeout_s=DEADLINE_S) as client:
            assert client.execute(b"hello") == b"hello"
            next(front_end for front_end in front_ends if front_end.heard).close()
            assert client.execute(b"again") == b"again"
    finally:
        for front_end in front_ends:
            front_end.close()
