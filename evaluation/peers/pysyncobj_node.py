"""A process of the PySyncObj peer: a voting node, or an attached one that only sends.

A program of its own: `python -m evaluation.peers.pysyncobj_node OPTIONS`, with OPTIONS as JSON. It takes orders
as lines of JSON and answers in lines of JSON. The load runs inside such a process: the library has no other clients.
Its clients are closed loops of callbacks; a callback comes when the write is committed and applied here.
"""

import sys
import threading
import time
from collections import deque
from typing import Any

import msgspec
from msgspec import Struct
from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf
from pysyncobj.batteries import ReplDict

from evaluation.peers.closed_loop import ClosedLoopReport
from tara.client.session import PATIENCE_S

#: As shipped, entries leave every 100 ms; we let them leave as soon as its loop allows.
PERIOD_S = 0.002
RETRY_S = 0.005


class NodeOptions(Struct, frozen=True, kw_only=True):
    #: None: an attached process, which does not vote.
    address: str | None
    partners: list[str]
    #: None: nothing is written.
    journal: str | None


class StatusOrder(Struct, frozen=True, kw_only=True, tag="status"):
    pass


class LoadOrder(Struct, frozen=True, kw_only=True, tag="load"):
    clients: int
    seconds: float
    warm_up_s: float
    payload_bytes: int


class StatusAnswer(Struct, frozen=True, kw_only=True, tag="status"):
    leader: str | None
    ready: bool


class Measuring(Struct, frozen=True, kw_only=True, tag="measuring"):
    pass


class Done(Struct, frozen=True, kw_only=True, tag="done"):
    report: ClosedLoopReport
    cpu_s: float


Order = StatusOrder | LoadOrder
Answer = StatusAnswer | Measuring | Done


def _say(answer: Answer) -> None:
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    sys.stdout.flush()


class _Loop:
    """The closed-loop clients of one load."""

    def __init__(self, syncer: Any, table: Any, order: LoadOrder) -> None:
        self._syncer, self._table, self._order = syncer, table, order
        self._value = bytes(order.payload_bytes)
        count = order.clients
        self._first_sent_s, self._sent_s, self._number = [0.0] * count, [0.0] * count, [0] * count
        self._again: deque[tuple[float, int]] = deque()
        self._latencies_s: list[float] = []
        self._measuring = False
        self._last_answer_s = self._gap_s = 0.0
        self._errors = self._resent = 0

    def _send(self, client: int) -> None:
        self._sent_s[client] = time.perf_counter()
        self._number[client] += 1
        number = self._number[client]
        self._table.set(client, self._value, callback=lambda _, error: self._hear(client, number, error))

    def _hear(self, client: int, number: int, error: object) -> None:
        if number != self._number[client]:
            return
        now_s = time.perf_counter()
        if error != FAIL_REASON.SUCCESS:
            self._errors += 1
            self._number[client] += 1
            self._again.append((now_s + RETRY_S, client))
            return
        if self._measuring:
            self._latencies_s.append(now_s - self._first_sent_s[client])
            self._gap_s = max(self._gap_s, now_s - self._last_answer_s)
            self._last_answer_s = now_s
        self._first_sent_s[client] = now_s
        self._send(client)

    def _care(self, now_s: float) -> None:
        while self._again and self._again[0][0] <= now_s:
            self._send(self._again.popleft()[1])
        waiting = {client for _, client in self._again}
        for client, sent_s in enumerate(self._sent_s):
            if now_s - sent_s > PATIENCE_S and client not in waiting:
                self._resent += 1
                self._send(client)

    def run(self) -> None:
        order, now_s = self._order, time.perf_counter()
        for client in range(order.clients):
            self._first_sent_s[client] = now_s
            self._send(client)
        begin_s, cpu_s = now_s + order.warm_up_s, 0.0
        end_s = begin_s + order.seconds
        while now_s < end_s:
            self._syncer.doTick(PERIOD_S)
            now_s = time.perf_counter()
            self._care(now_s)
            if not self._measuring and now_s >= begin_s:
                self._measuring, self._last_answer_s, cpu_s = True, now_s, time.process_time()
                _say(Measuring())
        cpu_s = time.process_time() - cpu_s
        self._number = [-1] * order.clients
        gap_s = max(self._gap_s, now_s - self._last_answer_s)
        latencies = sorted(self._latencies_s) or [0.0]
        report = ClosedLoopReport(
            throughput_per_s=round(len(self._latencies_s) / order.seconds, 1),
            latency_ms_p50=round(latencies[len(latencies) // 2] * 1e3, 3),
            latency_ms_p99=round(latencies[int(len(latencies) * 0.99)] * 1e3, 3),
            gap_ms_max=round(gap_s * 1e3, 1),
            errors=self._errors,
            resent=self._resent,
        )
        _say(Done(report=report, cpu_s=cpu_s))


def main(options: NodeOptions) -> None:
    files = {}
    if options.journal is not None:
        files = {"journalFile": options.journal, "fullDumpFile": f"{options.journal}.dump"}
    table = ReplDict()
    configuration = SyncObjConf(autoTick=False, appendEntriesPeriod=PERIOD_S, autoTickPeriod=PERIOD_S, **files)
    syncer = SyncObj(options.address, options.partners, configuration, consumers=[table])
    orders: deque[Order | None] = deque()

    def listen() -> None:
        for line in sys.stdin:
            orders.append(msgspec.json.decode(line, type=Order))
        orders.append(None)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        syncer.doTick(PERIOD_S)
        while orders:
            match orders.popleft():
                case StatusOrder():
                    leader = syncer.getStatus()["leader"]
                    _say(StatusAnswer(leader=None if leader is None else str(leader), ready=syncer.isReady()))
                case LoadOrder() as order:
                    _Loop(syncer, table, order).run()
                case None:
                    syncer.destroy()
                    return


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=NodeOptions))
