"""A server of messages: others connect to it, each connection has a name, and messages go both ways.

Front ends, file servers and registries are such servers. An answer to somebody who is gone, or who does not read, is
dropped: whoever needs it asks again.
"""

import errno
import resource
import select
import time
from typing import NamedTuple

from tara.net import bounds
from tara.net.budget import Budget
from tara.net.connection import Connection
from tara.net.port import Port, Terms
from tara.net.principal import NOBODY, Principal


class Address(NamedTuple):
    host: str
    #: 0: any free one.
    port: int
    #: If another process has the port, any free one will do: whoever connects is told which.
    elsewhere: bool = False


def clients_max() -> int:
    """At most half of the descriptors that this process may have: files and peers need theirs."""
    return min(bounds.CLIENTS_MAX, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)


class Server:
    def __init__(self, address: Address, terms: Terms, budget: Budget | None = None) -> None:
        budget = budget or Budget()
        try:
            self._port = Port(address.host, address.port, terms, budget)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not address.elsewhere:
                raise
            self._port = Port(address.host, 0, terms, budget)
        #: Where others connect to.
        self.address = self._port.address

    def fileno(self) -> int:
        """A descriptor that is readable when there is news."""
        return self._port.epoll.fileno()

    def wait(self, timeout_s: float) -> None:
        """Until there is news; for those who have nothing else to do."""
        poller = select.poll()
        poller.register(self._port.epoll, select.POLLIN)
        poller.poll(int(timeout_s * 1e3) + 1)

    def receive(self) -> list[tuple[bytes, bytes]]:
        """The messages that have arrived, with the names of their connections."""
        messages: list[tuple[bytes, bytes]] = []
        port = self._port
        for descriptor, events in port.poll():
            name, frames = port.handle(descriptor, events)
            if frames:
                messages += [(name, frame) for frame in frames]
        for name, frames in port.take_early():
            messages += [(name, frame) for frame in frames]
        return messages

    def send(self, name: bytes, message: bytes) -> None:
        self._port.send(name, message)

    def principal(self, name: bytes) -> Principal:
        """Who is at the other end of this connection; `NOBODY` if there are no keys, or the connection is gone."""
        incoming = self._port.by_name.get(name)
        return NOBODY if incoming is None else incoming.connection.principal

    def unread_bytes(self, name: bytes) -> int:
        """What waits for this connection to read."""
        incoming = self._port.by_name.get(name)
        return 0 if incoming is None else incoming.connection.unsent_bytes

    def give_away(self, name: bytes) -> Connection | None:
        """This connection, for somebody else to serve it; None if it is gone."""
        return self._port.give_away(name)

    def tick(self) -> None:
        """Time has passed."""
        self._port.tick()

    def close(self, linger_s: float = 0.0) -> None:
        """With so much time for what was sent last to arrive."""
        port = self._port
        end_s = time.monotonic() + linger_s
        if linger_s:
            port.stop_listening()
        finished: set[bytes] = set()
        while linger_s and port.connections and (left_s := end_s - time.monotonic()) > 0:
            for incoming in list(port.connections.values()):
                if incoming.name not in finished and not incoming.connection.waits_to_write:
                    finished.add(incoming.name)
                    incoming.connection.finish()
            self.wait(left_s)
            for descriptor, events in port.poll():
                found = port.connections.get(descriptor)
                if found is None or found.name not in finished:
                    port.handle(descriptor, events)
                elif found.connection.discard():
                    port.hang_up(found)
        port.close()
