"""Messages between simulated clients and front ends: late, lost, doubled, and now and then unread."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tara.host import client_wire
from tara.host.effects import Inputs, Message
from tara.protocol import tuples as t
from tara.protocol.graph import Stage
from tara.simulator.client import Client
from tara.simulator.container import SimulatedContainer

if TYPE_CHECKING:
    from tara.simulator.world import World

#: So many messages are of clients that do not read what they are sent.
UNREAD_SHARE = 0.003
Reads = Sequence[client_wire.ReadMessage]


class ClientLinks:
    def __init__(self, world: "World") -> None:
        self._world = world
        #: Whom a secret stands for, of those who do not go by what it says.
        self.principals: dict[bytes, bytes] = {}

    def say(self, site: int, connection: bytes, principal: bytes, commands: list[t.Command], reads: Reads = ()) -> None:
        """A message to the front end of a site. Whom it is from, the front end finds out by the secret."""
        self.send(site, connection, principal, client_wire.encode_request(commands, list(reads), principal))

    def send(self, site: int, connection: bytes, principal: bytes, pieces: list[bytes]) -> None:
        """One that is encoded, with the principal as its secret."""
        self.principals[principal] = principal
        front_end = self._world.host_of(self._world.graph.number(Stage.REPLY_SINK, site))
        for data in pieces:
            for delay in self._delays():
                self._world.after(delay, self._arrive_message, front_end, connection, data)

    def _arrive_message(self, front_end: SimulatedContainer, connection: bytes, data: bytes) -> None:
        """Now and then much of what was sent to a client waits to be read."""
        unread = 0
        if not self._world.healed and self._world.draw.random() < UNREAD_SHARE:
            self._world.count_fault("unread")
            unread = self._world.draw.choice((1 << 20, 64 << 20))
        message = Message(connection, data, unread_bytes=unread)
        self._world.arrive(front_end, Inputs(messages=[message], unread_bytes=unread))

    def close(self, site: int, connection: bytes) -> None:
        """The front end hears of it, unless it is not there."""
        front_end = self._world.host_of(self._world.graph.number(Stage.REPLY_SINK, site))
        self._world.after(self._world.plan.delay_ms, self._world.arrive, front_end, Inputs(gone=[connection]))

    def end_with(self, container: SimulatedContainer) -> None:
        """A process has ended: its clients notice. (They do not if its machine is gone.)"""
        sinks = {self._world.graph.number(Stage.REPLY_SINK, site) for site in range(self._world.graph.sites)}
        if sinks.intersection(container.numbers):
            for client in self._world.clients:
                if isinstance(client, Client) and client.site == container.site:
                    self._world.count_fault("broken_connection")
                    client.notice_break()

    def submit_to(self, site: int, partition: int, commands: list[t.Command]) -> None:
        """Give commands to a request source, past its front end."""
        number = self._world.graph.number(Stage.REQUEST_SOURCE, site, partition)
        for delay in self._delays():
            self._world.after(delay, self._world.deliver, self._world.host_of(number), [(t.Submit(commands), number)])

    def _delays(self) -> list[float]:
        """When copies of a message to or from a client arrive: once, unless it is lost or doubled."""
        delays = [self._world.plan.delay_ms * (0.5 + self._world.draw.random())]
        if not self._world.healed:
            if self._world.draw.random() < self._world.plan.drop:
                self._world.count_fault("drop")
                return []
            if self._world.draw.random() < self._world.plan.duplicate:
                self._world.count_fault("duplicate")
                delays.append(delays[0] + self._world.draw.randrange(200))
        return delays

    def reply(self, container: SimulatedContainer, connection: bytes, messages: list[bytes]) -> None:
        world = self._world
        for client in world.clients:
            if not isinstance(client, Client):
                continue
            if client.hears(connection, container.site):
                for data in messages:
                    reply = client_wire.decode_reply(data)
                    for delay in self._delays():
                        world.after(delay, self._arrive_reply, client, world.era, reply, connection)

    def _arrive_reply(self, client: Client, era: int, reply: client_wire.ClientReply, connection: bytes) -> None:
        """An era ends with all its processes, and so do their connections."""
        if era == self._world.era:
            client.receive(reply, connection)
