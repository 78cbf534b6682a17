"""A site of its own (f = 0) on a thread: a real container with real sockets, without Spark."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from tara.application import StateMachine
from tara.host.placement import placement_of
from tara.live.container import Container, ContainerSpec
from tara.net.gateway import Options
from tara.protocol.graph import Graph
from tara.protocol.limits import Limits
from tara.storage.site_storage import LifeStart
from tests.patience import DEADLINE_S


def container_of(
    application: Callable[[], StateMachine],
    directory: Path,
    gateway: Options | None,
    durability: str,
    keys: Path | None = None,
    /,
    **limits: int,
) -> Container:
    """Founded, and ready to run."""
    spec = ContainerSpec(
        cluster=1,
        era=1,
        container=0,
        placement=placement_of(Graph(0, 1), "site"),
        limits=Limits(f=0, **limits),
        durability=durability,
        data_dir=str(directory),
        host="127.0.0.1",
        port=0,
        gateway=gateway or {},
        keys=str(keys or ""),
    )
    container = Container(spec, application)
    container.start(LifeStart(life=1, genesis=True))
    container.found()
    return container


@contextlib.contextmanager
def single_site(
    application: Callable[[], StateMachine],
    directory: Path,
    gateway: Options | None = None,
    keys: Path | None = None,
    **limits: int,
) -> Iterator[Container]:
    container = container_of(application, directory, gateway, "memory", keys, **limits)
    thread = threading.Thread(target=container.run, args=(lambda: None,), name="site", daemon=True)
    thread.start()
    try:
        yield container
    finally:
        container.stopping = True
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
