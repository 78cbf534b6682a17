"""What a streaming replication is told. Travels in Spark closures: plain values only."""

from msgspec import Struct

from tara.protocol.errors import ConfigurationError
from tara.protocol.graph import Graph, Stage
from tara.protocol.limits import Limits

#: Controllers count ticks; a tick is this long on their clock.
CONTROLLER_TICK_MS = 1_000.0


class StreamingConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    #: Where the query keeps everything: Spark's checkpoint, and the feedback queue.
    checkpoint: str
    #: Simultaneous crashes per stage that the protocol survives.
    f: int = 1
    #: Tasks per operator. There are at most 2f+1 nodes with much to do in one.
    tasks: int = 2
    #: Commands in one request, at most, and their bytes.
    request_commands_max: int = 8_192
    request_bytes_max: int = 1 << 20
    #: A command's payload that is longer fails.
    command_bytes_max: int = 1 << 20
    #: Clients that are remembered; commands of any further client are refused.
    clients_max: int = 100_000
    #: Commands of a client that may wait for one with a lower number.
    early_max: int = 10_000
    #: Of so many commands of each client it is remembered what they were, to tell a repetition from a contradiction.
    remembered: int = 32
    #: Bytes of commands that a request source takes from one micro-batch, that it has on their way, and that wait there
    #: while nothing is decided. With more, the query fails; it goes on from its checkpoint when this is raised.
    waiting_bytes_max: int = 256 << 20
    #: A controller takes the proposer for dead after so many ticks (micro-batches) without progress.
    timeout_ticks: int = 4
    #: How often time passes in a query that has nothing to do. While it has, every micro-batch is a tick.
    idle_tick_ms: int = 1_000
    #: A fault switch for drills and tests: node label → the ticks [first, last] in which it hears and says nothing.
    silenced: dict[str, tuple[int, int]] = {}

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, int) and value <= 0 and name not in ("f", "remembered"):
                raise ConfigurationError(f"{name} = {value}: must be positive")
        if not 0 <= self.f <= 10:
            raise ConfigurationError(f"f = {self.f}: must be between 0 and 10")
        if self.remembered < 0:
            raise ConfigurationError(f"remembered = {self.remembered}: must not be negative")
        if not self.checkpoint:
            raise ConfigurationError("checkpoint: must name a directory")
        graph = self.graph
        # Front ends would lose the commands that they miss; the other sinks are played by the query's sink.
        labels = {
            graph.label(number)
            for number, name in enumerate(graph.names)
            if name.stage is not Stage.REQUEST_SOURCE and not name.stage.endswith("_sink")
        }
        for label in self.silenced:
            if label not in labels:
                raise ConfigurationError(f"silenced: {label} is none of {', '.join(sorted(labels))}")

    @property
    def graph(self) -> Graph:
        return Graph(self.f, partitions=1)

    @property
    def limits(self) -> Limits:
        """Every request is a checkpoint: the state is written once per micro-batch in any case, and the nodes keep
        the requests of the last micro-batches only. A tick is a report, whatever the time."""
        command_bytes = 2 * self.request_bytes_max + 2 * self.command_bytes_max
        return Limits(
            f=self.f,
            partitions=1,
            window=4_096,
            checkpoint_interval=1,
            source_pending_max=1_024,
            source_backlog_max=1_024,
            # All that a micro-batch brings is decided in it, so that nothing piles up: Spark takes no more input before
            # its end, and so its length is what holds back a source that is too fast.
            source_pending_bytes_max=self.waiting_bytes_max,
            batch_size=1,
            command_bytes_max=command_bytes,
            result_bytes_max=1 << 30,
            run_bytes_max=1 << 20,
            frame_bytes_max=4 * (command_bytes + (1 << 20)),
            session_pipeline_max=1 << 20,
            # What waits is bounded by `waiting_bytes_max`; a front end sends nothing again.
            session_bytes_max=1 << 40,
            principal_bytes_max=1 << 40,
            sessions_bytes_max=1 << 40,
            keepalive_interval_ms=1e12,
            report_interval_ms=0.5,
            resend_rounds=4,
            controller_timeout_ms=self.timeout_ticks * CONTROLLER_TICK_MS,
            controller_timeout_ms_max=16 * self.timeout_ticks * CONTROLLER_TICK_MS,
        )
