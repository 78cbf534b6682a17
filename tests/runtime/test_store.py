"""Checkpoints on a real disk."""

import os
import threading
import time
from pathlib import Path

import pytest

from tara.protocol import tuples as t
from tara.storage.store import CheckpointStore, digest_of
from tests.patience import DEADLINE_S
from tests.runtime.small_disk import SmallDisk


class Stores:
    """The stores of three executors that can read each other's directories."""

    def __init__(self, root: Path) -> None:
        self._woken = threading.Semaphore(0)
        directories = [root / f"checkpoints-{replica}" for replica in range(3)]
        self.stores = [CheckpointStore(own, 7, 1, directories, self._woken.release) for own in directories]
        self.directories = directories

    def ask(self, replica: int, job: t.Save | t.Load) -> t.Tuple:
        self.stores[replica].submit(job)
        return self.answer(replica)

    def answer(self, replica: int) -> t.Tuple:
        assert self._woken.acquire(timeout=DEADLINE_S)
        return next(self.stores[replica].take())


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    return Stores(tmp_path)


def test_a_saved_checkpoint_comes_back(stores: Stores) -> None:
    saved = stores.ask(0, t.Save(3, b"state", iter([b"a", b"", b"c"])))
    checkpoint = t.CheckpointId(3, digest_of(b"state", [b"a", b"", b"c"]))

    assert saved == t.Saved(checkpoint)
    assert stores.ask(0, t.Load(0, [])) == t.Loaded(checkpoint, b"state", [b"a", b"", b"c"])


def test_a_peers_checkpoint_is_found_when_our_own_is_too_old(stores: Stores) -> None:
    stores.ask(0, t.Save(3, b"old", []))
    stores.ask(1, t.Save(5, b"new", []))

    loaded = stores.ask(0, t.Load(4, [2, 1]))

    assert isinstance(loaded, t.Loaded)
    assert loaded.state == b"new"


def test_a_damaged_checkpoint_is_passed_over(stores: Stores) -> None:
    stores.ask(0, t.Save(3, b"good", []))
    stores.ask(0, t.Save(4, b"state", [b"chunk"]))
    path = stores.directories[0] / "000000000004.checkpoint"
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(bytes(data))

    loaded = stores.ask(0, t.Load(0, []))

    assert isinstance(loaded, t.Loaded)
    assert loaded.state == b"good"
    assert "damaged" in stores.stores[0].errors[-1]


@pytest.mark.parametrize("length", [0, 10, 60])
def test_a_truncated_checkpoint_is_passed_over(stores: Stores, length: int) -> None:
    stores.ask(0, t.Save(3, b"good", []))
    stores.ask(0, t.Save(4, b"state", [b"chunk"]))
    path = stores.directories[0] / "000000000004.checkpoint"
    assert path.stat().st_size > length
    os.truncate(path, length)

    loaded = stores.ask(0, t.Load(0, []))

    assert isinstance(loaded, t.Loaded)
    assert loaded.state == b"good"


def test_a_checkpoint_is_saved_when_the_disk_has_room_again(stores: Stores) -> None:
    stores.ask(0, t.Save(3, b"state", []))
    with SmallDisk(16):
        stores.stores[0].submit(t.Save(4, b"state", [b"chunk" * 100]))
        deadline_s = time.monotonic() + DEADLINE_S
        while not stores.stores[0].errors:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)

    assert isinstance(stores.answer(0), t.Saved)
    assert "cannot write checkpoint 4" in stores.stores[0].errors[0]
    loaded = stores.ask(0, t.Load(0, []))
    assert isinstance(loaded, t.Loaded)
    assert loaded.chunks == [b"chunk" * 100]


def test_other_files_among_the_checkpoints_are_left_alone(stores: Stores) -> None:
    stores.ask(0, t.Save(3, b"state", []))
    for name in ("copy.checkpoint", "000000000009.checkpoint.old", "notes"):
        (stores.directories[0] / name).write_text("mine")

    loaded = stores.ask(0, t.Load(0, []))
    assert isinstance(loaded, t.Loaded)
    assert loaded.state == b"state"
    stores.stores[0].submit(t.Discard(9))
    stores.ask(0, t.Save(10, b"newer", []))
    assert (stores.directories[0] / "copy.checkpoint").read_text() == "mine"


def test_nothing_to_load_is_said(stores: Stores) -> None:
    assert stores.ask(0, t.Load(0, [0, 1, 2])) == t.Loaded(None, b"", [])


def test_a_checkpoint_of_another_era_is_not_used(tmp_path: Path, stores: Stores) -> None:
    stores.ask(0, t.Save(3, b"state", []))
    woken = threading.Semaphore(0)
    other = CheckpointStore(stores.directories[0], 7, 2, [], woken.release)
    other.submit(t.Load(0, []))

    assert woken.acquire(timeout=DEADLINE_S)
    assert next(other.take()) == t.Loaded(None, b"", [])


def test_old_checkpoints_are_discarded_but_the_newest_stays(stores: Stores) -> None:
    for number in (1, 2, 3, 4):
        stores.ask(0, t.Save(number, b"state", []))
    stores.stores[0].submit(t.Discard(9))
    stores.ask(0, t.Load(0, []))

    kept = sorted(path.name for path in stores.directories[0].glob("*.checkpoint"))
    assert kept == ["000000000003.checkpoint", "000000000004.checkpoint"]


def test_a_checkpoint_that_nobody_needs_any_more_is_not_saved(stores: Stores) -> None:
    stores.stores[0].submit(t.Discard(9))
    stores.stores[0].submit(t.Save(8, b"late", []))

    assert stores.ask(0, t.Load(0, [])) == t.Loaded(None, b"", [])
