"""What the peers have in common: server processes that we start and end by their ids, and a load in its own process."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from msgspec import Struct

from evaluation.peers.closed_loop import ClosedLoop, ClosedLoopReport, Dialect, PeerError
from tara.bench.processors import CpuMeter, CpuUse

SERVERS = 3
START_TIMEOUT_S = 60.0
#: Beyond its own time, what a load may take until it is given up.
LOAD_GRACE_S = 30.0


class PeerPlan(Struct, frozen=True, kw_only=True):
    clients: int
    seconds: float
    warm_up_s: float
    payload_bytes: int


class PeerMeasurement(Struct, kw_only=True):
    report: ClosedLoopReport
    cpu: CpuUse


class ServerProcess:
    """A process of ours. Its output goes to a file."""

    def __init__(
        self, command: Sequence[str], log: Path, piped: bool = False, environment: Mapping[str, str] | None = None
    ) -> None:
        """`environment`: in addition to ours."""
        self.log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                list(command),
                env={**os.environ, **(environment or {})},
                stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else output,
                stderr=output,
                # Lines are few, and whoever waits for one must not miss what a buffer holds back.
                bufsize=0,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        """SIGKILL: a crash."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                # What it could not read any more is of no interest.
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def await_condition(condition: Callable[[], bool], what: str, servers: Sequence[ServerProcess]) -> None:
    """Until it holds. A server that ends in the meantime, or a time-out, is an error with the end of its output."""
    end_s = time.monotonic() + START_TIMEOUT_S
    while not condition():
        ended = [server for server in servers if server.process.poll() is not None]
        if ended or time.monotonic() > end_s:
            log = (ended or list(servers))[0].log
            raise PeerError(f"{what}: {'it ended' if ended else 'not in time'}: {log.read_bytes()[-500:]!r}")
        time.sleep(0.1)


def drive(
    addresses: Sequence[str],
    make: Callable[[str], Dialect],
    plan: PeerPlan,
    servers: Sequence[int],
    connections: int,
    after_s: float = 0.0,
    do: Callable[[], None] | None = None,
) -> PeerMeasurement:
    """Run the load in a process of its own; `do` is done so many seconds into the measured time. `make` is pickled."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(list(addresses), make, plan, connections, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        assert process.pid is not None
        _expect(ours, "measuring", plan.warm_up_s + LOAD_GRACE_S)
        meter = CpuMeter(servers, process.pid)
        if do is not None:
            time.sleep(after_s)
            do()
        report, used_s = _expect(ours, "done", plan.seconds + LOAD_GRACE_S)
        return PeerMeasurement(report=report, cpu=meter.stop(used_s))
    finally:
        process.join(timeout=5)
        if process.is_alive():
            process.kill()
            process.join()


def _expect(connection: Connection, kind: str, timeout_s: float) -> Any:
    try:
        if not connection.poll(timeout_s):
            raise PeerError(f"the load did not say {kind!r} in {timeout_s:.0f} s")
        said, value = connection.recv()
    except EOFError:
        raise PeerError("the load ended without a report") from None
    if said != kind:
        raise PeerError(str(value))
    return value


def _work(
    addresses: list[str], make: Callable[[str], Dialect], plan: PeerPlan, connections: int, answers: Connection
) -> None:
    used_s = [0.0]

    def on_measuring() -> None:
        used_s[0] = time.process_time()
        answers.send(("measuring", None))

    try:
        load = ClosedLoop(addresses, make, plan.clients, connections)
        report = load.run(plan.seconds, plan.warm_up_s, on_measuring)
        answers.send(("done", (report, time.process_time() - used_s[0])))
    except Exception as error:
        answers.send(("failed", f"{type(error).__name__}: {error}"))
        raise
