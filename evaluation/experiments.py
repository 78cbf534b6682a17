"""The evaluation: the paper's experiments one by one, those beyond it, and the peers, each into a section of results.

The results are saved after each experiment, so an interrupted run loses at most one. Experiments that use the same
cluster stand beside each other. Whatever fails is written down, and the rest goes on.
"""

import contextlib
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from evaluation import code_lines, failures, machine, reference, results, zookeeper_speed
from evaluation.peers.etcd import Etcd
from evaluation.peers.pysyncobj import PySyncObj
from evaluation.peers.servers import PeerMeasurement, PeerPlan
from evaluation.peers.zookeeper import ZooKeeper
from evaluation.plan import FEW_CLIENTS, MANY_CLIENTS, SOME_CLIENTS, THROTTLED_CLIENTS, Plan
from evaluation.results import Point, Results, Sample, Section, Series, Step
from evaluation.step_costs import step_costs
from evaluation.tara_cluster import Clusters, measure, measure_kill
from tara.operations.deployment import Say
from tara.protocol.errors import ConfigurationError, TaraError

PEERS: tuple[type[Etcd] | type[ZooKeeper] | type[PySyncObj], ...] = (Etcd, ZooKeeper, PySyncObj)
OWN = "Tara"
PAYLOAD_BYTES = 64
MEMORY, DISK = "memory", "disk"
COORDINATION = "coordination service"


class Run:
    """One experiment as it goes."""

    def __init__(self, plan: Plan, clusters: Clusters, section: Section, say: Say) -> None:
        self.plan = plan
        self.clusters = clusters
        self.section = section
        self.say = say

    def series(self, system: str, setting: str, durability: str) -> Series:
        made = Series(system=system, setting=setting, durability=durability, points=[])
        self.section.series.append(made)
        return made

    def add(self, series: Series, x: float, clients: int, sample: Sample) -> None:
        """A repetition of a point; the first one makes it."""
        point = next((point for point in series.points if (point.x, point.clients) == (x, clients)), None)
        if point is None:
            point = Point(x=x, clients=clients, samples=[])
            series.points.append(point)
        point.samples.append(sample)
        self.say(
            f"    {series.label}, {series.durability}: {clients} clients, at {x:g}: {sample.throughput_per_s:.0f}/s, "
            f"p50 {sample.latency_ms_p50:.2f} ms, p99 {sample.latency_ms_p99:.2f} ms"
        )

    def measure(
        self,
        series: Series,
        repetition: int,
        x: float,
        clients: int,
        payload_bytes: int = PAYLOAD_BYTES,
        reads: float = 0.0,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        """A point of a series of ours. A cluster that did not answer everything well is not used again."""
        cluster = self.clusters.get(repetition, series.durability, **(settings or {}))
        sample = measure(cluster, self.plan, clients, payload_bytes, reads)
        if sample.errors:
            self.clusters.close()
        self.add(series, x, clients, sample)

    def curve(self, series: Series, repetition: int, settings: Mapping[str, object] | None = None) -> None:
        """Throughput against latency, over the numbers of clients."""
        for clients in self.plan.clients:
            self.measure(series, repetition, clients, clients, settings=settings)

    @property
    def repetitions(self) -> range:
        return range(self.plan.repetitions)


def effort(run: Run) -> None:
    """Development effort: code lines of the live path by category (table I) and package."""
    files = code_lines.count()
    run.section.lines = code_lines.totals(files)
    run.section.packages = code_lines.live_packages(files)
    run.section.other_packages = code_lines.other_packages()


def unbatched(run: Run) -> None:
    """Throughput against latency, one command per request."""
    series = run.series(OWN, "key-value", MEMORY)
    for repetition in run.repetitions:
        run.curve(series, repetition)


def payload(run: Run) -> None:
    """Values of 64 bytes to 64 KiB."""
    for clients in (FEW_CLIENTS, SOME_CLIENTS):
        series = run.series(OWN, f"{clients} clients", MEMORY)
        for repetition in run.repetitions:
            for size in run.plan.payload_bytes:
                run.measure(series, repetition, size, clients, size)


def reads(run: Run) -> None:
    """Linearizable reads beside the writes, 0 to 100 %."""
    for durability in (DISK, MEMORY):
        series = run.series(OWN, "", durability)
        for repetition in run.repetitions:
            for share in run.plan.read_shares:
                run.measure(series, repetition, round(100 * share), SOME_CLIENTS, reads=share)


def batched(run: Run) -> None:
    """Throughput against latency, several commands per request."""
    for size in run.plan.batch_sizes:
        series = run.series(OWN, f"batch size {size}", MEMORY)
        for repetition in run.repetitions:
            run.curve(series, repetition, {"batch_size": size})


def coordination(run: Run) -> None:
    """Throughput against latency of the coordination service, in ZooKeeper's protocol."""
    run.clusters.close()
    made: dict[str, Series] = {}
    for _ in run.repetitions:
        report = zookeeper_speed.measure(
            ["tara"], [MEMORY], run.plan.clients, run.plan.seconds, PAYLOAD_BYTES, run.plan.first_warm_up_s
        )
        for measurement in report.measurements:
            found = measurement.report
            series = made.get(found.operation) or run.series(OWN, f"{COORDINATION}, {found.operation}", MEMORY)
            made[found.operation] = series
            sample = Sample(
                throughput_per_s=found.throughput_per_s,
                latency_ms_p50=found.latency_ms_p50,
                latency_ms_p99=found.latency_ms_p99,
                gap_ms_max=0.0,
                errors=found.errors,
            )
            run.add(series, found.sessions, found.sessions, sample)


def durability(run: Run) -> None:
    """Every vote on disk before it counts: what fsync costs."""
    series = run.series(OWN, "key-value", DISK)
    for repetition in run.repetitions:
        run.curve(series, repetition)


def partitions(run: Run) -> None:
    """Throughput by the number of partitions, with throttled proposers."""
    series = run.series(OWN, f"{reference.THROTTLED_PER_S} requests/s per proposer", MEMORY)
    for repetition in run.repetitions:
        for count in run.plan.partitions:
            throttled = {"partitions": count, "proposer_rate_max": reference.THROTTLED_PER_S}
            run.measure(series, repetition, count, THROTTLED_CLIENTS, settings=throttled)


def proposer_failures(run: Run) -> None:
    """Throughput over time while the active proposer is killed twice."""
    for _ in run.repetitions:
        run.section.timelines.append(failures.measure(run.clusters.new(MEMORY), run.plan, run.say))
        run.clusters.close()


def faults(run: Run) -> None:
    """f = 1 and f = 2: three sites and five."""
    for count in (1, 2):
        series = run.series(OWN, f"f = {count}", MEMORY)
        for repetition in run.repetitions:
            for clients in (SOME_CLIENTS, MANY_CLIENTS):
                # As in the other experiments where f is 1, so that the cluster may be the same.
                settings = {} if count == 1 else {"f": count}
                run.measure(series, repetition, clients, clients, settings=settings)


def steps(run: Run) -> None:
    """What a request costs, step by step."""
    made: dict[str, list[float]] = {}
    for _ in run.repetitions:
        with tempfile.TemporaryDirectory(prefix="tara-bench-", dir=run.plan.disk) as directory:
            costs = step_costs(run.plan.step_requests, SOME_CLIENTS, PAYLOAD_BYTES, Path(directory))
        for step, microseconds in costs.items():
            made.setdefault(step, []).append(microseconds)
    run.section.steps = [Step(step=step, microseconds=values) for step, values in made.items()]


def peers(run: Run) -> None:
    """etcd, ZooKeeper and PySyncObj under the same load, on disk and in memory."""
    run.clusters.close()
    for kind in _present(run):
        for where in (DISK, MEMORY):
            series = run.series(kind.name, "", where)
            for _ in run.repetitions:
                with _directory(run, where) as directory:
                    peer = kind(Path(directory), durable=where == DISK)
                    try:
                        peer.measure(_peer_plan(run.plan, SOME_CLIENTS, run.plan.first_warm_up_s))
                        for clients in run.plan.clients:
                            measured = peer.measure(_peer_plan(run.plan, clients, run.plan.seconds))
                            run.add(series, clients, clients, _sample(measured))
                    finally:
                        peer.stop()


def leader_kill(run: Run) -> None:
    """The longest time without an answer when the leader is killed, for everybody."""
    before_s, after_s = run.plan.seconds, run.plan.peer_after_kill_s
    series = run.series(OWN, "", DISK)
    for _ in run.repetitions:
        sample = measure_kill(run.clusters.new(DISK), SOME_CLIENTS, before_s, after_s)
        run.add(series, SOME_CLIENTS, SOME_CLIENTS, sample)
        run.clusters.close()
    for kind in _present(run):
        series = run.series(kind.name, "", DISK)
        for _ in run.repetitions:
            with _directory(run, DISK) as directory:
                peer = kind(Path(directory), durable=True)
                try:
                    plan = _peer_plan(run.plan, SOME_CLIENTS, before_s + after_s)
                    run.add(series, SOME_CLIENTS, SOME_CLIENTS, _sample(peer.measure_kill(plan, before_s)))
                finally:
                    peer.stop()


def _present(run: Run) -> Iterable[type[Etcd] | type[ZooKeeper] | type[PySyncObj]]:
    for kind in PEERS:
        version = kind.version()
        if version is None:
            run.section.skipped.append(f"{kind.name}: not installed ({kind.how_to_install})")
            run.say(f"    {run.section.skipped[-1]}")
        else:
            run.section.machine.versions[kind.name] = version
            yield kind


def _directory(run: Run, where: str) -> "tempfile.TemporaryDirectory[str]":
    parent = run.plan.disk if where == DISK else run.plan.memory
    return tempfile.TemporaryDirectory(prefix="tara-bench-", dir=parent)


def _peer_plan(plan: Plan, clients: int, seconds: float) -> PeerPlan:
    return PeerPlan(clients=clients, seconds=seconds, warm_up_s=plan.warm_up_s, payload_bytes=PAYLOAD_BYTES)


def _sample(measured: PeerMeasurement) -> Sample:
    report = measured.report
    return Sample(
        throughput_per_s=report.throughput_per_s,
        latency_ms_p50=report.latency_ms_p50,
        latency_ms_p99=report.latency_ms_p99,
        gap_ms_max=report.gap_ms_max,
        errors=report.errors,
        cpu=measured.cpu,
    )


#: In the order in which they run: those on the same cluster beside each other.
EXPERIMENTS: dict[str, Callable[[Run], None]] = {
    "effort": effort,
    "unbatched": unbatched,
    "reads": reads,
    "payload": payload,
    "faults": faults,
    "batched": batched,
    "coordination": coordination,
    "durability": durability,
    "partitions": partitions,
    "failures": proposer_failures,
    "steps": steps,
    "peers": peers,
    "leader_kill": leader_kill,
}


def evaluate(plan: Plan, names: Sequence[str], path: Path, say: Say) -> Results:
    """Run the experiments, in their own order, and put what they bring into the file, beside what is there."""
    unknown = [name for name in names if name not in EXPERIMENTS]
    if unknown:
        raise ConfigurationError(f"no experiment {unknown[0]!r}; there are {', '.join(EXPERIMENTS)}")
    found = results.load(path)
    for directory in (plan.disk, plan.memory):
        if not directory.is_dir():
            raise ConfigurationError(f"{directory}: no such directory, but data are to be written there")
    with _polite_end(), Clusters(plan, say) as clusters:
        for name, experiment in EXPERIMENTS.items():
            if name in names:
                found.sections[name] = _perform(name, experiment, plan, clusters, say)
                found.sections = {key: found.sections[key] for key in EXPERIMENTS if key in found.sections}
                results.save(found, path)
    return found


@contextlib.contextmanager
def _polite_end() -> Iterator[None]:
    """Whoever ends this process with SIGTERM does not leave clusters behind: they are stopped on the way out."""

    def leave(*_: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _perform(name: str, experiment: Callable[[Run], None], plan: Plan, clusters: Clusters, say: Say) -> Section:
    say(f"{name}: {experiment.__doc__}")
    section = Section(
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        took_s=0.0,
        seconds=plan.seconds,
        repetitions=plan.repetitions,
        quick=plan.quick,
        machine=machine.describe(plan.disk),
    )
    began_s = time.monotonic()
    try:
        experiment(Run(plan, clusters, section, say))
    except (TaraError, OSError) as error:
        section.failure = f"{type(error).__name__}: {error}"
        say(f"  failed: {section.failure}")
        clusters.close()
    section.took_s = round(time.monotonic() - began_s, 1)
    return section
