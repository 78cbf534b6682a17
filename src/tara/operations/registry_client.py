"""Asks a running cluster's registry something, from another process."""

import os
import time
from pathlib import Path

from tara.configuration.state import DirectoryInUse, StateFile
from tara.live import control
from tara.net import bounds
from tara.net.addresses import expand
from tara.net.certificates import load_member_keys
from tara.net.channel import Channel
from tara.protocol.errors import TaraError

TIMEOUT_S = 3.0
DOWN_TIMEOUT_S = 60.0


class NoRegistry(TaraError):
    """The registry of the cluster does not answer."""


class StillUp(TaraError):
    """The cluster was told to go down, but has not."""


class RegistryRefused(TaraError):
    """The registry said no."""


def ask(data_dir: Path, question: control.Question, keys: str | Path | None = None) -> bytes:
    """What the registry answers. `keys` is the directory with the cluster's keys; by default the one it was started
    with."""
    state = StateFile(data_dir).read()
    question.cluster = state.cluster
    silence = NoRegistry(f"the cluster in {data_dir} does not run (start it with `tara up --data-dir {data_dir}`)")
    if not state.registry:
        raise silence
    directory = expand("keys", str(keys or state.keys)) if keys or state.keys else ""
    answer = _ask_at(state.registry, question, directory, silence)
    if isinstance(answer, control.Elsewhere):
        # It belongs to another site's driver.
        silence = NoRegistry(f"the driver at {answer.address} does not answer")
        answer = _ask_at(answer.address, question, directory, silence)
    if not isinstance(answer, control.Answer) or not answer.ok:
        raise RegistryRefused(answer.body.decode() if isinstance(answer, control.Answer) else "unexpected answer")
    return answer.body


def _ask_at(address: str, question: control.Question, keys: str, silence: NoRegistry) -> control.Message:
    channel = Channel(address, load_member_keys(keys) if keys else None, bounds.CONTROL_BYTES_MAX)
    try:
        channel.send(control.encode(question))
        end_s = time.monotonic() + TIMEOUT_S
        while not channel.broken and (left_s := end_s - time.monotonic()) > 0:
            channel.wait(left_s)
            for data in channel.receive():
                return control.decode(data)
        if channel.refusal is not None:
            raise RegistryRefused(f"no connection to {address}: {channel.refusal}")
        raise silence
    finally:
        channel.close()


def await_down(data_dir: Path, timeout_s: float = DOWN_TIMEOUT_S) -> None:
    """Return when the data directory is free: the driver holds its lock to the end."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        try:
            os.close(StateFile(data_dir).lock())
            return
        except DirectoryInUse:
            time.sleep(0.1)
    raise StillUp(f"the cluster in {data_dir} has not ended within {timeout_s:.0f} s")
