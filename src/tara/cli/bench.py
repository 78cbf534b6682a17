"""`tara bench`: performance. What only the evaluation needs is in `tara.cli.evaluation`."""

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tara.cli import evaluation
from tara.cli.output import print_json
from tara.command_options import Faults, Json, Partitions

if TYPE_CHECKING:
    from tara.bench.live_speed import LiveReport
    from tara.bench.state import StateReport

commands = typer.Typer(name="bench", help="Measure performance.", no_args_is_help=True)
commands.add_typer(evaluation.commands)


@commands.command("load")
def bench_load(
    clients: Annotated[int, typer.Option(help="Closed-loop sessions.", min=1)] = 64,
    in_flight: Annotated[int, typer.Option(help="Commands that each has on its way at once.", min=1)] = 1,
    seconds: Annotated[float, typer.Option(help="Measured seconds.", min=1.0)] = 10.0,
    payload: Annotated[int, typer.Option(help="Bytes of a written value.", min=8)] = 64,
    reads: Annotated[float, typer.Option(help="Share of reads.", min=0.0, max=1.0)] = 0.0,
    durability: Annotated[str, typer.Option(help="disk or memory.")] = "disk",
    packing: Annotated[str, typer.Option(help="site or node.")] = "site",
    batch: Annotated[int, typer.Option(help="Commands per request.", min=1)] = 1,
    f: Faults = 1,
    partitions: Partitions = 1,
    target: Annotated[int | None, typer.Option(help="Send everything to this front end.")] = None,
    endpoints: Annotated[str | None, typer.Option(help="A running cluster; by default one is started.")] = None,
    keys: Annotated[bool, typer.Option("--keys", help="With keys, which are made for the occasion.")] = False,
    key_dir: Annotated[str | None, typer.Option(help="The keys of the cluster that runs already.")] = None,
    log_decided: Annotated[bool | None, typer.Option("--log/--no-log", help="Keep the decided log.")] = None,
    as_json: Json = False,
) -> None:
    """Closed-loop load on a key-value cluster on Spark.

    Example: tara bench load --clients 64 --durability memory --keys
    Example: tara bench load --clients 64 --in-flight 4 --payload 1000000
    """
    from tara.bench.live_speed import measure
    from tara.bench.load_process import LoadPlan
    from tara.configuration.settings import load_settings

    if endpoints is None and key_dir is not None:
        raise typer.BadParameter("is for a cluster that runs already (--endpoints)", param_hint="--key-dir")
    if in_flight > 1 and (reads or target is not None):
        raise typer.BadParameter("clients that pipeline only write, wherever they like", param_hint="--in-flight")
    plan = LoadPlan(
        endpoints=endpoints or "",
        clients=clients,
        in_flight=in_flight,
        seconds=seconds,
        payload_bytes=payload,
        reads=reads,
        target=target,
        keys=key_dir,
    )
    flags: dict[str, object] = {"durability": durability, "packing": packing, "batch_size": batch, "f": f}
    flags |= {"partitions": partitions, "log": log_decided}
    report = measure(load_settings(environment={}, flags=flags), plan, keys)
    _print_load(report, as_json)
    if report.lost or report.duplicated or report.errors:
        raise typer.Exit(1)


def _print_load(report: "LiveReport", as_json: bool) -> None:
    if as_json:
        print_json(report)
        return
    typer.echo(
        f"{report.throughput_per_s:.0f} commands/s with {report.clients} clients, p50 {report.latency_ms_p50} ms, "
        f"p99 {report.latency_ms_p99} ms, p99.9 {report.latency_ms_p999} ms, {report.lost} lost, "
        f"{report.duplicated} twice; CPU cores: client {report.cpu_client}, servers {report.cpu_server}"
    )


@commands.command("protocol")
def bench_protocol(
    requests: Annotated[int, typer.Option(help="Requests to run.", min=1)] = 100_000,
    clients: Annotated[int, typer.Option(help="Closed-loop clients.", min=1)] = 64,
    payload: Annotated[int, typer.Option(help="Bytes of a written value.", min=0)] = 64,
    f: Faults = 1,
    partitions: Partitions = 1,
    batch: Annotated[int, typer.Option(help="Commands per request.", min=1)] = 1,
    as_json: Json = False,
) -> None:
    """Speed of the pure code: all nodes of all sites in one process, no sockets, no files.

    Example: tara bench protocol --clients 64
    """
    from tara.bench.protocol_speed import measure
    from tara.protocol.limits import Limits

    limits = Limits(f=f, partitions=partitions, batch_size=batch)
    report = measure(requests, clients, payload, limits)
    if as_json:
        print_json(report)
    else:
        typer.echo(
            f"{report.requests_per_s:.0f} requests/s with {clients} clients: {report.microseconds_per_request:.1f} µs "
            f"per request for all {2 * f + 1} sites on one core, {report.checkpoints} checkpoints"
        )


@commands.command("stream")
def bench_stream(
    seconds: Annotated[float, typer.Option(help="How long to measure, after warming up.", min=1.0)] = 60.0,
    batch: Annotated[int, typer.Option(help="Commands in a micro-batch.", min=1)] = 40_000,
    master: Annotated[str, typer.Option(help="Spark master.")] = "local[2,4]",
    warm_up: Annotated[float, typer.Option(help="Seconds before the measurement.", min=0.0)] = 60.0,
    compressible: Annotated[bool, typer.Option(help="Whether the commands can be compressed.")] = True,
    state_mb: Annotated[int, typer.Option(help="What the application holds from the beginning.", min=0)] = 0,
    as_json: Json = False,
) -> None:
    """Measure the streaming runtime: 64-byte commands from a streaming DataFrame, results in files.

    Example: tara bench stream --seconds 60 --json
    """
    from tara.bench.stream_speed import measure

    tell = partial(typer.echo, err=True)
    report = measure(seconds, batch, master, warm_up, tell, compressible, state_mb)
    if as_json:
        print_json(report)
    else:
        typer.echo(
            f"{report.throughput_per_s:.0f} commands/s, batch p50 {report.batch_ms_p50:.0f} ms, latency p50 "
            f"{report.latency_ms_p50:.0f} ms, state {report.state_bytes} bytes, {report.wrong} wrong"
        )
    if report.wrong:
        raise typer.Exit(1)


@commands.command("state")
def bench_state(
    values: Annotated[int, typer.Option(help="Values in the state.", min=100)] = 100_000,
    value_bytes: Annotated[int, typer.Option(help="Bytes of each.", min=8)] = 1_000,
    seconds: Annotated[float, typer.Option(help="Measured seconds in each turn, at least.", min=2.0)] = 15.0,
    turns: Annotated[int, typer.Option(help="Turns of the full cluster, each between two of the other.", min=1)] = 2,
    as_json: Json = False,
) -> None:
    """What a large state costs: a cluster on Spark with many values, in turns with one that has none.

    Throughput, latency and the longest pause while bases are taken, what is written to disk, memory, and how long sites
    need to come back: one that was killed, and one whose files are gone. Exit status 1 if anything was lost.

    Example: tara bench state --values 100000 --value-bytes 1000 --json
    """
    from tara.bench.state import measure

    report = measure(values, value_bytes, seconds, turns, lambda line: typer.echo(line, err=True))
    if as_json:
        print_json(report)
    else:
        _print_state(report)
    if not report.all_is_there:
        raise typer.Exit(1)


def _print_state(report: "StateReport") -> None:
    typer.echo(
        f"{report.values} values of {report.value_bytes} bytes, a base of {report.state_bytes / 1e6:.1f} MB: against "
        f"an empty state {report.throughput_ratio:.2f} of the throughput and {report.p99_ratio:.2f} times the p99, "
        f"while bases are taken"
    )
    typer.echo(
        f"longest pause {report.pause_ms_max:.0f} ms, {report.view_changes} view changes; "
        f"{report.written_per_command_byte} bytes written at a site per byte of commands; memory "
        f"{report.capture_memory_ratio:.2f} times as much while a base is taken"
    )
    typer.echo(
        f"a site is back {report.recovery_s} s after it was killed, {report.transfer_s} s without its files, with "
        f"{report.recovery_p99_ratio} and {report.transfer_p99_ratio} times the p99 meanwhile"
    )
    typer.echo(
        f"{report.lost} lost, {report.errors} errors, {report.missing} values missing, replicas "
        f"{'differ' if report.unequal else 'equal'}"
    )
