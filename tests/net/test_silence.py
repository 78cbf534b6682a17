"""Who has to go when there are too many connections: always the one that has been silent for the longest time."""

import socket
from random import Random

from tara.net.connection import Connection
from tara.net.port import Incoming, Silence


def test_it_is_always_the_most_silent_one_and_those_who_are_gone_are_forgotten() -> None:
    random = Random(7)
    silence, there = Silence(), dict[bytes, Incoming]()
    with socket.socket() as unconnected:
        connection = Connection(unconnected, 1000, None)
        for step in range(20_000):
            draw = random.random()
            if draw < 0.3 or not there:
                incoming = Incoming(connection, b"%d" % step, float(step))
                there[incoming.name] = incoming
                silence.add(incoming, there.values())
                assert len(silence._heap) <= 2 * len(there) + 65
            elif draw < 0.8:
                random.choice(list(there.values())).heard_s = float(step)
            elif draw < 0.95:
                there.pop(random.choice(list(there))).gone = True
            else:
                longest = silence.longest()
                assert longest is min(there.values(), key=lambda other: other.heard_s)
                del there[longest.name]
                longest.gone = True
        for incoming in there.values():
            incoming.gone = True
        assert silence.longest() is None
