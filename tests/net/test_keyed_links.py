"""Encrypted connections between containers: real sockets, and a peer in a process of its own that can be stopped."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tara.net import bounds
from tara.net.certificates import load_keys
from tara.net.keygen import make_client_keys, make_cluster_keys
from tara.net.links import Links
from tests.patience import DEADLINE_S, await_condition

FRAME_BYTES_MAX = 1 << 20


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_cluster_keys(tmp_path / "keys")
    return tmp_path / "keys"


class End:
    """A container's links, and what it heard."""

    def __init__(self, keys: Path | None) -> None:
        self.bad: list[str] = []
        self.refused: list[str] = []
        self.frames: list[bytes] = []
        loaded = None if keys is None else load_keys(keys)
        self.links = Links("127.0.0.1", 0, 2, FRAME_BYTES_MAX, self.bad.append, loaded, self.refused.append)

    def turn(self) -> None:
        self.links.tick()
        self.frames += self.links.receive()


def until(condition: Callable[[], object], *ends: End) -> None:
    def holds() -> object:
        for end in ends:
            end.turn()
        return condition()

    await_condition(holds, "the links")


def test_frames_arrive_whole_and_in_order(keys: Path) -> None:
    here, there = End(keys), End(keys)
    with closing(here.links), closing(there.links):
        here.links.connect(1, there.links.address)
        frames = [b"", b"x", b"y" * 300_000, b"z" * FRAME_BYTES_MAX, *(b"%d" % number for number in range(1000))]
        for frame in frames:
            assert here.links.send(1, frame)
        until(lambda: len(there.frames) == len(frames), here, there)
        assert there.frames == frames
        assert here.refused == there.refused == []


def test_a_frame_that_is_too_long_is_lost_and_the_next_ones_arrive(keys: Path) -> None:
    here, there = End(keys), End(keys)
    with closing(here.links), closing(there.links):
        here.links.connect(1, there.links.address)
        until(lambda: here.links.send(1, b"before") and b"before" in there.frames, here, there)
        assert here.links.send(1, bytes(FRAME_BYTES_MAX + 1))
        until(lambda: here.links.send(1, b"after") and b"after" in there.frames, here, there)
        assert set(there.frames) == {b"before", b"after"}
        assert "a frame of 1048577 bytes" in there.bad


def test_links_with_and_without_keys_say_why_they_do_not_talk(keys: Path) -> None:
    keyed, plain = End(keys), End(None)
    with closing(keyed.links), closing(plain.links):
        keyed.links.connect(1, plain.links.address)
        plain.links.connect(1, keyed.links.address)

        def both_refused() -> bool:
            # A plain link says nothing until it has something to say.
            plain.links.send(1, b"x")
            return any("requires keys" in reason for reason in plain.refused) and any(
                "has no keys" in reason for reason in keyed.refused
            )

        until(both_refused, keyed, plain)
        assert keyed.frames == plain.frames == []


def test_a_client_is_no_peer(keys: Path) -> None:
    alice = make_client_keys(keys, "alice")
    member, client = End(keys), End(None)
    client.links._keys = load_keys(alice)
    with closing(member.links), closing(client.links):
        client.links.connect(1, member.links.address)
        client.links.send(1, b"a forged vote")
        until(lambda: client.refused and member.refused, member, client)
        assert "not a member's" in client.refused[0]
        assert member.frames == []


def listen(keys: Path, parent: Connection) -> None:
    """Read until there is nobody to read for."""
    end = End(keys)
    parent.send(end.links.address)
    while not parent.poll(0.01):
        before = len(end.frames)
        end.turn()
        if end.frames and not before:
            parent.send(len(end.frames))
    end.links.close()


def test_what_a_stopped_peer_does_not_read_is_bounded_and_it_is_heard_again(keys: Path) -> None:
    ours, theirs = multiprocessing.Pipe()
    peer = multiprocessing.get_context("spawn").Process(target=listen, args=(keys, theirs), daemon=True)
    peer.start()
    assert peer.pid is not None
    here = End(keys)
    try:
        with closing(here.links):
            assert ours.poll(DEADLINE_S)
            here.links.connect(1, ours.recv())
            until(lambda: here.links.send(1, b"are you there?") and ours.poll(0), here)
            os.kill(peer.pid, signal.SIGSTOP)
            end_s = time.monotonic() + DEADLINE_S
            while here.links.send(1, bytes(100_000)):
                here.turn()
                assert time.monotonic() < end_s
                assert here.links.unsent_bytes(1) <= bounds.LINK_BYTES_MAX
            os.kill(peer.pid, signal.SIGCONT)
            until(lambda: here.links.send(1, b"and now?"), here)
    finally:
        os.kill(peer.pid, signal.SIGCONT)
        ours.send("enough")
        peer.join(DEADLINE_S)
    assert peer.exitcode == 0
