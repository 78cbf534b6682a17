"""The metrics endpoint: what the containers report, in Prometheus' text format, over HTTP on a thread of its own.

A container that restarts begins to count at 0 again; Prometheus' `rate` knows how to deal with that.
"""

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate
from typing import Any, NamedTuple

from tara.host.latency import BOUNDS_S
from tara.live.observability.supervised import supervised
from tara.protocol.errors import ConfigurationError

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: A reader that does not take its answer in this time is given up.
READER_TIMEOUT_S = 5.0
READERS_MAX = 8


class Sample(NamedTuple):
    labels: Mapping[str, object]
    value: float


class Metric(NamedTuple):
    name: str
    kind: str
    help: str
    samples: list[Sample]


#: Counters of a container: the name in the heartbeat, the name outside, and what it counts.
COUNTERS = (
    ("frames_in", "tara_frames_received_total", "Frames received from other containers."),
    ("frames_out", "tara_frames_sent_total", "Frames sent to other containers."),
    ("frames_bad", "tara_frames_bad_total", "Frames of peers or clients that could not be decoded, and were dropped."),
    (
        "frames_foreign",
        "tara_frames_foreign_total",
        "Frames of another cluster, era, shape or of a past life, dropped.",
    ),
    ("frames_dropped", "tara_frames_dropped_total", "Frames not sent: no connection, or the peer's queue was full."),
    ("asks_bad", "tara_asks_bad_total", "Requests for files or the decided log that were none, and were dropped."),
    ("tuples_in", "tara_tuples_received_total", "Tuples taken from the frames of peers."),
    (
        "tuples_out",
        "tara_tuples_sent_total",
        "Tuples sent to other containers; one to several nodes there counts once.",
    ),
    ("requests", "tara_client_requests_total", "Frames received from clients."),
    ("commands", "tara_commands_total", "Commands received from clients."),
    ("results", "tara_results_total", "Results sent to clients."),
    ("overloaded", "tara_commands_overloaded_total", "Commands refused because their request source was full."),
    ("too_large", "tara_commands_too_large_total", "Commands refused because they were too long."),
    ("connections_refused", "tara_connections_refused_total", "Connections that did not come about: keys, handshakes."),
    ("journal_entries", "tara_journal_entries_total", "Entries that nodes persisted."),
    ("journal_syncs", "tara_journal_syncs_total", "Syncs of the journal."),
    ("journals_set_aside", "tara_journals_set_aside_total", "Damaged journals that were set aside."),
    ("journals_repaired", "tara_journals_repaired_total", "Damaged journals that were repaired."),
    ("bases_saved", "tara_bases_saved_total", "Bases written."),
    ("bases_loaded", "tara_bases_loaded_total", "Bases loaded."),
    ("bases_refused", "tara_bases_refused_total", "Copies of bases that could not be used."),
    ("bases_given_up", "tara_bases_given_up_total", "Bases that could not be taken or written."),
    ("store_errors", "tara_store_errors_total", "Calls of the disk that failed, for bases."),
    ("log_errors", "tara_log_errors_total", "Lines of the log that could not be written."),
    ("turns", "tara_turns_total", "Turns of the container's loop."),
)
HISTOGRAMS = (
    ("latency", "tara_latency_seconds", "Time from a command's arrival at the front end to its result; sampled."),
    ("journal_sync", "tara_journal_sync_seconds", "Time of a write and sync of the journal."),
)
#: Of one node: the name in the heartbeat, the name outside, the kind, and what it is.
NODE_VALUES = (
    ("view", "tara_node_view", "gauge", "The view the node is in, or publishes."),
    ("position", "tara_node_position", "gauge", "The next slot, request or execution number of the node."),
    ("stable", "tara_node_stable", "gauge", "What the node knows to be stable: a checkpoint's number, or a slot."),
    ("pending", "tara_source_pending", "gauge", "Requests of a request source that are not known to be decided."),
    ("backlog", "tara_source_backlog", "gauge", "Commands that wait in a request source."),
    ("backlog_bytes", "tara_source_backlog_bytes", "gauge", "Bytes of commands that wait in a request source."),
    ("resent", "tara_resends_total", "counter", "Requests, slots and records that the node sent again."),
    ("views_entered", "tara_view_changes_total", "counter", "Views that a committer has entered."),
)


def render(status: dict[str, Any]) -> str:
    """The text for what `tara status --json` shows."""
    lines: list[str] = []
    for metric in metrics_of(status):
        lines.append(f"# HELP {metric.name} {_escaped_help(metric.help)}")
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        for sample in metric.samples:
            lines.append(f"{metric.name}{_labels(sample.labels)} {_number(sample.value)}")
    for key, name, help_ in HISTOGRAMS:
        lines.extend(_histogram(status, key, name, help_))
    return "\n".join(lines) + "\n"


def metrics_of(status: dict[str, Any]) -> Iterator[Metric]:
    containers = status["containers"]
    # What a silent container said last may be wrong by now: that it leads, for instance.
    reporting = [container for container in containers if container["up"]]

    def each(value: Callable[[dict[str, Any]], float], some: list[dict[str, Any]] = reporting) -> list[Sample]:
        return [Sample({"container": container["container"]}, value(container)) for container in some]

    info = {key: status[key] for key in ("cluster", "era", "f", "partitions", "packing", "durability", "app")}
    yield Metric("tara_cluster_info", "gauge", "Always 1; the labels say which cluster this is.", [Sample(info, 1)])
    yield Metric(
        "tara_up", "gauge", "Whether the container has been heard of lately.", each(lambda c: c["up"], containers)
    )
    yield Metric(
        "tara_driver_log_errors_total",
        "counter",
        "Lines that the driver could not write to its log, or show on its stderr.",
        [Sample({}, status["log_errors"])],
    )
    yield Metric("tara_life", "gauge", "The number of the container's start.", each(lambda c: c["life"], containers))
    yield Metric(
        "tara_restarts_total", "counter", "Restarts since the driver began.", each(lambda c: c["restarts"], containers)
    )
    for key, name, help_ in COUNTERS:
        yield Metric(name, "counter", help_, each(lambda c, key=key: c["counters"][key]))  # type: ignore[misc]
    yield Metric(
        "tara_halted_nodes",
        "gauge",
        "Nodes that have halted.",
        each(_halted),
    )
    yield Metric(
        "tara_resident_memory_bytes", "gauge", "Memory of the process.", each(lambda c: c["process"]["rss_bytes"])
    )
    yield Metric("tara_cpu_seconds_total", "counter", "CPU time of the process.", each(lambda c: c["process"]["cpu_s"]))
    executors = [container for container in reporting if "executor" in container]
    yield Metric(
        "tara_commands_executed",
        "gauge",
        "The command counter of the executor; part of the replicated state.",
        each(lambda c: c["executor"]["counter"], executors),
    )
    yield Metric("tara_sessions", "gauge", "Open sessions.", each(lambda c: c["executor"]["sessions"], executors))
    yield Metric(
        "tara_stable_checkpoint",
        "gauge",
        "The stability threshold: the newest checkpoint that f+1 executors hold.",
        each(lambda c: c["executor"]["stable"], executors),
    )
    yield from _node_metrics(reporting)


def _halted(container: dict[str, Any]) -> int:
    return len(container["counters"]["halted"])


def _node_metrics(containers: list[dict[str, Any]]) -> Iterator[Metric]:
    nodes = [
        ({"container": container["container"], "node": label, "partition": partition_of(label)}, node)
        for container in containers
        for label, node in sorted(container["nodes"].items())
    ]
    for key, name, kind, help_ in NODE_VALUES:
        yield Metric(name, kind, help_, [Sample(labels, node[key]) for labels, node in nodes if key in node])
    active = [
        Sample(labels, node["state"] == "active") for labels, node in nodes if labels["node"].startswith("proposer-")
    ]
    yield Metric("tara_proposer_active", "gauge", "Whether the proposer is the active one of its view.", active)
    recovering = [
        Sample(labels, node["state"] == "recovering")
        for labels, node in nodes
        if labels["node"].startswith("committer-")
    ]
    yield Metric("tara_committer_recovering", "gauge", "Whether the committer is without its journal.", recovering)


def partition_of(label: str) -> int:
    """Of a node's label, such as `committer-p1-0`; 0 where partitions do not show."""
    middle = label.split("-")[1]
    return int(middle[1:]) if middle.startswith("p") else 0


def _histogram(status: dict[str, Any], key: str, name: str, help_: str) -> Iterator[str]:
    yield f"# HELP {name} {_escaped_help(help_)}"
    yield f"# TYPE {name} histogram"
    for container in status["containers"]:
        if not container["up"]:
            continue
        found = container["histograms"][key]
        sums = list(accumulate(found["counts"]))
        for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), sums, strict=True):
            yield f"{name}_bucket{_labels({'container': container['container'], 'le': bound})} {count}"
        labels = _labels({"container": container["container"]})
        yield f"{name}_sum{labels} {_number(found['sum_s'])}"
        yield f"{name}_count{labels} {sums[-1]}"


def _labels(labels: Mapping[str, object]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{key}="{_escaped(str(value))}"' for key, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _escaped_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if isinstance(value, bool) else repr(value)


class _Server(ThreadingHTTPServer):
    """A thread per reader, of which there are not more than `READERS_MAX`: others are turned away."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], render: Callable[[], str], on_error: Callable[[str], None]) -> None:
        self.render = render
        self._on_error = on_error
        self._slots = threading.BoundedSemaphore(READERS_MAX)
        #: Until when each reader may take its time.
        self._deadlines_s: dict[Any, float] = {}
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._slots.acquire(blocking=False):
            self._deadlines_s[request] = time.monotonic() + READER_TIMEOUT_S
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            del self._deadlines_s[request]
            self._slots.release()

    def service_actions(self) -> None:
        """Called about twice a second. A reader that sends a byte now and then never times out by itself."""
        now_s = time.monotonic()
        for request, deadline_s in list(self._deadlines_s.items()):
            if now_s > deadline_s:
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        self._on_error(repr(sys.exception()))


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = READER_TIMEOUT_S

    def do_GET(self) -> None:
        if self.path.split("?")[0] != "/metrics":
            self.send_error(404, "the metrics are at /metrics")
            return
        body = self.server.render().encode()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """A scrape is not an event."""


class MetricsServer:
    def __init__(
        self,
        host: str,
        port: int,
        render: Callable[[], str],
        on_error: Callable[[str], None],
        on_end: Callable[[str, BaseException | None], None],
    ) -> None:
        """`on_end` is told, on the server's thread, when that ends without having been stopped."""
        self._stopping = False
        try:
            self._server = _Server((host, port), render, on_error)
        except OSError as error:
            raise ConfigurationError(
                f"metrics_port = {port}: cannot be bound on {host}: {error.strerror} (0 takes any free port)"
            ) from error
        self.address = f"http://{host}:{self._server.server_address[1]}/metrics"
        run = supervised("metrics", self._server.serve_forever, lambda: self._stopping, on_end)
        self._thread = threading.Thread(target=run, name="metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)
