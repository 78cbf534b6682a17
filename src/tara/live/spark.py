"""Hosting on Spark: one single-task job per container, each in a job group and a thread of its own.

Spark places the tasks, starts them again when their process dies, and shows them in its UI. A job with several tasks
would be aborted as a whole, and barrier mode would restart all of them; so every container is a job.
"""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from tara.client.secrets import kept_secret
from tara.configuration.settings import Settings
from tara.configuration.state import operator_secret
from tara.live import worker_daemon
from tara.live.container import ContainerSpec
from tara.live.hosting import ContainerTask
from tara.live.observability.supervised import supervised
from tara.live.registry import Registry
from tara.live.spark_session import QUICK_JVM, SparkError, check_java, open_context
from tara.live.start_phases import CONTAINERS, JVM, NODES, PYTHON, SPARK, StartPhases
from tara.live.task_placement import await_executors, element_at, hosts_at
from tara.named import application_of
from tara.net.addresses import AUTO, same_everywhere
from tara.protocol.principals import digest_of_secret

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: With a process per node there are dozens, each with an interpreter that starts.
START_TIMEOUT_S = 180.0
SUPERVISE_S = 0.5
#: A look at the containers that comes so late tells of a pause of this process.
PAUSED_S = 3.0
RESUBMIT_S = 1.0


def spec_of(registry: Registry, container: int) -> ContainerSpec:
    """What a container is told when it starts, wherever it runs."""
    settings, ports = registry.settings, registry.ports(container)
    return ContainerSpec(
        cluster=registry.state.cluster,
        era=registry.state.era,
        container=container,
        placement=registry.placement,
        limits=settings.limits,
        durability=settings.durability,
        data_dir=same_everywhere(settings.container_dir or settings.data_dir),
        host=settings.container_host or (settings.host if settings.local else AUTO),
        keys=same_everywhere(settings.keys),
        # With keys, a key of the cluster makes an operator.
        operator=b"" if settings.keys else digest_of_secret(kept_secret(operator_secret(settings.data_dir))),
        port=ports.clients,
        peer_port=ports.peers,
        files_port=ports.files,
        label=registry.label(container),
        shape=registry.shape,
        threshold=registry.state.threshold,
        log_retention_bytes=settings.log_retention_bytes if settings.keeps_log else 0,
        gateway=settings.gateway,
        segment_bytes=settings.journal_segment_bytes,
    )


def hosting_settings(token: str) -> dict[str, str]:
    """What Spark must be told so that it starts a container again whenever it ends, and never ends or bans one that
    does nothing wrong. `token` is a resource of the executors, of which a container takes a whole one."""
    found = {
        "spark.task.maxFailures": "1000000",
        "spark.speculation": "false",
        "spark.dynamicAllocation.enabled": "false",
        "spark.python.worker.reuse": "false",
        "spark.python.daemon.module": worker_daemon.__name__,
        # A driver and its executors do little but start containers, and nobody waits for anything else of them.
        "spark.driver.defaultJavaOptions": QUICK_JVM,
        "spark.executor.defaultJavaOptions": QUICK_JVM,
        "spark.python.task.killTimeout": "1s",
        # A container never hands anything to Spark: to Spark, it is idle all its life.
        "spark.python.worker.idleTimeoutSeconds": "0",
        "spark.python.worker.killOnIdleTimeout": "false",
        # A container that fails says nothing about its host; and where else should it go? Its journal is there.
        "spark.excludeOnFailure.enabled": "false",
        "spark.excludeOnFailure.application.enabled": "false",
        "spark.excludeOnFailure.taskAndStage.enabled": "false",
        "spark.excludeOnFailure.killExcludedExecutors": "false",
    }
    if token:
        found |= {f"spark.executor.resource.{token}.amount": "1", f"spark.task.resource.{token}.amount": "1"}
    return found


class Cluster:
    """A running cluster: the registry, a Spark session, and a thread per container that waits for its job."""

    def __init__(self, settings: Settings, stderr: TextIO | None = None, registry: Registry | None = None) -> None:
        """`stderr` is where warnings of all containers are shown. The registry says what is hosted: by default the
        whole cluster."""
        check_java()
        application_of(settings.app)
        self.registry = registry or Registry(settings, stderr)
        self.settings = self.registry.settings
        self._context: Any = None
        self._threads: list[threading.Thread] = []
        self._supervisor = self.registry.thread("supervisor", self._supervise)

    def start(self, began_s: float | None = None) -> None:
        """`began_s` is when the process was started, if that belongs to the start: see `tara.live.start_phases`."""
        phases = StartPhases(time.monotonic() if began_s is None else began_s)
        phases.end(PYTHON)
        containers = len(self.registry.hosted)
        settings = self.settings
        # A task slot per container, and a number of restarts that is never reached.
        master = f"local[{containers + 1},1000000]" if settings.master == "local" else settings.master
        self._context = open_context(
            f"tara {Path(settings.data_dir).name}",
            master,
            hosting_settings(settings.token),
            driver_host=settings.host,
            ui_host=settings.ui_host,
            keyed=bool(settings.keys),
            launched=lambda: phases.end(JVM),
        )
        phases.end(SPARK)
        self.registry.ui = self.ui or ""
        for group in self._in_order(self.registry.hosted):
            self._submit_all(group)
        phases.end(CONTAINERS)
        self._await(self.registry.ready)
        phases.end(NODES)
        self.registry.events.info("cluster_started", seconds=phases.seconds)
        self._supervisor.start()

    @property
    def ui(self) -> str | None:
        """Where Spark's UI is; None if there is none."""
        return self._context.uiWebUrl if self._context is not None else None

    def session(self) -> "SparkSession":
        """For queries on the Spark that hosts the cluster; it is the cluster's, and ends with it."""
        from pyspark.sql import SparkSession

        return SparkSession.builder.getOrCreate()

    def _in_order(self, containers: Iterable[int]) -> list[list[int]]:
        """First those whose journals are on servers that are there: they go back to them. Then the others, which take
        what is left."""
        if self.settings.local:
            return [list(containers)]
        context, registry = self._context, self.registry
        missing = await_executors(context, {server for server in registry.state.servers if server})
        for server in missing:
            labels = [registry.label(c) for c in containers if registry.state.servers[c] == server]
            registry.events.warning("server_missing", server=server, containers=labels)
        back = [container for container in containers if self._hosts(container)]
        return [back, [container for container in containers if container not in back]]

    def _submit_all(self, containers: list[int]) -> None:
        """And wait until they have their places."""
        for container in containers:
            self._submit(container)
        self._await(lambda: all(map(self.registry.is_registered, containers)))

    def _hosts(self, container: int) -> list[str]:
        """Where its journal is, as Spark calls that host; none if that does not matter, or is not there."""
        server = self.registry.state.servers[container]
        if self.settings.local or self.settings.durability != "disk" or not server:
            return []
        return hosts_at(self._context, server)

    def _submit(self, container: int) -> None:
        from pyspark import InheritableThread

        registry = self.registry
        task = ContainerTask(msgspec.json.encode(spec_of(registry, container)), self.settings.app, registry.address)
        label = registry.label(container)
        description = describe_job(label, registry.state.lives[container] + 1, self._labels(container))

        def run() -> None:
            context = self._context
            while not registry.down.is_set():
                context.setJobGroup(_group(label), description, interruptOnCancel=False)
                try:
                    element_at(context, container, self._hosts(container)).foreachPartition(task)
                except Exception as error:
                    # It was cancelled, or Spark gave it up; with the cluster, jobs end in many ways.
                    if not registry.down.wait(RESUBMIT_S):
                        registry.events.warning("job_ended", container=label, reason=str(error).splitlines()[0][:300])

        name = f"job-{label}"
        watched = supervised(name, run, registry.down.is_set, registry.fail)
        thread = InheritableThread(target=watched, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _supervise(self) -> None:
        """Replace containers that hang. Spark sees only whether a process lives."""
        registry, looked_s = self.registry, time.monotonic()
        while not registry.down.wait(SUPERVISE_S):
            before_s, looked_s = looked_s, time.monotonic()
            if looked_s - before_s > PAUSED_S:
                # It was this process that did not listen.
                registry.forgive(range(len(registry.members)))
                continue
            silent = [
                container
                for container, silent_s in enumerate(registry.silent_s())
                if silent_s >= self.settings.hung_after_s
            ]
            if len({registry.site_of(container) for container in silent}) > self.settings.limits.f:
                # More than may fail at a time: rather this process cannot hear. To end them all would do the harm.
                registry.events.flood("many_silent", containers=[registry.label(container) for container in silent])
                continue
            for container in silent:
                self._replace(container)
            registry.forgive(silent)

    def _replace(self, container: int) -> None:
        member, label = self.registry.members[container], self.registry.label(container)
        self.registry.events.warning("hung", container=label, pid=member.pid, host=member.host)
        if member.host == socket.gethostname():
            _kill_worker(member.pid)
        else:
            self._context.cancelJobGroup(_group(label))

    def _labels(self, container: int) -> list[str]:
        return [self.registry.graph.label(number) for number in self.registry.placement[container]]

    def _await(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not condition():
            if self.registry.failure is not None:
                self.stop()
                raise self.registry.failure
            if time.monotonic() > deadline:
                self.stop()
                raise SparkError(f"not all containers started within {START_TIMEOUT_S:.0f} s: see Spark's log")
            time.sleep(0.05)

    def await_gateways(self) -> None:
        """Until every front end of the application's own protocol serves; a clear error if one does not."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.registry.gateways_serve():
            if time.monotonic() > deadline:
                reasons = self.registry.gateway_problems or ["no reason known"]
                raise SparkError(f"not all front ends serve after {START_TIMEOUT_S:.0f} s: {'; '.join(reasons)}")
            time.sleep(0.05)

    def wait(self) -> None:
        """Until somebody asks the registry to take the cluster down."""
        while not self.registry.down.wait(timeout=0.5):
            pass
        if self.registry.failure is not None:
            raise self.registry.failure

    def stop(self) -> None:
        self.registry.tell_stop()
        for thread in self._threads:
            thread.join(timeout=5)
        if self._context is not None:
            self._context.stop()
        self.registry.release()


def describe_job(label: str, first_life: int, nodes: list[str]) -> str:
    """What Spark's UI shows of a container. A description cannot be changed once the job runs, but the number of the
    task's attempt, which Spark shows beside it, rises with the life: together they say which life it is. (An attempt
    that ends before it has registered has no life of its own; `tara status` is exact.)"""
    return f"{label}: life {first_life} + attempt of the task; {', '.join(nodes)}"


def _group(label: str) -> str:
    return f"tara-{label}"


def _kill_worker(pid: int) -> None:
    """End a Python worker of this host, if that is what the process is (and not another one with its number)."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        if b"pyspark" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
