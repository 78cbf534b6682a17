"""A new era from what is left: what an operator does when more was lost than the protocol survives.

With more than f committers' journals gone, nobody knows any more what was decided beyond the logs that are left: the
cluster stands still rather than guess. An operator may decide to go on from the last command that an intact log has.
What was acknowledged since is lost then, and this module says how much that may be. The decision is a new era: its
history begins with the state as of that command, under the number of a checkpoint that there never was, and everything
of the old era (frames, journals, bases, logs, containers) is refused by whoever sees it.

Sessions go on, so a command that executed before is answered, and not executed again. The command counter leaves out
what the old era may have handed out since (`tara.protocol.sessions.ERA_COMMANDS`).

The order of the writes makes it one step: bases of the new era, which nobody reads yet, then `cluster.json`.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from tara.configuration.state import ANY_SITE, LOCK_FILE, ClusterState, StateFile
from tara.host.placement import placement_of
from tara.operations.founding import install
from tara.operations.rebuilding import NothingLeft, RebuildError, Rebuilt, rebuild_state, sources_in
from tara.protocol.errors import TaraError
from tara.protocol.graph import Graph, Stage
from tara.protocol.limits import Limits
from tara.protocol.node import Boot, Outbox
from tara.protocol.nodes.committer import Committer
from tara.storage.base_format import BaseError, BaseHeader, list_bases, read_header
from tara.storage.journal import (
    Identity,
    JournalError,
    StaleJournal,
    journal_directory,
    journal_name,
    lock_file,
    read_journal,
)
from tara.storage.log_blocks import list_files
from tara.storage.log_format import LogError, LogIdentity, identity_of
from tara.storage.new_era import RecoveryError, first_counter, first_sessions, first_threshold
from tara.storage.rebuild import numbers_in
from tara.storage.registration import of_next_era


class Chosen(Struct, frozen=True, kw_only=True):
    """The state that the new era would begin with."""

    #: The last checkpoint on the way, and how many replicas have it intact; f+1 of them: it is stable.
    number: int
    digest: str
    copies: int
    #: The base that the state is rebuilt from; empty: the log has its beginning.
    base: str
    #: The last command in it, the requests behind the checkpoint, and the agreed time: milliseconds since 1970.
    counter: int
    behind: int
    sessions: int
    time_ms: int


class JournalFound(Struct, frozen=True, kw_only=True):
    container: int
    #: Why it is of no use; empty: it is intact.
    problem: str
    #: Of its committers, by partition: the first slot that it still has, and the one after the last that it accepted.
    minimum: dict[int, int] = {}
    end: dict[int, int] = {}


class Survey(Struct, frozen=True, kw_only=True):
    """What is left of a cluster."""

    cluster: int
    era: int
    durability: str
    #: The site that the data directory is of; `ANY_SITE`: all.
    site: int
    #: The directories that were looked at.
    looked_in: list[str]
    chosen: Chosen
    journals: list[JournalFound]
    #: Whether a plain start goes on without any loss.
    complete: bool
    #: Bases and files of logs that were looked at, and are of no use.
    damaged: list[str]
    #: Higher than every era that anything here is of.
    next_era: int
    #: The last command in a decided log that is left, with or without a gap before it; 0: there is none.
    logged: int
    #: Requests behind it that a journal that is left has accepted.
    accepted: int

    def statement(self) -> list[str]:
        """What an operator has to know before he says yes."""
        chosen = self.chosen
        base = f"the base in {chosen.base}" if chosen.base else "the beginning of the log"
        lines = [
            f"cluster {self.cluster:x}, era {self.era}: {self._journals()}; looked in {', '.join(self.looked_in)}",
            f"the state of command {chosen.counter} is there: {base}, the log up to checkpoint {chosen.number} (intact "
            f"copies: {chosen.copies}) and {chosen.behind} requests behind it; its agreed time is "
            f"{_when(chosen.time_ms)}",
            f"LOST: every command with counter {chosen.counter + 1} or higher, also those that were acknowledged",
        ]
        if self.logged > chosen.counter:
            lines.append(
                f"  behind what is damaged or missing, logs show {self.logged - chosen.counter} of them, up to "
                f"{self.logged} (keep a copy)"
            )
        if self.accepted:
            lines.append(f"  journals that are left show {self.accepted} requests more")
        lines += [f"  of no use: {text}" for text in self.damaged]
        if not (self.logged > chosen.counter or self.accepted or self.damaged):
            lines.append("  nothing that is left shows that there are any")
        if self.next_era > self.era + 1:
            lines.append(
                f"  there are bases of era {self.next_era - 1}, too: of an attempt that did not come to its end; "
                "or is this cluster.json an old copy?"
            )
        lines.append(
            f"era {self.next_era} begins with that state and {chosen.sessions} sessions; its command counter begins at "
            f"{first_counter(chosen.counter) + 1}; whatever still runs of era {self.era} is refused"
        )
        return lines

    def _journals(self) -> str:
        if self.durability == "memory":
            return "durability = memory, so the votes went with the processes"
        intact = [found for found in self.journals if not found.problem]
        problems = "; ".join(
            f"container {found.container}: {found.problem}" for found in self.journals if found.problem
        )
        return f"{len(intact)} of {len(self.journals)} journals intact{f' ({problems})' if problems else ''}"


def survey(data_dir: Path, others: list[Path]) -> tuple[Survey, Rebuilt]:
    """Look at what is left in the data directory, and in others, say of other sites; and rebuild the state. Changes
    nothing."""
    state = StateFile(data_dir).read()
    for other in others:
        if not other.is_dir():
            raise RecoveryError(f"{other}: no such directory")
    roots = [data_dir, *others]
    journals = [] if state.durability == "memory" else [_best_journal(roots, state, c) for c in _voting(state)]
    rebuilt = _rebuild(state, data_dir, others)
    ends = _most(journal.end for journal in journals)
    position = rebuilt.execution.next
    accepted = sum(
        # The first slot of the partition that was not executed.
        max(end - (position - partition + state.partitions - 1) // state.partitions, 0)
        for partition, end in ends.items()
    )
    found = Survey(
        cluster=state.cluster,
        era=state.era,
        durability=state.durability,
        site=state.site,
        looked_in=[str(root) for root in roots],
        chosen=_chosen(state, rebuilt),
        journals=journals,
        complete=_is_complete(state, journals, rebuilt.checkpoint.number),
        damaged=rebuilt.problems,
        next_era=_next_era(state, data_dir, others),
        logged=_logged(state, data_dir, others),
        accepted=accepted,
    )
    return found, rebuilt


def _rebuild(state: ClusterState, data_dir: Path, others: list[Path]) -> Rebuilt:
    try:
        return rebuild_state(state, data_dir, others)
    except NothingLeft as error:
        raise RecoveryError(
            f"no intact base of cluster {state.cluster:x}, era {state.era}, and no log with its beginning in "
            f"{', '.join(map(str, (data_dir, *others)))}{f': {error}' if error.problems else ''}"
        ) from error
    except RebuildError as error:
        raise RecoveryError(f"{data_dir}: {error}") from error


def _chosen(state: ClusterState, rebuilt: Rebuilt) -> Chosen:
    sessions = rebuilt.execution.sessions
    return Chosen(
        number=rebuilt.checkpoint.number,
        digest=rebuilt.checkpoint.digest.hex(),
        copies=rebuilt.copies,
        base=str(rebuilt.base.path) if rebuilt.base is not None else "",
        counter=rebuilt.counter,
        behind=rebuilt.execution.next - rebuilt.checkpoint.number * state.checkpoint_interval,
        sessions=len(sessions),
        time_ms=sessions.time_ms,
    )


class Recovery:
    """One recovery of the cluster in a data directory, which nobody else uses meanwhile."""

    def __init__(self, data_dir: Path, others: list[Path]) -> None:
        self._data_dir = data_dir
        self._others = others
        self._file = StateFile(data_dir)
        if not self._file.exists():
            raise RecoveryError(f"{data_dir}: no cluster.json here; an old copy of it will do")
        self._lock = self._file.lock()
        try:
            self.found, self._rebuilt = survey(data_dir, others)
        except BaseException:
            os.close(self._lock)
            raise

    def __enter__(self) -> "Recovery":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    def check(self, force: bool = False) -> None:
        """Refuse where a new era would do harm, or where it would lose what need not be lost."""
        found, data_dir = self.found, self._data_dir
        for root in self._others:
            if _is_locked(root / LOCK_FILE):
                raise RecoveryError(f"{root}: a driver of era {found.era} still runs here")
        for root in (data_dir, *self._others):
            for journal in found.journals:
                if _is_locked(lock_file(journal_directory(root, journal.container))):
                    raise RecoveryError(
                        f"{root}: container {journal.container} of era {found.era} still runs; it ends within a minute "
                        "of its driver"
                    )
        if found.complete and not force:
            start = f"`tara up --data-dir {data_dir}`" if found.site == ANY_SITE else "a start of all sites"
            raise RecoveryError(
                f"{data_dir}: enough journals are intact: {start} goes on and loses nothing (--force begins a new era "
                "all the same)"
            )

    def begin(self) -> ClusterState:
        """Begin the new era. `Survey.statement` says what that costs."""
        state = self._file.read()
        try:
            new = self._next_era(state)
            execution = self._rebuilt.execution
            sessions = first_sessions(execution.sessions.state(), int(time.time() * 1e3))
            install(self._data_dir, new, sessions, execution.application.snapshot)
        except OSError as error:
            raise RecoveryError(f"{self._data_dir}: {error}") from error
        self._file.write(new)
        return new

    def _next_era(self, state: ClusterState) -> ClusterState:
        records = of_next_era(state)
        return msgspec.structs.replace(
            state,
            era=self.found.next_era,
            site=ANY_SITE,
            lives=records.lives,
            founded=records.founded,
            journals=records.journals,
            begun=records.begun,
            servers=[""] * len(state.lives),
            threshold=first_threshold(numbers_in(sources_in(state, self._data_dir, self._others))),
            registry="",
            endpoints=[],
            metrics="",
        )


def _next_era(state: ClusterState, data_dir: Path, others: list[Path]) -> int:
    for root in others:
        file = StateFile(root)
        if file.exists() and (other := file.read()).cluster == state.cluster and other.era > state.era:
            raise RecoveryError(f"{data_dir} is of era {state.era}, but {root} is of era {other.era}: recover there")
    headers = [_header_of(path) for source in sources_in(state, data_dir, others) for path in list_bases(source.bases)]
    return max([state.era, *(h.era for h in headers if h is not None and h.cluster == state.cluster)]) + 1


def _header_of(path: Path) -> BaseHeader | None:
    """What the file says it is, intact or not; None if that cannot be read."""
    try:
        return read_header(path)
    except (OSError, BaseError):
        return None


def _voting(state: ClusterState) -> list[int]:
    """The containers with committers."""
    graph = Graph(state.f, state.partitions)
    placement = placement_of(graph, state.packing)
    return [
        container
        for container, numbers in enumerate(placement)
        if any(graph.names[number].stage is Stage.COMMITTER for number in numbers)
    ]


def _best_journal(roots: list[Path], state: ClusterState, container: int) -> JournalFound:
    """The journal of this container that is intact, if there is one."""
    found = [_look_at(root, state, container) for root in roots]
    return next((journal for journal in found if not journal.problem), found[0])


def _look_at(data_dir: Path, state: ClusterState, container: int) -> JournalFound:
    directory = journal_directory(data_dir, container)
    try:
        name = journal_name(directory)
        expected = _expected_name(data_dir, state, container)
        if expected and name != expected:
            raise StaleJournal("is not the newest one of its container" if name else _missing(state, container))
        committers = _replayed(directory, state, container)
    except (OSError, TaraError, AssertionError) as error:
        return JournalFound(container=container, problem=str(error) or type(error).__name__)
    return JournalFound(
        container=container,
        problem="",
        minimum={committer.partition: committer.acceptor.commits.min for committer in committers},
        end={
            committer.partition: max(committer.acceptor.commits.pos, committer.acceptor.records.pos)
            for committer in committers
        },
    )


def _missing(state: ClusterState, container: int) -> str:
    server = state.servers[container] if state.servers else ""
    return f"is missing (it was written on {server})" if server else "is missing"


def _expected_name(data_dir: Path, state: ClusterState, container: int) -> str:
    """The name of this container's newest journal. Sites with a driver each know their own one only."""
    file = StateFile(data_dir)
    here = file.read() if file.exists() else state
    if (here.cluster, here.era) != (state.cluster, state.era):
        raise StaleJournal(f"{data_dir} is of cluster {here.cluster:x}, era {here.era}")
    return here.journals[container] if here.journals else ""


def _replayed(directory: Path, state: ClusterState, container: int) -> list[Committer]:
    """The committers of a container as their journal has them; with holes they are of no use here. Reads only."""
    entries = read_journal(directory, Identity(state.cluster, state.era, container)).found.entries
    graph = Graph(state.f, state.partitions)
    limits = Limits(f=state.f, partitions=state.partitions, **state.fixed)
    boot = Boot(state.lives[container], state.lives[container], False, 0.0)
    numbers = placement_of(graph, state.packing)[container]
    committers = []
    for number in numbers:
        if graph.names[number].stage is Stage.COMMITTER:
            committer = Committer(graph.names[number], graph, limits, boot, Outbox(), entries.get(number, []))
            if committer.acceptor.recovering:
                raise JournalError("is empty")
            if committer.acceptor.holes:
                raise JournalError(f"lacks {len(committer.acceptor.holes)} votes")
            committers.append(committer)
    return committers


def _is_complete(state: ClusterState, journals: list[JournalFound], checkpoint: int) -> bool:
    """Whether f+1 committers of every partition know what they promised, and a checkpoint reaches what they have."""
    slots = state.checkpoint_interval // state.partitions
    for partition in range(state.partitions):
        minima = [found.minimum[partition] for found in journals if partition in found.minimum]
        if len(minima) <= state.f or max(minima) > checkpoint * slots:
            return False
    return True


def _most(tables: Iterator[dict[int, int]]) -> dict[int, int]:
    most: dict[int, int] = {}
    for table in tables:
        for key, value in table.items():
            most[key] = max(value, most.get(key, 0))
    return most


def _logged(state: ClusterState, data_dir: Path, others: list[Path]) -> int:
    """The last command in the decided logs of this era."""
    last = 0
    for source in sources_in(state, data_dir, others):
        for file in list_files(source.log):
            try:
                ours = identity_of(file.path) == LogIdentity(state.cluster, state.era)
            except (LogError, OSError):
                continue
            last = max(last, file.last if ours else 0)
    return last


def _is_locked(path: Path) -> bool:
    """Whether a process holds this lock."""
    try:
        lock = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


def _when(time_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time_ms / 1e3))
