"""Files of bases: what was written comes back, or nothing does."""

import errno
import os
import random
import stat
from pathlib import Path

import pytest

from tara.protocol import tuples as t
from tara.protocol.errors import BaseUnreadable
from tara.protocol.state_digest import digest_of
from tara.simulator.disk import VirtualDisk
from tara.storage.base_format import (
    FORMAT_VERSION,
    READ_BYTES,
    BaseError,
    BaseFile,
    ForeignBase,
    StoredBase,
    base_path,
    list_bases,
    read_base,
    read_header,
    write_base,
)
from tara.storage.disk import LOCAL, File, LocalDisk

STATE, CHUNKS = b"state" * 10, [b"chunk", b"", b"another"]


def base(number: int = 12) -> t.CheckpointId:
    return t.CheckpointId(number, b"digest of it all")


def written(directory: Path, number: int = 12, cluster: int = 7, era: int = 1) -> Path:
    write_base(directory, cluster, era, base(number), STATE, CHUNKS)
    return base_path(directory, number)


def read(path: Path) -> StoredBase:
    return read_base(path, 7, 1)


def test_what_was_written_comes_back(tmp_path: Path) -> None:
    path = written(tmp_path)
    found = read(path)
    assert (found.id, found.state, list(found.chunks())) == (base(), STATE, CHUNKS)
    assert found.digest == digest_of(STATE, CHUNKS)
    assert found.length == len(STATE) + sum(map(len, CHUNKS))
    assert list(found.chunks()) == CHUNKS, "as often as one likes"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list_bases(tmp_path) == [path]


def test_the_digest_does_not_depend_on_how_it_was_cut(tmp_path: Path) -> None:
    digests = set()
    for number, chunks in enumerate(([b"abcd"], [b"ab", b"cd"], [b"a", b"", b"bcd"]), 1):
        digests.add(write_base(tmp_path, 7, 1, base(number), b"state", chunks))
    assert len(digests) == 1


@pytest.mark.parametrize("length", [0, 1, READ_BYTES - 1, READ_BYTES, 3 * READ_BYTES + 5])
def test_chunks_may_be_of_any_length(tmp_path: Path, length: int) -> None:
    chunks = [bytes(length), b"x" * length, b"end"]
    write_base(tmp_path, 7, 1, base(), STATE, chunks)
    assert list(read(base_path(tmp_path, 12)).chunks()) == chunks


def test_every_bit_of_a_base_is_under_a_checksum(tmp_path: Path) -> None:
    path = written(tmp_path)
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bytes(changed))
        with pytest.raises(BaseError) as found:
            read(path)
        # What is damaged is not taken for another cluster's, of which nobody would speak.
        assert not isinstance(found.value, ForeignBase)


def test_every_part_of_a_base_is_missed(tmp_path: Path) -> None:
    path = written(tmp_path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(BaseError):
            read(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(BaseError):
        read(path)


def test_a_base_under_another_ones_name_is_noticed(tmp_path: Path) -> None:
    written(tmp_path).rename(base_path(tmp_path, 13))
    with pytest.raises(BaseError, match="is base 12"):
        read(base_path(tmp_path, 13))


@pytest.mark.parametrize(("cluster", "era"), [(8, 1), (7, 2)])
def test_a_base_of_another_cluster_or_era_is_not_damaged(tmp_path: Path, cluster: int, era: int) -> None:
    path = written(tmp_path, cluster=cluster, era=era)
    with pytest.raises(ForeignBase, match=f"belongs to cluster {cluster}, era {era}"):
        read(path)
    assert (read_header(path).cluster, read_header(path).era) == (cluster, era)


def test_neither_is_one_of_another_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("tara.storage.base_format.FORMAT_VERSION", FORMAT_VERSION + 1)
        path = written(tmp_path)
    with pytest.raises(ForeignBase, match=f"of format version {FORMAT_VERSION + 1}"):
        read(path)


def test_what_the_disk_does_not_give_any_more_is_told_from_what_the_application_raises(tmp_path: Path) -> None:
    path = written(tmp_path)
    found = read(path)
    os.truncate(path, path.stat().st_size - 60)
    with pytest.raises(BaseUnreadable, match="damaged"):
        list(found.chunks())
    path.unlink()
    with pytest.raises(BaseUnreadable, match="No such file"):
        list(found.chunks())


class CountingDisk(LocalDisk):
    """Knows which files are open, and fails when it is told to."""

    def __init__(self, fails: str) -> None:
        self.open_files = 0
        self._fails = fails

    def fail(self, what: str) -> None:
        if what == self._fails:
            raise OSError(errno.ENOSPC, "No space left on device")

    def create(self, path: Path, exclusive: bool = False) -> File:  # type: ignore[override]
        return CountedFile(self, path)

    def rename(self, path: Path, target: Path) -> None:
        self.fail("rename")
        super().rename(path, target)

    def sync_directory(self, directory: Path) -> None:
        self.fail("sync_directory")
        super().sync_directory(directory)


class CountedFile:
    def __init__(self, disk: CountingDisk, path: Path) -> None:
        self._disk = disk
        self._file = LOCAL.create(path)
        disk.open_files += 1

    def append(self, data: bytes) -> None:
        self._disk.fail("append")
        self._file.append(data)

    def write(self, offset: int, data: bytes) -> None:
        self._file.write(offset, data)

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def sync(self) -> None:
        self._disk.fail("sync")
        self._file.sync()

    def close(self) -> None:
        self._disk.open_files -= 1
        self._file.close()


@pytest.mark.parametrize("fails", ["append", "sync", "rename", "sync_directory", ""])
def test_a_base_that_cannot_be_written_leaves_nothing_open_and_nothing_half_written(tmp_path: Path, fails: str) -> None:
    disk = CountingDisk(fails)
    if fails:
        with pytest.raises(OSError, match="No space left"):
            write_base(tmp_path, 7, 1, base(), STATE, CHUNKS, disk)
    else:
        write_base(tmp_path, 7, 1, base(), STATE, CHUNKS, disk)
    assert disk.open_files == 0
    assert [path.name for path in tmp_path.iterdir()] == ([] if fails else ["000000000012.base"])


@pytest.mark.parametrize("seed", range(40))
def test_a_base_is_there_as_a_whole_or_not_at_all_after_a_power_cut(seed: int, tmp_path: Path) -> None:
    disk = VirtualDisk(random.Random(seed))
    disk.make_directory(tmp_path)
    file = BaseFile(tmp_path, 7, 1, base(), disk)
    durable = False
    steps = [lambda: file.add_state((STATE,)), lambda: file.add(CHUNKS), file.finish]
    for step in steps[: random.Random(seed).randrange(len(steps) + 1)]:
        durable = step == steps[-1]
        step()
    disk.lose_power()
    assert (list_bases(tmp_path, disk) == [base_path(tmp_path, 12)]) == durable
    if durable:
        assert list(read_base(base_path(tmp_path, 12), 7, 1, disk).chunks()) == CHUNKS
