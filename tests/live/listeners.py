"""Who listens where, as `ss -ltnp` would tell: from /proc, for the processes that one is interested in."""

import ipaddress
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tara.operations.deployment import children

_LISTENING = "0A"


class Listener(NamedTuple):
    pid: int
    command: str
    host: str
    port: int

    @property
    def on_loopback(self) -> bool:
        return ipaddress.ip_address(self.host).is_loopback


def process_tree(pid: int) -> Iterator[int]:
    """A process, and all that it started and that they started."""
    yield pid
    try:
        started = list(children(pid))
    except FileNotFoundError:
        # It has just ended.
        return
    for child in started:
        yield from process_tree(child)


def listeners(pids: Iterable[int]) -> list[Listener]:
    sockets = dict(_listening())
    found = []
    for pid in pids:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:80]
            targets = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")]
        except (FileNotFoundError, ProcessLookupError):
            continue
        inodes = {target[len("socket:[") : -1] for target in targets if target.startswith("socket:[")}
        found += [Listener(pid, command, *sockets[inode]) for inode in inodes & sockets.keys()]
    return found


def _listening() -> Iterator[tuple[str, tuple[str, int]]]:
    """The address of every listening socket, by its inode."""
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            _, local, _, state, *others = line.split()
            if state == _LISTENING:
                host, _, port = local.partition(":")
                yield others[5], (_address(host), int(port, 16))


def _address(text: str) -> str:
    """Words of 32 bits, each in the order of this machine. An IPv4 address in an IPv6 socket is that address."""
    words = bytes.fromhex(text)
    order = -1 if sys.byteorder == "little" else 1
    address = ipaddress.ip_address(b"".join(words[at : at + 4][::order] for at in range(0, len(words), 4)))
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
