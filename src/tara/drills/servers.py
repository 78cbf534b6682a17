"""Drills that lose whole servers: workers of a standalone Spark cluster, or sites with their drivers and disks."""

import time
from pathlib import Path

from tara.drills.drill_run import GAP_MS_MAX, DrillRun, DrillVerdict, count_events
from tara.drills.processes import lose_everything
from tara.drills.standalone import Standalone
from tara.operations.deployment import DrillError, Say, Sites

#: Checkpoints and bases come often, so that who rejoins needs one.
SIZES = {"checkpoint_interval": "2000", "window": "8000", "base_bytes_min": "500000"}


def workers(directory: Path, say: Say) -> DrillVerdict:
    """A standalone Spark cluster of four workers, one to spare: the leader's server is lost, its container moves to the
    spare one and rejoins without its journal; then the next leader's server is lost, and the service still goes on;
    then there is a new server. At last the driver is lost, too: containers return to where their journals are."""
    spark = Standalone(directory / "spark")
    try:
        spark.start(4)
        say(f"workers: {spark.url} with workers {', '.join(spark.workers)}")
        settings = {**spark.settings, **SIZES}
        drill = DrillRun("workers", directory, say, settings, environment=spark.environment)
        try:
            time.sleep(5.0)
            _lose_server(drill, spark)
            time.sleep(5.0)
            lost = _lose_server(drill, spark, moves=False)
            time.sleep(10.0)
            say(f"workers: a new server, {spark.add_worker()}")
            drill.await_full_strength(lost)
            # Without a driver there is no service, for as long as it takes to start one: no gap to measure.
            drill.load.stop()
            drill.load.finish()
            _lose_driver(drill)
            verdict = drill.verdict(GAP_MS_MAX)
            verdict.rejoined = count_events(directory / "spark", "rejoined")
            verdict.fetched = count_events(directory / "spark", "base_fetched")
            return verdict
        finally:
            drill.cluster.stop()
    finally:
        spark.stop()


def sites(directory: Path, say: Say, down_s: float = 5.0) -> DrillVerdict:
    """A driver per site, without a common registry: the leader's site is lost as a whole, driver and all, and started
    again; then the next leader's, together with its disk. It rejoins without a journal, though it is told to found."""
    cluster = Sites(directory / "sites", SIZES)
    try:
        drill = DrillRun("sites", directory, say, cluster=cluster)
        time.sleep(3.0)
        for with_disk in (False, True):
            leader = cluster.await_leader()
            (number,) = leader["sites"]
            say(f"sites: SIGKILL to everything of {leader['container']}{', and its disk is lost' * with_disk}")
            drill.faults += 1
            cluster.kill_site(number, with_disk)
            time.sleep(down_s)
            cluster.sites[number].launch()
            drill.await_full_strength((leader["container"], leader["life"]))
            cluster.sites[number].await_endpoints()
            time.sleep(2.0)
        verdict = drill.verdict(GAP_MS_MAX)
        verdict.rejoined = count_events(directory / "sites", "rejoined")
        verdict.fetched = count_events(directory / "sites", "base_fetched")
        return verdict
    finally:
        cluster.stop()


def _lose_server(drill: DrillRun, spark: Standalone, moves: bool = True) -> tuple[str, int]:
    """SIGKILL to everything on the leader's server; if there is another one, wait until the container is back there.
    Returns the container, and the life that it had."""
    leader = drill.cluster.await_leader()
    server, lost = leader["server"], (leader["container"], leader["life"])
    killed = spark.workers[server].kill()
    drill.faults += 1
    drill.say(f"{drill.name}: SIGKILL to worker {server} with {leader['container']}, {killed} processes")
    if moves:
        drill.await_full_strength(lost)
        drill.say(f"{drill.name}: {leader['container']} is on {drill.cluster.servers()[leader['container']]} now")
    return lost


def _lose_driver(drill: DrillRun) -> None:
    before = drill.cluster.servers()
    lose_everything(drill)
    after = drill.cluster.servers()
    if after != before:
        raise DrillError(f"containers were on {before}, and came back on {after}: without their journals")
