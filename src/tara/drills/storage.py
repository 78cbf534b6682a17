"""The storage drill: thousands of damages to a real cluster's files, one at a time, and what a start makes of them.

A cluster runs under load, with small segments, bases and checkpoint intervals, a new leader now and then, and ends by
SIGKILL. Each damage is done to a copy of one site's directory, and its container is started on it without Spark
(`tara.drills.bare_start`): what it comes back with is compared with what an undamaged copy gives. Some damages are
done to the cluster's own directory, and followed by `tara up`; a client then looks for everything that was ever
acknowledged, and writes more.
"""

import multiprocessing
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from msgspec import Struct

from tara.bench.load_process import LoadPlan, LoadProcess
from tara.client import KeyValueClient
from tara.configuration.settings import load_settings
from tara.configuration.state import ClusterState, StateFile
from tara.drills import bare_start
from tara.drills.bare_start import Found, Judgement, copy_site, judge
from tara.drills.damage import JOURNAL_KINDS, Damage, draw, files_of, inflict
from tara.live.container import ContainerSpec
from tara.live.registry import Registry
from tara.live.spark import spec_of
from tara.named import application_of
from tara.operations import health
from tara.operations.deployment import Deployment, DrillError, Say, send
from tara.protocol import tuples as t
from tara.protocol.execution import Execution, ExecutionState
from tara.protocol.graph import Graph, Stage
from tara.storage.base_format import base_directory, list_bases, read_base
from tara.storage.log import log_directory
from tara.storage.log_format import LogIdentity, list_segments, read_segment, runs_of

#: Small, so that a minute of load makes many files.
SETTINGS = {
    "checkpoint_interval": "512",
    "window": "2048",
    "base_bytes_min": "200000",
    "journal_segment_bytes": "20000",
    "log_retention_bytes": "800000",
}
CLIENTS = 8
LOAD_S = 12.0
DAMAGES = 2_000
STARTS = 50
#: Of the damages to a journal, the share after which its committers still know what they promised.
REPAIRED_MIN = 0.95
#: Keys that a client writes, and looks for after every start.
KEYS_AT_FIRST = 200
KEYS_PER_START = 10
PROCESSES = 2
#: How long everything may take.
SECONDS_MAX = 1_800.0


class StorageVerdict(Struct, kw_only=True):
    drill: str = "storage"
    #: Files that could be damaged, on all sites; and damages that changed one.
    files: int = 0
    damages: int = 0
    #: Something was found wrong, and said.
    noticed: int = 0
    #: Something was taken for true that is not: a vote, a promise, a life, a state, a row of the log.
    accepted_wrong: int = 0
    #: Everything is there again, or known to be missing in single slots: no journal was given up.
    repaired: int = 0
    #: A journal was given up, and its committers rejoin without it.
    rejoined: int = 0
    #: The container refused to start, and said why.
    refused: int = 0
    #: Neither noticed nor wrong: nothing that is used any more was damaged.
    harmless: int = 0
    journal_damages: int = 0
    journal_repaired: int = 0
    #: Damages that were followed by `tara up`; acknowledged writes that were not there then; and starts after which the
    #: replicas were not equal.
    starts: int = 0
    lost: int = 0
    unequal: int = 0
    seconds: float = 0.0
    start_s_mean: float = 0.0
    by_kind: dict[str, dict[str, int]] = {}
    #: What went wrong, in words.
    wrong: list[str] = []

    @property
    def failures(self) -> list[str]:
        found = [
            f"{name} = {count}" for name in ("accepted_wrong", "lost", "unequal") if (count := getattr(self, name))
        ]
        if self.journal_damages and self.journal_repaired < REPAIRED_MIN * self.journal_damages:
            found.append(f"only {self.journal_repaired} of {self.journal_damages} damaged journals repaired")
        if self.seconds > SECONDS_MAX:
            found.append(f"it took {self.seconds:.0f} s")
        return found + self.wrong[:5]

    @property
    def summary(self) -> str:
        return (
            f"{self.damages} damages, {self.noticed} noticed, {self.repaired} repaired, {self.rejoined} rejoined, "
            f"{self.starts} starts of the cluster, {self.seconds:.0f} s"
        )


class Task(Struct, frozen=True):
    """What a worker needs; all paths are absolute."""

    damage: Damage | None
    site: int
    data_dir: str
    older: str
    scratch: str
    spec: bytes
    app: str
    sites: int


Tried = tuple[Damage | None, bool, Found, float]


def try_start(task: Task) -> Tried:
    """In a worker: copy, damage, start, look. Whether the damage changed anything, and how long the start took."""
    number = -1 - task.site if task.damage is None else task.damage.number
    directory = Path(task.scratch) / f"start-{number}"
    copy_site(Path(task.data_dir), task.site, task.sites, directory)
    try:
        changed = task.damage is not None and inflict(task.damage, directory, Path(task.older))
        began_s = time.monotonic()
        found = bare_start.start(directory, task.spec, task.app)
        return task.damage, changed, found, time.monotonic() - began_s
    finally:
        shutil.rmtree(directory)


class Harvest(Struct, frozen=True):
    """The files of a cluster that has run."""

    data_dir: Path
    #: The same some time before.
    older: Path
    #: What a client has written, and got acknowledged.
    written: dict[str, bytes]


def harvest(directory: Path, say: Say, load_s: float = LOAD_S) -> tuple[Deployment, Harvest]:
    """Run a cluster under load, twice, with a new leader in between; it is down in the end."""
    directory.mkdir(parents=True)
    cluster = Deployment(directory / "data", SETTINGS)
    written: dict[str, bytes] = {}
    for turn in range(2):
        cluster.start()
        try:
            load = LoadProcess(LoadPlan(endpoints=cluster.endpoints, clients=CLIENTS, seconds=load_s, reads=0.1))
            written |= _write(cluster, f"first-{turn}", KEYS_AT_FIRST)
            time.sleep(load_s / 3)
            leader = cluster.await_leader()
            send(leader["pid"], signal.SIGKILL)
            load.finish()
            # What a site still fetches when all are killed, it would look for in vain when it is started alone.
            cluster.await_status(
                lambda found: health.full_strength(found) and health.logs_whole(found),
                "full strength and whole logs after a kill",
            )
        except BaseException:
            cluster.stop()
            raise
        cluster.kill_everything()
        say(f"storage: {sum(map(len, _files(cluster.data_dir).values()))} files after {turn + 1} times under load")
        if turn == 0:
            shutil.copytree(cluster.data_dir, directory / "older", ignore=shutil.ignore_patterns("*.log*", "lock"))
    return cluster, Harvest(cluster.data_dir, directory / "older", written)


def _write(cluster: Deployment, prefix: str, count: int) -> dict[str, bytes]:
    with KeyValueClient(cluster.endpoints, timeout_s=60.0) as client:
        for number in range(count):
            client.put(f"{prefix}-{number}", f"{number}".encode() * 5)
    return {f"{prefix}-{number}": f"{number}".encode() * 5 for number in range(count)}


def _files(data_dir: Path) -> dict[int, list[str]]:
    state = StateFile(data_dir).read()
    return {
        site: [path for paths in files_of(data_dir, site).values() for path in paths] for site in range(2 * state.f + 1)
    }


def specs(data_dir: Path) -> list[bytes]:
    """What each container is told when it starts."""
    flags = {**SETTINGS, "data_dir": str(data_dir)}
    registry = Registry(load_settings(environment={}, flags=_typed(flags)))
    try:
        found = [spec_of(registry, container) for container in range(len(registry.placement))]
    finally:
        registry.stop()
    return [msgspec.json.encode(msgspec.structs.replace(spec, port=0)) for spec in found]


def _typed(flags: dict[str, str]) -> dict[str, Any]:
    return {key: int(value) if value.isdigit() else value for key, value in flags.items()}


def bare_starts(
    harvested: Harvest,
    scratch: Path,
    count: int,
    seed: int,
    say: Say,
    verdict: StorageVerdict,
    start: Callable[[Task], Tried] = try_start,
) -> None:
    """Start containers on damaged copies, and count what came of it."""
    data_dir, random = harvested.data_dir, Random(seed)
    state: ClusterState = StateFile(data_dir).read()
    sites = Graph(state.f, state.partitions).sites
    told = specs(data_dir)
    scratch.mkdir(parents=True, exist_ok=True)

    def task(damage: Damage | None, site: int) -> Task:
        return Task(damage, site, str(data_dir), str(harvested.older), str(scratch), told[site], state.app, sites)

    files = [files_of(data_dir, site) for site in range(sites)]
    verdict.files = len({path for kinds in files for paths in kinds.values() for path in paths})
    damages = [
        draw(number, files[number % sites], number % sites, harvested.older, data_dir, random)
        for number in range(count)
    ]
    with multiprocessing.get_context("spawn").Pool(PROCESSES, maxtasksperchild=200) as pool:
        truths = [found for _, _, found, _ in pool.map(try_start, [task(None, site) for site in range(sites)])]
        for site, truth in enumerate(truths):
            whole = truth.ready and not any(found.holes for found in truth.committers.values())
            if truth.refused or truth.noticed or not whole:
                raise DrillError(f"site {site} does not start on its own files: {truth.refused or truth.noticed}")
        states = _states(harvested, state, msgspec.json.decode(told[0], type=ContainerSpec))
        total_s = 0.0
        results = pool.imap_unordered(start, [task(damage, damage.site) for damage in damages], chunksize=4)
        for done, (damage, changed, found, seconds) in enumerate(results, 1):
            assert damage is not None
            total_s += seconds
            if changed:
                count_one(verdict, damage, judge(found, truths[damage.site], states), found)
            if done % 200 == 0:
                say(f"storage: {done} of {count} starts, {verdict.noticed} noticed, {verdict.accepted_wrong} wrong")
        verdict.start_s_mean = round(total_s / max(count, 1), 3)
        say(
            f"storage: {verdict.summary}; journals: {verdict.journal_repaired} of {verdict.journal_damages} repaired; "
            f"{verdict.start_s_mean} s per start; {verdict.by_kind}"
        )


def _states(harvested: Harvest, state: ClusterState, spec: ContainerSpec) -> dict[int, bytes]:
    """The state at every checkpoint, by the requests that all logs have. Each has to be the same, whichever base it is
    computed from."""
    states: dict[int, bytes] = {}
    for site in range(Graph(state.f, state.partitions).sites):
        for base in [None, *list_bases(base_directory(harvested.data_dir, site))]:
            for number, digest in _follow(harvested.data_dir, site, base, spec, state.app):
                if states.setdefault(number, digest) != digest:
                    raise DrillError(f"site {site}: the state at checkpoint {number} is another one, from {base} on")
    return states


def _follow(data_dir: Path, site: int, path: Path | None, spec: ContainerSpec, app: str) -> Iterator[tuple[int, bytes]]:
    """The checkpoints that a base and the log of a site lead to; without a base, from the beginning."""
    sources = Graph(spec.limits.f, spec.limits.partitions).replicas(Stage.REQUEST_SOURCE)
    execution, number = Execution(application_of(app), spec.limits, sources), 0
    if path is not None:
        base = read_base(path, spec.cluster, spec.era)
        execution.application.restore(base.chunks())
        execution.restore(msgspec.msgpack.decode(base.state, type=ExecutionState))
        number = base.id.number
        yield number, execution.digest()
    segments = {segment.number: segment for segment in list_segments(log_directory(data_dir, site))}
    while number + 1 in segments:
        number += 1
        file, end = read_segment(segments[number], LogIdentity(spec.cluster, spec.era))
        for run in runs_of(file, segments[number].path):
            execution.replay(run.first, run.requests(), run.skipped)
        if execution.checkpoint != t.CheckpointId(number, end.digest):
            raise DrillError(f"{segments[number].path}: leads to {execution.checkpoint}, and not to {end}")
        yield number, execution.digest()


def count_one(verdict: StorageVerdict, damage: Damage, judgement: Judgement, found: Found) -> None:
    verdict.damages += 1
    of_kind = Counter(verdict.by_kind.setdefault(damage.kind, {}))
    outcome = (
        "accepted_wrong"
        if judgement.wrong
        else "refused"
        if found.refused
        else "rejoined"
        if judgement.rejoined
        else "repaired"
        if judgement.noticed
        else "harmless"
    )
    verdict.noticed += judgement.noticed
    setattr(verdict, outcome, getattr(verdict, outcome) + 1)
    of_kind["damages"] += 1
    of_kind[outcome] += 1
    verdict.by_kind[damage.kind] = dict(of_kind)
    if damage.kind in JOURNAL_KINDS:
        verdict.journal_damages += 1
        verdict.journal_repaired += not judgement.rejoined and not found.refused and not judgement.wrong
    if judgement.wrong:
        verdict.wrong.append(
            f"{damage} (number {damage.number}, seed {damage.seed}): {'; '.join(judgement.wrong)}"[:500]
        )


def real_starts(
    cluster: Deployment, harvested: Harvest, count: int, seed: int, say: Say, verdict: StorageVerdict
) -> None:
    """Damage the cluster's own files, and start it with `tara up`, again and again."""
    random, written = Random(seed + 1), dict(harvested.written)
    for number in range(count):
        site = number % 3
        damage = draw(number, files_of(cluster.data_dir, site), site, harvested.older, cluster.data_dir, random)
        inflict(damage, cluster.data_dir, harvested.older)
        cluster.start()
        try:
            missing = _missing(cluster, written)
            if missing:
                verdict.wrong.append(f"after {damage}: {len(missing)} writes are gone, {missing[:3]}")
            verdict.lost += len(missing)
            written |= _write(cluster, f"start-{number}", KEYS_PER_START)
            status = cluster.await_status(
                lambda found: health.replicas_equal(found) is not None, "replicas that are equally far", digests=True
            )
            if not health.replicas_equal(status):
                verdict.unequal += 1
                verdict.wrong.append(f"after {damage}: the replicas differ")
            verdict.starts += 1
        except BaseException:
            cluster.stop()
            raise
        cluster.kill_everything()
        say(f"storage: tara up after {damage}: {verdict.lost} lost, {verdict.unequal} unequal")


def _missing(cluster: Deployment, written: dict[str, bytes]) -> list[str]:
    with KeyValueClient(cluster.endpoints, timeout_s=60.0) as client:
        return [key for key, value in written.items() if client.get(key) != value]


def storage(
    directory: Path, say: Say, damages: int = DAMAGES, starts: int = STARTS, seed: int = 1, load_s: float = LOAD_S
) -> StorageVerdict:
    """Damage files, one at a time, and start on what is left: without Spark, and now and then with `tara up`."""
    began_s = time.monotonic()
    verdict = StorageVerdict()
    cluster, harvested = harvest(directory / "storage", say, load_s)
    bare_starts(harvested, directory / "storage" / "scratch", damages, seed, say, verdict)
    real_starts(cluster, harvested, starts, seed, say, verdict)
    verdict.seconds = round(time.monotonic() - began_s, 1)
    return verdict
