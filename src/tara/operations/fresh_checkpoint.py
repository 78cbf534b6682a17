"""Brings a running cluster to its next stable checkpoint, without waiting for its clients to get it there.

Checkpoints are taken at fixed slots. Commands that do nothing fill the slots up to the next one: keep-alives of no
session, which any client may send. When the checkpoint is stable, it has every command that was answered before.
"""

import os
import time
from pathlib import Path
from typing import Any

import msgspec

from tara.configuration.state import StateFile
from tara.host import client_wire
from tara.live import control
from tara.net.addresses import expand
from tara.net.channel import Channels
from tara.operations.registry_client import ask
from tara.protocol import tuples as t
from tara.protocol.errors import TaraError
from tara.protocol.principals import SECRET_BYTES_MIN

TIMEOUT_S = 60.0
#: Commands sent at once, and the pause after them: the service goes on for others.
BURST = 500
PAUSE_S = 0.05
#: Commands sent before it is looked again how far the cluster is.
ROUND_MAX = 20_000
#: Executors tell the registry where they are about this often.
NEWS_S = 1.2


class NoFreshCheckpoint(TaraError):
    """The cluster did not come to a new checkpoint in time."""


def await_fresh_checkpoint(data_dir: Path, timeout_s: float = TIMEOUT_S) -> int:
    """Returns the number of a stable checkpoint that was taken after this call began."""
    deadline_s = time.monotonic() + timeout_s
    # What the registry knows is about half a second old; commands that were answered before may be newer than that.
    time.sleep(NEWS_S)
    target = next_checkpoint(data_dir)
    bring_to(data_dir, target, deadline_s)
    return target


def next_checkpoint(data_dir: Path, ahead: int = 0) -> int:
    """The first one that no executor has come to, as far as the registry knows, and that many requests later."""
    interval = StateFile(data_dir).read().checkpoint_interval
    return (max(found["next"] for found in executors(data_dir)) + ahead) // interval + 1


def bring_to(data_dir: Path, target: int, deadline_s: float) -> None:
    """Returns when this checkpoint is stable."""
    state = StateFile(data_dir).read()
    #: Commands per slot: a cluster that makes batches needs more than one.
    factor = 1
    front_ends = FrontEnds(state.endpoints, expand("keys", state.keys) if state.keys else None)
    try:
        before = 0
        while time.monotonic() < deadline_s:
            found = executors(data_dir)
            if max(executor["stable"] for executor in found) >= target:
                return
            missing = target * state.checkpoint_interval - max(executor["next"] for executor in found)
            if before and missing > before // 2:
                factor *= 2
            # Once all slots are filled, it is for the executors to save and to agree.
            if not front_ends.fill(min(missing * factor, ROUND_MAX)):
                raise NoFreshCheckpoint(f"no front end of the cluster in {data_dir} takes commands")
            before = missing
            time.sleep(NEWS_S)
    finally:
        front_ends.close()
    raise NoFreshCheckpoint(f"the cluster in {data_dir} did not come to checkpoint {target} in time")


class FrontEnds:
    """Takes commands to whatever front end is there."""

    def __init__(self, endpoints: list[str], keys: str | None) -> None:
        self._channels = Channels(keys)
        self._secret = os.urandom(SECRET_BYTES_MIN)
        self._number = 0
        self._open = [self._channels.open(endpoint) for endpoint in endpoints]

    def fill(self, count: int) -> bool:
        """Send so many commands that do nothing; whether there was anybody to send them to."""
        while count > 0:
            for channel in self._open:
                # Nobody waits for what it says, but a connection comes about only when it is looked after.
                channel.receive()
            living = [channel for channel in self._open if not channel.broken]
            if not living:
                return False
            commands = [self._command() for _ in range(min(count, BURST))]
            for piece in client_wire.encode_request(commands, [], self._secret):
                living[count % len(living)].send(piece)
            count -= len(commands)
            time.sleep(PAUSE_S)
        return True

    def _command(self) -> t.Command:
        """Request sources take those without a payload for signs of life, of which many share a slot, and those with
        the same number for one."""
        self._number += 1
        return t.Command(0, self._number, 0, b"\0", t.KEEPALIVE)

    def close(self) -> None:
        for channel in self._open:
            channel.close()


def executors(data_dir: Path) -> list[dict[str, Any]]:
    """What the registry knows of them."""
    status = msgspec.json.decode(ask(data_dir, control.AskStatus()))
    found = [container["executor"] for container in status["containers"] if "executor" in container]
    if not found:
        raise NoFreshCheckpoint(f"no executor of the cluster in {data_dir} runs")
    return found
