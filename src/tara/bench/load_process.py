"""The load in a process of its own, so that it is not in the way of whoever kills and watches."""

import multiprocessing
import os
import queue
import sys
import time
from collections.abc import Iterator
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from typing import Any

from msgspec import Struct

from tara.bench.load import Load, LoadError, LoadReport
from tara.bench.pipelines import VALUES, Pipelines
from tara.bench.processors import CpuMeter, CpuUse
from tara.simulator.checks.linearizability import Operation

#: For a plan without an end: longer than anything takes.
UNTIL_STOPPED_S = 24 * 3600.0


class LoadPlan(Struct, frozen=True, kw_only=True):
    endpoints: str
    clients: int
    seconds: float
    warm_up_s: float = 2.0
    payload_bytes: int = 64
    #: Commands that each client has in flight: of more than one, clients as users have them are the load.
    in_flight: int = 1
    #: How many values all clients write, in turn; 0: each its own, or a few if they pipeline.
    values: int = 0
    reads: float = 0.0
    #: Keys whose operations are recorded, for the check of linearizability.
    recorded_keys: int = 0
    #: The front end for all sessions; without one they are spread.
    target: int | None = None
    #: The directory with the keys; None: no keys.
    keys: str | None = None
    #: How often the count of answers is told.
    interval_s: float = 1.0
    #: The processes of the servers, to see what they use while it is measured.
    watched_pids: tuple[int, ...] = ()


class LoadProcess:
    """Runs a plan. First come the seconds, one by one, then the report."""

    def __init__(self, plan: LoadPlan) -> None:
        context = multiprocessing.get_context("spawn")
        self._messages: Queue[Any] = context.Queue()
        self._stop = context.Event()
        self._process = context.Process(target=_work, args=(plan, self._messages, self._stop), daemon=True)
        self._process.start()
        self.report: LoadReport | None = None
        self.history: list[Operation] = []
        #: CPU seconds that the load itself used while it ran, and for how long it ran.
        self.cpu_s = 0.0
        self.elapsed_s = 0.0
        #: Who used how much of the processors in the measured time.
        self.cpu_use: CpuUse | None = None
        self._next()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def seconds(self) -> Iterator[tuple[float, int]]:
        """Seconds since the start and commands answered since the last time, as time passes: by default per second."""
        while (message := self._next()) is not None:
            yield message
        self._process.join(timeout=10)

    def stop(self) -> None:
        """Do not wait for the end of the plan."""
        self._stop.set()

    def finish(self) -> LoadReport:
        """Wait for the end."""
        if self.report is None:
            for _ in self.seconds():
                pass
        assert self.report is not None
        return self.report

    def _next(self) -> tuple[float, int] | None:
        while True:
            try:
                kind, value = self._messages.get(timeout=1.0)
            except queue.Empty:
                if not self._process.is_alive():
                    raise LoadError(f"the load ended with status {self._process.exitcode}") from None
                continue
            if kind == "failed":
                raise LoadError(value)
            if kind == "second":
                return (float(value[0]), int(value[1]))
            if kind == "done":
                self.report, self.history, self.cpu_s, self.elapsed_s, self.cpu_use = value
            return None


def _make(plan: LoadPlan) -> Load | Pipelines:
    if plan.in_flight > 1:
        values = plan.values or VALUES
        return Pipelines(plan.endpoints, plan.clients, plan.in_flight, plan.payload_bytes, plan.keys, values)
    return Load(
        plan.endpoints,
        plan.clients,
        plan.payload_bytes,
        plan.reads,
        plan.recorded_keys,
        plan.target,
        plan.keys,
        plan.values,
    )


def _work(plan: LoadPlan, messages: "Queue[Any]", stop: Event) -> None:
    meters: list[CpuMeter] = []
    uses: list[CpuUse] = []

    def on_measuring(begins: bool) -> None:
        if begins:
            meters.append(CpuMeter(plan.watched_pids, os.getpid()))
        else:
            uses.extend(meter.stop() for meter in meters)

    def is_over() -> bool:
        """Who started it may have been killed; nobody is to be under load for ever."""
        parent = multiprocessing.parent_process()
        if parent is not None and not parent.is_alive():
            sys.exit("the load: whoever started it is gone")
        return stop.is_set()

    try:
        load = _make(plan)
        load.open()
        messages.put(("started", None))
        started_s, cpu_s = time.monotonic(), time.process_time()
        report = load.run(
            plan.seconds,
            plan.warm_up_s,
            lambda now_s, count: messages.put(("second", (now_s - started_s, count))),
            is_over,
            plan.interval_s,
            on_measuring,
        )
        used = (time.process_time() - cpu_s, time.monotonic() - started_s)
        load.close()
        messages.put(("done", (report, load.history, *used, uses[0] if uses else None)))
    except Exception as error:
        messages.put(("failed", f"{type(error).__name__}: {error}"))
        raise
