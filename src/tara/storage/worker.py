"""A thread that does the work of a store or of a log, whenever there is some."""

import threading
from collections.abc import Callable

#: How long the end of a piece of work is waited for.
CLOSE_S = 10.0


class Worker:
    def __init__(self, name: str, work: Callable[[], float]) -> None:
        """`work` returns after how many seconds to call it again if nobody wakes."""
        self._work = work
        self._wakeup = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._wakeup.set()

    def close(self) -> None:
        """Let it do what there is to do, once more, and end."""
        self._closing = True
        self._wakeup.set()
        self._thread.join(timeout=CLOSE_S)

    def _run(self) -> None:
        closing = False
        while not closing:
            closing = self._closing
            pause_s = self._work()
            if not closing:
                self._wakeup.wait(pause_s)
                self._wakeup.clear()
