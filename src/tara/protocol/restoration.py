"""A base that is being restored: slice by slice, while its site does other work in between."""

from collections.abc import Iterator

from tara.protocol import tuples as t
from tara.protocol.execution import ExecutionState
from tara.protocol.sessions import Application

_END = object()


class Restoration:
    def __init__(self, base: t.CheckpointId, state: ExecutionState, loaded: t.Loaded) -> None:
        self.base = base
        #: The protocol's part of the base.
        self.state = state
        self.loaded = loaded
        self._slices: Iterator[None] | None = None

    def go_on(self, application: Application) -> bool:
        """Restore some more of the application's part; whether there is more. Raises what the application raises."""
        if self._slices is None:
            self._slices = application.restore_slices(self.loaded.chunks)
        return next(self._slices, _END) is not _END
