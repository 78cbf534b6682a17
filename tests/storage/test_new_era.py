"""What a new era begins with."""

from pathlib import Path

import pytest

from tara.protocol.graph import Graph
from tara.protocol.sessions import ERA_COMMANDS, SessionsState
from tara.storage.new_era import (
    Copy,
    NoCheckpoint,
    RecoveryError,
    best_checkpoint,
    first_sessions,
    first_threshold,
    install,
)
from tara.storage.store import checkpoint_directory, checkpoint_path


def begin(root: Path, number: int, replicas: list[int], chunk: bytes = b"state", era: int = 1) -> list[Copy]:
    sessions = SessionsState(7, 100, 0, 5, [])
    install(root, 1, era, number, Graph(1, 1), 4, sessions, [chunk], replicas)
    return [Copy(checkpoint_path(checkpoint_directory(root, replica), number)) for replica in replicas]


def test_the_newest_checkpoint_of_which_a_copy_is_intact_is_taken(tmp_path: Path) -> None:
    copies = [*begin(tmp_path, 3, [0, 1]), *begin(tmp_path, 4, [1, 2]), *begin(tmp_path, 5, [0])]
    copies[-1].path.write_bytes(b"damaged")

    best = best_checkpoint(copies, 1, 1)

    assert (best.number, best.copies, best.sessions.counter) == (4, 2, 7)
    assert len(best.problems) == 1


def test_copies_that_differ_are_for_an_operator_unless_most_are_equal(tmp_path: Path) -> None:
    copies = [*begin(tmp_path, 3, [0], b"one"), *begin(tmp_path, 3, [1], b"two")]

    with pytest.raises(RecoveryError, match="copies of checkpoint 3 differ"):
        best_checkpoint(copies, 1, 1)
    assert best_checkpoint([*copies, *begin(tmp_path, 3, [2], b"two")], 1, 1).loaded.chunks == [b"two"]


def test_what_is_of_another_era_is_of_no_use(tmp_path: Path) -> None:
    with pytest.raises(NoCheckpoint, match="belongs to cluster 1, era 2"):
        best_checkpoint(begin(tmp_path, 3, [0], era=2), 1, 1)


def test_the_counter_leaves_out_what_the_old_era_may_have_handed_out_and_sessions_have_their_full_time() -> None:
    old = SessionsState(ERA_COMMANDS + 7, 100, 3, 5, [])

    new = first_sessions(old, 90)

    assert (new.counter, new.time_ms, new.clock_ms) == (2 * ERA_COMMANDS, 100, 5)
    assert first_threshold([3, 9, 4]) == 10
