"""A disk that is soon full, for one process."""

import resource
import signal


class SmallDisk:
    """Files of this process may not grow beyond a size: writes fail in the middle, as on a full disk."""

    def __init__(self, bytes_max: int) -> None:
        self._before = resource.getrlimit(resource.RLIMIT_FSIZE)
        self._handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, self._before[1]))

    def grow(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._before)

    def __enter__(self) -> "SmallDisk":
        return self

    def __exit__(self, *_: object) -> None:
        self.grow()
        signal.signal(signal.SIGXFSZ, self._handler)
