"""States that an operator has rebuilt: whose they are, where they are looked for, and which application executes.

What is in a data directory says nothing about how commands are executed; the application does, and it has to be the one
that executed them first.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from tara.configuration.state import ClusterState
from tara.named import application_of
from tara.protocol.errors import ConfigurationError
from tara.protocol.limits import Limits
from tara.storage.rebuild import History, NothingLeft, OutOfReach, RebuildError, Rebuilt, Source, rebuild, source_of

__all__ = ["NothingLeft", "RebuildError", "Rebuilt", "app_of", "history_of", "rebuild_state", "sources_in"]

KEY_VALUE = "key-value"


def app_of(state: ClusterState) -> str:
    """What the cluster executes."""
    return state.app or KEY_VALUE


def history_of(state: ClusterState) -> History:
    limits = Limits(f=state.f, partitions=state.partitions, **state.fixed)
    try:
        make = application_of(app_of(state))
    except ConfigurationError as error:
        raise RebuildError(
            f"{error}; a state is rebuilt by executing commands again: give this command from where `tara up` was given"
        ) from error
    return History(state.cluster, state.era, state.threshold, limits, make)


def sources_in(state: ClusterState, data_dir: Path, others: Sequence[Path] = ()) -> list[Source]:
    """What is left of executors, below data directories. Others may have bases and files of a log themselves, too."""
    replicas = range(2 * state.f + 1)
    sources = [source_of(root, replica) for root in (data_dir, *others) for replica in replicas]
    return [*sources, *(Source(root, root) for root in others)]


def rebuild_state(
    state: ClusterState, data_dir: Path, others: Sequence[Path] = (), until: int | None = None, copies: int = 0
) -> Rebuilt:
    """As `tara.storage.rebuild.rebuild`, of the cluster in this directory."""
    history, sources = history_of(state), sources_in(state, data_dir, others)
    with uninterrupted():
        try:
            return rebuild(sources, history, until, copies)
        except OutOfReach as error:
            raise RebuildError(f"{data_dir}: {error}") from error


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """While an application executes, an interrupt ends the process at once: as an exception, raised in the midst of
    the application, it would pass for the result of a command."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)
