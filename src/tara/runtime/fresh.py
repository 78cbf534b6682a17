"""Brings a running cluster to its next stable checkpoint, without waiting for its clients to get it there.

Checkpoints are taken at fixed slots. Commands that do nothing fill the slots up to the next one: keep-alives of no
session, which any client may send. When the checkpoint is stable, it has every command that was answered before.
"""

import time
from pathlib import Path
from typing import Any

import msgspec
import zmq

from tara.client import wire
from tara.client.keys import load_keys
from tara.protocol import tuples as t
from tara.protocol.errors import TaraError
from tara.runtime import control
from tara.runtime.asking import ask
from tara.runtime.cluster import StateFile
from tara.runtime.where import expand

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
    state = StateFile(data_dir).read()
    # What the registry knows is about half a second old; commands that were answered before may be newer than that.
    time.sleep(NEWS_S)
    target = max(found["next"] for found in _executors(data_dir)) // state.checkpoint_interval + 1
    #: Commands per slot: a cluster that makes batches needs more than one.
    factor = 1
    context = zmq.Context()
    try:
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        if state.keys:
            load_keys(expand("keys", state.keys)).secure_connecting(socket)
        for endpoint in state.endpoints:
            socket.connect(endpoint)
        before = 0
        while time.monotonic() < deadline_s:
            executors = _executors(data_dir)
            if max(found["stable"] for found in executors) >= target:
                return target
            missing = target * state.checkpoint_interval - max(found["next"] for found in executors)
            if before and missing > before // 2:
                factor *= 2
            # Once all slots are filled, it is for the executors to save and to agree.
            _fill(socket, min(missing * factor, ROUND_MAX))
            before = missing
            time.sleep(NEWS_S)
    except zmq.Again as error:
        raise NoFreshCheckpoint(f"no front end of the cluster in {data_dir} takes commands") from error
    finally:
        context.destroy(0)
    raise NoFreshCheckpoint(f"the cluster in {data_dir} did not come to checkpoint {target} within {timeout_s:.0f} s")


def _fill(socket: zmq.Socket[bytes], count: int) -> None:
    while count > 0:
        commands = [t.Command(0, 0, 0, b"", t.KEEPALIVE)] * min(count, BURST)
        socket.send(wire.encode(wire.ClientRequest(t.FORMAT_VERSION, commands)), zmq.NOBLOCK)
        count -= len(commands)
        time.sleep(PAUSE_S)


def _executors(data_dir: Path) -> list[dict[str, Any]]:
    status = msgspec.json.decode(ask(data_dir, control.AskStatus()))
    found = [container["executor"] for container in status["containers"] if "executor" in container]
    if not found:
        raise NoFreshCheckpoint(f"no executor of the cluster in {data_dir} runs")
    return found
