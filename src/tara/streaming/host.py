"""Hosts one node (or the reply sinks together) for the length of a micro-batch.

State and rows in, state and rows out: a pure function, because Spark may execute a micro-batch again. The nodes are
those of a bare site (`tara.host.bare_site`), and rows take the place of frames. Nothing waits for a sync: what a node
persists is part of its state, Spark makes the states of a micro-batch durable before the sink publishes anything of it,
and a micro-batch that is not published is as if it had never been. So there are no journals here, no bases and no logs:
an executor is at a checkpoint after every request, and has reached it as soon as it is there.
"""

import io
import logging
import pickle
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from tara.application import StateMachine
from tara.host.bare_site import BareSite
from tara.host.effects import Effect, Emit, Executes, Halt, Inputs, Store, Trouble
from tara.host.executor_condition import described
from tara.protocol import tuples as t
from tara.protocol.execution import Execution, ExecutionState
from tara.protocol.graph import Stage
from tara.protocol.incarnations import FIRST_INCARNATION
from tara.protocol.limits import Limits
from tara.protocol.node import Boot, Node, Outbox
from tara.protocol.nodes.executor import Executor
from tara.protocol.nodes.factory import create
from tara.protocol.nodes.request_source import RequestSource
from tara.protocol.principals import gateway_of
from tara.protocol.progress import SourceProgress
from tara.protocol.sessions import Application
from tara.protocol.skips import Skips
from tara.protocol.state_digest import digest_of
from tara.storage.files import DamagedFile, pack_small, unpack_small
from tara.streaming import clients, rows
from tara.streaming.config import CONTROLLER_TICK_MS, StreamingConfig
from tara.streaming.errors import NO_WAY_ON, StreamingError
from tara.streaming.rows import Row

_log = logging.getLogger(__name__)
#: The version of the states' format; a state of another one is refused.
FORMAT_VERSION = 7
_decode = msgspec.msgpack.Decoder(t.WireTuple | t.Load | t.Loaded).decode
#: The answer to an executor that asks for a checkpoint which is not here.
_NOTHING = t.Loaded(None, b"", [], b"", 0, 0)


class Kept(msgspec.Struct):
    """The state of an executor, at a checkpoint; both parts encoded."""

    checkpoint: t.CheckpointId
    execution: bytes
    application: list[bytes]

    def loaded(self) -> t.Loaded:
        """As a base that nothing follows."""
        digest = digest_of(self.execution, self.application)
        length = len(self.execution) + sum(map(len, self.application))
        return t.Loaded(self.checkpoint, self.execution, self.application, digest, length, until=self.checkpoint.number)


class FrontEnd:
    """The client of a request source: a named session, and the slices of micro-batches that wait for it."""

    def __init__(self, site: int) -> None:
        self.site = site
        self.asked = False
        self.session = 0
        #: The number of the next slice.
        self.next = 0
        self.waiting: list[bytes] = []

    def opening(self) -> t.Command:
        self.asked = True
        return t.Command(0, self.site, 0, t.encode(f"front-end-{self.site}"), t.OPEN, gateway_of(self.site))

    def opened(self, results: t.Results) -> None:
        (result,) = results.results
        if result.status != t.OK:
            raise StreamingError(f"front end {self.site}: {result.payload.decode(errors='replace')}")
        self.session, _, self.next = msgspec.msgpack.decode(result.payload, type=tuple[int, int, int])

    def take(self) -> list[t.Command]:
        """Slices to submit now. Repetitions are dropped behind the log, so results need not be kept for them."""
        if not self.session:
            return []
        slices, self.waiting = self.waiting, []
        commands = [
            t.Command(self.session, number, number, payload, t.EXECUTE, gateway_of(self.site))
            for number, payload in enumerate(slices, self.next)
        ]
        self.next += len(commands)
        return commands

    def refused(self, commands: list[t.Command]) -> None:
        """The source has no room for the last of them now."""
        assert [command.number for command in commands] == list(range(self.next - len(commands), self.next)), commands
        self.next -= len(commands)
        self.waiting = [*(command.payload for command in commands), *self.waiting]


class Replies:
    """What the reply sinks have passed on: every result once, whichever of the 2f+1 executors is first."""

    def __init__(self) -> None:
        self.passed: dict[int, SourceProgress] = {}
        self.opened: set[int] = set()
        #: The executors that execute nothing any more, and why.
        self.halted: dict[int, str] = {}

    def is_new(self, result: t.Result) -> bool:
        if result.session == 0:
            new = result.number not in self.opened
            self.opened.add(result.number)
            return new
        progress = self.passed.setdefault(result.session, SourceProgress())
        new = result.number >= progress.low and result.number not in progress.early
        progress.note(0, result.number)
        return new


class Seat(msgspec.Struct):
    """What is kept of a key from micro-batch to micro-batch."""

    nodes: list[Node]
    #: Tuples emitted so far.
    emission: int = 0
    tick: int = 0
    #: The view of the newest votes that an executor has taken.
    view: int = 0
    front_end: FrontEnd | None = None
    replies: Replies | None = None
    #: Of an executor: always its present state, because it is at a checkpoint after every request. None: it has
    #: executed nothing.
    kept: Kept | None = None
    halted: str = ""


class Host:
    def __init__(self, config: StreamingConfig, application: Callable[[], StateMachine]) -> None:
        self.config = config
        self._application = application
        self.graph = config.graph
        self._limits = config.limits
        #: What every state begins with.
        self._head = f"tara-streaming {FORMAT_VERSION} f={config.f}\n".encode()
        self._sites = self.graph.replicas(Stage.REQUEST_SOURCE)
        #: Makes the application of an executor. One object, so that it can be left out of states.
        self._make = self._clients

    def _clients(self) -> clients.Clients:
        config = self.config
        return clients.Clients(
            self._application(), config.clients_max, config.early_max, config.remembered, config.command_bytes_max
        )

    def save(self, seat: Seat) -> bytes:
        buffer = io.BytesIO()
        buffer.write(self._head)
        known = {id(self.graph): "graph", id(self._limits): "limits", id(self._make): "make"}
        remake = partial(_make_again, self._make, self._limits, self._sites)
        _Pickler(buffer, known, remake, seat.kept).dump({name: getattr(seat, name) for name in seat.__struct_fields__})
        return pack_small(buffer.getvalue())

    def load(self, state: bytes) -> Seat:
        if not state.startswith(self._head):
            found = state.partition(b"\n")[0][:40].decode(errors="replace")
            raise StreamingError(
                f"the checkpoint is of another version of Tara or has another f ({found!r}, but this is "
                f"{self._head.strip().decode()!r}): start with a new checkpoint directory"
            )
        try:
            buffer = io.BytesIO(unpack_small(state))
        except DamagedFile as error:
            raise StreamingError(f"a node's state in the checkpoint directory {error}: {NO_WAY_ON}") from error
        buffer.seek(len(self._head))
        return Seat(**_Unpickler(buffer, {"graph": self.graph, "limits": self._limits, "make": self._make}).load())

    def _found(self, key: int, now_ms: float) -> Seat:
        """The very first micro-batch of a node."""
        stage = self.graph.names[key].stage
        numbers = range(key, key + self._sites) if stage is Stage.REPLY_SINK else range(key, key + 1)
        boot = Boot(1, FIRST_INCARNATION, True, now_ms, keeps_bases=False)
        seat = Seat(
            [
                create(self.graph.names[number], self.graph, self._limits, boot, Outbox(), self._make)
                for number in numbers
            ]
        )
        if stage is Stage.REQUEST_SOURCE:
            seat.front_end = FrontEnd(self.graph.names[key].replica)
        elif stage is Stage.REPLY_SINK:
            seat.replies = Replies()
        return seat

    def turn(self, key: int, state: bytes | None, taken: list[Row]) -> tuple[bytes | None, list[Row]]:
        """One micro-batch of one key: its new state (None: as it was), and what it has to say."""
        ticks = [row for row in taken if row.sender == rows.TICK]
        seat = self._found(key, self.time_ms(key, ticks)) if state is None else self.load(state)
        if ticks:
            seat.tick = ticks[0].emission
        silence = self.config.silenced.get(self.graph.label(key))
        if seat.halted or (silence is not None and silence[0] <= seat.tick <= silence[1]):
            return self.save(seat), []
        return self._work(key, seat, taken, ticks)

    def _work(self, key: int, seat: Seat, taken: list[Row], ticks: list[Row]) -> tuple[bytes | None, list[Row]]:
        turn = _Turn(self, key, seat, self.time_ms(key, ticks))
        tuples = sorted((row for row in taken if row.sender >= 0), key=lambda row: rows.order(self.graph, row))
        for row in tuples:
            turn.take(row, _decode(row.data))
        if seat.front_end is not None:
            turn.submit([row for row in taken if row.sender == rows.COMMAND])
        turn.keep()
        if ticks:
            turn.tick()
        # One that was stopped is as if it had crashed: the others go on without it.
        return self.save(seat), [] if seat.halted else turn.out

    def time_ms(self, key: int, ticks: list[Row]) -> float:
        """Controllers count ticks, so that a slow micro-batch does not pass for a dead proposer; the others have the
        time of day, which becomes the agreed time."""
        if not ticks:
            return 0.0
        tick = ticks[0]
        is_controller = self.graph.names[key].stage is Stage.CONTROLLER
        return tick.emission * CONTROLLER_TICK_MS if is_controller else float(tick.number)


class _Turn:
    """What one micro-batch does to one key."""

    def __init__(self, host: Host, key: int, seat: Seat, now_ms: float) -> None:
        numbers = range(key, key + len(seat.nodes))
        self._site = BareSite(host.graph, host.config.limits, numbers)
        for number, node in zip(numbers, seat.nodes, strict=True):
            self._site.add(number, node)
        self._now_ms = now_ms
        self._graph = host.graph
        self._config = host.config
        self._key = key
        self._seat = seat
        #: The newest checkpoint of an executor since it was last answered.
        self._mark: t.Mark | None = None
        #: What is to be given to nodes here before anything else.
        self._answers: list[tuple[t.Tuple, int]] = []
        self.out: list[Row] = []

    def take(self, row: Row, tuple_: t.Tuple) -> None:
        seat = self._seat
        if seat.front_end is not None and isinstance(tuple_, t.Results):
            seat.front_end.opened(tuple_)
            return
        if isinstance(tuple_, t.Load):
            self._lend(row.sender, tuple_)
            return
        if seat.replies is not None:
            seat.view = row.number
        elif isinstance(tuple_, t.Commit):
            seat.view = tuple_.view
        self._give(tuple_, row.node)

    def _give(self, tuple_: t.Tuple, number: int) -> None:
        self._step(Inputs(tuples=[(tuple_, number)]))

    def tick(self) -> None:
        self._step(Inputs(tick=True))
        if self._seat.front_end is not None:
            self._report_busy()

    def _step(self, inputs: Inputs) -> None:
        while True:
            for effect in self._site.step(inputs, self._now_ms):
                self._do(effect)
            if not self._answers:
                return
            inputs, self._answers = Inputs(tuples=self._answers), []

    def _do(self, effect: Effect) -> None:
        """What is to be synced is in the state of its node."""
        match effect:
            case Emit(_, t.Waiting(), _):
                # Whoever waits here does not lose patience, and sends nothing again.
                pass
            case Emit(_, t.Refused(commands), _):
                assert self._seat.front_end is not None
                self._seat.front_end.refused(commands)
            case Emit(_, tuple_, receivers) if receivers.stage is Stage.CLIENT:
                self._reply(tuple_)
            case Emit(_, tuple_, receivers):
                self._send(receivers.numbers, tuple_)
            case Store(_, t.Mark() as mark):
                self._mark = mark
            case Store(number, t.Load() as load):
                self._borrow(number, load)
            case Store(number, t.Restoring(base)):
                self._answers.append((t.Resume(base), number))
            case Store(_, t.Arrived()):
                self._keep_borrowed()
            case Executes(number, halted) if halted.reason:
                _log.error("%s has %s", self._graph.label(number), described(halted))
            case Halt(number, reason):
                self._seat.halted = reason
                _log.error("%s halted: %s", self._graph.label(number), reason)
            case Trouble(_, _, reason):
                raise StreamingError(f"{self._graph.label(self._key)} was sent something malformed: {reason}")

    def _send(self, numbers: Sequence[int], tuple_: t.Tuple) -> None:
        data = t.encode(tuple_)
        view = self._seat.view if isinstance(tuple_, t.Results) else rows.NONE
        for number in numbers:
            self._seat.emission += 1
            self.out.append(
                Row(rows.key_of(self._graph, number), number, self._key, self._seat.emission, view, data=data)
            )

    def submit(self, commands: list[Row]) -> None:
        front_end = self._seat.front_end
        assert front_end is not None
        self._slice(front_end, commands)
        if not front_end.asked:
            self._give(t.Submit([front_end.opening()]), self._key)
        if slices := front_end.take():
            self._give(t.Submit(slices), self._key)
        waiting = sum(map(len, front_end.waiting))
        if waiting > self._config.waiting_bytes_max:
            raise StreamingError(
                f"{waiting} bytes of commands wait in {self._graph.label(self._key)} and none is decided "
                f"(waiting_bytes_max = {self._config.waiting_bytes_max}): more than f replicas of a stage are silent"
            )

    def _slice(self, front_end: FrontEnd, commands: list[Row]) -> None:
        """Cut the commands of the micro-batch into slices, each of which will be one request."""
        valid: list[clients.CommandRow] = []
        invalid: list[clients.Outcome] = []
        for row in commands:
            if not row.client or row.number < 0:
                message = b"a command must have a client, and a number that is not negative"
                invalid.append((0, row.client, row.number, t.REJECTED, message))
            else:
                valid.append((row.client, row.number, None if row.emission == rows.NULL_PAYLOAD else row.data))
        # The order of the rows must not matter, nor be different when the micro-batch is executed again. By number, so
        # that clients take turns.
        valid.sort(key=lambda row: (row[1], row[0], row[2] is not None, row[2] or b""))
        start = size = 0
        for end, (client, _, payload) in enumerate(valid):
            cost = len(client) + len(payload or b"") + 16
            if end > start and (
                end - start >= self._config.request_commands_max or size + cost > self._config.request_bytes_max
            ):
                front_end.waiting.append(clients.pack_rows(valid[start:end]))
                start, size = end, 0
            size += cost
        if valid:
            front_end.waiting.append(clients.pack_rows(valid[start:]))
        if invalid:
            invalid.sort()
            self._publish(clients.encode(invalid), rows.NONE)

    def _report_busy(self) -> None:
        (source,), front_end = self._seat.nodes, self._seat.front_end
        assert isinstance(source, RequestSource)
        assert front_end is not None
        if source.pending or front_end.waiting or not front_end.session:
            self.out.append(Row(rows.WRITER, rows.WRITER, rows.BUSY, 0))

    def _reply(self, tuple_: t.Tuple) -> None:
        replies = self._seat.replies
        assert replies is not None
        if isinstance(tuple_, t.Halted):
            self._hear_halted(replies, tuple_)
            return
        assert isinstance(tuple_, t.Results)
        for result in tuple_.results:
            if not replies.is_new(result):
                continue
            if result.session == 0:
                self._send((self._graph.number(Stage.REQUEST_SOURCE, result.number),), t.Results(0, [result], []))
            elif result.status == t.OK:
                self._publish(result.payload, self._seat.view)
            else:
                raise StreamingError(f"a request failed: {result.payload.decode(errors='replace')}")

    def _hear_halted(self, replies: Replies, halted: t.Halted) -> None:
        if not halted.reason:
            replies.halted.pop(halted.executor, None)
            return
        replies.halted[halted.executor] = described(halted)
        if len(replies.halted) == self._graph.replicas(Stage.EXECUTOR):
            raise StreamingError(f"no replica executes: replica {halted.executor} has {described(halted)}")

    def _publish(self, outcomes: bytes, view: int) -> None:
        self.out.append(Row(rows.WRITER, rows.WRITER, rows.OUTCOMES, 0, view, data=outcomes))

    def _borrow(self, number: int, load: t.Load) -> None:
        """Slots that it lacks are gone elsewhere: ask those who have their effects."""
        holders = [self._graph.number(Stage.EXECUTOR, holder) for holder in load.holders]
        others = [holder for holder in holders if holder != number]
        if others:
            self._send(others, load)
        else:
            self._answers.append((self._loaded(load), number))

    def _lend(self, borrower: int, load: t.Load) -> None:
        self._send((borrower,), self._loaded(load))

    def _loaded(self, load: t.Load) -> t.Loaded:
        kept = self._seat.kept
        if kept is None or kept.checkpoint.number < max(load.minimum, load.bases_from):
            return _NOTHING
        return kept.loaded()

    def _keep_borrowed(self) -> None:
        """Else the next micro-batch would begin with what was here before."""
        (executor,) = self._seat.nodes
        assert isinstance(executor, Executor)
        checkpoint = executor.execution.checkpoint
        if executor.restored and (self._seat.kept is None or self._seat.kept.checkpoint.number < checkpoint.number):
            self._mark = t.Mark(checkpoint, executor.sessions.counter)

    def keep(self) -> None:
        """An executor's state, as it is after this micro-batch, which is all that is needed of its checkpoints."""
        executor = self._seat.nodes[0]
        while self._mark is not None:
            assert isinstance(executor, Executor)
            if executor.halted is not None:
                # The command that it halted at may have left anything behind.
                return
            checkpoint, self._mark = self._mark.checkpoint, None
            execution = executor.execution
            self._seat.kept = Kept(checkpoint, t.encode(execution.state()), list(execution.application.snapshot()))
            # It may have waited for that, and go on.
            self._give(t.Saved(checkpoint), self._key)


class _Pickler(pickle.Pickler):
    """Leaves out what every micro-batch makes anew, and what an executor has executed: that is kept in a form of its
    own, and a digest that is being computed cannot be pickled."""

    def __init__(
        self,
        file: io.BytesIO,
        known: dict[int, str],
        remake: Callable[[Skips, Kept | None], Execution],
        kept: Kept | None,
    ) -> None:
        super().__init__(file, protocol=5)
        self._known = known
        self._remake = remake
        self._kept = kept

    def persistent_id(self, obj: Any) -> str | None:
        return self._known.get(id(obj))

    def reducer_override(self, obj: Any) -> Any:
        return (self._remake, (obj.skips, self._kept)) if isinstance(obj, Execution) else NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, known: dict[str, Any]) -> None:
        super().__init__(file)
        self._known = known

    def persistent_load(self, pid: Any) -> Any:
        return self._known[pid]


def _make_again(
    make: Callable[[], Application], limits: Limits, sources: int, skips: Skips, kept: Kept | None
) -> Execution:
    """What an executor has executed, as it was kept."""
    execution = Execution(make, limits, sources, skips=skips)
    if kept is not None:
        execution.application.restore(kept.application)
        execution.restore(msgspec.msgpack.decode(kept.execution, type=ExecutionState))
    return execution
