"""Checkpoints on a real disk."""

import errno
import os
import random
import stat
import threading
import time
from pathlib import Path

import pytest

from tara.protocol import tuples as t
from tara.protocol.state_digest import checkpoint_of
from tara.simulator.disk import VirtualDisk
from tara.storage import store as store_module
from tara.storage.disk import LocalDisk
from tara.storage.files import DAMAGED, DAMAGED_KEPT
from tara.storage.store import (
    CheckpointStore,
    StoreError,
    StoreFailed,
    checkpoint_path,
    read_checkpoint,
    write_checkpoint,
)
from tests.live.small_disk import SmallDisk
from tests.patience import DEADLINE_S
from tests.storage.workers import work_for


class Stores:
    """The stores of three executors that can read each other's directories."""

    def __init__(self, root: Path) -> None:
        self._woken = threading.Semaphore(0)
        directories = [root / f"checkpoints-{replica}" for replica in range(3)]
        self.stores = [CheckpointStore(own, 7, 1, directories, self._woken.release) for own in directories]
        self._workers = [work_for(store) for store in self.stores]
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
    checkpoint = checkpoint_of(t.Save(3, b"state", [b"a", b"", b"c"]))

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
    assert not path.exists()
    assert (stores.directories[0] / DAMAGED / f"000001-{path.name}").read_bytes() == bytes(data)


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
    work_for(other)
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


# Damage


def test_every_bit_of_a_checkpoint_is_under_a_checksum(tmp_path: Path) -> None:
    path = checkpoint_path(tmp_path, 12)
    checkpoint = checkpoint_of(t.Save(12, b"state" * 10, [b"chunk", b"", b"another"]))
    write_checkpoint(path, 7, 1, checkpoint, b"state" * 10, [b"chunk", b"", b"another"])
    whole = path.read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for bit in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bytes(changed))
        with pytest.raises(StoreError):
            read_checkpoint(path, 7, 1)


def test_checkpoints_that_were_exchanged_are_noticed(stores: Stores) -> None:
    for number in (3, 4, 5):
        stores.ask(0, t.Save(number, b"state %d" % number, []))
    first, second = (checkpoint_path(stores.directories[0], number) for number in (4, 5))
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)

    loaded = stores.ask(0, t.Load(0, []))
    assert isinstance(loaded, t.Loaded)
    assert loaded.state == b"state 3"
    assert stores.stores[0].counts.checkpoints_refused == 2
    assert any("is checkpoint 4" in error for error in stores.stores[0].errors)


def test_damaged_checkpoints_are_kept_in_a_bounded_number(stores: Stores) -> None:
    for number in range(1, DAMAGED_KEPT + 4):
        stores.ask(0, t.Save(number, b"state", []))
        checkpoint_path(stores.directories[0], number).write_bytes(b"damaged")
        stores.ask(0, t.Load(0, []))
    assert len(list((stores.directories[0] / DAMAGED).iterdir())) == DAMAGED_KEPT


def test_a_copy_that_the_disk_cannot_read_is_refused_and_written_again(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores.ask(0, t.Save(3, b"old", []))
    stores.ask(0, t.Save(4, b"new", []))
    bad, read = checkpoint_path(stores.directories[0], 4), LocalDisk.read
    inode = bad.stat().st_ino

    def failing(disk: LocalDisk, path: Path, offset: int = 0, length: int = -1) -> bytes:
        if path.exists() and path.stat().st_ino == inode:
            raise OSError(errno.EIO, "Input/output error")
        return read(disk, path, offset, length)

    monkeypatch.setattr(LocalDisk, "read", failing)
    loaded = stores.ask(0, t.Load(0, []))
    assert isinstance(loaded, t.Loaded)
    assert loaded.state == b"old"
    assert isinstance(stores.ask(0, t.Save(4, b"new", [])), t.Saved)
    assert isinstance(stores.ask(0, t.Load(4, [])), t.Loaded)


def test_a_damaged_copy_is_written_again_before_it_is_announced(stores: Stores) -> None:
    stores.ask(0, t.Save(3, b"state", []))
    path = checkpoint_path(stores.directories[0], 3)
    os.truncate(path, 20)
    assert isinstance(stores.ask(0, t.Save(3, b"state", [])), t.Saved)
    assert isinstance(stores.ask(0, t.Load(3, [])), t.Loaded)


def test_a_checkpoint_that_is_there_is_announced_when_its_name_is_durable(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores.ask(0, t.Save(3, b"state", []))
    synced: list[Path] = []
    monkeypatch.setattr(LocalDisk, "sync_directory", lambda disk, directory: synced.append(directory))
    assert isinstance(stores.ask(0, t.Save(3, b"state", [])), t.Saved)
    assert synced == [stores.directories[0]]


def test_what_crashes_have_left_is_removed(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints-0"
    directory.mkdir()
    (directory / "000000000005.checkpoint.77.tmp").write_bytes(bytes(1000))
    CheckpointStore(directory, 7, 1, [directory], lambda: None)
    assert list(directory.iterdir()) == []


def test_a_disk_that_became_read_only_is_reported_and_the_store_lives_on(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2, 3, 4):
        stores.ask(0, t.Save(number, b"state", []))

    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(LocalDisk, "unlink", read_only)
        patch.setattr(store_module, "write_whole", read_only)
        stores.stores[0].submit(t.Discard(4))
        stores.stores[0].submit(t.Save(5, b"state", []))
        deadline_s = time.monotonic() + DEADLINE_S
        while stores.stores[0].counts.store_errors < 3:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
    assert isinstance(stores.answer(0), t.Saved)
    assert any("cannot be removed" in error for error in stores.stores[0].errors)
    assert any("cannot write checkpoint 5" in error for error in stores.stores[0].errors)


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.EACCES])
def test_a_directory_that_cannot_be_listed_is_passed_over(tmp_path: Path, number: int) -> None:
    disk = VirtualDisk(random.Random(1))
    directories = [tmp_path / f"checkpoints-{replica}" for replica in range(2)]
    own, peer = [CheckpointStore(directory, 7, 1, directories, lambda: None, disk=disk) for directory in directories]
    for store in (own, peer):
        for checkpoint in range(1, 4):
            store.submit(t.Save(checkpoint, b"state", []))
        store.work()
        assert len(list(store.take())) == 3

    for job, directory in ((t.Discard(3), 0), (t.Load(3, (1,)), 0), (t.Load(4, (1,)), 1)):
        disk.errors = [("list", directories[directory].name, number)]
        own.submit(job)
        own.work()
        assert disk.errors == []
    assert [loaded.checkpoint is not None for loaded in own.take() if isinstance(loaded, t.Loaded)] == [True, False]
    assert own.counts.store_errors == 3
    assert all("cannot be listed" in error for error in own.errors)


def test_a_holder_that_is_not_known_is_not_asked(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints-0", 7, 1, [tmp_path / "checkpoints-0"], lambda: None)
    store.submit(t.Load(1, (0, 5)))
    store.work()
    assert list(store.take()) == [t.Loaded(None, b"", [])]


def test_a_store_that_cannot_go_on_says_so(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its container must not go on as if there would be an answer."""

    def broken(*_: object) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(store_module, "write_checkpoint", broken)
    with pytest.raises(StoreFailed, match="a mistake of ours"):
        stores.ask(0, t.Save(1, b"state", []))
