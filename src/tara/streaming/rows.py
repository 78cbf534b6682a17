"""The one kind of row that flows through the query: a tuple on its way, a command, a tick, or outcomes.

| column | a tuple | commands | a tick | outcomes |
| --- | --- | --- | --- | --- |
| key | whose state it is for: the node's (all reply sinks: that of the first) | same | same | - |
| node | the receiver | a request source | every node | WRITER |
| sender | the node that emitted it | COMMAND | TICK | OUTCOMES |
| emission | the running number of the tuple among those of that node | - | the tick's number | - |
| number | Results: the view | how many they are | the time in ms | the view |
| form | how the data are to be read, see below | - | - | - |
| data | the tuple in bytes | the commands, packed | - | outcomes in bytes |

No column is ever null: pandas, which carries the rows between Spark and the nodes, would make other types of them.
"""

from typing import NamedTuple

from tara.protocol.graph import Graph, Stage

SCHEMA = "key int, node int, sender int, emission long, number long, form int, data binary"

#: Senders that are no nodes.
COMMAND = -1
TICK = -2
OUTCOMES = -3
#: A request source has something undecided: the query must not fall asleep.
BUSY = -4
#: No number, no view.
NONE = -1
#: The receiver of what only the sink takes.
WRITER = -1


#: The tuple as it is.
PLAIN = 0
#: The tuple, compressed.
COMPRESSED = 1
#: A commit whose long requests are named by the digests of their bodies: another row for the same node has them.
SHORT = 2
#: Such a commit on its way back, because the executor has not got the bodies: it asks for the whole.
RETURNED = 3


class Row(NamedTuple):
    key: int
    node: int
    sender: int
    emission: int
    number: int = NONE
    form: int = PLAIN
    data: bytes = b""


COLUMNS = list(Row._fields)

#: The operators of the query, in the order of the chain. What a node emits to a node of its own or of an earlier
#: operator goes through the feedback queue, into the next micro-batch.
OPERATORS: tuple[tuple[str, tuple[Stage, ...]], ...] = (
    ("sources", (Stage.REQUEST_SOURCE, Stage.GC_SOURCE, Stage.VIEW_SOURCE, Stage.RECORD_SOURCE)),
    ("proposers", (Stage.PROPOSER,)),
    ("committers", (Stage.COMMITTER,)),
    ("executors", (Stage.EXECUTOR,)),
    ("controllers", (Stage.CONTROLLER, Stage.REPLY_SINK)),
)
#: Played by the sink that writes the feedback queue.
SINKS = frozenset({Stage.GC_SINK, Stage.VIEW_SINK, Stage.RECORD_SINK})

#: In which order a node takes what has come: news about views and checkpoints first, so that what is obsolete is
#: forgotten before new requests come.
_PRECEDENCE = {stage: place for place, stage in enumerate((Stage.VIEW_SOURCE, Stage.GC_SOURCE, Stage.RECORD_SOURCE))}


def order(graph: Graph, row: Row) -> tuple[int, int, int]:
    """Sorts a node's input: the same in every execution of the micro-batch."""
    stage = graph.names[row.sender].stage
    if stage is Stage.COMMITTER and graph.names[row.node].stage is Stage.EXECUTOR:
        # What it has not executed only because it came late is not to be fetched from others as a whole state.
        return (-1, row.sender, row.emission)
    return (_PRECEDENCE.get(stage, len(_PRECEDENCE)), row.sender, row.emission)


def key_of(graph: Graph, node: int) -> int:
    """The reply sinks share one state: it drops the duplicates of 2f+1 executors."""
    name = graph.names[node]
    return graph.number(Stage.REPLY_SINK, 0) if name.stage is Stage.REPLY_SINK else node
