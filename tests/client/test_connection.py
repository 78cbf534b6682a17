"""The client's connection, with real sockets."""

import threading
import time
from concurrent.futures import Future

import msgspec
import pytest

from tara.client import Client, ClientClosed, reads, session
from tara.host import client_wire
from tara.protocol import tuples as t
from tests.net.terms import serve
from tests.patience import DEADLINE_S, await_condition


class FrontEnd:
    """Opens sessions, and echoes commands and reads; a sign of life is not answered."""

    def __init__(self, pause_s: float = 0.001) -> None:
        self._pause_s = pause_s
        self._front_end = serve(on_bad=print)
        self.address = self._front_end.address.removeprefix("tcp://")
        self.heard = 0
        self.ended: list[int] = []
        #: Reads that are not answered the first time.
        self.lost: set[bytes] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._stop.is_set():
            time.sleep(self._pause_s)
            for name, data in self._front_end.receive():
                self.heard += 1
                request = client_wire.decode_request(data)
                self.ended += [command.session for command in request.commands if command.kind == t.CLOSE]
                results = [self._answer(command) for command in request.commands if command.kind != t.KEEPALIVE]
                answers = [(read.id, t.OK, read.payload) for read in request.reads if read.payload not in self.lost]
                self.lost.difference_update(read.payload for read in request.reads)
                self._front_end.send(
                    name, client_wire.encode(client_wire.ClientReply(t.FORMAT_VERSION, results, [], answers))
                )

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


def test_a_closed_client_has_ended_its_session() -> None:
    front_end = FrontEnd()
    try:
        with Client(front_end.address) as client:
            assert client.execute(b"hello") == b"hello"
        await_condition(lambda: front_end.ended == [7], "the session has ended")
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


def test_one_lost_read_makes_a_client_change_its_front_end_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was asked there is asked again at the next one: nobody answers it any more, and it would be late, too."""
    monkeypatch.setattr(reads, "PATIENCE_S_MAX", 0.5)
    front_ends = [FrontEnd(0.02), FrontEnd(0.02)]
    for front_end in front_ends:
        front_end.lost.add(b"question 50")
    states: list[session.State] = []
    try:
        endpoints = ",".join(front_end.address for front_end in front_ends)
        with Client(endpoints, timeout_s=DEADLINE_S, on_state=states.append) as client:
            asked: list[tuple[bytes, Future[bytes]]] = []
            end_s = time.monotonic() + 4.0
            # Whether they are answered or not: several are always on their way.
            while time.monotonic() < end_s:
                question = b"question %d" % len(asked)
                asked.append((question, client.submit_query(question)))
                time.sleep(0.002)
            assert all(answer.result() == question for question, answer in asked)
    finally:
        for front_end in front_ends:
            front_end.close()
    # Once for each front end that loses it, and perhaps for a pause of this machine; not once in every half second.
    assert 1 <= states.count(session.State.LOST) <= 4
