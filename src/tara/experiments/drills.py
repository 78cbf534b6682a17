"""Fault drills on a real cluster: `tara up` as a user runs it, real load, real kills, and the check of what came of it.

Each drill starts a cluster on local Spark, puts it under a load whose history is recorded, does its harm, waits for
full strength, and then asks: was anything lost, executed twice, answered out of order, and do the replicas agree?
"""

import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Protocol

import msgspec

from tara.client import KeyValueClient
from tara.experiments.bad_network import network, random_fault
from tara.experiments.deployment import START_TIMEOUT_S, Deployment, DrillError, Say, Sites, children, send
from tara.experiments.fuzz import fuzz
from tara.experiments.load_process import LoadPlan, LoadProcess
from tara.experiments.machine import work_s
from tara.experiments.proxied import Proxied
from tara.experiments.safety import Safety
from tara.experiments.standalone import Standalone
from tara.experiments.starts import SITES, Starts, first_start, measure
from tara.experiments.storage_drill import storage
from tara.operations import health
from tara.simulator.linearizability import KeyValueModel, check
from tara.transport.where import free_row

CLIENTS = 64
RECORDED_KEYS = 8
#: What the longest gap without a reply may be when the leader, or its whole server, dies or hangs.
GAP_MS_MAX = 1_000.0
GROWTH_MB_MAX = 50.0
THROUGHPUT_DRIFT_MAX = 0.10
#: How much longer it may take to be back after a loss of everything than to start for the first time: medians of ten
#: differ by so much on a shared machine when nothing is different.
SLOWER_MAX = 1.25
#: A process has its size by then.
WARM_S = 120

#: Longer than any drill.
UNTIL_STOPPED_S = 24 * 3600.0


class Verdict(Safety, kw_only=True):
    """What came of a drill. A field that a drill does not judge is None."""

    drill: str
    faults: int
    throughput_per_s: float
    latency_ms_p50: float
    latency_ms_p99: float
    gap_ms_max: float
    #: Seconds from each fault to full strength.
    full_strength_s: list[float]
    restarts: int
    gap_ms_limit: float | None = None
    #: Throughput of the last minute against the second one, on a machine of constant speed; and what the machine's
    #: own speed did meanwhile.
    drift: float | None = None
    machine_drift: float | None = None
    #: The largest growth of a process after the second minute.
    growth_mb: float | None = None
    #: Committers that got a new memory, and checkpoints that came from other servers.
    rejoined: int | None = None
    fetched: int | None = None
    #: Seconds from `tara up` to the first answered write, after a loss of everything and at a first start, in turns;
    #: medians, and each. And where these seconds went, as the driver tells (`tara.runtime.start_phases`).
    answers_s: float | None = None
    first_start_answers_s: float | None = None
    answers_s_each: list[float] | None = None
    first_start_answers_s_each: list[float] | None = None
    first_start_full_strength_s: list[float] | None = None
    phases_s: dict[str, float] | None = None
    first_start_phases_s: dict[str, float] | None = None

    @property
    def summary(self) -> str:
        return (
            f"{self.faults} faults, {self.restarts} restarts, {self.throughput_per_s:.0f} commands/s, longest gap "
            f"{self.gap_ms_max:.0f} ms, {self.in_short}"
        )

    @property
    def failures(self) -> list[str]:
        """What is not as promised, in words."""
        found = self.violations
        if self.gap_ms_limit is not None and self.gap_ms_max >= self.gap_ms_limit:
            found.append(f"a gap of {self.gap_ms_max:.0f} ms")
        if self.drift is not None and abs(self.drift) > THROUGHPUT_DRIFT_MAX:
            found.append(f"throughput changed by {self.drift:+.0%} more than the machine's speed")
        if self.growth_mb is not None and self.growth_mb > GROWTH_MB_MAX:
            found.append(f"a process grew by {self.growth_mb:.0f} MB")
        if (
            self.answers_s is not None
            and self.first_start_answers_s is not None
            and self.answers_s > SLOWER_MAX * self.first_start_answers_s
        ):
            found.append(f"{self.answers_s:.1f} s to be back, and {self.first_start_answers_s:.1f} s to start")
        if self.rejoined == 0:
            found.append("no committer had to rejoin without its journal")
        if self.fetched == 0:
            found.append("no checkpoint had to be fetched from another server")
        return found


class Others(NamedTuple):
    """Sessions, and commands in them, that are not of the load: they count as executed, too."""

    sessions: int = 0
    commands: int = 0


class Course:
    """One drill as it goes: a cluster under a recorded load."""

    def __init__(
        self,
        name: str,
        directory: Path,
        say: Say,
        settings: Mapping[str, str] | None = None,
        seconds: float = UNTIL_STOPPED_S,
        environment: Mapping[str, str] | None = None,
        cluster: Deployment | None = None,
    ) -> None:
        """With a cluster that is not to be `tara up`: settings and environment are its own."""
        self.name = name
        self.say = say
        self.cluster = cluster or Deployment(directory / name, settings, environment=environment)
        self.cluster.start()
        plan = LoadPlan(
            endpoints=self.cluster.endpoints, clients=CLIENTS, seconds=seconds, reads=0.2, recorded_keys=RECORDED_KEYS
        )
        self.load = LoadProcess(plan)
        self.faults = 0
        self.full_strength_s: list[float] = []

    def harm(self, what: str, pid: int, number: signal.Signals) -> None:
        self.say(f"{self.name}: {number.name} to {what}, process {pid}")
        self.faults += 1
        send(pid, number)

    def await_full_strength(self, life: tuple[str, int] | None = None) -> None:
        """Wait until all is well again; with (container, life), until that container has a newer life."""
        began_s = time.monotonic()

        def healed(status: dict[str, Any]) -> bool:
            lives = {container["container"]: container["life"] for container in status["containers"]}
            return health.full_strength(status) and (life is None or lives[life[0]] > life[1])

        self.cluster.await_status(healed, "full strength")
        self.full_strength_s.append(round(time.monotonic() - began_s, 2))
        self.say(f"{self.name}: full strength after {self.full_strength_s[-1]:.1f} s")

    def verdict(self, gap_ms_limit: float | None = None, others: Others | None = None) -> Verdict:
        """`others`: what was done beside the load."""
        self.load.stop()
        report = self.load.finish()
        linearizable = check(self.load.history, KeyValueModel()).linearizable
        status = self.cluster.await_status(
            lambda found: health.replicas_equal(found) is not None, "replicas that are equally far", digests=True
        )
        # Every command counts once, and so do the opening and the end of every session.
        others = others or Others()
        executed = health.counter(status) - 2 * (report.sessions + others.sessions) - others.commands
        return Verdict(
            drill=self.name,
            faults=self.faults,
            throughput_per_s=report.throughput_per_s,
            latency_ms_p50=report.latency_ms_p50,
            latency_ms_p99=report.latency_ms_p99,
            gap_ms_max=report.gap_ms_max,
            full_strength_s=self.full_strength_s,
            restarts=sum(container["restarts"] for container in status["containers"]),
            lost=report.lost,
            duplicated=max(executed - report.ordered, 0),
            linearizable=linearizable,
            replicas_equal=bool(health.replicas_equal(status)),
            recorded=len(self.load.history),
            halted=health.halted(status),
            gap_ms_limit=gap_ms_limit,
        )


def kill(directory: Path, say: Say) -> Verdict:
    """SIGKILL of the active proposer's container."""
    return _harm_leaders("kill", directory, say, [signal.SIGKILL])


def kill_twice(directory: Path, say: Say) -> Verdict:
    """The same, and when all is well again, the next leader."""
    return _harm_leaders("kill-twice", directory, say, [signal.SIGKILL, signal.SIGKILL])


def hang(directory: Path, say: Say) -> Verdict:
    """SIGSTOP of the active proposer's container: hung, not dead. It is to be replaced without anybody's help."""
    return _harm_leaders("hang", directory, say, [signal.SIGSTOP])


def _harm_leaders(name: str, directory: Path, say: Say, signals: Sequence[signal.Signals]) -> Verdict:
    course = Course(name, directory, say)
    try:
        time.sleep(4.0)
        for number in signals:
            harm_leader(course, number)
            time.sleep(2.0)
        return course.verdict(GAP_MS_MAX)
    finally:
        course.cluster.stop()


def harm_leader(course: Course, number: signal.Signals) -> None:
    """Send a signal to the active proposer's container, and wait until all is well again."""
    leader = course.cluster.await_leader()
    course.harm(leader["container"], leader["pid"], number)
    course.await_full_strength((leader["container"], leader["life"]))


def loss(directory: Path, say: Say, times: int = 10) -> Verdict:
    """SIGKILL of every process, driver included, under load; then a start on the same data. The clients just retry. In
    turns with it, a new cluster is started for the first time: a loss should cost no more than that."""
    hosts = {"port": str(free_row(SITES))}
    course = Course("loss", directory, say, hosts)
    lost, first = Starts(), Starts()
    try:
        with KeyValueClient(course.cluster.endpoints, timeout_s=START_TIMEOUT_S) as client:
            # Its session is there before anything is lost. (That its opening and end count is known by `verdict`.)
            client.put("loss", b"")
            for number in range(times):
                time.sleep(3.0)
                _kill_everything(course)
                first.add(first_start(directory / f"first-{number}", say))
                lost.add(measure(course.cluster, lambda: client.put("loss", b"")))
                course.full_strength_s.append(lost.full_strength_s[-1])
                say(f"loss: again {lost.said}")
        time.sleep(2.0)
        verdict = course.verdict(others=Others(sessions=1, commands=1 + times))
        verdict.answers_s, verdict.answers_s_each = lost.answers_s_median, lost.answers_s
        verdict.first_start_answers_s, verdict.first_start_answers_s_each = first.answers_s_median, first.answers_s
        verdict.first_start_full_strength_s = first.full_strength_s
        verdict.phases_s, verdict.first_start_phases_s = lost.phases_s_median, first.phases_s_median
        return verdict
    finally:
        course.cluster.stop()


def _kill_everything(course: Course) -> None:
    course.say(f"{course.name}: SIGKILL to the driver and all containers")
    course.faults += 1
    course.cluster.kill_everything()


def lose_everything(course: Course) -> None:
    """SIGKILL to every process, and a start on the same data."""
    _kill_everything(course)
    began_s = time.monotonic()
    course.cluster.start()
    course.full_strength_s.append(round(time.monotonic() - began_s, 2))
    course.say(f"{course.name}: up again after {course.full_strength_s[-1]:.1f} s")


def flat(directory: Path, say: Say, minutes: float = 10.0) -> Verdict:
    """No harm, but a long time: throughput and memory are to stay as they are. Machines do not: what a processor does
    in a second may change by a fifth within minutes, so it is measured all the time, and the ratio is judged."""
    course = Course("flat", directory, say, seconds=60.0 * minutes)
    try:
        rates: list[int] = []
        works_s: list[float] = []
        before: dict[str, float] = {}
        after: dict[str, float] = {}
        for second, rate in course.load.seconds():
            rates.append(rate)
            works_s.append(work_s())
            if int(second) == WARM_S + 2:
                before = _resident_mb(course.cluster.pids())
            if int(second) % 30 == 0:
                after = _resident_mb(course.cluster.pids())
                sizes = " ".join(f"{name} {size:.0f}" for name, size in after.items())
                work_ms = sum(works_s[-30:]) / len(works_s[-30:]) * 1e3
                say(
                    f"flat: {second:4.0f} s  {sum(rates[-30:]) / 30:.0f} commands/s  MB: {sizes}  "
                    f"a fixed piece of work: {work_ms:.2f} ms"
                )
        verdict = course.verdict()
        machine = sum(works_s[62 : WARM_S + 2]) / sum(works_s[-61:-1])
        verdict.drift = round(sum(rates[-61:-1]) / sum(rates[62 : WARM_S + 2]) / machine - 1, 3)
        verdict.machine_drift = round(machine - 1, 3)
        verdict.growth_mb = round(max(after[name] - before[name] for name in before), 1)
        return verdict
    finally:
        course.cluster.stop()


def chaos(directory: Path, say: Say, minutes: float = 60.0, seed: int = 1) -> Verdict:
    """Random containers are killed or stopped, random links between sites cut, stalled, slowed or made lossy, every few
    seconds, at most f sites at a time."""
    random = Random(seed)
    cluster = Proxied(directory / "chaos", seed)
    course = Course("chaos", directory, say, cluster=cluster)
    try:
        began_s = time.monotonic()
        end_s, before_s = began_s + 60.0 * minutes, began_s + min(WARM_S, 12.0 * minutes)
        before: dict[str, float] = {}
        while time.monotonic() < end_s:
            if not before and time.monotonic() >= before_s:
                before = _resident_mb(course.cluster.pids())
            victim = random.choice(course.cluster.status()["containers"])
            kind = random.random()
            if kind < 0.4:
                fault = random_fault(cluster.network, random)
                say(f"chaos: {fault.weather} {fault.what}")
                course.faults += 1
                cluster.network.turn(fault.weather, fault.links)
                time.sleep(random.uniform(0.5, 4.0))
                cluster.network.heal()
                course.await_full_strength()
            elif kind < 0.75:
                course.harm(victim["container"], victim["pid"], signal.SIGKILL)
                course.await_full_strength((victim["container"], victim["life"]))
            else:
                course.harm(victim["container"], victim["pid"], signal.SIGSTOP)
                time.sleep(random.uniform(0.1, 3.0))
                send(victim["pid"], signal.SIGCONT)
                course.await_full_strength()
            time.sleep(random.uniform(0.0, 3.0))
        after = _resident_mb(course.cluster.pids())
        say("chaos: MB " + "  ".join(f"{name} {before[name]:.0f} → {after[name]:.0f}" for name in before))
        verdict = course.verdict()
        verdict.growth_mb = round(max(after[name] - before[name] for name in before), 1)
        return verdict
    finally:
        course.cluster.stop()


def memory(directory: Path, say: Say, kills: int = 50) -> Verdict:
    """Durability in memory: SIGKILL of each committer's process in turn, at full strength each time."""
    course = Course("memory", directory, say, {"durability": "memory"})
    try:
        time.sleep(2.0)
        for number in range(kills):
            containers = course.cluster.status()["containers"]
            victim = containers[number % len(containers)]
            course.harm(victim["container"], victim["pid"], signal.SIGKILL)
            course.await_full_strength((victim["container"], victim["life"]))
        verdict = course.verdict()
        verdict.rejoined = _count_events(directory / "memory", "memory_restored")
        return verdict
    finally:
        course.cluster.stop()


def workers(directory: Path, say: Say) -> Verdict:
    """A standalone Spark cluster of four workers, one to spare: the leader's server is lost, its container moves to the
    spare one and rejoins without its journal; then the next leader's server is lost, and the service still goes on;
    then there is a new server. At last the driver is lost, too: containers return to where their journals are."""
    spark = Standalone(directory / "spark")
    try:
        spark.start(4)
        say(f"workers: {spark.url} with workers {', '.join(spark.workers)}")
        # Checkpoints come often, so that who rejoins needs one.
        settings = {**spark.settings, "checkpoint_interval": "2000", "window": "8000"}
        course = Course("workers", directory, say, settings, environment=spark.environment)
        try:
            time.sleep(5.0)
            _lose_server(course, spark)
            time.sleep(5.0)
            lost = _lose_server(course, spark, moves=False)
            time.sleep(10.0)
            say(f"workers: a new server, {spark.add_worker()}")
            course.await_full_strength(lost)
            # Without a driver there is no service, for as long as it takes to start one: no gap to measure.
            course.load.stop()
            course.load.finish()
            _lose_driver(course)
            verdict = course.verdict(GAP_MS_MAX)
            verdict.rejoined = _count_events(directory / "spark", "memory_restored")
            verdict.fetched = _count_events(directory / "spark", "checkpoint_fetched")
            return verdict
        finally:
            course.cluster.stop()
    finally:
        spark.stop()


def sites(directory: Path, say: Say, down_s: float = 5.0) -> Verdict:
    """A driver per site, without a common registry: the leader's site is lost as a whole, driver and all, and started
    again; then the next leader's, together with its disk. It rejoins without memory, though it is told to found."""
    # Checkpoints come often, so that who rejoins needs one.
    cluster = Sites(directory / "sites", {"checkpoint_interval": "2000", "window": "8000"})
    try:
        course = Course("sites", directory, say, cluster=cluster)
        time.sleep(3.0)
        for with_disk in (False, True):
            leader = cluster.await_leader()
            (number,) = leader["sites"]
            say(f"sites: SIGKILL to everything of {leader['container']}{', and its disk is lost' * with_disk}")
            course.faults += 1
            cluster.kill_site(number, with_disk)
            time.sleep(down_s)
            cluster.sites[number].launch()
            course.await_full_strength((leader["container"], leader["life"]))
            cluster.sites[number].await_endpoints()
            time.sleep(2.0)
        verdict = course.verdict(GAP_MS_MAX)
        verdict.rejoined = _count_events(directory / "sites", "memory_restored")
        verdict.fetched = _count_events(directory / "sites", "checkpoint_fetched")
        return verdict
    finally:
        cluster.stop()


def _count_events(directory: Path, event: str) -> int:
    """How often the containers that keep their files below this directory logged it."""
    lines = (line for path in directory.rglob("logs/*.log") for line in path.read_bytes().splitlines())
    return sum(msgspec.json.decode(line)["event"] == event for line in lines)


def _lose_server(course: Course, spark: Standalone, moves: bool = True) -> tuple[str, int]:
    """SIGKILL to everything on the leader's server; if there is another one, wait until the container is back there.
    Returns the container, and the life that it had."""
    leader = course.cluster.await_leader()
    server, lost = leader["server"], (leader["container"], leader["life"])
    killed = spark.workers[server].kill()
    course.faults += 1
    course.say(f"{course.name}: SIGKILL to worker {server} with {leader['container']}, {killed} processes")
    if moves:
        course.await_full_strength(lost)
        course.say(f"{course.name}: {leader['container']} is on {course.cluster.servers()[leader['container']]} now")
    return lost


def _lose_driver(course: Course) -> None:
    before = course.cluster.servers()
    lose_everything(course)
    after = course.cluster.servers()
    if after != before:
        raise DrillError(f"containers were on {before}, and came back on {after}: without their journals")


def _resident_mb(pids: Mapping[str, int]) -> dict[str, float]:
    """The memory of the processes and, for the driver, of its JVM. (The load may be a child of the driver, too; it
    remembers the whole history.)"""
    sizes = {name: _rss_mb(pid) for name, pid in pids.items()}
    jvms = [child for child in children(pids["driver"]) if _command(child) == "java"]
    if not jvms:
        raise DrillError(f"the driver, process {pids['driver']}, has no JVM")
    return {**sizes, "jvm": sum(map(_rss_mb, jvms))}


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except FileNotFoundError:
        # It has just ended.
        return ""


def _rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


class AnyVerdict(Protocol):
    """What came of a drill."""

    drill: str

    @property
    def failures(self) -> list[str]: ...
    @property
    def summary(self) -> str: ...


DRILLS: dict[str, Callable[..., AnyVerdict]] = {
    "kill": kill,
    "kill-twice": kill_twice,
    "hang": hang,
    "loss": loss,
    "flat": flat,
    "chaos": chaos,
    "workers": workers,
    "sites": sites,
    "memory": memory,
    "network": network,
    "storage": storage,
    "fuzz": fuzz,
}
#: What a drill can be told.
OPTIONS: dict[str, tuple[str, ...]] = {
    "loss": ("times",),
    "flat": ("minutes",),
    "chaos": ("minutes", "seed"),
    "memory": ("kills",),
    "network": ("seconds", "seed"),
    "fuzz": ("frames", "seed"),
    "storage": ("damages", "starts", "seed"),
}


def run(names: Iterable[str], directory: Path, say: Say, **options: float | None) -> list[AnyVerdict]:
    """Options that a drill does not know, or that are None, are left out."""
    verdicts = []
    for name in names:
        drill = DRILLS[name]
        say(f"{name}: {drill.__doc__}")
        given = {key: options[key] for key in OPTIONS.get(name, ()) if options.get(key) is not None}
        verdicts.append(drill(directory, say, **given))
    return verdicts
