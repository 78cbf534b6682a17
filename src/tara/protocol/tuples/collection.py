"""Garbage collection, and the positions that drive re-sending."""

from typing import Annotated

from msgspec import Meta

from tara.protocol.tuples.base import CheckpointNumber, Number, Reach, Tuple, Value


class CommitterStatus(Tuple, frozen=True, tag=8):
    """committer → gc sinks → gc sources."""

    committer: Number
    partition: Number
    #: (life, round) orders the reports of one node; a later one replaces an earlier one.
    life: Number
    round: Number
    incarnation: Number
    view: Number
    #: The next slot it accepts in `view`; -1 while it has not seen the start of that view.
    position: Annotated[int, Meta(ge=-1, lt=1 << 62)]
    #: The newest stable checkpoint that it knows of.
    stable: CheckpointNumber


class CheckpointId(Value, frozen=True):
    """A checkpoint: what was executed up to `number` · interval slots; where the same was executed, and answered, the
    digests are equal. Of a base, the digest is that of the state."""

    number: CheckpointNumber
    digest: bytes


class ExecutorStatus(Tuple, frozen=True, tag=9):
    """executor → gc sinks → gc sources; also announces checkpoints."""

    executor: Number
    life: Number
    round: Number
    #: Per partition, the next slot it has no decision for.
    positions: list[Number]
    #: Per partition and request source, (epoch, number) below which every request is decided.
    progress: list[list[Reach]]
    #: The checkpoints that it holds durably, oldest first.
    checkpoints: list[CheckpointId]
    #: The newest bases that it holds durably, with the digests of their states.
    bases: list[CheckpointId]
    #: The last checkpoint that it came by, and what the log has got since, in bytes: requests and their results.
    passed: CheckpointNumber
    bytes: Number
    #: Only a base at this checkpoint or a later one helps it; 0: it needs none.
    base_wanted: CheckpointNumber
    #: The newest stable checkpoint that it knows of.
    stable: CheckpointNumber
    #: Open sessions, so that request sources know whether the agreed time must pass.
    sessions: Number


class Stable(Tuple, frozen=True, tag=10):
    """gc source → proposers, committers, executors, request sources, and the queues of the other gc sources: the
    threshold, and everybody's positions."""

    source: Number
    #: The newest checkpoint that f+1 executors hold or held with the same digest. The digest is empty where only
    #: the number is known: from a node that outlived those who had vouched for it.
    checkpoint: CheckpointId
    executors: list[ExecutorStatus]
    committers: list[CommitterStatus]
