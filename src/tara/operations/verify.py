"""A scrub: reads every file of a data directory that has a checksum, and says which ones are damaged. Changes nothing.

What a cluster needs it reads itself, and repairs. This is for what nobody reads for a long time, and for an operator
who wants to know before a start. Files that a cluster is writing meanwhile may look torn; stop it first.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from msgspec import Struct

from tara.client.secrets import read_secret
from tara.configuration.state import (
    COPY_FILE,
    STATE_FILE,
    ClusterState,
    StateFile,
    operator_secret,
    unpack_state,
)
from tara.host.placement import placement_of
from tara.live.sites.joining import FOUNDING_FILE
from tara.operations.backup import read_backup
from tara.protocol.errors import ConfigurationError, NodeHalted, TaraError
from tara.protocol.graph import Graph, Stage
from tara.protocol.limits import Limits
from tara.protocol.node import Boot, Outbox
from tara.protocol.nodes.committer import Committer
from tara.storage.base_format import BaseError, ForeignBase, list_bases, read_base
from tara.storage.execution_record import FILE_BYTES, read_slot
from tara.storage.files import read_small
from tara.storage.journal import MARKER_FILE, SEGMENT_FILES, Identity, read_journal
from tara.storage.lives import read_lives
from tara.storage.log_format import CorruptLog, ForeignLog, LogError, LogFile, LogIdentity, list_segments, read_segment
from tara.storage.segments import BEGIN_FILE

BACKUP_FILES = "*.backup"


class FileReport(Struct, frozen=True):
    path: str
    #: Empty: it is what was written.
    problems: list[str]


class Scrub(Struct, frozen=True):
    """What came of it."""

    data_dir: str
    files: list[FileReport]

    @property
    def damaged(self) -> list[FileReport]:
        return [report for report in self.files if report.problems]


def verify(data_dir: Path) -> Scrub:
    if not data_dir.is_dir():
        raise ConfigurationError(f"{data_dir}: no such directory")
    reports = [*_state_files(data_dir)]
    try:
        state: ClusterState | None = StateFile(data_dir).read()
    except ConfigurationError as error:
        state = None
        if not reports:
            raise ConfigurationError(f"{data_dir}: no cluster here, and no copy of {STATE_FILE}") from error
    if state is not None:
        for part in (_lives, _execution_records, _journals, _bases, _logs):
            reports += part(data_dir, state)
    reports += _small_files(data_dir)
    reports += [_report(path, partial(read_backup, path)) for path in sorted(data_dir.glob(BACKUP_FILES))]
    return Scrub(str(data_dir), reports)


def _report(path: Path, read: Callable[[], object]) -> FileReport:
    try:
        read()
    except (OSError, TaraError) as error:
        return FileReport(str(path), [str(error)])
    return FileReport(str(path), [])


def _read_state(path: Path) -> None:
    unpack_state(path.read_bytes())


def _state_files(data_dir: Path) -> Iterator[FileReport]:
    file = StateFile(data_dir)
    if not file.exists():
        return
    try:
        file.read()
        older = [problem for problem in file.problems if "older" in problem]
    except ConfigurationError:
        older = []
    for name in (STATE_FILE, COPY_FILE):
        path = data_dir / name
        if not path.exists():
            yield FileReport(str(path), ["is missing"])
            continue
        report = _report(path, partial(_read_state, path))
        yield FileReport(report.path, report.problems + [problem for problem in older if problem.startswith(str(path))])


def _small_files(data_dir: Path) -> Iterator[FileReport]:
    secret = operator_secret(data_dir)
    if secret.exists():
        yield _report(secret, partial(read_secret, secret))
    for path in (data_dir / FOUNDING_FILE, *sorted(data_dir.glob("gateway-*.port"))):
        if path.exists():
            yield _report(path, partial(read_small, path))


def _lives(data_dir: Path, state: ClusterState) -> Iterator[FileReport]:
    for path in sorted(data_dir.glob("life-*")):
        container = path.name.partition("-")[2]
        if container.isdigit():
            number = int(container)
            yield _report(path, partial(read_lives, data_dir, state.cluster, state.era, number))


def _execution_records(data_dir: Path, state: ClusterState) -> Iterator[FileReport]:
    for path in sorted(data_dir.glob("execution-*")):
        if path.name.partition("-")[2].isdigit():
            yield _report(path, partial(check_record, path, state.cluster, state.era))


def _journals(data_dir: Path, state: ClusterState) -> Iterator[FileReport]:
    """Each journal as a whole: what is missing in it is in none of its files."""
    for directory in sorted(data_dir.glob("journal-*")):
        container = directory.name.partition("-")[2]
        if not container.isdigit():
            continue
        files = [*sorted(directory.glob(SEGMENT_FILES)), directory / MARKER_FILE]
        problems = _journal_problems(directory, state, int(container))
        shown: dict[Path, list[str]] = {path: [] for path in files if path.exists()}
        whole: list[str] = []
        for problem in problems:
            path = next((path for path in shown if _is_about(problem, path)), None)
            (whole if path is None else shown[path]).append(problem)
        yield FileReport(str(directory), whole)
        yield from (FileReport(str(path), found) for path, found in shown.items())


def _is_about(problem: str, path: Path) -> bool:
    if path.name == MARKER_FILE:
        return problem.startswith("end marker:")
    return problem.startswith(f"segment {int(path.stem)}:")


def _journal_problems(directory: Path, state: ClusterState, container: int) -> list[str]:
    try:
        read = read_journal(directory, Identity(state.cluster, state.era, container))
    except (OSError, TaraError) as error:
        return [str(error)]
    problems = [*read.found.problems, *(f"{note} (a power cut may leave that)" for note in read.found.notes)]
    graph = Graph(state.f, state.partitions)
    limits = Limits(f=state.f, partitions=state.partitions, **state.fixed)
    placement = placement_of(graph, state.packing)
    for number in placement[container] if container < len(placement) else []:
        entries = read.found.entries.get(number, [])
        if graph.names[number].stage is not Stage.COMMITTER or not entries:
            continue
        label, boot = graph.label(number), Boot(1, 1, False, 0.0)
        try:
            committer = Committer(graph.names[number], graph, limits, boot, Outbox(), entries)
        except (NodeHalted, AssertionError) as error:
            problems.append(f"{label}: {error}")
            continue
        if problems and committer.acceptor.holes:
            problems.append(
                f"{label}: does not know any more what it accepted in {len(committer.acceptor.holes)} slots"
            )
    return problems


def _bases(data_dir: Path, state: ClusterState) -> Iterator[FileReport]:
    for directory in sorted(data_dir.glob("bases-*")):
        for path in list_bases(directory):
            try:
                read_base(path, state.cluster, state.era)
            except ForeignBase:
                # Of a former era: not damaged, and nobody's.
                continue
            except (OSError, BaseError) as error:
                yield FileReport(str(path), [str(error)])
                continue
            yield FileReport(str(path), [])


def _logs(data_dir: Path, state: ClusterState) -> Iterator[FileReport]:
    identity = LogIdentity(state.cluster, state.era)
    for directory in sorted(data_dir.glob("log-*")):
        if not directory.is_dir():
            continue
        segments, missing = list_segments(directory), []
        begin = directory / BEGIN_FILE
        expected = segments[0].number if segments else 0
        if begin.exists():
            report = _report(begin, partial(read_small, begin))
            yield report
            if not report.problems:
                expected = int(read_small(begin))
        for file in segments:
            if file.number > expected:
                missing.append(f"the segments [{expected}, {file.number - 1}] are missing")
            expected = max(file.number + 1, expected)
        yield FileReport(str(directory), missing)
        yield from _segments(segments, identity)


def _segments(segments: list[LogFile], identity: LogIdentity) -> Iterator[FileReport]:
    for file in segments:
        try:
            read_segment(file, identity)
        except (OSError, CorruptLog, ForeignLog) as error:
            yield FileReport(str(file.path), [str(error)])
        except LogError:
            # Of a former era: not damaged, and set aside with the next start.
            continue
        else:
            yield FileReport(str(file.path), [])


def check_record(path: Path, cluster: int, era: int) -> None:
    """An error if it cannot be used."""
    data = path.read_bytes()
    if len(data) != FILE_BYTES:
        raise TaraError(f"{path}: has {len(data)} bytes, not {FILE_BYTES}")
    slots = [read_slot(data, number) for number in range(2)]
    if not any(slot is not None and (slot.cluster, slot.era) == (cluster, era) for slot in slots):
        raise TaraError(f"{path}: damaged, of another version, or of another cluster or era")
