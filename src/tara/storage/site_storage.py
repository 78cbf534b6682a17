"""What one life of a container keeps on its disk: a journal, and for each executor an execution record, bases and the
decided log. Says what becomes of what the lives before have left.
"""

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from tara.host.counters import Counters
from tara.host.site import Site, SiteSpec
from tara.protocol import places
from tara.protocol import tuples as t
from tara.protocol.errors import NodeHalted
from tara.protocol.graph import Graph, Stage
from tara.protocol.incarnations import FIRST_INCARNATION
from tara.protocol.journal import Written
from tara.protocol.node import Boot
from tara.protocol.sessions import Application
from tara.storage.base_format import base_directory
from tara.storage.bases import GOOD_NEWS, Bases
from tara.storage.disk import LOCAL, Disk
from tara.storage.execution_record import ExecutionRecord, record_path
from tara.storage.journal import (
    FULL_DISK_PATIENCE_S,
    FULL_DISK_PAUSE_S,
    SEGMENT_BYTES,
    FileJournal,
    Identity,
    NoRoom,
    StaleJournal,
    journal_directory,
)
from tara.storage.log import DecidedLog, log_directory
from tara.storage.log_format import LogIdentity
from tara.storage.log_writer import LogSettings
from tara.storage.pacer import Pacer
from tara.storage.remote import BASES, LOG, RemoteFiles
from tara.storage.store import ExecutorStore

#: Problems of a journal that an event tells of.
DAMAGE_SHOWN = 20


class LifeStart(Struct, frozen=True, kw_only=True):
    """What the registry tells a container when it has registered."""

    life: int
    genesis: bool
    #: Whether the journal that is here is the one that the last life wrote; and its name from now on.
    keep_journal: bool = True
    journal: str = ""


class StorageSpec(Struct, frozen=True, kw_only=True):
    data_dir: Path
    #: Bytes after which the journal begins a new segment.
    segment_bytes: int = SEGMENT_BYTES
    #: Bytes of the decided log that each executor keeps, beyond what its bases need.
    log_retention_bytes: int = 0
    #: The checkpoint that the cluster was founded with; 0: none.
    threshold: int = 0


class Events(Protocol):
    """Where it is told what happens. May be called by any thread."""

    def info(self, event: str, node: str | None = None, view: int | None = None, **details: object) -> None: ...

    def warning(self, event: str, node: str | None = None, view: int | None = None, **details: object) -> None: ...

    def error(self, event: str, node: str | None = None, view: int | None = None, **details: object) -> None: ...

    def flood(self, event: str, node: str | None = None, **details: object) -> None: ...


class SiteStorage:
    def __init__(
        self,
        site: SiteSpec,
        spec: StorageSpec,
        events: Events,
        counters: Counters,
        remote: Callable[[str, Path], RemoteFiles | None],
        on_answer: Callable[[], None],
        disk: Disk = LOCAL,
        draw: Callable[[int], bytes] = secrets.token_bytes,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        """`remote` gives what other hosts have of a kind, to be brought to a directory; `on_answer` is called when a
        store has an answer."""
        self._site = site
        self._spec = spec
        self._events = events
        self._counters = counters
        self._remote = remote
        self._on_answer = on_answer
        self._disk = disk
        self._draw = draw
        self._clock = clock
        self._wait = wait
        self.graph = Graph(site.limits.f, site.limits.partitions)
        self.journal: FileJournal | None = None
        #: Since when there has been no room for the journal.
        self._full_since_s: float | None = None
        #: By the numbers of the executors.
        self.stores: dict[int, ExecutorStore] = {}
        self.records: dict[int, ExecutionRecord] = {}

    def start(
        self, start: LifeStart, make: Callable[[], Site], application: Callable[[], Application], now_ms: float
    ) -> Site:
        """A site with its nodes: with what the journal has, if there is one."""
        journals = self._open_journal(start) if self._site.journal else {}
        try:
            site = self._create(make(), start, application, now_ms, journals)
        except (NodeHalted, AssertionError) as error:
            # A journal that reads well but makes no sense is as good as none.
            if self.journal is None or not journals:
                raise
            self._set_aside(self.journal, error)
            site = self._create(make(), start, application, now_ms, {})
        for number in self.records:
            self.stores[number] = self._make_store(number)
        if self.journal is not None:
            self._go_on_with(self.journal, site)
        entries = sum(map(len, journals.values()))
        how = "genesis" if start.genesis else "rejoined"
        self._events.info("started", how=how, journal_entries=entries, nodes=len(site.nodes))
        return site

    def sync(self, entries: list[Written], collected: bool, now_s: float) -> float:
        """Returns after how many seconds to try again, because there is no room; 0: it is durable. Raises `NoRoom` when
        that has been so for too long."""
        if self.journal is None:
            return 0.0
        try:
            self.journal.append(entries)
            if collected:
                self.journal.roll()
        except NoRoom as error:
            if self._full_since_s is None:
                self._full_since_s = now_s
            if now_s - self._full_since_s > FULL_DISK_PATIENCE_S:
                raise
            self._events.flood("journal_waits", reason=str(error))
            return FULL_DISK_PAUSE_S
        self._full_since_s = None
        return 0.0

    def answers(self) -> list[tuple[t.Tuple, int]]:
        """What the stores have to say to the executors."""
        return [(answer, number) for number, store in self.stores.items() for answer in store.take()]

    def close(self) -> None:
        """The next life may have it all."""
        if self.journal is not None:
            self.journal.close()

    def _create(
        self,
        site: Site,
        start: LifeStart,
        application: Callable[[], Application],
        now_ms: float,
        journals: dict[int, list[t.ReplayedEntry]],
    ) -> Site:
        spec = self._spec
        for number in self._site.placement[self._site.container]:
            # Proposers lose what they knew with every start; a committer's number is in its journal, if it has one.
            incarnation = FIRST_INCARNATION if start.genesis else start.life
            boot = Boot(start.life, incarnation, start.genesis, now_ms, spec.threshold)
            if self.graph.names[number].stage is Stage.EXECUTOR:
                record = self._execution_record(number)
                barred = frozenset(record.strikes.barred)
                boot = boot._replace(cell=record.cell, barred=barred, executed=record.executed)
            site.create(number, boot, application, journals.get(number, []))
        return site

    def _open_journal(self, start: LifeStart) -> dict[int, list[t.ReplayedEntry]]:
        """What the journal has. From one that cannot be trusted, nothing: the committers rejoin without it, under the
        number of this life, which no life before it had."""
        site = self._site
        journal = self.journal = FileJournal(
            journal_directory(self._spec.data_dir, site.container),
            Identity(site.cluster, site.era, site.container),
            self._spec.segment_bytes,
            on_trouble=lambda error: self._events.flood("journal_waits", reason=str(error)),
            disk=self._disk,
            draw=self._draw,
        )
        if not start.keep_journal and not journal.is_empty:
            self._set_aside(journal, StaleJournal("this container has run elsewhere since it was written"))
        if start.journal:
            journal.rename(start.journal)
        try:
            return journal.replay()
        except StaleJournal as error:
            self._set_aside(journal, error)
            return {}

    def _set_aside(self, journal: FileJournal, reason: Exception) -> None:
        name, damage = journal.name, journal.problems[:DAMAGE_SHOWN]
        target = journal.set_aside()
        self._counters.journals_set_aside += 1
        reason_text = f"{type(reason).__name__}: {reason}"
        # Before anything else can fail: the next life will not know of it.
        self._events.error("journal_set_aside", reason=reason_text, damage=damage, kept_in=str(target))
        journal.rename(name)

    def _go_on_with(self, journal: FileJournal, site: Site) -> None:
        """The committers have come back from the journal: say what was damaged, and what they do not know any more."""
        journal.promised = site.promised
        remembered = site.remembered() if journal.broken or journal.problems else {}
        aside = None
        if journal.broken:
            aside = journal.restore([*remembered.items()])
        else:
            journal.mark()
        if journal.notes:
            self._events.info("end_marker_renewed", found=journal.notes)
        if journal.problems:
            self._counters.journals_repaired += 1
            self._events.error(
                "journal_repaired",
                damage=journal.problems[:DAMAGE_SHOWN],
                holes={self.graph.label(number): len(known.holes) for number, known in remembered.items()},
                kept_in=str(aside) if aside is not None else None,
            )

    def _execution_record(self, number: int) -> ExecutionRecord:
        """Opened once in a life: that is a new beginning for it."""
        if number in self.records:
            return self.records[number]
        site, label = self._site, self.graph.label(number)
        path = record_path(self._spec.data_dir, self.graph.names[number].replica)
        record = self.records[number] = ExecutionRecord(path, site.cluster, site.era, self._disk)
        if record.trouble is not None:
            self._events.warning("execution_record_refused", label, reason=record.trouble)
        if record.strikes.place:
            at = places.describe(record.strikes.place)
            self._events.warning("ended_in_application", label, at=at, times=record.strikes.count)
        return record

    def _make_store(self, number: int) -> ExecutorStore:
        site, replica = self._site, self.graph.names[number].replica
        data_dir, others = self._spec.data_dir, [index for index in range(self.graph.sites) if index != replica]
        directory = base_directory(data_dir, replica)
        bases = Bases(
            directory,
            site.cluster,
            site.era,
            {other: base_directory(data_dir, other) for other in others},
            self._remote(BASES, directory),
            self._disk,
            Pacer(self._clock, self._wait),
        )
        store = ExecutorStore(bases, self._make_log(replica, bases, others), self._on_answer)
        label = self.graph.label(number)

        def on_event(event: str, detail: int | str) -> None:
            if event in GOOD_NEWS:
                self._events.info(event, label, base=detail)
            else:
                self._events.flood(event, label, reason=detail)

        store.on_event = on_event
        return store

    def _make_log(self, replica: int, bases: Bases, others: list[int]) -> DecidedLog:
        site, limits, data_dir = self._site, self._site.limits, self._spec.data_dir
        settings = LogSettings(
            identity=LogIdentity(site.cluster, site.era),
            partitions=limits.partitions,
            checkpoint_interval=limits.checkpoint_interval,
            retention_bytes=self._spec.log_retention_bytes,
        )
        directory = log_directory(data_dir, replica)
        peers = {other: log_directory(data_dir, other) for other in others}
        remote = self._remote(LOG, directory)
        log = DecidedLog(replica, directory, settings, bases, peers, remote, self._disk, self._clock)
        log.on_problem = lambda reason: self._events.flood("log_problem", reason=reason)
        return log
