"""Encrypted connections between containers: real sockets, and a peer in a process of its own that can be stopped."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import zmq

from tara.client.framing import QUEUED_FRAMES_MAX
from tara.client.keys import load_keys, make_cluster_keys
from tara.transport.gate import Gate
from tara.transport.links import CurveLinks
from tests.patience import DEADLINE_S

FRAME_BYTES_MAX = 100_000


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_cluster_keys(tmp_path / "keys")
    return tmp_path / "keys"


@contextmanager
def open_links(keys: Path, frame_bytes_max: int = FRAME_BYTES_MAX) -> Iterator[CurveLinks]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    loaded = load_keys(keys)
    gate = Gate(context, loaded, lambda domain, reason: None)
    links = CurveLinks(context, loaded, gate, "127.0.0.1", 0, 2, frame_bytes_max)
    gate.start()
    try:
        yield links
    finally:
        links.close()
        gate.stop()
        context.destroy(0)


def await_true(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_a_frame_that_is_too_long_is_lost_and_the_next_ones_arrive(keys: Path) -> None:
    with open_links(keys) as here, open_links(keys) as there:
        here.connect(1, there.address)
        heard: list[bytes] = []

        def hears(frame: bytes) -> Callable[[], bool]:
            def heard_it() -> bool:
                here.send(1, frame)
                heard.extend(there.receive())
                return frame in heard

            return heard_it

        await_true(hears(b"before"))
        assert here.send(1, bytes(FRAME_BYTES_MAX + 1))
        await_true(hears(b"after"))
        assert {len(frame) for frame in heard} == {len(b"before"), len(b"after")}


def listen(keys: Path, parent: Connection) -> None:
    """Read until there is nobody to read for."""
    with open_links(keys) as links:
        parent.send(links.address)
        heard = 0
        while not parent.poll(0.01):
            found = len(links.receive())
            if found and not heard:
                parent.send(found)
            heard += found


def test_what_a_stopped_peer_does_not_read_is_forgotten_and_it_is_heard_again(keys: Path) -> None:
    ours, theirs = multiprocessing.Pipe()
    peer = multiprocessing.get_context("spawn").Process(target=listen, args=(keys, theirs), daemon=True)
    peer.start()
    assert peer.pid is not None
    try:
        with open_links(keys) as links:
            assert ours.poll(DEADLINE_S)
            links.connect(1, ours.recv())
            await_true(lambda: links.send(1, b"are you there?") and ours.poll(0.01))
            os.kill(peer.pid, signal.SIGSTOP)

            sent = 0
            while links.send(1, bytes(1000)):
                sent += 1
                # Frames may be long: their number alone is no bound.
                assert sent < QUEUED_FRAMES_MAX / 5
                time.sleep(0.01)
            os.kill(peer.pid, signal.SIGCONT)
            await_true(lambda: links.send(1, b"and now?"))
    finally:
        os.kill(peer.pid, signal.SIGCONT)
        ours.send("enough")
        peer.join(DEADLINE_S)
    assert peer.exitcode == 0
