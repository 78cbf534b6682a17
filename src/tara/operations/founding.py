"""The first base of a history that does not begin with nothing: of a restored cluster, or of a new era.

No slot below its checkpoint is ever used (`tara.protocol.node.Boot.threshold`), so an executor without its copy can
only get its state from a peer's, as in any cluster: it never begins with an empty state. Nothing is left of the slots
and sources of the history that the state comes from.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from tara.configuration.state import ClusterState
from tara.protocol import tuples as t
from tara.protocol.graph import Graph
from tara.protocol.sessions import SessionsState
from tara.storage import new_era


def install(
    data_dir: Path, cluster: ClusterState, sessions: SessionsState, chunks: Callable[[], Iterable[bytes]]
) -> t.CheckpointId:
    """Write base `cluster.threshold`, with these sessions and this state of the application, to the directory of every
    executor. Durable on return."""
    graph = Graph(cluster.f, cluster.partitions)
    return new_era.install(
        data_dir,
        cluster.cluster,
        cluster.era,
        cluster.threshold,
        graph,
        cluster.checkpoint_interval,
        sessions,
        chunks,
        range(graph.sites),
    )
