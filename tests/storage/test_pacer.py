"""How fast large files are written: in pieces, at a rate, with rests."""

from pathlib import Path

import pytest

from tara.storage.disk import LocalDisk, LocalFile
from tara.storage.files import write_whole
from tara.storage.pacer import LEAVE_TIMES, RATE_BYTES_PER_S, UNSYNCED_BYTES_MAX, WAIT_S_MAX, PacedFile, Pacer

MEGABYTE = 1 << 20


class Hand:
    """A clock that moves when somebody waits."""

    def __init__(self) -> None:
        self.now_s = 50.0
        self.waited_s: list[float] = []
        self.pacer = Pacer(lambda: self.now_s, self.wait)

    def wait(self, seconds: float) -> None:
        self.waited_s.append(seconds)
        self.now_s += seconds


class WatchedFile(LocalFile):
    """Says how much every sync had to carry. Each takes a tenth of a second."""

    def __init__(self, file: LocalFile, disk: "WatchedDisk") -> None:
        super().__init__(file.descriptor)
        self._disk = disk
        self._unsynced = 0

    def append(self, data: bytes) -> None:
        self._unsynced += len(data)
        super().append(data)

    def sync(self) -> None:
        self._disk.synced.append(self._unsynced)
        self._unsynced = 0
        self._disk.hand.now_s += self._disk.sync_s
        super().sync()


class WatchedDisk(LocalDisk):
    def __init__(self, hand: Hand, sync_s: float = 0.0) -> None:
        self.hand = hand
        self.sync_s = sync_s
        self.synced: list[int] = []

    def create(self, path: Path, exclusive: bool = False) -> WatchedFile:
        return WatchedFile(super().create(path, exclusive), self)


@pytest.mark.parametrize("lengths", [[32 * MEGABYTE], [UNSYNCED_BYTES_MAX - 1] * 9, [1] * 10, [7, 5 * MEGABYTE, 3]])
def test_a_file_is_synced_in_pieces_whatever_its_parts_are(tmp_path: Path, lengths: list[int]) -> None:
    """The journal's next record waits for one of them."""
    disk, parts = WatchedDisk(Hand()), [bytes([index]) * length for index, length in enumerate(lengths)]
    write_whole(tmp_path / "file", parts, disk)
    assert (tmp_path / "file").read_bytes() == b"".join(parts)
    assert sum(disk.synced) == sum(lengths)
    assert max(disk.synced) <= UNSYNCED_BYTES_MAX
    assert len(disk.synced) <= sum(lengths) // UNSYNCED_BYTES_MAX + 1


def test_the_disk_rests_in_proportion_to_what_it_took(tmp_path: Path) -> None:
    hand = Hand()
    disk = WatchedDisk(hand, sync_s=0.1)
    write_whole(tmp_path / "file", [bytes(4 * UNSYNCED_BYTES_MAX)], disk, hand.pacer)
    assert hand.waited_s == pytest.approx([LEAVE_TIMES * 0.1] * 4)
    # The last rest is for whoever writes next.
    assert hand.pacer.left_s == pytest.approx(0.0, abs=0.21)


def test_a_fast_disk_is_written_at_a_bounded_rate(tmp_path: Path) -> None:
    hand = Hand()
    write_whole(tmp_path / "file", [bytes(8 * MEGABYTE)], WatchedDisk(hand), hand.pacer)
    assert sum(hand.waited_s) == pytest.approx(8 * MEGABYTE / RATE_BYTES_PER_S, rel=0.1)


def test_several_files_share_the_rate() -> None:
    hand = Hand()
    hand.pacer.note(RATE_BYTES_PER_S // 4, 0.0)
    hand.pacer.note(RATE_BYTES_PER_S // 4, 0.0)
    assert hand.pacer.left_s == pytest.approx(0.5)
    hand.now_s += 0.6
    assert hand.pacer.left_s == 0.0


def test_nobody_waits_for_long_without_looking_around() -> None:
    hand = Hand()
    hand.pacer.note(1, 100.0)
    hand.pacer.rest()
    assert hand.waited_s == [WAIT_S_MAX]


def test_a_few_bytes_at_once_are_one_piece(tmp_path: Path) -> None:
    hand = Hand()
    disk = WatchedDisk(hand)
    file = PacedFile(disk.create(tmp_path / "file"), hand.pacer)
    for _ in range(100):
        file.append(b"abc")
    file.sync()
    file.close()
    assert disk.synced == [300]
