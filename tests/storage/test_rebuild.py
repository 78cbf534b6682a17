"""States that are rebuilt from bases and logs, damaged or not."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tara.application import KeyValueStore, Put
from tara.protocol import tuples as t
from tara.protocol.sessions import Context
from tara.storage.base_format import base_directory, list_bases
from tara.storage.log import log_directory
from tara.storage.log_format import list_segments, list_tails
from tara.storage.rebuild import (
    History,
    NothingLeft,
    OutOfReach,
    RebuildError,
    Rebuilt,
    Source,
    numbers_in,
    rebuild,
    source_of,
)
from tests.live.data_directories import StoredReplica, replicate
from tests.live.histories import INTERVAL, bench, history, puts
from tests.protocol.driver import batch, open_session

CLUSTER = 7
#: Requests, and so also the last command of `puts`.
COUNT = 5 * INTERVAL + 5


def of(make: Callable[[], KeyValueStore] = KeyValueStore, threshold: int = 0, era: int = 1) -> History:
    return History(CLUSTER, era, threshold, bench().limits, make)


def sources(root: Path, replicas: int = 1) -> list[Source]:
    return [source_of(root, replica) for replica in range(replicas)]


def values(rebuilt: Rebuilt) -> dict[str, bytes]:
    application = rebuilt.execution.application
    assert isinstance(application, KeyValueStore)
    return dict(application._values)


@pytest.fixture
def replica(tmp_path: Path) -> StoredReplica:
    """With bases at 2 and 4, and a tail behind checkpoint 5."""
    made = StoredReplica(tmp_path, CLUSTER)
    made.execute(puts(COUNT), bases=(2, 4))
    return made


def segments(root: Path, replica: int = 0) -> dict[int, Path]:
    return {file.number: file.path for file in list_segments(log_directory(root, replica))}


def bases(root: Path, replica: int = 0) -> dict[int, Path]:
    return {int(path.stem): path for path in list_bases(base_directory(root, replica))}


def damage(path: Path, at: float = 0.7) -> None:
    data = bytearray(path.read_bytes())
    data[int(len(data) * at)] ^= 1
    path.write_bytes(bytes(data))


def test_the_state_that_reaches_furthest_is_rebuilt(tmp_path: Path, replica: StoredReplica) -> None:
    found = rebuild(sources(tmp_path), of())

    assert (found.counter, found.checkpoint.number, found.copies, found.problems) == (COUNT, 5, 1, [])
    assert found.base is not None
    assert found.base.id.number == 4
    assert found.execution.digest() == replica.node.digest()


@pytest.mark.parametrize("seed", range(3))
def test_the_state_as_of_any_command_can_be_had(tmp_path: Path, seed: int) -> None:
    """With all that can happen to commands; it is exact where the command is the last one of its request."""
    count = 60
    made, states = StoredReplica(tmp_path, CLUSTER), {0: list(KeyValueStore().snapshot())}
    for first, request in enumerate(history(seed, count)):
        made.execute([request], first=first, bases=(2,))
        states[made.node.sessions.counter] = list(made.node.application.snapshot())
    last = made.node.sessions.counter
    assert last > 20

    for counter in range(1, last + 1):
        found = rebuild(sources(tmp_path), of(), until=counter)
        assert found.counter <= counter
        if counter in states:
            assert (found.counter, list(found.execution.application.snapshot())) == (counter, states[counter])
        else:
            assert found.counter >= max(known for known in states if known < counter)
    with pytest.raises(OutOfReach, match=f"the states of commands 0 to {last} can be rebuilt"):
        rebuild(sources(tmp_path), of(), until=last + 1)


@pytest.mark.parametrize("first", [1, INTERVAL - 1])
def test_a_request_is_parted_where_its_commands_are_as_they_came(tmp_path: Path, first: int) -> None:
    """Also at the end of a segment."""
    commands = [t.Command(1, number, 0, t.encode(Put(f"key-{number}", b"value"))) for number in range(4)]
    empty = [batch(number, [], time=9) for number in range(1, first)]
    requests = [batch(0, [open_session()], time=9), *empty, batch(first, commands, time=10)]
    StoredReplica(tmp_path, CLUSTER).execute(requests)

    for counter in range(1, 6):
        found = rebuild(sources(tmp_path), of(), until=counter)
        assert found.counter == counter
        assert set(values(found)) == {f"key-{number}" for number in range(counter - 1)}


@pytest.mark.parametrize("first", [2, INTERVAL - 1])
def test_a_command_that_had_waited_is_executed_with_the_one_that_it_waited_for(tmp_path: Path, first: int) -> None:
    """Also where its request has it once more, so that its commands are those that were executed."""
    commands = [t.Command(1, number, 0, t.encode(Put(f"key-{number}", b"value"))) for number in range(2)]
    empty = [batch(number, [], time=9) for number in range(2, first)]
    early = batch(1, commands[1:], time=9)
    made = StoredReplica(tmp_path, CLUSTER)
    made.execute([batch(0, [open_session()], time=9), early, *empty])
    made.execute([batch(first, commands, time=10)], first=first)
    assert made.node.sessions.counter == 3

    assert [rebuild(sources(tmp_path), of(), until=counter).counter for counter in (1, 2, 3)] == [1, 1, 3]


def test_what_one_replica_lacks_another_has(tmp_path: Path, replica: StoredReplica) -> None:
    replicate(tmp_path)
    damage(bases(tmp_path, 0)[4])
    for number, at in ((3, 0), (3, 1), (5, 0), (5, 2)):
        damage(segments(tmp_path, at)[number])
    for at in (0, 1):
        shutil.rmtree(base_directory(tmp_path, at))

    found = rebuild(sources(tmp_path, 3), of())

    assert (found.counter, found.copies) == (COUNT, 1)
    assert found.execution.digest() == replica.node.digest()
    assert len(found.problems) == 2
    assert rebuild(sources(tmp_path, 3), of(), until=40).counter == 40


def test_without_bases_it_begins_at_the_beginning(tmp_path: Path, replica: StoredReplica) -> None:
    for path in bases(tmp_path).values():
        damage(path)

    found = rebuild(sources(tmp_path), of())

    assert (found.base, found.counter, len(found.problems)) == (None, COUNT, 2)
    assert found.execution.digest() == replica.node.digest()
    with pytest.raises(NothingLeft, match="damaged"):
        rebuild(sources(tmp_path), of(threshold=1))


@pytest.mark.parametrize("at", [0.3, 0.5, 0.9])
def test_of_what_is_damaged_the_intact_part_counts(tmp_path: Path, at: float) -> None:
    made = StoredReplica(tmp_path, CLUSTER)
    made.execute(puts(COUNT), cuts=range(COUNT))
    damage(segments(tmp_path)[4], at)

    found = rebuild(sources(tmp_path), of())

    assert found.checkpoint.number == 3
    assert 3 * INTERVAL < found.counter < 4 * INTERVAL
    assert set(values(found)) == {f"key-{number}" for number in range(found.counter - 1)}
    with pytest.raises(OutOfReach, match=f"of commands 0 to {found.counter} can"):
        rebuild(sources(tmp_path), of(), until=found.counter + 1)


def test_the_longest_tail_counts(tmp_path: Path) -> None:
    for at, count in enumerate((COUNT - 3, COUNT, COUNT - 1)):
        StoredReplica(tmp_path, CLUSTER, replica=at).execute(puts(count))

    assert rebuild(sources(tmp_path, 3), of()).counter == COUNT
    (tail,) = list_tails(log_directory(tmp_path, 1))
    tail.path.write_bytes(tail.path.read_bytes()[:-1])
    assert rebuild(sources(tmp_path, 3), of()).counter == COUNT - 1


def test_a_tail_that_has_its_checkpoint_is_as_good_as_a_segment(tmp_path: Path, replica: StoredReplica) -> None:
    path = segments(tmp_path)[4]
    number, first, *_ = path.name.split("-")
    path.rename(path.with_name(f"{number}-{first}.tail"))

    assert rebuild(sources(tmp_path), of(), until=COUNT).counter == COUNT
    for base in bases(tmp_path).values():
        base.unlink()
    assert rebuild(sources(tmp_path), of()).counter == COUNT


def test_a_gap_ends_what_can_be_had(tmp_path: Path, replica: StoredReplica) -> None:
    segments(tmp_path)[4].unlink()

    assert rebuild(sources(tmp_path), of()).counter == COUNT
    with pytest.raises(OutOfReach, match=f"commands 0 to {3 * INTERVAL}, {4 * INTERVAL} to {COUNT} can be rebuilt"):
        rebuild(sources(tmp_path), of(), until=3 * INTERVAL + 1)


def test_only_checkpoints_that_enough_replicas_have_are_taken(tmp_path: Path, replica: StoredReplica) -> None:
    replicate(tmp_path)
    for at in (0, 1):
        segments(tmp_path, at)[5].unlink()

    assert rebuild(sources(tmp_path, 3), of(), copies=1).counter == 5 * INTERVAL
    found = rebuild(sources(tmp_path, 3), of(), copies=2)
    assert (found.counter, found.checkpoint.number, found.copies) == (4 * INTERVAL, 4, 3)
    with pytest.raises(NothingLeft):
        rebuild(sources(tmp_path, 3), of(), copies=4)


def test_copies_that_differ_are_for_an_operator_unless_most_are_equal(tmp_path: Path) -> None:
    for at, value in enumerate((b"one", b"two")):
        StoredReplica(tmp_path, CLUSTER, replica=at).execute(puts(INTERVAL, value))

    with pytest.raises(RebuildError, match=r"copies of checkpoint 1 differ: .*log-0.*log-1"):
        rebuild(sources(tmp_path, 2), of())
    StoredReplica(tmp_path, CLUSTER, replica=2).execute(puts(INTERVAL, b"two"))
    found = rebuild(sources(tmp_path, 3), of())
    assert (found.copies, values(found)["key-3"]) == (2, b"two")


def test_bases_that_differ_are_for_an_operator_unless_most_are_equal(tmp_path: Path, replica: StoredReplica) -> None:
    class Other(KeyValueStore):
        """What it answers is the same."""

        def apply(self, command: bytes, context: Context) -> bytes:
            result = super().apply(command, context)
            self._values["other"] = b""
            return result

    StoredReplica(tmp_path, CLUSTER, replica=1, application=Other).execute(puts(COUNT), bases=(2, 4))

    with pytest.raises(RebuildError, match=r"copies of checkpoint 4 differ: .*bases-0.*bases-1"):
        rebuild(sources(tmp_path, 2), of())
    shutil.copytree(base_directory(tmp_path, 0), base_directory(tmp_path, 2))
    assert "other" not in values(rebuild(sources(tmp_path, 3), of()))


def test_an_application_that_does_something_else_is_noticed(tmp_path: Path, replica: StoredReplica) -> None:
    class Other(KeyValueStore):
        def apply(self, command: bytes, context: Context) -> bytes:
            super().apply(command, context)
            return b"thanks"

    with pytest.raises(RebuildError, match="checkpoint 5: executing the log again gives digest"):
        rebuild(sources(tmp_path), of(Other))


def test_a_base_that_the_application_cannot_restore_is_passed_over(tmp_path: Path, replica: StoredReplica) -> None:
    class Broken(KeyValueStore):
        def restore(self, chunks: object) -> None:
            raise ValueError

    found = rebuild(sources(tmp_path), of(Broken))

    assert (found.base, found.counter) == (None, COUNT)
    assert "000000000004.base: the application raised ValueError when it was to restore it" in found.problems[0]


def test_what_is_of_another_era_is_of_no_use(tmp_path: Path, replica: StoredReplica) -> None:
    with pytest.raises(NothingLeft, match="belongs to cluster 7, era 1"):
        rebuild(sources(tmp_path), of(era=2))
    with pytest.raises(NothingLeft):
        rebuild(sources(tmp_path / "nowhere"), of())
    assert rebuild(sources(tmp_path / "nowhere"), of(), until=0).counter == 0


def test_all_numbers_are_found(tmp_path: Path, replica: StoredReplica) -> None:
    assert numbers_in(sources(tmp_path)) == {1, 2, 3, 4, 5, 6}
