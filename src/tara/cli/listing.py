"""The tables of `tara status`, `tara nodes` and `tara config check`: from what the registry says to what one reads."""

from typing import Any

import msgspec
from msgspec import Struct
from rich.console import Console, RenderableType
from rich.table import Table

from tara.configuration.settings import Setting, Settings, known_settings
from tara.protocol.graph import Graph
from tara.protocol.principals import describe
from tara.protocol.tuples import SessionRow

#: A value that is not known.
NONE = "-"
#: Clocks differ a little.
TIME_AHEAD_MS_MAX = 60_000
#: Of tables that go to a file or to another program.
COLUMNS = 180


def show(*parts: RenderableType) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=COLUMNS)
    console.print(*parts, sep="\n")


class NodeRow(Struct, kw_only=True):
    node: str
    stage: str
    partition: int
    replica: int
    site: int
    container: str
    life: int
    up: bool
    state: str
    view: int | None = None
    position: int | None = None
    #: Everything else that the node says of itself.
    details: dict[str, Any] = {}


def session_table(rows: list[SessionRow]) -> Table:
    """The sessions of a cluster."""
    table = Table("session", "name", "owner", "age", "idle", "expires", "results", "waiting", box=None)
    for row in rows:
        table.add_row(
            str(row.id),
            row.name or NONE,
            describe(row.owner),
            _seconds(row.age_ms),
            _seconds(row.idle_ms),
            _seconds(max(row.timeout_ms - row.idle_ms, 0)) if row.timeout_ms else "never",
            f"{row.results} ({row.results_bytes} B)",
            f"{row.waiting} ({row.waiting_bytes} B)",
        )
    return table


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1e3:.0f} s"


class SettingRow(Struct):
    setting: str
    value: Any
    #: A file, an environment variable, a flag, or `default`.
    origin: str


def status_tables(status: dict[str, Any]) -> list[RenderableType]:
    """The cluster, its containers and its partitions."""
    recent = status["recent"]
    head = "\n".join(
        (
            f"cluster {status['cluster']}, era {status['era']}, f = {status['f']}, P = {status['partitions']}, "
            f"{status['durability']}, application {status['app']}",
            f"now: {recent['commands_per_s']:.0f} commands/s, {recent['results_per_s']:.0f} results/s, "
            f"latency p50 {_ms(recent['latency_ms_p50'])}, p99 {_ms(recent['latency_ms_p99'])}",
            f"metrics {status['metrics']}   Spark UI {status['spark_ui'] or NONE}",
        )
    )
    return [head, _containers(status["containers"]), _partitions(status), *_alarms(status)]


def _containers(containers: list[dict[str, Any]]) -> Table:
    table = Table(title="containers", title_justify="left")
    columns = ("container", "sites", "up", "pid", "life", "restarts", "endpoint")
    for column in (*columns, "commands/s", "p50", "p99", "executed", "stable", "memory"):
        table.add_column(column, justify="left" if column in ("container", "endpoint") else "right")
    for container in containers:
        recent, executor = container["recent"], container.get("executor", {})
        process = container.get("process")
        table.add_row(
            container["container"],
            ",".join(map(str, container["sites"])),
            "yes" if container["up"] else "NO",
            *(str(container[key]) for key in ("pid", "life", "restarts")),
            str(container["endpoint"] or NONE).removeprefix("tcp://"),
            f"{recent['commands_per_s']:.0f}",
            _ms(recent["latency_ms_p50"]),
            _ms(recent["latency_ms_p99"]),
            str(executor.get("counter", NONE)),
            str(executor.get("stable", NONE)),
            f"{process['rss_bytes'] / 2**20:.0f} MiB" if process else NONE,
        )
    return table


def _partitions(status: dict[str, Any]) -> Table:
    table = Table(title="partitions", title_justify="left")
    for column in ("partition", "view", "active proposer", "committers at", "pending", "waiting"):
        table.add_column(column, justify="right")
    for partition in range(status["partitions"]):
        here = [row for row in node_rows(status) if row.partition == partition and row.up]
        committers = [row for row in here if row.stage == "committer"]
        sources = [row for row in here if row.stage == "request_source"]
        active = [f"{row.node} ({row.container})" for row in here if row.stage == "proposer" and row.state == "active"]
        table.add_row(
            str(partition),
            str(max((row.view for row in committers if row.view is not None), default=NONE)),
            ", ".join(active) or "none",
            " ".join(f"{row.position}{'' if row.state == 'voting' else f' ({row.state})'}" for row in committers),
            str(sum(row.details.get("pending", 0) for row in sources)),
            str(sum(row.details.get("backlog", 0) for row in sources)),
        )
    return table


def _alarms(status: dict[str, Any]) -> list[str]:
    found = [f"ENDED in the driver: {reason}" for reason in status["threads_ended"]]
    if status["log_errors"]:
        found.append(f"LOG the driver could not write or show {status['log_errors']} lines: is a disk full?")
    for container in status["containers"]:
        log_errors = container.get("counters", {}).get("log_errors", 0)
        if log_errors:
            found.append(f"LOG {container['container']} could not write {log_errors} lines: is a disk full?")
        ahead_ms = container.get("executor", {}).get("time_ahead_ms", 0)
        if ahead_ms > TIME_AHEAD_MS_MAX:
            found.append(
                f"TIME the agreed time is {ahead_ms / 1e3:.0f} s ahead of the clock of {container['container']}: "
                "a clock was wrong, and it stands still until the clocks have caught up"
            )
        for node, reason in container.get("counters", {}).get("halted", {}).items():
            found.append(f"HALTED {node} in {container['container']}: {reason}")
    return found


def node_rows(status: dict[str, Any]) -> list[NodeRow]:
    graph = Graph(status["f"], status["partitions"])
    rows = []
    for container in status["containers"]:
        reports = container.get("nodes", {})
        for label in container["hosted"]:
            rows.append(_node_row(graph, label, container, dict(reports.get(label, {}))))
    order = {graph.label(number): number for number in range(len(graph.names))}
    return sorted(rows, key=lambda row: order[row.node])


def _node_row(graph: Graph, label: str, container: dict[str, Any], report: dict[str, Any]) -> NodeRow:
    name = next(name for number, name in enumerate(graph.names) if graph.label(number) == label)
    return NodeRow(
        node=label,
        stage=name.stage.value,
        partition=name.partition,
        replica=name.replica,
        site=graph.site(name),
        container=container["container"],
        life=container["life"],
        up=container["up"],
        state=report.pop("state", "unknown") if container["up"] else "down",
        view=report.pop("view", None),
        position=report.pop("position", None),
        details=report,
    )


def node_table(rows: list[NodeRow]) -> Table:
    table = Table()
    for column in ("node", "partition", "replica", "site", "container", "life", "state", "view", "position", "more"):
        table.add_column(column, justify="right" if column in ("view", "position", "life") else "left")
    for row in rows:
        table.add_row(
            row.node,
            *map(str, (row.partition, row.replica, row.site, row.container, row.life, row.state)),
            NONE if row.view is None else str(row.view),
            NONE if row.position is None else str(row.position),
            ", ".join(f"{key} {value}" for key, value in row.details.items()),
        )
    return table


def setting_rows(settings: Settings, given: dict[str, Setting]) -> list[SettingRow]:
    effective = msgspec.to_builtins(settings)
    effective |= effective.pop("limits")
    return [
        SettingRow(key, effective[key], given[key].origin if key in given else "default") for key in known_settings()
    ]


def setting_table(rows: list[SettingRow]) -> Table:
    table = Table()
    for column in ("setting", "value", "origin"):
        table.add_column(column)
    for row in rows:
        table.add_row(row.setting, str(row.value), row.origin)
    return table


def _ms(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f} ms"
