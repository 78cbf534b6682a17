"""The client's connection, with real sockets."""

import threading

import msgspec
import pytest
import zmq

from tara.client import Client, ClientClosed, wire
from tara.protocol import tuples as t


class FrontEnd:
    """Answers everything: opens sessions, and echoes commands."""

    def __init__(self) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self.address = f"127.0.0.1:{self._socket.bind_to_random_port('tcp://127.0.0.1')}"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._stop.is_set():
            if self._socket.poll(20):
                identity, data = self._socket.recv_multipart()
                results = [self._answer(command) for command in wire.decode_request(data).commands]
                reply = wire.encode(wire.ClientReply(t.FORMAT_VERSION, results))
                self._socket.send_multipart((identity, reply))

    def _answer(self, command: t.Command) -> t.Result:
        payload = msgspec.msgpack.encode([7, 30_000]) if command.kind == t.OPEN else command.payload
        return t.Result(command.session, command.number, 0, t.OK, payload)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._context.destroy(0)


def test_a_session_is_opened_wherever_somebody_answers() -> None:
    """Whichever front end a client tries first, a dead one must not keep it from the living one."""
    front_end = FrontEnd()
    try:
        for _ in range(6):
            with Client(f"127.0.0.1:1,{front_end.address}", timeout_s=5.0) as client:
                assert client.execute(b"hello") == b"hello"
    finally:
        front_end.close()


def test_a_client_that_fails_leaves_nobody_waiting() -> None:
    class Broken(FrontEnd):
        def _answer(self, command: t.Command) -> t.Result:
            return t.Result(command.session, command.number, 0, t.OK, b"")

    front_end = Broken()
    try:
        client = Client(front_end.address, timeout_s=5.0)
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
