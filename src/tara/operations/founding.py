"""The first checkpoint of a history that does not begin with nothing: of a restored cluster, or of a new era.

No slot below that checkpoint is ever used (`tara.protocol.node.Boot.threshold`), so an executor without its copy can
only get its state from a peer's checkpoint, as in any cluster: it never begins with an empty state. Nothing is left of
the slots and sources of the history that the state comes from.
"""

from pathlib import Path

from tara.configuration.state import ClusterState
from tara.protocol import tuples as t
from tara.protocol.graph import Graph, Stage
from tara.protocol.nodes.executor import ExecutorState
from tara.protocol.sessions import SessionsState
from tara.protocol.state_digest import digest_of
from tara.storage.disk import LOCAL
from tara.storage.store import checkpoint_directory, checkpoint_path, write_checkpoint


def install(data_dir: Path, cluster: ClusterState, sessions: SessionsState, chunks: list[bytes]) -> t.CheckpointId:
    """Write checkpoint `cluster.threshold`, with these sessions and this state of the application, to the directory of
    every executor. Durable on return."""
    sources = Graph(cluster.f, cluster.partitions).replicas(Stage.REQUEST_SOURCE)
    state = t.encode(
        ExecutorState(
            cluster.threshold * cluster.checkpoint_interval,
            [[(0, 0, []) for _ in range(sources)] for _ in range(cluster.partitions)],
            sessions,
        )
    )
    checkpoint = t.CheckpointId(cluster.threshold, digest_of(state, chunks))
    for replica in range(2 * cluster.f + 1):
        store = checkpoint_directory(data_dir, replica)
        LOCAL.make_directory(store)
        write_checkpoint(
            checkpoint_path(store, checkpoint.number), cluster.cluster, cluster.era, checkpoint, state, chunks
        )
    return checkpoint
