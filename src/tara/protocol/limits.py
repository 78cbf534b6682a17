"""Every bound and every time-out, in one place, validated together.

Reaching a bound slows the sender down or gives a clear error; nothing grows without one. Times are milliseconds.
"""

import itertools
import math

from msgspec import Struct

from tara.protocol.errors import ConfigurationError


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    #: Simultaneous crashes per stage that the service survives.
    f: int = 1
    #: Consensus pipelines that are merged into one order.
    partitions: int = 1

    #: Slots per partition that may be open at once: proposed, but not in a stable checkpoint yet.
    window: int = 65_536
    #: Slots, over all partitions, between two checkpoints. (This one can be divided by every number up to 10.)
    checkpoint_interval: int = 15_120
    #: Bytes of requests, per partition, between two checkpoints: then the slots up to the next one are skipped. This is
    #: what bounds windows, journals and the records of a view change when requests are large. The same holds for what
    #: the log gets, requests with their results, for each partition so much: a segment of it is read as a whole.
    checkpoint_bytes_max: int = 32 << 20
    #: A base is taken when the log since the last one is as long as the base, but at least this long; or when this time
    #: has passed.
    base_bytes_min: int = 16 << 20
    base_interval_ms: int = 3_600_000
    #: Requests of one source that may be undecided at once; then the source takes no further commands.
    source_pending_max: int = 16_384
    #: Commands that wait in a source while it may not number more; beyond this the client is made to wait.
    source_backlog_max: int = 16_384
    #: Bytes of undecided requests at which a source numbers no more: a new view's proposer is sent them all at once.
    source_pending_bytes_max: int = 8 << 20
    #: Bytes of waiting commands at which it takes no more.
    source_backlog_bytes_max: int = 64 << 20

    #: Reads of one executor that may wait for the committers' answers; one that is pushed out is ordered instead.
    reads_max: int = 4_096
    #: Bytes of the requests in them.
    reads_bytes_max: int = 16 << 20

    #: Commands in one request, if they are not longer than `run_bytes_max` together.
    batch_size: int = 1
    #: How long a request source waits for a batch to fill.
    batch_delay_ms: float = 0.0

    #: Requests per second that a proposer may propose for the first time; 0: as many as it can.
    proposer_rate_max: float = 0.0

    command_bytes_max: int = 1 << 20
    result_bytes_max: int = 1 << 20
    #: Bytes of requests in one tuple (a single request may be larger), and requests in one tuple.
    run_bytes_max: int = 1 << 20
    run_length_max: int = 1024
    #: A frame that is larger is refused.
    frame_bytes_max: int = 16 << 20
    #: Bytes of requests, votes and results that may wait for one container; the rest is dropped, and sent again.
    link_bytes_max: int = 64 << 20

    sessions_max: int = 100_000
    #: Sessions of one principal: of all clients that have the same key, or the same secret.
    principal_sessions_max: int = 10_000
    #: Bytes of results that one session has not acknowledged (one result may be beyond it), and as many of its commands
    #: that wait for one with a lower number. The same for all sessions of a principal, and for all sessions.
    session_bytes_max: int = 16 << 20
    principal_bytes_max: int = 64 << 20
    sessions_bytes_max: int = 256 << 20
    #: Commands of one session that may be without an acknowledged result.
    session_pipeline_max: int = 1024
    session_timeout_ms_min: int = 1_000
    session_timeout_ms_max: int = 3_600_000
    #: The most that one request can let the session clock advance: a stall does not expire sessions.
    session_clock_step_ms_max: int = 500
    #: How often an otherwise silent request source lets the agreed time pass while sessions are open.
    keepalive_interval_ms: float = 500.0

    #: How often positions, progress and thresholds are reported.
    report_interval_ms: float = 50.0
    #: Report rounds without movement before a gap is re-sent.
    resend_rounds: int = 2
    #: Slots re-sent at once, and bytes of requests in them (a single one may be larger).
    resend_burst: int = 4096
    resend_bytes_max: int = 4 << 20
    #: How long a partition without requests lags behind the others before it skips.
    skip_delay_ms: float = 5.0
    #: How long the oldest open request may make no progress before a controller asks for a new view.
    controller_timeout_ms: float = 250.0
    #: The time-out doubles with each fruitless view change, up to this.
    controller_timeout_ms_max: float = 8_000.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            _require(math.isfinite(value), name, value, "must be a finite number")
            if name in ("f", "batch_delay_ms", "skip_delay_ms", "proposer_rate_max"):
                _require(value >= 0, name, value, "must not be negative")
            else:
                _require(value > 0, name, value, "must be positive")
        _require(self.f <= 10, "f", self.f, "must be at most 10")
        _require(self.partitions <= 64, "partitions", self.partitions, "must be at most 64")
        interval, partitions = self.checkpoint_interval, self.partitions
        _require(
            interval % partitions == 0,
            "checkpoint_interval",
            interval,
            f"must be divisible by partitions ({partitions})",
        )
        _require(
            self.window >= 2 * interval // partitions,
            "window",
            self.window,
            f"must be at least 2 · checkpoint_interval / partitions ({2 * interval // partitions}): "
            "otherwise it fills before the checkpoint that empties it is stable",
        )
        _require(
            self.controller_timeout_ms >= 3 * self.report_interval_ms,
            "controller_timeout_ms",
            self.controller_timeout_ms,
            f"must be at least 3 · report_interval_ms ({3 * self.report_interval_ms})",
        )
        _require(
            self.controller_timeout_ms_max >= self.controller_timeout_ms,
            "controller_timeout_ms_max",
            self.controller_timeout_ms_max,
            f"must be at least controller_timeout_ms ({self.controller_timeout_ms})",
        )
        _require(
            self.session_timeout_ms_max >= self.session_timeout_ms_min,
            "session_timeout_ms_max",
            self.session_timeout_ms_max,
            f"must be at least session_timeout_ms_min ({self.session_timeout_ms_min})",
        )
        _require(
            2 * self.session_clock_step_ms_max <= self.session_timeout_ms_min,
            "session_clock_step_ms_max",
            self.session_clock_step_ms_max,
            f"must be at most half of session_timeout_ms_min ({self.session_timeout_ms_min}): "
            "otherwise one request after a stall could expire a session",
        )
        kept = ("session_bytes_max", "principal_bytes_max", "sessions_bytes_max")
        for smaller, larger in itertools.pairwise(kept):
            _require(
                getattr(self, smaller) <= getattr(self, larger),
                smaller,
                getattr(self, smaller),
                f"must be at most {larger} ({getattr(self, larger)})",
            )
        _require(
            self.link_bytes_max >= self.frame_bytes_max,
            "link_bytes_max",
            self.link_bytes_max,
            f"must be at least frame_bytes_max ({self.frame_bytes_max}): otherwise the longest tuple never leaves",
        )
        _require(
            self.frame_bytes_max >= 4 * (self.command_bytes_max + self.run_bytes_max),
            "frame_bytes_max",
            self.frame_bytes_max,
            "must be at least 4 · (command_bytes_max + run_bytes_max)",
        )

    @property
    def quorum(self) -> int:
        """Enough of 2f+1 replicas that any two such groups share one."""
        return self.f + 1

    @property
    def replicas(self) -> int:
        return 2 * self.f + 1

    @property
    def checkpoint_slots(self) -> int:
        """Slots of one partition between two checkpoints."""
        return self.checkpoint_interval // self.partitions


def _require(condition: bool, setting: str, value: float, rule: str) -> None:
    if not condition:
        raise ConfigurationError(f"{setting} = {value}: {rule}")
