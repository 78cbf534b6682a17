"""Pipelined load on a running key-value cluster: clients as users have them, each with several commands in flight.

`load` measures how much the service can do, with sessions that cost next to nothing. This measures what users get whose
commands are long, or many at once: windows, patience and the change of front ends are the real client's.
"""

import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from tara.application import Put
from tara.bench.load import LoadReport, key_of, quantile, value_of
from tara.client import Client
from tara.protocol import tuples as t
from tara.simulator.checks.linearizability import Operation

#: All clients write so many values, in turn: so one client fills the state with as much as many do.
VALUES = 64
#: How long a command may take. None should take nearly as long.
TIMEOUT_S = 120.0
_POLL_S = 0.02


class Pipelines:
    def __init__(
        self,
        endpoints: str,
        clients: int,
        in_flight: int,
        payload_bytes: int,
        key_directory: str | None = None,
        values: int = VALUES,
    ) -> None:
        value = value_of(payload_bytes)
        self._commands = (t.encode(Put(key_of(index % values), value)) for index in itertools.count())
        self._in_flight = in_flight
        self._clients = [Client(endpoints, timeout_s=TIMEOUT_S, keys=key_directory) for _ in range(clients)]
        #: What the clients' threads tell is counted under it.
        self._lock = threading.Lock()
        self._latencies_s: list[float] = []
        self._last_answer_s = self._gap_s = 0.0
        self._answered = self._errors = self._open = 0
        #: Answers to each client in the measured time.
        self._per_client = [0] * clients
        self._stopping = False
        #: There is no check of linearizability here.
        self.history: list[Operation] = []

    def open(self) -> None:
        """Each client's first command opens its session."""
        first = [client.submit(next(self._commands)) for client in self._clients]
        for future in first:
            future.result()
        self._answered = len(first)

    def run(
        self,
        seconds: float,
        warm_up_s: float = 2.0,
        on_second: Callable[[float, int], None] = lambda at, n: None,
        stop: Callable[[], bool] = lambda: False,
        interval_s: float = 1.0,
        on_measuring: Callable[[bool], None] = lambda begins: None,
    ) -> LoadReport:
        """As `Load.run`."""
        for index in range(len(self._clients)):
            for _ in range(self._in_flight):
                self._submit(index)
        # Also until each pipeline has been answered once, on average: what it sends at first is more than it gets.
        self._pass(time.monotonic() + warm_up_s, on_second, stop, interval_s)
        turned = (1 + self._in_flight) * len(self._clients)
        self._pass(time.monotonic() + TIMEOUT_S, on_second, lambda: stop() or self._answered >= turned, interval_s)
        begin_s = time.monotonic()
        with self._lock:
            self._latencies_s, self._gap_s, self._last_answer_s = [], 0.0, time.monotonic()
            self._per_client = [0] * len(self._clients)
        on_measuring(True)
        self._pass(begin_s + seconds, on_second, stop, interval_s)
        with self._lock:
            now_s = time.monotonic()
            latencies, self._stopping = sorted(self._latencies_s), True
            per_client = list(self._per_client)
            gap_s = max(self._gap_s, now_s - self._last_answer_s)
        on_measuring(False)
        lost = self._drain()
        return LoadReport(
            clients=len(self._clients),
            seconds=round(now_s - begin_s, 3),
            throughput_per_s=round(len(latencies) / (now_s - begin_s), 1),
            latency_ms_p50=quantile(latencies, 0.5),
            latency_ms_p99=quantile(latencies, 0.99),
            latency_ms_p999=quantile(latencies, 0.999),
            gap_ms_max=round(gap_s * 1e3, 1),
            resent=0,
            errors=self._errors,
            lost=lost,
            answered=self._answered,
            ordered=self._answered,
            sessions=len(self._clients),
            client_least=min(per_client),
            client_most=max(per_client),
        )

    def _pass(
        self, end_s: float, on_second: Callable[[float, int], None], stop: Callable[[], bool], interval_s: float
    ) -> None:
        """Let the time pass, and tell of it."""
        next_s, before = time.monotonic() + interval_s, self._answered
        while (now_s := time.monotonic()) < end_s and not stop():
            time.sleep(_POLL_S)
            if now_s >= next_s:
                answered = self._answered
                on_second(now_s, answered - before)
                next_s, before = next_s + interval_s, answered

    def _submit(self, index: int) -> None:
        with self._lock:
            self._open += 1
            command = next(self._commands)
        begun_s = time.monotonic()
        future = self._clients[index].submit(command)
        future.add_done_callback(lambda done: self._hear(index, begun_s, done))

    def _hear(self, index: int, begun_s: float, done: Future[bytes]) -> None:
        now_s = time.monotonic()
        failed = done.exception() is not None
        with self._lock:
            self._open -= 1
            self._errors += failed
            self._answered += not failed
            if not failed:
                self._latencies_s.append(now_s - begun_s)
                self._per_client[index] += 1
                self._gap_s = max(self._gap_s, now_s - self._last_answer_s)
                self._last_answer_s = now_s
            stopping = self._stopping
        if not stopping:
            self._submit(index)

    def _drain(self) -> int:
        """Wait until everything is answered; what is not is lost."""
        end_s = time.monotonic() + TIMEOUT_S
        while self._open and time.monotonic() < end_s:
            time.sleep(_POLL_S)
        return self._open

    def close(self) -> None:
        for client in self._clients:
            client.close()
