"""What has come of a site's log, put together again: pieces of a file become blocks, and blocks become rows. No I/O."""

import io
from pathlib import Path

import pyarrow as pa

from tara.net import log_wire as wire
from tara.net.log_wire import LogReply, LogRequest
from tara.storage.log_format import RUNS, Block, CorruptLog, block_at, read_block
from tara.storage.log_rows import rows_of

#: Longer than any block: a run is in one as a whole, with its results.
BLOCK_BYTES_MAX = 1 << 30


class LogFeed:
    """Invariant: `_data` begins with the head of a block, which is at `_offset` of the file `_file`, or is empty."""

    def __init__(self, name: str) -> None:
        #: Of the site, for messages.
        self._name = name
        self._data = bytearray()
        self._file = ""
        self._offset = 0
        self._partitions = 1

    def forget(self) -> None:
        """Begin again, wherever the next command is."""
        self._data.clear()
        self._file, self._offset = "", 0

    def request(self, counter: int) -> LogRequest:
        """For what is missing of the block with this command, after `rows` had none."""
        block = self._block()
        return LogRequest(
            wire.VERSION,
            0,
            wire.PIECE,
            counter,
            skip=0 if block is None else len(self._data),
            checksum=None if block is None else block.checksum,
            file=self._file,
            offset=self._offset,
        )

    def take(self, reply: LogReply) -> None:
        """The answer to that request."""
        if not reply.data:
            raise CorruptLog(f"{self._name}: nothing comes of {reply.file} at {reply.offset}")
        block = self._block()
        if block is None or block.checksum != reply.checksum:
            # It is another block by now, and comes from its beginning.
            self._data.clear()
        self._data += reply.data
        self._file, self._offset, self._partitions = reply.file, reply.offset, reply.partitions

    def rows(self, counter: int) -> pa.RecordBatch | None:
        """From this command on, those of its block; None if more of it has to be asked for."""
        while (block := self._block()) is not None:
            if block.end > BLOCK_BYTES_MAX:
                raise CorruptLog(f"{self._path}: a block of {block.end} bytes")
            if block.last >= counter and block.first > counter:
                # Whatever is between is in another file.
                self.forget()
                return None
            if block.end > len(self._data) and block.last >= counter:
                return None
            contents = bytes(self._data[: block.end])
            del self._data[: block.end]
            self._offset += block.end
            if block.kind == RUNS and block.last >= counter:
                return self._rows_of(contents, block).slice(counter - block.first)
        # Not even a head: the file ends here, or it has to come again with the rest of its block.
        self._data.clear()
        return None

    @property
    def _path(self) -> Path:
        return Path(self._name) / self._file

    def _block(self) -> Block | None:
        return block_at(self._data, 0, self._path)

    def _rows_of(self, contents: bytes, block: Block) -> pa.RecordBatch:
        rows = rows_of(read_block(io.BytesIO(contents), self._path, block), self._partitions)
        if rows.num_rows != block.last - block.first + 1 or rows.column(0)[0].as_py() != block.first:
            raise CorruptLog(f"{self._path}: a block does not have the commands that its head says")
        return rows
