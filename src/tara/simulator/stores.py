"""The storage of simulated executors at work: bases and logs, what they fetch from each other, and what is
slow or fails meanwhile."""

import errno
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from tara.host.effects import Inputs
from tara.protocol import tuples as t
from tara.protocol.graph import Stage
from tara.simulator.checks.violation import Violation
from tara.simulator.container import CLUSTER, DATA, Parcel, SimulatedContainer
from tara.simulator.disk import Crash, Inode, VirtualDisk
from tara.simulator.remote import VirtualRemote
from tara.storage.base_format import BaseError, base_directory, number_of, read_base
from tara.storage.log import DecidedLog, log_directory
from tara.storage.log_format import LogError, LogIdentity, parse_segment, read_segment
from tara.storage.remote import BASES
from tara.storage.store import ExecutorStore, StoreFailed

if TYPE_CHECKING:
    from tara.simulator.world import World


class Stores:
    def __init__(self, world: "World") -> None:
        self._world = world
        #: The kinds of trouble, and until when each lasts.
        self._troubles: dict[str, float] = {}
        #: Until when the stores of a container stand still.
        self._still: dict[SimulatedContainer, float] = {}
        #: Files that were found intact, and are as long as they have not changed.
        self._intact: dict[tuple[VirtualDisk, int, Path], tuple[Inode, int]] = {}

    def trouble(self, kind: str, until_ms: float) -> None:
        self._troubles[kind] = until_ms

    def stand_still(self, container: SimulatedContainer, until_ms: float) -> None:
        """Nothing is done by the stores of this container."""
        self._still[container] = until_ms

    def _has(self, kind: str) -> bool:
        return not self._world.healed and self._troubles.get(kind, 0) > self._world.now_ms

    def mount(self, container: SimulatedContainer) -> None:
        """If the store is shared: let the container read what other executors hold, also while they are down."""
        own = {self._world.graph.names[number].replica for number in self._world.executors_of(container)}
        for replica in set(range(self._world.graph.sites)) - own:
            for directory in (base_directory(DATA, replica), log_directory(DATA, replica)):
                container.disk.mounts[directory] = partial(self._mounted, replica)
        container.disk.trouble = self._fail

    def _mounted(self, replica: int) -> VirtualDisk | None:
        host = self._world.host_of(self._world.graph.number(Stage.EXECUTOR, replica))
        return host.disk if self._world.plan.store_shared and not host.lost else None

    def _fail(self, what: str, path: Path) -> None:
        failing = self._has("store_failing") or (what == "read" and self._has("store_unreadable"))
        if failing and path.parent.name.startswith(("bases-", "log-")):
            raise OSError(errno.EIO, "Input/output error", str(path))

    def remote_files(self, container: SimulatedContainer, kind: str, directory: Path) -> VirtualRemote:
        def source(replica: int) -> tuple[VirtualDisk, Path] | None:
            host = self._world.host_of(self._world.graph.number(Stage.EXECUTOR, replica))
            at = base_directory if kind == BASES else log_directory
            return (host.disk, at(DATA, replica)) if host.alive and host is not container else None

        def breaks_off() -> bool:
            broken = not self._world.healed and self._world.draw.random() < 0.1
            if broken:
                self._world.count_fault("breaks_off")
            return broken

        suffix = ".base" if kind == BASES else ".segment"
        return VirtualRemote(container.disk, directory, suffix, source, breaks_off)

    def attach(self, container: SimulatedContainer) -> None:
        """Its stores and logs work when there is something to do."""
        for store in container.kept.stores.values():
            workers: tuple[ExecutorStore, DecidedLog] = (store, store.log)
            for worker in workers:
                worker.wake = partial(self._soon, container, container.life, worker)
                worker.wake()

    def _soon(self, container: SimulatedContainer, life: int, worker: ExecutorStore | DecidedLog) -> None:
        delay_ms = self._world.draw.randrange(1, 500 if self._has("store_slow") else 20)
        self._work_at(container, life, worker, self._world.now_ms + delay_ms)

    def _work_at(
        self, container: SimulatedContainer, life: int, worker: ExecutorStore | DecidedLog, time_ms: float
    ) -> None:
        time_ms = max(time_ms, container.busy_ms.get(worker, time_ms))
        if container.due_ms.get(worker, time_ms) >= time_ms:
            container.due_ms[worker] = time_ms
            self._world.at(time_ms, self._work, container, life, worker)

    def _work(self, container: SimulatedContainer, life: int, worker: ExecutorStore | DecidedLog) -> None:
        if not container.alive or container.life != life or container.due_ms.get(worker) != self._world.now_ms:
            return
        del container.due_ms[worker]
        until_ms = max(container.paused_until_ms, 0.0 if self._world.healed else self._still.get(container, 0.0))
        if self._world.now_ms < until_ms:
            self._work_at(container, life, worker, until_ms)
            return
        moved = container.disk.moved
        try:
            pause_s = worker.work()
            answers = container.kept.answers()
        except Crash:
            self._world.driver.on_crash(container)
            return
        except StoreFailed as error:
            raise Violation("store", f"container {container.index}: {error}"[:2000]) from error
        megabyte_ms = 0.0 if self._world.healed else self._world.plan.work_megabyte_ms
        took_ms = (container.disk.moved - moved) / 1e6 * megabyte_ms
        container.busy_ms[worker] = self._world.now_ms + took_ms
        self._work_at(container, life, worker, self._world.now_ms + took_ms + pause_s * 1e3)
        if answers:
            self._note_answers(container, answers)
            owed_ms = self._world.driver.owed_ms(container)
            self._world.after(took_ms + owed_ms, self._answer, container, life, answers)

    def _note_answers(self, container: SimulatedContainer, answers: list[Parcel]) -> None:
        newest: dict[int, int] = {}
        for answer, number in answers:
            if isinstance(answer, t.Saved):
                self._world.monitor.saved(answer.checkpoint)
                newest[number] = max(answer.checkpoint.number, newest.get(number, 0))
            elif isinstance(answer, t.BaseSaved):
                self._world.monitor.base_saved(answer)
                self._world.bases_saved += 1
            elif isinstance(answer, t.Loaded) and answer.base is not None:
                self._world.bases_loaded += 1
                newest[number] = max(answer.base.number, newest.get(number, 0))
            elif isinstance(answer, t.Replay):
                self._world.replayed += len(answer.requests)
                if answer.checkpoint is not None and answer.durable:
                    newest[number] = max(answer.checkpoint.number, newest.get(number, 0))
        for number, checkpoint in newest.items():
            self._check_durable(container, number, checkpoint)
            if container in self._world.zombies:
                # It tells of a copy that nobody will find.
                known = self._world.wiped.get(container.index, 0)
                self._world.wiped[container.index] = max(checkpoint, known)

    def _answer(self, container: SimulatedContainer, life: int, answers: list[Parcel]) -> None:
        if not container.alive or container.life != life:
            return
        if self._world.now_ms < container.paused_until_ms or container.rest is not None:
            container.waiting.tuples = [*container.waiting.tuples, *answers]
        else:
            self._world.driver.step(container, Inputs(tuples=answers))

    def submit(self, container: SimulatedContainer, life: int, number: int, job: t.Tuple) -> None:
        if container.alive and container.life == life:
            container.kept.stores[number].submit(job)

    def reach(self, number: int, intact: bool = False, harmed: bool = False) -> int:
        """The newest checkpoint that what an executor has leads to; 0: none. `intact`: what can be read of that;
        `harmed`: also with what somebody has removed or damaged since it was written."""
        world, replica = self._world, self._world.graph.names[number].replica
        disk = world.host_of(number).disk
        files = disk.there if harmed else partial(self._files, disk)
        bases = [
            number_of(path)
            for path in files(base_directory(DATA, replica), ".base")
            if not intact or self._is_intact(disk, path)
        ]
        segments = {
            file.number
            for path in files(log_directory(DATA, replica), ".segment")
            if (file := parse_segment(path)) and (not intact or self._is_intact(disk, path))
        }
        reached = 0
        for start in (*bases, world.threshold):
            # An era that begins with something begins with a base.
            if start < world.threshold or (start == world.threshold > 0 and start not in bases):
                continue
            while start + 1 in segments:
                start += 1
            reached = max(start, reached)
        return reached

    def _check_durable(self, container: SimulatedContainer, number: int, checkpoint: int) -> None:
        """Whether what a power cut would leave here leads to a checkpoint."""
        replica, disk = self._world.graph.names[number].replica, container.disk
        reached = 0 if self._world.threshold == 0 else -1
        for path in disk.there(base_directory(DATA, replica), ".base"):
            if self._is_for_good(disk, path):
                reached = max(number_of(path), reached)
        # The name of a segment begins with its number.
        segments = {int(path.name[:12]): path for path in disk.there(log_directory(DATA, replica), ".segment")}
        while reached < checkpoint and reached + 1 in segments and self._is_for_good(disk, segments[reached + 1]):
            reached += 1
        self._world.monitor.require(
            reached >= checkpoint,
            "durable",
            "{} has checkpoint {}, but what is on its disk leads to {}",
            self._world.graph.label(number),
            checkpoint,
            reached,
        )

    def _is_for_good(self, disk: VirtualDisk, path: Path) -> bool:
        """Whether it is intact and durable. What was harmed in this life counts until that was noticed."""
        if path in disk.harmed:
            return True
        version, known = disk.version(path), self._intact.get((disk, self._world.era, path))
        if version == known:
            return version is not None
        trouble, disk.trouble = disk.trouble, None
        intact = disk.is_durable(path) and self._is_intact(disk, path)
        disk.trouble = trouble
        if intact and version is not None:
            self._intact[disk, self._world.era, path] = version
        return intact

    def _is_intact(self, disk: VirtualDisk, path: Path) -> bool:
        """Whether a base or a segment can be read, and is of this era."""
        try:
            if path.suffix == ".base":
                read_base(path, CLUSTER, self._world.era, disk)
            else:
                file = parse_segment(path)
                assert file is not None
                read_segment(file, LogIdentity(CLUSTER, self._world.era), disk)
        except (BaseError, LogError, OSError):
            return False
        return True

    def _files(self, disk: VirtualDisk, directory: Path, suffix: str) -> list[Path]:
        """Whoever looks from outside is not in the way of what fails."""
        return sorted(path for path in disk.paths(directory, (suffix,)) if path.parent == directory)

    def parts(self, number: int) -> list[Path]:
        """The bases and segments of an executor; first the ones that its next start needs."""
        replica, disk = self._world.graph.names[number].replica, self._world.host_of(number).disk
        bases = self._files(disk, base_directory(DATA, replica), ".base")[::-1]
        segments = self._files(disk, log_directory(DATA, replica), ".segment")[::-1]
        return [path for pair in zip_longest(bases, segments) for path in pair if path is not None]

    def copies(self, checkpoint: int, intact: bool = False, harmed: bool = False) -> int:
        """Executors whose files lead to this checkpoint or a newer one."""
        return sum(
            1
            for number, name in enumerate(self._world.graph.names)
            if name.stage is Stage.EXECUTOR and self.reach(number, intact, harmed) >= checkpoint
        )

    def lacks_checkpoints(self, container: SimulatedContainer) -> bool:
        lost = self._world.wiped.get(container.index)
        if lost is None:
            return False
        executors = self._world.executors_of(container)
        held = [self.reach(number) for number in executors]
        return min(held, default=lost) < max(lost, self._world.monitor.stable if executors else 0)
