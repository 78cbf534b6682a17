"""Segments that do not lead to the digest that they name: whose fault that is, and what becomes of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tara.application import Context, KeyValueStore
from tara.storage.log import log_directory
from tara.storage.log_format import LogIdentity, list_segments, read_segment
from tests.live.histories import puts
from tests.storage import replicas
from tests.storage.replicas import CLUSTER, ERA, INTERVAL, StoredReplica, bench, undisturbed

REQUESTS = puts(40)
NEWEST = len(REQUESTS) // INTERVAL
BENCH = bench(base_bytes_min=1 << 30)


class Diverging(KeyValueStore):
    def apply(self, command: bytes, context: Context) -> bytes:
        return super().apply(command, context) + (b"!" if context.counter == 12 else b"")


@contextmanager
def diverging() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replicas, "KeyValueStore", Diverging)
        yield


def replica(root: Path, index: int, life: int = 1) -> StoredReplica:
    return StoredReplica(root, index, life=life, made_by=BENCH, retention_bytes=1 << 30)


def has_decided(root: Path, index: int) -> StoredReplica:
    made = replica(root, index)
    made.decide(REQUESTS)
    return made


def diverged(root: Path, index: int) -> StoredReplica:
    with diverging():
        return has_decided(root, index)


def digests(root: Path, index: int) -> list[bytes]:
    """What the segments of a replica name."""
    files = list_segments(log_directory(root, index))
    return [read_segment(file, LogIdentity(CLUSTER, ERA))[1].digest for file in files]


RIGHT = [undisturbed(REQUESTS, BENCH)[number * INTERVAL][0] for number in range(1, NEWEST + 1)]


def is_right(life: StoredReplica, root: Path) -> None:
    assert life.node.halted is None
    assert life.node.execution.checkpoint.digest == RIGHT[-1]
    assert digests(root, life.node.index) == RIGHT


def load_from(life: StoredReplica, others: list[StoredReplica], agreed: bytes = b"") -> None:
    """Later than anything before."""
    statuses = [life.bench.status(other.node.index, checkpoints=[other.saved[-1]]) for other in others]
    life.executor.tick(100_000.0)
    life.feed(*life.bench.stables(NEWEST, digest=agreed, executors=statuses))
    life.settle()


def test_a_segment_of_a_replica_that_diverged_gives_way_to_anothers(tmp_path: Path) -> None:
    others = [diverged(tmp_path, 0), has_decided(tmp_path, 2)]
    life = replica(tmp_path, 1, life=2)
    life.come_back()

    life.follow(others)

    is_right(life, tmp_path)
    assert any("damaged" in error for error in life.errors())
    again = replica(tmp_path, 1, life=3)
    assert again.come_back() == NEWEST


def test_one_that_was_fetched_by_a_life_before_gives_way_to_what_others_have_and_was_found(tmp_path: Path) -> None:
    diverged(tmp_path, 0)
    left = replica(tmp_path, 1)
    assert left.log.work()
    assert left.log._writer is not None
    segments = left.log._writer.segments
    for number in range(1, NEWEST + 1):
        assert segments.bring(number, segments.offers([0]))
    assert digests(tmp_path, 1) != RIGHT
    has_decided(tmp_path, 2)

    life = replica(tmp_path, 1, life=2)
    assert life.come_back() == NEWEST

    is_right(life, tmp_path)


def test_while_nobody_else_has_it_the_way_ends_before_it(tmp_path: Path) -> None:
    """And goes on when somebody has it."""
    other = diverged(tmp_path, 0)
    life = replica(tmp_path, 1, life=2)
    life.come_back()
    life.follow([other])
    assert (life.node.halted, life.node.next, digests(tmp_path, 1)) == (None, INTERVAL, RIGHT[:1])

    healthy = has_decided(tmp_path, 2)
    load_from(life, [healthy])

    is_right(life, tmp_path)


def test_it_is_its_own_fault_if_two_replicas_say_the_same(tmp_path: Path) -> None:
    others = [has_decided(tmp_path, 0), has_decided(tmp_path, 2)]
    with diverging():
        life = replica(tmp_path, 1, life=2)
    life.come_back()
    life.follow(others)
    assert life.node.halted is not None
    assert "not deterministic" in life.node.halted.reason


def test_what_it_has_written_itself_stays_if_nobody_has_what_it_finds_now(tmp_path: Path) -> None:
    has_decided(tmp_path, 1)
    with diverging():
        life = replica(tmp_path, 1, life=2)
    life.settle()
    assert life.node.halted is not None
    assert "not deterministic" in life.node.halted.reason
    assert digests(tmp_path, 1) == RIGHT


def test_what_was_fetched_and_passed_over_is_compared_with_where_the_executor_comes(tmp_path: Path) -> None:
    """It executes what is missing before it, and what follows; the checkpoint is not announced over what leads
    elsewhere."""
    diverged(tmp_path, 0)
    life = replica(tmp_path, 1)
    life.decide(REQUESTS[:INTERVAL])
    writer = life.log._writer
    assert writer is not None
    assert writer.segments.bring(3, writer.segments.offers([0]))
    writer.segments.jump(3)
    life.log._others = []

    life.decide(REQUESTS[: 3 * INTERVAL])

    assert [checkpoint.number for checkpoint in life.saved] == [1, 2]
    assert digests(tmp_path, 1) == RIGHT[:2]


def test_who_diverged_is_no_holder(tmp_path: Path) -> None:
    """If it is known what was agreed, nothing of it is looked at."""
    others = [diverged(tmp_path, 0), has_decided(tmp_path, 2)]
    life = replica(tmp_path, 1, life=2)
    life.come_back()
    load_from(life, others, RIGHT[-1])
    is_right(life, tmp_path)
    assert not any("damaged" in error for error in life.errors())
