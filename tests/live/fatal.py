"""An application whose commands say how it breaks down."""

import ctypes
import os
import signal
from collections.abc import Iterable, Iterator

from tara.application import Context, StateMachine


class Fatal(StateMachine):
    """A list of what went well. Behind an @, a command names the only processes in which it breaks down;
    behind a ~, a file that must be there for it to break down."""

    def __init__(self) -> None:
        self.values: list[bytes] = []

    def apply(self, command: bytes, context: Context) -> bytes:
        command, _, file = command.partition(b"~")
        word, *processes = command.split(b"@")
        if (not processes or str(os.getpid()).encode() in processes) and (not file or os.path.exists(file)):
            _break_down(word)
        self.values.append(word)
        return b",".join(self.values)

    def query(self, question: bytes, context: Context) -> bytes:
        _break_down(question)
        return b",".join(self.values)

    def snapshot(self) -> Iterator[bytes]:
        yield from self.values

    def restore(self, chunks: Iterable[bytes]) -> None:
        self.values = list(chunks)


def _break_down(word: bytes) -> None:
    match word:
        case b"exit":
            raise SystemExit(3)
        case b"interrupt":
            raise KeyboardInterrupt
        case b"memory":
            raise MemoryError
        case b"gone":
            os._exit(3)
        case b"killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case b"crash":
            ctypes.string_at(0)
