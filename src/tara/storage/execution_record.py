"""The execution record of an executor: where in the application its last lives ended.

A small file that is mapped into memory. It begins with the cells that the executor writes to (`tara.protocol.places`):
plain stores, nothing is synced; they outlive the process, which is all that they are for. Behind them are two slots for
what is concluded from them (`tara.host.strikes`), written in turn and synced: a slot has a version, the identity of the
cluster, and a checksum over all of its bytes. A record that cannot be read is begun anew: at worst, a command has to
end the process twice more.
"""

import mmap
import struct
import zlib
from pathlib import Path

import msgspec
from msgspec import Struct

from tara.host.strikes import Strikes, next_life
from tara.protocol.places import CELLS, EXECUTED, EXECUTING, Cell
from tara.storage.disk import LOCAL, Disk

FORMAT_VERSION = 2
_CELLS_BYTES = 8 * CELLS
_SLOT_BYTES = 1024
_HEAD = struct.Struct("<II")
FILE_BYTES = _CELLS_BYTES + 2 * _SLOT_BYTES


class Slot(Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    cluster: int
    era: int
    #: Of two slots, the one with the higher turn is the newer one.
    turn: int
    strikes: Strikes


def record_path(data_dir: Path, replica: int) -> Path:
    return data_dir / f"execution-{replica}"


def read_slot(record: bytes | bytearray | mmap.mmap, number: int) -> Slot | None:
    begin = _CELLS_BYTES + number * _SLOT_BYTES
    data = record[begin : begin + _SLOT_BYTES]
    checksum, length = _HEAD.unpack_from(data)
    if zlib.crc32(data[4:]) != checksum:
        return None
    try:
        slot = msgspec.json.decode(data[_HEAD.size : _HEAD.size + length], type=Slot)
    except msgspec.DecodeError:
        return None
    return slot if slot.version == FORMAT_VERSION else None


class ExecutionRecord:
    def __init__(self, path: Path, cluster: int, era: int, disk: Disk = LOCAL) -> None:
        """Read what the lives before have left, and begin a new one."""
        self._cluster, self._era = cluster, era
        #: Why what was there could not be used; None: it could, or there was nothing.
        self.trouble: str | None = None
        disk.make_directory(path.parent)
        size = disk.size(path) if disk.exists(path) else None
        if size not in (None, FILE_BYTES):
            self.trouble = f"{path}: has {size} bytes, not {FILE_BYTES}"
        self._map = disk.map(path, FILE_BYTES)
        self._turn = 0
        before, ended_at = Strikes(), 0
        #: The last command that a life before has executed.
        self.executed = 0
        self.cell: Cell = memoryview(self._map.buffer)[:_CELLS_BYTES].cast("Q")
        if size == FILE_BYTES:
            newest = self._newest(path)
            if newest is not None:
                self._turn, before = newest.turn, newest.strikes
                ended_at = self.cell[EXECUTING]
                self.executed = self.cell[EXECUTED]
        self.strikes = next_life(before, ended_at)
        self.cell[EXECUTING] = 0
        self.cell[EXECUTED] = self.executed
        self._write()
        disk.sync_directory(path.parent)

    def unbar(self, place: int) -> None:
        """The executor may go there again."""
        if place in self.strikes.barred:
            barred = [known for known in self.strikes.barred if known != place]
            self.strikes = Strikes(barred=barred)
            self._write()

    def _newest(self, path: Path) -> Slot | None:
        slots = [slot for number in range(2) if (slot := read_slot(self._map.buffer, number)) is not None]
        ours = [slot for slot in slots if (slot.cluster, slot.era) == (self._cluster, self._era)]
        if not ours:
            self.trouble = f"{path}: damaged, of another version, or of another cluster or era"
            return None
        return max(ours, key=lambda slot: slot.turn)

    def _write(self) -> None:
        self._turn += 1
        body = msgspec.json.encode(Slot(FORMAT_VERSION, self._cluster, self._era, self._turn, self.strikes))
        rest = struct.pack("<I", len(body)) + body
        rest += bytes(_SLOT_BYTES - 4 - len(rest))
        begin = _CELLS_BYTES + self._turn % 2 * _SLOT_BYTES
        self._map.buffer[begin : begin + _SLOT_BYTES] = struct.pack("<I", zlib.crc32(rest)) + rest
        self._map.flush()
