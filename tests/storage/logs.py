"""Logs that are written without an executor beside them: what one has handed over is written, sealed and read."""

from collections.abc import Sequence
from pathlib import Path

from tara.protocol import tuples as t
from tara.storage.disk import LOCAL, Disk
from tara.storage.log_format import LogIdentity, encode_run
from tara.storage.log_reader import LogReader
from tara.storage.log_writer import EncodedRun, LogSettings, LogWriter
from tara.storage.peer_segments import PeerSegments
from tara.storage.segments import HEAL_PAUSE_MAX, WAITS_MAX
from tests.live.histories import INTERVAL, bench, executor, handed_over, puts

Handed = Sequence[t.Executed | t.Mark]


def settings(cluster: int = 7, era: int = 1, retention_bytes: int = 1 << 30, interval: int = INTERVAL) -> LogSettings:
    return LogSettings(
        identity=LogIdentity(cluster, era), partitions=1, checkpoint_interval=interval, retention_bytes=retention_bytes
    )


def opened(
    directory: Path, peers: Sequence[Path] = (), disk: Disk = LOCAL, **changes: int
) -> tuple[LogWriter, list[str]]:
    """A writer, and what it reports; the peers are replicas 1 and so on."""
    reports: list[str] = []
    known = settings(**changes)
    others = PeerSegments(known.identity, dict(enumerate(peers, 1)), None, reports.append, disk)
    return LogWriter(directory, known, others, reports.append, disk), reports


def encoded(executed: t.Executed) -> EncodedRun:
    end = executed.first + len(executed.requests)
    return EncodedRun(executed.first, end, executed.counter, executed.counters[-1], encode_run(executed))


def write(writer: LogWriter, handed: Handed) -> None:
    for tuple_ in handed:
        if isinstance(tuple_, t.Executed):
            writer.take(encoded(tuple_))
        else:
            writer.seal(tuple_)


def written(directory: Path, handed: Handed, interval: int = INTERVAL) -> LogReader:
    writer, reports = opened(directory, interval=interval)
    write(writer, handed)
    writer.flush()
    assert reports == []
    return LogReader(directory)


def names(directory: Path, kind: str = "segment") -> list[str]:
    return sorted(path.name for path in directory.glob(f"*.{kind}"))


def ranges(directory: Path) -> list[str]:
    """What the segments hold, without their checksums."""
    return [name.rpartition("-")[0] for name in names(directory)]


def simple(count: int, interval: int = INTERVAL) -> Handed:
    """What an executor hands over that executes puts one by one."""
    return handed_over(executor(bench(interval)), puts(count), range(1, count))


def behind(handed: Handed, number: int) -> int:
    """The index behind this checkpoint's mark."""
    marks = [(mark.checkpoint.number, place) for place, mark in enumerate(handed) if isinstance(mark, t.Mark)]
    return dict(marks)[number] + 1


def three_logs(root: Path) -> list[Path]:
    directories = [root / f"log-{replica}" for replica in range(3)]
    for directory in directories:
        written(directory, simple(100))
    return directories


def looked_after(writer: LogWriter, base: int = 0, times: int = HEAL_PAUSE_MAX * (WAITS_MAX + 1)) -> None:
    """Until everything was read, and all is done about what is missing."""
    for _ in range(times):
        writer.segments.look_after(base, (1, 2))
