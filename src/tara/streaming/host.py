"""Hosts one node (or the reply sinks together) for the length of a micro-batch.

State and rows in, state and rows out: what comes out depends on nothing else, because Spark may execute a micro-batch
again. The nodes are those of a bare site (`tara.host.bare_site`), and rows take the place of frames. Nothing waits for
a sync: what a node persists is part of its state, Spark makes the states of a micro-batch durable before the sink
publishes anything of it, and a micro-batch that is not published is as if it had never been. So there are no journals
here and no logs: an executor is at a checkpoint after every request, and has reached it as soon as it is there.

A process that still has a node from the micro-batch before goes on with it. Whether it may, the state's token says:
each write draws a new one, so a node in memory is used only if the state store has the very state that was written when
the node was left. If it is an older one, an executor comes back by the runs that it lacks, and any other node is
decoded, which is cheap.
"""

import logging
import os
from collections.abc import Callable, Iterable, Sequence

import msgspec

from tara.application import StateMachine
from tara.host.bare_site import BareSite
from tara.host.effects import Effect, Emit, Executes, Halt, Inputs, Store, Trouble
from tara.host.executor_condition import described
from tara.protocol import tuples as t
from tara.protocol.execution import Execution
from tara.protocol.graph import Stage
from tara.protocol.incarnations import FIRST_INCARNATION
from tara.protocol.node import Boot, Outbox
from tara.protocol.nodes.executor import Executor
from tara.protocol.nodes.factory import create
from tara.protocol.nodes.request_source import RequestSource
from tara.protocol.places import EXECUTED
from tara.protocol.sessions import raised
from tara.protocol.state_digest import digest_of
from tara.streaming import bodies_of_commits, clients, executed, packing, rows, seats
from tara.streaming.config import CONTROLLER_TICK_MS, StreamingConfig
from tara.streaming.errors import StreamingError
from tara.streaming.node_fields import position_of
from tara.streaming.rows import Row
from tara.streaming.seats import Changes, FrontEnd, Replies, Seat, Version

_log = logging.getLogger(__name__)
_decode = msgspec.msgpack.Decoder(t.WireTuple | t.Load | t.Loaded).decode
#: The answer to an executor that asks for a checkpoint which is not here.
_NOTHING = t.Loaded(None, b"", [], b"", 0, 0)
TOKEN_BYTES = 16


def draw_token() -> bytes:
    return os.urandom(TOKEN_BYTES)


class Host:
    def __init__(
        self,
        config: StreamingConfig,
        application: Callable[[], StateMachine],
        draw: Callable[[], bytes] = draw_token,
        keeps: bool = True,
    ) -> None:
        """`draw` gives tokens, no two alike. `keeps`: whether nodes stay in memory."""
        self.config = config
        self._application = application
        self._draw = draw
        self._keeps = keeps
        self.graph = config.graph
        self._limits = config.limits
        self._sites = self.graph.replicas(Stage.REQUEST_SOURCE)
        #: The seats that are in memory, with the tokens of their states.
        self._seats: dict[int, tuple[bytes, Seat]] = {}
        #: How often a seat was found here, found here at another version, and not found. For those who watch.
        self.hits = self.stale = self.misses = 0

    def _clients(self) -> clients.Clients:
        config = self.config
        return clients.Clients(
            self._application(), config.clients_max, config.early_max, config.remembered, config.command_bytes_max
        )

    def _make(self, key: int, boot_ms: float) -> Seat:
        """As in the very first micro-batch of a key."""
        stage = self.graph.names[key].stage
        numbers = range(key, key + self._sites) if stage is Stage.REPLY_SINK else range(key, key + 1)
        boot = Boot(1, FIRST_INCARNATION, True, boot_ms, keeps_bases=False)
        nodes = [
            create(self.graph.names[number], self.graph, self._limits, boot, Outbox(), self._clients)
            for number in numbers
        ]
        seat = Seat(nodes, boot_ms)
        if stage is Stage.REQUEST_SOURCE:
            seat.front_end = FrontEnd(self.graph.names[key].replica)
        elif stage is Stage.REPLY_SINK:
            seat.replies = Replies()
        return seat

    def load(self, key: int, store: seats.KeyStore, begin_ms: float = 0.0) -> Seat:
        """The seat as the state store has it. Until it is saved, nobody else gets it from memory."""
        token = store.token()
        known = self._seats.pop(key, None)
        if token is None:
            return self._make(key, begin_ms)
        if known is not None and known[0] == token:
            self.hits += 1
            return known[1]
        data = store.node()
        if known is None:
            self.misses += 1
            seat = self._make(key, seats.boot_ms_of(data, self.graph))
        else:
            self.stale += 1
            seat = known[1]
        seats.decode_seat(seat, data, self.graph, store)
        for node in seat.nodes:
            if isinstance(node, Executor) and not seat.halted:
                self._come_back(node, seat, store)
        return seat

    def _come_back(self, executor: Executor, seat: Seat, store: seats.KeyStore) -> None:
        """Bring what the executor has executed to where its state is."""

        def renew() -> Execution:
            starts, done = executor.starts, executor._executed
            executor._renew_application()
            executor.starts, executor._executed = starts, done
            return executor.execution

        executor._digest = None
        executor._execution = executed.come_back(executor.execution, seat.kept, store.piece, store.run, renew)
        executor._cell[EXECUTED] = executor.sessions.counter

    def turn(self, key: int, store: seats.KeyStore, taken: list[Row]) -> list[Row]:
        """One micro-batch of one key: what it has to say. Its new state is written to the store."""
        ticks = [row for row in taken if row.sender == rows.TICK]
        seat = self.load(key, store, self.time_ms(key, ticks))
        if ticks:
            seat.tick = ticks[0].emission
        silence = self.config.silenced.get(self.graph.label(key))
        if seat.halted or (silence is not None and silence[0] <= seat.tick <= silence[1]):
            self._save(key, seat, store, None)
            return []
        return self._work(key, seat, store, taken, ticks)

    def _work(self, key: int, seat: Seat, store: seats.KeyStore, taken: list[Row], ticks: list[Row]) -> list[Row]:
        turn = _Turn(self, key, seat, self.time_ms(key, ticks))
        tuples = sorted((row for row in taken if row.sender >= 0), key=lambda row: rows.order(self.graph, row))
        for row, tuple_ in turn.read(tuples):
            turn.take(row, tuple_)
        if seat.front_end is not None:
            turn.submit([row for row in taken if row.sender == rows.COMMAND])
        turn.keep()
        if ticks:
            turn.tick()
        self._save(key, seat, store, turn)
        # One that was stopped is as if it had crashed: the others go on without it.
        return [] if seat.halted else turn.out

    def _save(self, key: int, seat: Seat, store: seats.KeyStore, turn: "_Turn | None") -> None:
        base, run = (None, None) if turn is None else turn.written()
        node = seats.encode_seat(seat, self.graph)
        met, stored = seat.bodies.met, seat.stored
        added = {digest: body for digest, body in met.items() if digest not in stored}
        seat.stored = {digest: len(body) for digest, body in met.items()}
        token = self._draw()
        version = self._version(key, seat, token, len(node))
        store.write(Changes(version, node, added, stored.keys() - met.keys(), base, run))
        executor = seat.nodes[0]
        well = not isinstance(executor, Executor) or (executor.restored and executor.halted is None)
        if self._keeps and well and not seat.halted:
            # One that is not well may have something half done, which is not in its state.
            self._seats[key] = (token, seat)

    def _version(self, key: int, seat: Seat, token: bytes, node_bytes: int) -> Version:
        name, node = self.graph.names[key], seat.nodes[0]
        view, position = position_of(node)
        condition = seat.halted
        if isinstance(node, Executor):
            view = seat.view
            condition = condition or (described(node.halted) if node.halted is not None else "")
        elif seat.replies is not None:
            view, position = seat.view, sum(progress.low for progress in seat.replies.passed.values())
        return Version(
            token,
            self.graph.label(key),
            str(name.stage),
            name.partition,
            name.replica,
            view,
            position,
            seat.tick,
            condition,
            node_bytes,
            sum(seat.stored.values()),
            seat.kept.base_bytes,
            seat.kept.runs_bytes,
        )

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
        #: What the executor has executed, and the checkpoint before that.
        self._executed: list[t.Executed] = []
        executor = seat.nodes[0]
        self._before = executor.execution.checkpoint if isinstance(executor, Executor) else t.CheckpointId(0, b"")
        #: A base that takes the place of all that was kept.
        self._borrowed: t.Loaded | None = None
        #: The base that it began to restore last.
        self._restoring = 0

    def read(self, taken: list[Row]) -> list[tuple[Row, t.Tuple]]:
        """The tuples of these rows. What is sent back, or for whom, is not for the node."""
        found: list[tuple[Row, t.Tuple]] = []
        for row in taken:
            data = clients.unpacked(row.data) if row.form == rows.COMPRESSED else row.data
            found.append((row, _decode(data)))
        if not any(row.form in (rows.SHORT, rows.RETURNED) for row in taken):
            return found
        bodies = self._seat.bodies
        plain = [tuple_ for row, tuple_ in found if row.form == rows.PLAIN and isinstance(tuple_, t.Commit)]
        known = {**bodies.met, **bodies_of_commits.bodies_in(plain, bodies)}
        whole: list[tuple[Row, t.Tuple]] = []
        for row, tuple_ in found:
            if row.form not in (rows.SHORT, rows.RETURNED):
                whole.append((row, tuple_))
                continue
            assert isinstance(tuple_, t.Commit)
            commit = bodies_of_commits.whole(tuple_, known)
            if row.form == rows.RETURNED:
                if commit is not None:
                    # If not, the slots are in a stable checkpoint, which leads the executor on.
                    self._send((row.sender,), commit)
            elif commit is not None:
                whole.append((row, commit))
            elif self._seat.nodes[0].needs_commit(tuple_.partition, tuple_.first + len(tuple_.requests)):
                self._add(row.sender, rows.NONE, rows.RETURNED, row.data)
        return whole

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
        elif isinstance(tuple_, t.Loaded):
            self._take_base(tuple_, row.node)
            return
        self._give(tuple_, row.node)

    def _take_base(self, loaded: t.Loaded, number: int) -> None:
        """If the executor restores it, this is what it has from then on."""
        (executor,) = self._seat.nodes
        assert isinstance(executor, Executor)
        self._restoring = 0
        self._give(loaded, number)
        if loaded.base is not None and self._restoring == loaded.base.number and executor.restored:
            self._borrowed, self._before = loaded, loaded.base
            self._executed = [some for some in self._executed if some.first >= loaded.base.number]

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
            case Store(_, t.Executed() as executed_now):
                self._executed.append(executed_now)
            case Store(_, t.Mark() as mark):
                self._mark = mark
            case Store(number, t.Load() as load):
                self._borrow(number, load)
            case Store(number, t.Restoring(base)):
                self._restoring = base
                self._answers.append((t.Resume(base), number))
            case Executes(number, halted) if halted.reason:
                _log.error("%s has %s", self._graph.label(number), described(halted))
            case Halt(number, reason):
                self._seat.halted = reason
                _log.error("%s halted: %s", self._graph.label(number), reason)
            case Trouble(_, _, reason):
                raise StreamingError(f"{self._graph.label(self._key)} was sent something malformed: {reason}")

    def _send(self, numbers: Sequence[int], tuple_: t.Tuple) -> None:
        if isinstance(tuple_, t.Commit) and len(numbers) > 1 and bodies_of_commits.is_long(tuple_):
            self._send_commit(numbers, tuple_)
            return
        data, view, form = t.encode(tuple_), rows.NONE, rows.PLAIN
        if isinstance(tuple_, t.Results):
            view, form = self._seat.view, rows.COMPRESSED
            data = clients.packed(data)
        for number in numbers:
            self._add(number, view, form, data)

    def _send_commit(self, numbers: Sequence[int], commit: t.Commit) -> None:
        whole, short = t.encode(commit), t.encode(bodies_of_commits.short(commit, self._seat.bodies))
        for number in numbers:
            mine = self._graph.names[number].replica == commit.committer
            self._add(number, rows.NONE, rows.PLAIN if mine else rows.SHORT, whole if mine else short)

    def _add(self, number: int, view: int, form: int, data: bytes) -> None:
        seat = self._seat
        seat.emission += 1
        self.out.append(Row(rows.key_of(self._graph, number), number, self._key, seat.emission, view, form, data))

    def submit(self, commands: list[Row]) -> None:
        (source,), front_end = self._seat.nodes, self._seat.front_end
        assert isinstance(source, RequestSource)
        assert front_end is not None
        taken = sum(len(row.data) for row in commands)
        if taken > self._config.waiting_bytes_max:
            raise StreamingError(
                f"a micro-batch has {taken} bytes of commands for {self._graph.label(self._key)} (waiting_bytes_max = "
                f"{self._config.waiting_bytes_max}): limit what the source of the commands gives at once, such as "
                "maxFilesPerTrigger for files or maxOffsetsPerTrigger for Kafka"
            )
        self._slice(front_end, commands)
        if not front_end.asked:
            self._give(t.Submit([front_end.opening()]), self._key)
        if slices := front_end.take():
            self._give(t.Submit(slices), self._key)
        waiting = sum(map(len, front_end.waiting)) + source.backlog_bytes
        if waiting > self._config.waiting_bytes_max:
            raise StreamingError(
                f"{waiting} bytes of commands wait in {self._graph.label(self._key)} and none is decided "
                f"(waiting_bytes_max = {self._config.waiting_bytes_max}): more than f replicas of a stage are silent"
            )

    def _slice(self, front_end: FrontEnd, commands: list[Row]) -> None:
        """Cut the commands of the micro-batch into slices, each of which will be one request. The order of the rows
        must not matter, nor be different when the micro-batch is executed again."""
        valid: list[clients.CommandRow] = []
        invalid: list[clients.Outcome] = []
        for command in packing.unpack([row.data for row in commands]):
            client, number, _ = command
            if client and number >= 0:
                valid.append(command)
            else:
                message = b"a command must have a client, and a number that is not negative"
                invalid.append((0, client, number, t.REJECTED, message))
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
            self._publish(clients.encode(clients.Answer(invalid)), rows.NONE)

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

    def _publish(self, answer: bytes, view: int) -> None:
        self.out.append(Row(rows.WRITER, rows.WRITER, rows.OUTCOMES, 0, view, data=clients.packed(answer)))

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
        """The state of the executor here, as a base that nothing follows."""
        (executor,) = self._seat.nodes
        assert isinstance(executor, Executor)
        checkpoint = executor.execution.checkpoint
        if executor.halted is not None or not executor.restored:
            # A command may have left anything behind.
            return _NOTHING
        if checkpoint.number < max(load.minimum, load.bases_from, 1):
            return _NOTHING
        found = self._snapshot(executor)
        if found is None:
            return _NOTHING
        state, *chunks = found
        length = len(state) + sum(map(len, chunks))
        return t.Loaded(checkpoint, state, chunks, digest_of(state, chunks), length, until=checkpoint.number)

    def keep(self) -> None:
        """What an executor has executed is in its state when the micro-batch ends, and durable with it."""
        executor = self._seat.nodes[0]
        while self._mark is not None:
            assert isinstance(executor, Executor)
            if executor.halted is not None:
                return
            checkpoint, self._mark = self._mark.checkpoint, None
            # It may have waited for that, and go on.
            self._give(t.Saved(checkpoint), self._key)

    def written(self) -> tuple[list[bytes] | None, tuple[int, bytes] | None]:
        """What is written of what an executor executed: a new base, or a run."""
        seat, borrowed = self._seat, self._borrowed
        executor = seat.nodes[0]
        if not isinstance(executor, Executor) or seat.halted:
            return None, None
        base = None
        if borrowed is not None and borrowed.base is not None:
            base = self._begin_anew(borrowed.base, [borrowed.state, *borrowed.chunks])
        if not any(some.requests for some in self._executed):
            return base, None
        kept = seat.kept
        run = executed.run_of(self._executed, self._before, executor.execution.checkpoint)
        kept = seat.kept = msgspec.structs.replace(kept, end=kept.end + 1, runs_bytes=kept.runs_bytes + len(run))
        well = executor.restored and executor.halted is None
        if well and kept.runs_bytes > max(kept.base_bytes, executed.RUNS_BYTES_MIN):
            chunks = self._snapshot(executor)
            if chunks is not None:
                return self._begin_anew(executor.execution.checkpoint, chunks), None
        return base, (kept.end - 1, run)

    def _snapshot(self, executor: Executor) -> list[bytes] | None:
        """None: the application could not give one. That costs nothing but the base: the runs go on, and the next
        micro-batch tries again."""
        try:
            return list(executed.base_of(executor.execution))
        except Exception as error:
            _log.error("%s: %s when it was to give a snapshot", self._graph.label(self._key), raised(error))
            return None

    def _begin_anew(self, checkpoint: t.CheckpointId, chunks: Iterable[bytes]) -> list[bytes]:
        """A base in the place of what was kept."""
        seat = self._seat
        pieces = list(executed.pieces_of(checkpoint, chunks))
        end = seat.kept.end
        seat.kept = executed.Kept(checkpoint, len(pieces), sum(map(len, pieces)), end, end, 0)
        return pieces
