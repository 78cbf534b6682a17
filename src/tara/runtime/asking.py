"""Asking a running cluster's registry something, from another process."""

from pathlib import Path

import zmq

from tara.protocol.errors import TaraError
from tara.runtime import control
from tara.runtime.cluster import StateFile

TIMEOUT_MS = 3_000


class NoRegistry(TaraError):
    """The registry of the cluster does not answer."""


class Refused(TaraError):
    """The registry said no."""


def ask(data_dir: Path, question: control.Question) -> bytes:
    state = StateFile(data_dir).read()
    question.cluster = state.cluster
    silence = NoRegistry(f"the cluster in {data_dir} does not run (start it with `tara up --data-dir {data_dir}`)")
    if not state.registry:
        raise silence
    context = zmq.Context()
    try:
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(state.registry)
        socket.send(control.encode(question))
        if not socket.poll(TIMEOUT_MS):
            raise silence
        answer = control.decode(socket.recv())
    finally:
        context.destroy(0)
    if not isinstance(answer, control.Answer) or not answer.ok:
        raise Refused(answer.body.decode() if isinstance(answer, control.Answer) else "unexpected answer")
    return answer.body
