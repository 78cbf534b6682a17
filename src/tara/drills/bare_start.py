"""A start of one site's container without Spark, without its cluster, and what it came back with.

The real container, in this process, on a directory of its own; the bases and logs of the other sites can be read beside
it, as on one server. It runs until its executor has a state, and its log was read through. Nothing is sent to anybody.
What it came back with is compared with what it comes back with from an undamaged copy.
"""

import shutil
import time
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import msgspec
import pyarrow as pa
from msgspec import Struct

from tara.configuration.state import COPY_FILE, STATE_FILE, StateFile
from tara.live.container import Container, ContainerSpec
from tara.live.observability.events import EventLog
from tara.named import application_of
from tara.protocol import tuples as t
from tara.protocol.errors import ConfigurationError, TaraError
from tara.protocol.nodes.committer import Committer
from tara.protocol.nodes.executor import Executor
from tara.storage.files import DamagedFile
from tara.storage.journal import Identity, journal_directory, journal_name, read_journal
from tara.storage.lives import read_lives
from tara.storage.log import DecidedLog, log_directory
from tara.storage.log_format import LogError
from tara.storage.log_reader import LogReader
from tara.storage.site_storage import LifeStart

#: How long a start may take.
PATIENCE_S = 20.0
#: How often the log is looked after: a start with nothing else to do needs no pauses.
LOOK_S = 0.002
#: Rows of the log that are compared at once.
GROUP_ROWS = 256
#: What belongs to a site, and is written by its container.
OWN = ("journal-{}", "bases-{}", "log-{}", "life-{}", "execution-{}")
#: What may be read of another site.
SHARED = ("bases-{}", "log-{}")


class CommitterFound(Struct, frozen=True):
    recovering: bool
    promised: t.Resumed
    holes: list[int]
    #: The newest accept of every slot of the window: slot, view and digest of the request.
    accepted: dict[int, tuple[int, bytes]]


class Found(Struct, frozen=True, kw_only=True):
    """What a site came back with."""

    #: Why it did not start, in words; empty: it did.
    refused: str = ""
    #: Whether its executor had a state, and its log was whole, in time.
    ready: bool = True
    cluster: tuple[int, int] | None = None
    founded: bool = False
    #: The life that would be the newest one, to registry and container together.
    life: int = 0
    journal: str = ""
    committers: dict[int, CommitterFound] = {}
    #: The checkpoint that the executor has, with the command counter; 0: none, it gets one from the others; -1: it has
    #: no answer from its store.
    checkpoint: int = -1
    state: bytes = b""
    counter: int = 0
    #: The first command in the log and the one after the last, up to the checkpoint; and a digest for each group of
    #: rows, by the first of them and their number.
    log_first: int = 0
    log_end: int = 0
    log_rows: dict[tuple[int, int], bytes] = {}
    #: Whether something was found wrong, and said.
    noticed: list[str] = []
    #: Whether a second start would find the journal as it should be.
    journal_clean: bool = True


def copy_site(data_dir: Path, site: int, sites: int, target: Path) -> None:
    """A directory as the site's server has it: its own files, and what it can read of others."""
    target.mkdir(parents=True)
    for name in (STATE_FILE, COPY_FILE):
        shutil.copy(data_dir / name, target / name)
    for pattern in OWN:
        source = data_dir / pattern.format(site)
        if source.is_dir():
            shutil.copytree(source, target / source.name)
        elif source.exists():
            shutil.copy(source, target / source.name)
    for other in range(sites):
        for pattern in SHARED:
            if other != site and (data_dir / pattern.format(other)).exists():
                (target / pattern.format(other)).symlink_to(data_dir / pattern.format(other))


def start(directory: Path, spec_json: bytes, app: str) -> Found:
    """Start the container on this directory, and see."""
    spec = msgspec.structs.replace(msgspec.json.decode(spec_json, type=ContainerSpec), data_dir=str(directory))
    noticed: list[str] = []
    file = StateFile(directory)
    try:
        state = file.read()
    except ConfigurationError as error:
        return Found(refused=str(error), noticed=[str(error)])
    noticed += file.problems
    try:
        known = read_lives(directory, state.cluster, state.era, spec.container)
        own_life, begun = known.life, known.begun
    except DamagedFile as error:
        noticed.append(str(error))
        own_life, begun = 0, False
    if own_life > state.lives[spec.container]:
        noticed.append("cluster.json is older than the container")
    found_journal = journal_name(journal_directory(directory, spec.container))
    keep = not state.journals[spec.container] or found_journal == state.journals[spec.container]
    life = max(own_life, state.lives[spec.container])
    log_file = directory / "events.log"
    container = Container(spec, application_of(app), EventLog(log_file, spec.cluster, spec.label))
    looked: list[Found] = []
    end_s = time.monotonic() + PATIENCE_S

    def look() -> None:
        ready = _is_ready(container)
        if ready or time.monotonic() > end_s:
            looked.append(_look(container, directory, ready))
            container.stopping = True

    try:
        container.start(
            LifeStart(
                life=life + 1,
                genesis=not (state.founded[spec.container] or begun),
                keep_journal=keep,
                journal=found_journal if keep else "another",
            )
        )
        for log in _logs(container):
            log.pause_s = LOOK_S
            log.wake()
        container.run(look)
    except (TaraError, OSError) as error:
        container.release()
        return Found(refused=f"{type(error).__name__}: {error}", noticed=[str(error)])
    found = looked[0]
    events = [msgspec.json.decode(line) for line in log_file.read_bytes().splitlines()]
    noticed += [f"{event['event']}: {event['details']}" for event in events if event["level"] != "info"]
    return msgspec.structs.replace(
        found,
        cluster=(state.cluster, state.era),
        founded=state.founded[spec.container] or begun,
        life=life,
        journal=found_journal,
        noticed=noticed,
        journal_clean=_is_clean(directory, spec),
    )


def _is_clean(directory: Path, spec: ContainerSpec) -> bool:
    identity = Identity(spec.cluster, spec.era, spec.container)
    return not read_journal(journal_directory(directory, spec.container), identity).found.problems


def _is_ready(container: Container) -> bool:
    """Whether the executor has a state, and the log was read and has no gaps."""
    executors = [node for node in container.nodes.values() if isinstance(node, Executor)]
    logs = [log.status() for log in _logs(container)]
    return all(node.restored for node in executors) and all(log["unread"] == 0 and log["gaps"] == 0 for log in logs)


def _logs(container: Container) -> list[DecidedLog]:
    return [store.log for store in container.storage.stores.values()]


def _look(container: Container, directory: Path, ready: bool) -> Found:
    committers: dict[int, CommitterFound] = {}
    checkpoint, state, counter = -1, b"", 0
    for number, node in container.nodes.items():
        if isinstance(node, Committer):
            committers[number] = _committer(node)
        elif isinstance(node, Executor) and node.restored:
            checkpoint = node.next // node.limits.checkpoint_interval
            counter = node.sessions.counter
            state = node.digest()
    reader = LogReader(log_directory(directory, container.site.number))
    first, end, rows = reader.bounds().first, 0, dict[tuple[int, int], bytes]()
    try:
        for batch in _groups(reader, first, counter + 1) if counter >= first else ():
            begin = batch.column(0)[0].as_py()
            rows[begin, batch.num_rows] = _digest(batch.serialize().to_pybytes())
            end = begin + batch.num_rows
    except LogError as error:
        container.events.error("log_unreadable", reason=str(error))
    return Found(
        ready=ready,
        committers=committers,
        checkpoint=checkpoint,
        state=state,
        counter=counter,
        log_first=first,
        log_end=end,
        log_rows=rows,
    )


def _groups(reader: LogReader, first: int, end: int) -> Iterator[pa.RecordBatch]:
    """The rows in groups that begin at the same rows in every log."""
    table = reader.read(first, end)
    row = first
    while row - first < table.num_rows:
        count = GROUP_ROWS - row % GROUP_ROWS
        yield from table.slice(row - first, count).combine_chunks().to_batches()
        row += count


def _committer(node: Committer) -> CommitterFound:
    accepted: dict[int, tuple[int, bytes]] = {}
    for slot in range(node.acceptor.records.min, node.acceptor.records.pos):
        record = node.acceptor.records[slot]
        accepted[slot] = (record.view, _digest(t.encode(record.request)))
    for slot in range(node.acceptor.commits.min, node.acceptor.commits.pos):
        accepted[slot] = (node.acceptor.view, _digest(t.encode(node.acceptor.commits[slot])))
    return CommitterFound(node.acceptor.recovering, node.acceptor.resumed(), sorted(node.acceptor.holes), accepted)


def _digest(*parts: bytes) -> bytes:
    digest = blake2b(digest_size=8)
    for part in parts:
        digest.update(part)
    return digest.digest()


class Judgement(Struct, frozen=True, kw_only=True):
    #: What it took for true although it is not; empty: nothing.
    wrong: list[str]
    noticed: bool
    #: Whether its committers gave up what they remembered.
    rejoined: bool
    #: Whether it came back with everything but holes.
    repaired: bool


def judge(found: Found, truth: Found, states: dict[int, bytes]) -> Judgement:
    """Compare with the undamaged one. `states` has the digest of the state at every checkpoint, by number."""
    if found.refused:
        return Judgement(wrong=[], noticed=True, rejoined=False, repaired=False)
    wrong: list[str] = []
    if not found.ready:
        wrong.append(f"not ready after {PATIENCE_S:.0f} s: {found.noticed[-1:]}")
    if found.cluster != truth.cluster or found.founded != truth.founded:
        wrong.append(f"cluster {found.cluster}, founded: {found.founded}")
    if found.life < truth.life:
        wrong.append(f"life {found.life} again, although life {truth.life} was handed out")
    for number, committer in found.committers.items():
        wrong += [f"committer {number}: {text}" for text in _wrong(committer, truth.committers[number])]
    if found.checkpoint > 0 and states.get(found.checkpoint) != found.state:
        wrong.append(f"the state of checkpoint {found.checkpoint} is another one")
    wrong += _wrong_rows(found, truth)
    if not found.journal_clean:
        wrong.append("the journal that was repaired is not intact")
    rejoined = any(committer.recovering for committer in found.committers.values())
    complete = found.checkpoint >= 0 and found.log_first <= truth.log_first
    return Judgement(wrong=wrong, noticed=bool(found.noticed), rejoined=rejoined, repaired=not rejoined and complete)


def _wrong(found: CommitterFound, truth: CommitterFound) -> list[str]:
    if found.recovering:
        return []
    if found.promised != truth.promised:
        return [f"promised {found.promised}, and not {truth.promised}"]
    return [
        f"slot {slot}: {found.accepted.get(slot)}, and not {accepted}"
        for slot, accepted in truth.accepted.items()
        if slot not in found.holes and found.accepted.get(slot) != accepted
    ]


def _wrong_rows(found: Found, truth: Found) -> list[str]:
    """Rows that it has are right; those that it lacks are known to be missing."""
    different = [rows for rows, digest in found.log_rows.items() if truth.log_rows.get(rows, digest) != digest]
    wrong = [f"{len(different)} groups of rows of the log are others, from {different[0]} on"] if different else []
    missing = found.log_first > truth.log_first or found.log_end < min(found.counter, truth.counter) + 1
    if missing and not found.noticed:
        wrong.append(f"the log has the rows [{found.log_first}, {found.log_end}), and says nothing")
    return wrong
