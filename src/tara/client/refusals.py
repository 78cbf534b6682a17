"""Why a connection does not come about: what ZeroMQ knows of the handshakes of a socket.

ZeroMQ tells a socket's owner nothing of failed handshakes, except on a monitor: so whoever wants to know has one.
"""

import zmq
from zmq.utils.monitor import parse_monitor_message

#: A handshake that failed: the other side refused our key; spoke another language; or closed without a word.
FAILURES = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
#: Codes that come with a protocol failure: what was sent cannot be deciphered; one side has keys, the other has none.
CRYPTOGRAPHIC = zmq.Event.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC
MECHANISM_MISMATCH = zmq.Event.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH


def watch_handshakes(socket: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
    """A socket that tells of failed handshakes; read it with `take_failures`, and end it with `stop_watching`."""
    return socket.get_monitor_socket(FAILURES)


def stop_watching(socket: zmq.Socket[bytes], monitor: zmq.Socket[bytes]) -> None:
    socket.disable_monitor()
    monitor.close(0)


def take_failures(monitor: zmq.Socket[bytes], keyed: bool) -> list[str]:
    """The failures since the last call, in words; `keyed` says whether this side has keys."""
    found: list[str] = []
    while True:
        try:
            message = parse_monitor_message(monitor.recv_multipart(zmq.NOBLOCK))
        except zmq.Again:
            return found
        found.append(_in_words(message["event"], message["value"], keyed))


def _in_words(event: int, value: int, keyed: bool) -> str:
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return "the key is not authorized"
    if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and value == MECHANISM_MISMATCH:
        return "the other side has no keys" if keyed else "the other side requires keys"
    if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and value == CRYPTOGRAPHIC:
        return "the other side uses another key of the cluster in its handshake"
    if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
        return f"the other side's handshake makes no sense (code {value:#x})"
    likely = "has no keys, or other ones" if keyed else "requires keys"
    return f"the other side closed the connection during the handshake: it likely {likely}"
