"""Reads the decided log of a cluster over the network, from its front ends.

All sites have the same rows, as far as each has them. So a reader goes on at another site, with the command it needs
next, when one does not answer, is behind, has dropped what is old, or sends what is damaged: every command comes once,
and in order. What a site sends are blocks of its files, which the reader checks and makes rows of.
"""

import select
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import msgspec
import pyarrow as pa

from tara.client.connection import parse_endpoints
from tara.client.errors import Forbidden, NotReachable, Refused
from tara.client.log_feed import LogFeed
from tara.net import log_wire as wire
from tara.net.channel import Channel, Channels
from tara.net.log_wire import LogReply, LogRequest
from tara.storage.log_blocks import LogBounds
from tara.storage.log_format import CorruptLog, LogError, LogIdentity
from tara.storage.log_reader import LogTruncated, RowReader

DEFAULT_TIMEOUT_S = 30.0
#: How long one site may take for an answer before another one is asked.
ANSWER_S_MAX = 3.0
#: How long others are waited for when one has said where its log ends.
OTHERS_S = 0.3
#: Between two attempts, when no site has what is needed.
PAUSE_S = 0.1
NO_ANSWER = "no answer"


class _Site:
    """A front end, and what has come from there."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.name = address.removeprefix("tcp://")
        self.feed = LogFeed(self.name)
        self.channel: Channel | None = None
        #: The newest request, and whether its answer is still to come.
        self.ticket = 0
        self.waits = False
        #: Why there is no connection, if that is known.
        self.refusal: str | None = None

    def close(self) -> None:
        if self.channel is not None:
            self.refusal = self.channel.refusal or self.refusal
            self.channel.close()
            self.channel = None
        self.waits = False


class RemoteLogReader(RowReader):
    """For one thread."""

    def __init__(
        self,
        endpoints: str,
        keys: str | Path | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        prefer: int = 0,
    ) -> None:
        """`endpoints` as for a client; `keys` is the directory with those of an observer or of a member, where the
        cluster has keys. After `timeout_s` without what is needed from any site, a `LogError` or a `NotReachable` says
        why. Reading begins at the site number `prefer` in `endpoints`, so that several readers share the work."""
        self._sites = [_Site(address) for address in parse_endpoints(endpoints)]
        self._here = prefer % len(self._sites)
        self._channels = Channels(keys)
        self._timeout_s = timeout_s
        #: Whose log it is; known when something was read. A reader does not go on in another one's.
        self.identity: LogIdentity | None = None

    def __enter__(self) -> "RemoteLogReader":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        for site in self._sites:
            site.close()

    def _where(self) -> str:
        return self.endpoints

    @property
    def endpoints(self) -> str:
        """All that are known: sites tell where the others are."""
        return ",".join(site.name for site in self._sites)

    def bounds(self) -> LogBounds:
        """What is there now, on all sites together that answer."""
        good = self._any_of_all(LogRequest(wire.VERSION, 0, wire.BOUNDS))
        for site, reply in good:
            self._compare(site, reply)
        replies = [reply for _, reply in good]
        return LogBounds(min(reply.first for reply in replies), max(reply.end for reply in replies))

    def advance(self, counter: int, bytes_max: int) -> int:
        """Up to which command, exclusively, so many bytes of the log lead from this one on, as it is on the disk; at
        least one command, if it is there."""
        good = self._any_of_all(LogRequest(wire.VERSION, 0, wire.ADVANCE, counter, bytes_max=bytes_max))
        return max(reply.end for _, reply in good)

    def exactly(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """The commands of [start, end), all of them: those that no site has yet are waited for."""
        while start < end:
            rows = self._rows_from(start)
            rows = rows.slice(0, min(end - start, rows.num_rows))
            yield rows
            start += rows.num_rows

    def _rows_from(self, counter: int) -> pa.RecordBatch:
        end_s = time.monotonic() + self._timeout_s
        attempts = 0
        #: Why not, by site; and where the log begins at those that have dropped the command.
        said: dict[str, str] = {}
        firsts: dict[str, int] = {}
        forbidden: dict[str, str] = {}
        while True:
            site = self._sites[self._here]
            try:
                rows = site.feed.rows(counter)
                if rows is not None:
                    return rows
                reply = self._ask(site, site.feed.request(counter))
                if reply is not None:
                    self._compare(site, reply)
                if reply is not None and reply.status == wire.OK:
                    site.feed.take(reply)
                    continue
                said[site.name] = self._why_not(site, reply)
                if reply is not None and reply.status == wire.TRUNCATED:
                    firsts[site.name] = reply.first
                elif reply is not None and reply.status == wire.FORBIDDEN:
                    forbidden[site.name] = reply.message
            except (CorruptLog, *wire.DECODE_ERRORS) as error:
                # It is read again from the beginning of its block, there or elsewhere.
                said[site.name] = str(error)
            site.feed.forget()
            attempts += 1
            self._here = (self._here + 1) % len(self._sites)
            late = time.monotonic() >= end_s
            if len(firsts) == len(self._sites) or (late and firsts):
                raise LogTruncated(self.endpoints, counter, min(firsts.values()))
            if late:
                raise self._cannot(counter, said)
            if attempts % len(self._sites) == 0:
                if forbidden and all(name in forbidden or why == NO_ANSWER for name, why in said.items()):
                    raise Forbidden("; ".join(f"{name}: {message}" for name, message in forbidden.items()))
                time.sleep(PAUSE_S)

    def _why_not(self, site: _Site, reply: LogReply | None) -> str:
        if reply is None:
            return site.refusal or NO_ANSWER
        self._learn(reply)
        return _in_words(reply)

    def _compare(self, site: _Site, reply: LogReply) -> None:
        if not reply.cluster:
            return
        found = LogIdentity(reply.cluster, reply.era)
        if self.identity is None:
            self.identity = found
        found.require(self.identity, site.name)

    def _cannot(self, counter: int, said: dict[str, str]) -> Exception:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in said.items())
        message = f"command {counter} cannot be read after {self._timeout_s:g} s: {reasons}"
        if all(site.refusal for site in self._sites):
            return Refused(message)
        if all(reason == NO_ANSWER for reason in said.values()):
            return NotReachable(message)
        return LogError(message)

    def _ask(self, site: _Site, request: LogRequest) -> LogReply | None:
        """One site; None if there is no answer in time."""
        end_s = time.monotonic() + ANSWER_S_MAX
        self._send(site, request)
        while site.waits and (left_s := end_s - time.monotonic()) > 0:
            assert site.channel is not None
            site.channel.wait(left_s)
            reply = self._receive(site)
            if reply is not None:
                return reply
        site.close()
        return None

    def _any_of_all(self, request: LogRequest) -> list[tuple[_Site, LogReply]]:
        """What those say who can, at least one."""
        end_s = time.monotonic() + self._timeout_s
        while True:
            replies = self._ask_all(request)
            good = [(site, reply) for site, reply in replies if reply.status == wire.OK]
            if good:
                return good
            if replies and all(reply.status == wire.FORBIDDEN for _, reply in replies):
                raise Forbidden("; ".join(f"{site.name}: {reply.message}" for site, reply in replies))
            if time.monotonic() >= end_s:
                raise self._no_answer(replies)
            time.sleep(PAUSE_S)

    def _ask_all(self, request: LogRequest) -> list[tuple[_Site, LogReply]]:
        """All sites at once. Those that do not answer are not waited for long when another one has."""
        for site in self._sites:
            self._send(site, request)
        replies: list[tuple[_Site, LogReply]] = []
        end_s = time.monotonic() + ANSWER_S_MAX
        while waiting := [site for site in self._sites if site.waits]:
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                break
            poller = select.poll()
            for site in waiting:
                assert site.channel is not None
                poller.register(site.channel, site.channel.events)
            poller.poll(int(left_s * 1e3) + 1)
            for site in waiting:
                reply = self._receive(site)
                if reply is None:
                    continue
                if reply.status == wire.OK and not replies:
                    end_s = min(end_s, time.monotonic() + OTHERS_S)
                replies.append((site, reply))
        for site in [site for site in self._sites if site.waits]:
            site.close()
        for _, reply in replies:
            self._learn(reply)
        return replies

    def _send(self, site: _Site, request: LogRequest) -> None:
        if site.channel is None or site.channel.broken:
            site.close()
            site.channel = self._channels.open(site.address)
        site.ticket += 1
        site.waits = site.channel.send(wire.encode(msgspec.structs.replace(request, ticket=site.ticket)))
        if not site.waits:
            site.close()

    def _receive(self, site: _Site) -> LogReply | None:
        assert site.channel is not None
        for message in site.channel.receive():
            try:
                reply = wire.decode_reply(message)
            except wire.DECODE_ERRORS:
                # A front end that knows nothing of this answers something else, or nothing.
                continue
            if reply.ticket == site.ticket:
                site.waits, site.refusal = False, None
                return reply
        if site.channel.broken:
            site.close()
        return None

    def _learn(self, reply: LogReply) -> None:
        known = {site.address for site in self._sites}
        self._sites += [_Site(address) for address in reply.endpoints if address not in known]

    def _no_answer(self, replies: list[tuple[_Site, LogReply]]) -> Exception:
        if replies:
            return LogError("; ".join(f"{site.name}: {_in_words(reply)}" for site, reply in replies))
        refusals = [site.refusal for site in self._sites if site.refusal]
        if refusals:
            return Refused(f"no connection to {self.endpoints}: {refusals[0]}")
        return NotReachable(f"{NO_ANSWER} from {self.endpoints}")


def _in_words(reply: LogReply) -> str:
    if reply.status == wire.TRUNCATED:
        return f"has the commands from {reply.first} on"
    if reply.status == wire.NOT_YET:
        return f"has the commands up to {reply.end - 1}"
    return reply.message
