"""Who has to go when there are too many connections: always the one that has been silent for the longest time."""

import socket
import weakref
from random import Random

from tara.net.connection import Connection
from tara.net.port import Incoming, Silence


def test_it_is_always_the_most_silent_one_and_those_who_are_gone_are_forgotten() -> None:
    random = Random(7)
    there: dict[bytes, Incoming] = {}
    silence = Silence(there)
    with socket.socket() as unconnected:
        connection = Connection(unconnected, 1000, None)
        for step in range(20_000):
            draw = random.random()
            if draw < 0.3 or not there:
                incoming = Incoming(connection, b"%d" % step, float(step))
                there[incoming.name] = incoming
                silence.add(incoming)
                assert len(silence._heap) <= 2 * len(there) + 65
            elif draw < 0.8:
                random.choice(list(there.values())).heard_s = float(step)
            elif draw < 0.95:
                del there[random.choice(list(there))]
            else:
                longest = silence.longest()
                assert longest is min(there.values(), key=lambda other: other.heard_s)
                del there[longest.name]
        there.clear()
        assert silence.longest() is None


def test_a_connection_that_is_gone_takes_no_room() -> None:
    """Not even until somebody asks who has to go next: it may have been sent much that it did not read."""
    there: dict[bytes, Incoming] = {}
    silence = Silence(there)
    with socket.socket() as unconnected:
        there[b"1"] = Incoming(Connection(unconnected, 1000, None), b"1", 1.0)
    silence.add(there[b"1"])
    gone = weakref.ref(there.pop(b"1"))
    assert gone() is None
