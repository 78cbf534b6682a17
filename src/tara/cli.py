"""The command line, ``tara``."""

import json
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

import tara
from tara.coordination.command_line import zk_app

if TYPE_CHECKING:
    from tara.client import KeyValueClient
    from tara.configuration.settings import Settings
    from tara.runtime.spark import Cluster
    from tara.simulator.campaign import Summary
    from tara.simulator.plan import Plan

app = typer.Typer(
    name="tara",
    help="Crash-tolerant state-machine replication as a stream-processing graph.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Commands and groups below inherit this.
    context_settings={"help_option_names": ["-h", "--help"]},
)

sim_app = typer.Typer(help="Run the protocol in the deterministic simulator.", no_args_is_help=True)
app.add_typer(sim_app, name="sim")

config_app = typer.Typer(help="Look at settings.", no_args_is_help=True)
app.add_typer(config_app, name="config")

bench_app = typer.Typer(help="Measure performance.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")

app.add_typer(zk_app, name="zk")


@app.command("version")
def show_version(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
) -> None:
    """Print the version."""
    if as_json:
        typer.echo(json.dumps({"version": tara.__version__, "python": platform.python_version()}))
    else:
        typer.echo(f"tara {tara.__version__}")


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, on the last line.")]
Faults = Annotated[int, typer.Option("--f", help="Crashes per stage that are survived.", min=0, max=3)]
Partitions = Annotated[int, typer.Option(help="Consensus pipelines that are merged into one order.", min=1, max=8)]
CORES = os.cpu_count() or 1
Jobs = Annotated[int, typer.Option(help="Processes.", min=1)]


def _look_here() -> None:
    """An application is looked for where the command is given, too, by this process and by those that it starts."""
    sys.path.insert(0, str(Path.cwd()))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])])


def _print_json(value: object) -> None:
    typer.echo(msgspec.json.encode(value).decode())


@app.command("demo")
def demo(
    seconds: Annotated[float, typer.Option(help="How long the load runs.", min=5.0)] = 20.0,
    as_json: Json = False,
) -> None:
    """A guided tour: a cluster on local Spark, load, two killed leaders, recovery, and the proof that nothing was lost.

    Example: tara demo
    """
    from tara.demo import run

    report = run(typer.echo, seconds)
    if as_json:
        _print_json(report)
    else:
        typer.echo(
            f"{report.throughput_per_s:.0f} commands/s, p50 {report.latency_ms_p50:.1f} ms, p99 "
            f"{report.latency_ms_p99:.1f} ms, longest gap {report.gap_ms_max:.0f} ms, {report.restarts} restarts, "
            f"{report.lost} lost, {report.duplicated} executed twice, linearizable: {report.linearizable}, "
            f"replicas equal: {report.replicas_equal}"
        )
    if not report.passed:
        raise typer.Exit(1)


DataDir = Annotated[Path, typer.Option(help="Where the cluster keeps its journals and checkpoints.")]
Endpoints = Annotated[
    str | None,
    typer.Option(help="host:port,host:port; by default those of the data directory.", envvar="TARA_ENDPOINTS"),
]
Keys = Annotated[
    str | None,
    typer.Option(help="The directory with keys; by default that of the data directory.", envvar="TARA_KEYS"),
]
DATA_DIR = Path("tara-data")


@app.command("up")
def up(
    config: Annotated[Path | None, typer.Option(help="A TOML file with settings.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where the cluster keeps its state.")] = None,
    master: Annotated[str | None, typer.Option(help="Spark master; by default Spark runs in this process.")] = None,
    app_name: Annotated[str | None, typer.Option("--app", help="key-value, coordination, or module:Class.")] = None,
    f: Annotated[int | None, typer.Option("--f", help="Crashes per stage that are survived.")] = None,
    partitions: Annotated[int | None, typer.Option(help="Consensus pipelines.")] = None,
    durability: Annotated[str | None, typer.Option(help="disk or memory.")] = None,
    packing: Annotated[str | None, typer.Option(help="site or node.")] = None,
    log_decided: Annotated[
        bool | None, typer.Option("--log/--no-log", help="Keep the decided commands, for `tara log` and Spark.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Of the first front end; by default free ones.")] = None,
    metrics_port: Annotated[int | None, typer.Option(help="Of the Prometheus endpoint; by default a free one.")] = None,
    gateway: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE: an option of the application's front end; may be repeated.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="The address to bind; beyond loopback only with --keys.")] = None,
    keys: Annotated[str | None, typer.Option(help="The directory with the cluster's keys.")] = None,
    found: Annotated[
        bool, typer.Option("--found", help="Begin a new cluster, also in a directory that is there already.")
    ] = False,
) -> None:
    """Start a cluster and serve until interrupted, or until `tara down`. One that is not there yet begins, in a new
    directory; in one that is there, only with --found: it may be where a disk is not mounted.

    Example: tara up --data-dir /var/lib/tara --f 1
    """
    from tara.configuration.settings import load_settings
    from tara.configuration.state import StateFile
    from tara.runtime.spark import Cluster

    flags = {
        "data_dir": None if data_dir is None else str(data_dir),
        "master": master,
        "app": app_name,
        "f": f,
        "partitions": partitions,
        "durability": durability,
        "packing": packing,
        "log": log_decided,
        "port": port,
        "metrics_port": metrics_port,
        "gateway": _options(gateway),
        "host": host,
        "keys": keys,
    }
    _look_here()
    settings = load_settings(config, flags=flags)
    _check_gateway(settings)
    StateFile(Path(settings.data_dir)).require_founding(found)
    _serve(Cluster(settings, sys.stderr))


@app.command("site")
def site(
    number: Annotated[int, typer.Option("--site", help="Which of the sites this is, from 0.", min=0)],
    config: Annotated[Path | None, typer.Option(help="A TOML file with settings; the same at every site.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where this site keeps its state.")] = None,
    found: Annotated[
        bool, typer.Option("--found", help="The cluster is new: found it, together with all the other sites.")
    ] = False,
    sites: Annotated[str | None, typer.Option(help="host:port,host:port of all sites, each with four ports.")] = None,
    master: Annotated[str | None, typer.Option(help="Spark master of this site.")] = None,
    keys: Annotated[str | None, typer.Option(help="The directory with the cluster's keys.")] = None,
    metrics_port: Annotated[int | None, typer.Option(help="Of the Prometheus endpoint; by default a free one.")] = None,
) -> None:
    """Run one site of a cluster whose sites each have a driver of their own, until interrupted or `tara down`.

    Example: tara site --site 0 --config cluster.toml --found
    """
    from tara.configuration.settings import load_settings
    from tara.named import application_of
    from tara.runtime.spark import Cluster
    from tara.runtime.spark_session import check_java
    from tara.sites.site import SiteRegistry

    flags = {
        "data_dir": None if data_dir is None else str(data_dir),
        "sites": sites,
        "master": master,
        "keys": keys,
        "metrics_port": metrics_port,
    }
    _look_here()
    settings = load_settings(config, flags=flags)
    # Before it says to others that it is there.
    _check_gateway(settings)
    check_java()
    application_of(settings.app)
    try:
        registry = SiteRegistry(settings, number, found, sys.stderr)
    except KeyboardInterrupt:
        raise typer.Exit(1) from None
    _serve(Cluster(settings, sys.stderr, registry))


def _check_gateway(settings: "Settings") -> None:
    if settings.app == "coordination":
        from tara.coordination.settings import check_exposure, gateway_settings
        from tara.transport.where import is_fixed

        options, host = gateway_settings(settings.gateway), settings.container_host or settings.host
        # One that only the container will know is checked there.
        if is_fixed(host):
            check_exposure(host, options)


def _serve(cluster: "Cluster") -> None:
    """Until it is interrupted, or told to go down."""
    from tara.net.allocator import give_memory_back
    from tara.runtime.start_phases import process_began_s

    give_memory_back()
    try:
        cluster.start(process_began_s())
        if cluster.settings.app == "coordination":
            cluster.await_gateways()
        _say(f"endpoints  {','.join(_plain(cluster.registry.endpoints))}")
        if cluster.registry.gateways:
            _say(f"ZooKeeper  {','.join(cluster.registry.gateways)}")
        _say(f"Spark UI   {cluster.ui}")
        _say(f"metrics    {cluster.registry.metrics_address}")
        cluster.wait()
    except KeyboardInterrupt:
        _say("going down", err=True)
    finally:
        cluster.stop()


def _say(line: str, err: bool = False) -> None:
    """What cannot be said (a full disk, no reader) must not end a cluster, nor change the exit status."""
    try:
        typer.echo(line, err=err)
    except OSError:
        # What is in the stream's buffer would be tried again when the process ends.
        stream = sys.stderr if err else sys.stdout
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())


def _options(pairs: list[str] | None) -> dict[str, str] | None:
    """KEY=VALUE, several times."""
    if not pairs:
        return None
    for pair in pairs:
        if "=" not in pair:
            raise typer.BadParameter(f"{pair}: must be KEY=VALUE", param_hint="--gateway")
    return dict(pair.split("=", 1) for pair in pairs)


def _plain(endpoints: list[str]) -> list[str]:
    return [endpoint.removeprefix("tcp://") for endpoint in endpoints]


@app.command("keygen")
def keygen(
    directory: Annotated[Path, typer.Argument(help="The directory with the cluster's keys.")],
    client: Annotated[str | None, typer.Option(help="Make a key for this client, and authorize it.")] = None,
) -> None:
    """Make a cluster's authority and its members' certificate, or the certificate of a client.

    Example: tara keygen /etc/tara/keys; tara keygen /etc/tara/keys --client alice
    """
    from tara.net.keygen import make_client_keys, make_cluster_keys

    if client is None:
        make_cluster_keys(directory)
        typer.echo(f"{directory}: on every host of the cluster, for its user only (tara up --keys {directory})")
    else:
        target = make_client_keys(directory, client)
        typer.echo(f"{target}: for {client} only (tara get … --keys DIRECTORY, or TARA_KEYS)")


@app.command("endpoints")
def show_endpoints(data_dir: DataDir = DATA_DIR) -> None:
    """Print where clients connect, as they want it. Example: export TARA_ENDPOINTS=$(tara endpoints)"""
    from tara.configuration.state import StateFile

    typer.echo(",".join(_plain(StateFile(data_dir).read().endpoints)))


@app.command("down")
def down(data_dir: DataDir = DATA_DIR, keys: Keys = None) -> None:
    """Stop the cluster of a data directory, and wait until it is down. Example: tara down"""
    from tara.operations.asking import ask, await_down
    from tara.runtime import control

    typer.echo(ask(data_dir, control.AskDown(), keys).decode())
    await_down(data_dir)


@app.command("status")
def status(data_dir: DataDir = DATA_DIR, keys: Keys = None, as_json: Json = False) -> None:
    """How the cluster is: containers, lives, views, positions, rates, latencies. Example: tara status --json"""

    from tara.listing import show, status_tables
    from tara.operations.asking import ask
    from tara.runtime import control

    answer = ask(data_dir, control.AskStatus(), keys)
    if as_json:
        typer.echo(answer.decode())
        return
    show(*status_tables(msgspec.json.decode(answer)))


@app.command("nodes")
def nodes(data_dir: DataDir = DATA_DIR, keys: Keys = None, as_json: Json = False) -> None:
    """Every node: where it runs, and what it does. Example: tara nodes --json"""

    from tara.listing import node_rows, node_table, show
    from tara.operations.asking import ask
    from tara.runtime import control

    rows = node_rows(msgspec.json.decode(ask(data_dir, control.AskStatus(), keys)))
    if as_json:
        _print_json({"nodes": rows})
    else:
        show(node_table(rows))


@app.command("skip")
def skip(
    counter: Annotated[int, typer.Argument(help="The command's counter, as `tara status` names it.", min=1)],
    lost: Annotated[
        list[str] | None, typer.Option(help="A container, such as site-2, that will never come back with its data.")
    ] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Have it executed again instead.")] = False,
    data_dir: DataDir = DATA_DIR,
    keys: Keys = None,
) -> None:
    """Get a service that has halted past a command that no replica can execute: its client gets a failed result.

    Refused if a replica has executed the command, or does not answer. `--retry` is for a command that lacked something
    which is there now, such as memory: the replicas that have halted at it execute it (again).

    Example: tara skip 17
    Example: tara skip 17 --lost site-2
    """
    from tara.operations import skipping
    from tara.operations.asking import ask
    from tara.operations.operator import Operator
    from tara.runtime import control

    operator = Operator(data_dir, keys)
    if retry:
        skipping.retry(operator, counter)
        typer.echo(f"command {counter} is executed again")
        return
    skipping.skip(operator, lambda: msgspec.json.decode(ask(data_dir, control.AskStatus(), keys)), counter, lost or ())
    typer.echo(f"command {counter} is skipped on all replicas; its client has a failed result")


@app.command("sessions")
def sessions(
    action: Annotated[str, typer.Argument(help="close ID or close NAME; nothing: list them.")] = "",
    which: Annotated[str, typer.Argument(help="The id or the name of a session.")] = "",
    data_dir: DataDir = DATA_DIR,
    keys: Keys = None,
    as_json: Json = False,
) -> None:
    """The sessions of all clients: whose they are, how long they have been silent, what they keep. Or close one.

    For operators: with keys, whoever has a key of the cluster; without, whoever can read the data directory.

    Example: tara sessions --json
    Example: tara sessions close orders
    """
    from tara.listing import session_table, show
    from tara.operations.operator import Operator
    from tara.operations.sessions import close_session, list_sessions, session_fields

    if action not in ("", "close") or bool(action) != bool(which):
        raise typer.BadParameter("say `tara sessions`, or `tara sessions close` and the id or name of a session")
    operator = Operator(data_dir, keys)
    if action:
        closed = close_session(operator, which)
        if as_json:
            _print_json({"closed": session_fields(closed)})
        else:
            typer.echo(f"session {closed.id} is closed")
        return
    rows = list_sessions(operator)
    if as_json:
        _print_json({"sessions": [session_fields(row) for row in rows]})
    else:
        show(session_table(rows))


@config_app.command("check")
def config_check(
    file: Annotated[Path, typer.Argument(help="A TOML file with settings.")],
    as_json: Json = False,
) -> None:
    """Check a file with settings; print what would hold, and why. Exit status 1 if a setting is wrong.

    Example: tara config check tara.toml
    """

    from tara.configuration.settings import given_settings, load_settings
    from tara.listing import setting_rows, setting_table, show
    from tara.named import application_of
    from tara.protocol.errors import ConfigurationError

    try:
        settings = load_settings(file)
        application_of(settings.app)
        rows = setting_rows(settings, given_settings(file))
    except ConfigurationError as error:
        typer.echo(f"tara: {error}", err=True)
        raise typer.Exit(1) from error
    if as_json:
        _print_json({"settings": rows})
    else:
        show(setting_table(rows))


@app.command("kill")
def kill(
    target: Annotated[str, typer.Argument(help="A node (proposer-1) or a site (site-0).")],
    data_dir: DataDir = DATA_DIR,
    keys: Keys = None,
) -> None:
    """A fault drill: end the process of a node or site with SIGKILL. Example: tara kill proposer-1"""
    from tara.operations.asking import ask
    from tara.runtime import control

    typer.echo(ask(data_dir, control.AskKill(target), keys).decode())


def _key_value(endpoints: str | None, data_dir: Path, keys: str | None) -> "KeyValueClient":
    from tara.client import KeyValueClient
    from tara.configuration.state import StateFile

    if endpoints is None:
        state = StateFile(data_dir).read()
        endpoints, keys = ",".join(state.endpoints), keys or state.keys
    return KeyValueClient(endpoints, keys=keys or None)


@app.command("put")
def put(key: str, value: str, endpoints: Endpoints = None, data_dir: DataDir = DATA_DIR, keys: Keys = None) -> None:
    """Set a key. Example: tara put city Erlangen"""
    with _key_value(endpoints, data_dir, keys) as client:
        client.put(key, value.encode())


@app.command("get")
def get(
    key: str,
    endpoints: Endpoints = None,
    data_dir: DataDir = DATA_DIR,
    keys: Keys = None,
    stale: Annotated[bool, typer.Option("--stale", help="Ask one replica only; it may lag.")] = False,
) -> None:
    """Print a key's value; exit status 1 if there is none. Example: tara get city"""
    with _key_value(endpoints, data_dir, keys) as client:
        value = client.get(key, stale)
    if value is None:
        raise typer.Exit(1)
    typer.echo(value.decode(errors="replace"))


@app.command("delete")
def delete(key: str, endpoints: Endpoints = None, data_dir: DataDir = DATA_DIR, keys: Keys = None) -> None:
    """Delete a key; exit status 1 if there was none. Example: tara delete city"""
    with _key_value(endpoints, data_dir, keys) as client:
        if not client.delete(key):
            raise typer.Exit(1)


@app.command("cas")
def cas(
    key: str,
    value: str,
    expected: Annotated[str | None, typer.Option(help="The value it must have; without: it must not exist.")] = None,
    endpoints: Endpoints = None,
    data_dir: DataDir = DATA_DIR,
    keys: Keys = None,
) -> None:
    """Set a key if it has the expected value; exit status 1 if not. Example: tara cas city Fürth --expected Erlangen"""
    with _key_value(endpoints, data_dir, keys) as client:
        if not client.compare_and_set(key, None if expected is None else expected.encode(), value.encode()):
            raise typer.Exit(1)


@app.command("list")
def list_keys(
    prefix: Annotated[str, typer.Argument()] = "",
    endpoints: Endpoints = None,
    data_dir: DataDir = DATA_DIR,
    keys: Keys = None,
) -> None:
    """Print the keys that begin with a prefix. Example: tara list users/"""
    with _key_value(endpoints, data_dir, keys) as client:
        for key in client.list(prefix):
            typer.echo(key)


@app.command("drill")
def drill(
    names: Annotated[
        list[str],
        typer.Argument(
            help="kill, kill-twice, hang, loss, flat, chaos, workers, sites, memory, network, storage, fuzz; or all."
        ),
    ],
    minutes: Annotated[float | None, typer.Option(help="How long flat and chaos last.", min=1.0)] = None,
    seconds: Annotated[float | None, typer.Option(help="How long network lasts.", min=1.0)] = None,
    kills: Annotated[int | None, typer.Option(help="Kills of memory.", min=1)] = None,
    times: Annotated[int | None, typer.Option(help="Losses of loss.", min=1)] = None,
    frames: Annotated[int | None, typer.Option(help="Hostile frames of fuzz.", min=1000)] = None,
    damages: Annotated[int | None, typer.Option(help="Damages of storage.", min=1)] = None,
    starts: Annotated[int | None, typer.Option(help="Starts of the whole cluster in storage.", min=0)] = None,
    seed: Annotated[int | None, typer.Option(help="Of what chaos, network, storage and fuzz do at random.")] = None,
    as_json: Json = False,
) -> None:
    """Fault drills: a real cluster under load, kills, bad networks, hostile frames; and the check of what came of it.

    Exit status 1 if anything was lost, executed twice, out of order, or not as quick as promised.

    Example: tara drill kill hang loss
    Example: tara drill fuzz --frames 1000000 --seed 7 --json
    """
    import tempfile

    from tara.experiments.drills import DRILLS, run

    chosen = list(DRILLS) if names == ["all"] else names
    unknown = [name for name in chosen if name not in DRILLS]
    if unknown:
        raise typer.BadParameter(f"no drill {unknown[0]!r}; there are {', '.join(DRILLS)}")
    with tempfile.TemporaryDirectory(prefix="tara-drill-") as directory:
        verdicts = run(
            chosen,
            Path(directory),
            lambda line: typer.echo(line, err=True),
            minutes=minutes,
            seconds=seconds,
            kills=kills,
            times=times,
            frames=frames,
            damages=damages,
            starts=starts,
            seed=seed,
        )
    for verdict in verdicts:
        if as_json:
            _print_json(verdict)
            continue
        typer.echo(f"{verdict.drill}: {'; '.join(verdict.failures) or 'passed'} ({verdict.summary})")
    if any(verdict.failures for verdict in verdicts):
        raise typer.Exit(1)


@app.command("stream")
def stream(
    source: Annotated[
        Path, typer.Option("--input", help="A directory of Parquet or JSON files: client, number, payload.")
    ],
    output: Annotated[Path, typer.Option("--output", help="Where results/ and the checkpoint are kept.")],
    app_name: Annotated[str, typer.Option("--app", help="key-value, or module:Class.")] = "key-value",
    master: Annotated[str, typer.Option(help="Spark master.")] = "local[*,4]",
    kind: Annotated[str | None, typer.Option("--format", help="parquet or json; by default what is there.")] = None,
    f: Faults = 1,
    drain: Annotated[
        bool, typer.Option("--drain", help="End when every command that is there has its result.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Replicate an application inside a Spark query: files of commands in, files of results out.

    Example: tara stream --input commands/ --output out/ --drain
    """
    from tara.streaming.run import Progress, run

    def show(progress: Progress) -> None:
        text = f"batch {progress.batches}, {progress.commands} commands, {progress.results} results"
        typer.echo(f"\r{text}, {progress.batch_ms} ms/batch ", err=True, nl=False)

    try:
        report = run(source, output, app_name, master, kind, drain, show=show, f=f)
    except KeyboardInterrupt:
        typer.echo("", err=True)
        return
    typer.echo("", err=True)
    if as_json:
        _print_json(report)
    else:
        typer.echo(f"{report.commands} commands, {report.results} results in {output / 'results'}")


@app.command("log")
def log(
    start: Annotated[
        int | None, typer.Option("--from", help="The first command counter; by default the oldest.")
    ] = None,
    end: Annotated[int | None, typer.Option("--to", help="The counter to stop before.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for new commands.")] = False,
    replica: Annotated[int | None, typer.Option(help="Whose log; by default the one that reaches furthest.")] = None,
    data_dir: DataDir = DATA_DIR,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object per line.")] = False,
) -> None:
    """Print the decided commands in their order, with their results.

    Example: tara log --from 1000 --to 1010
    """
    from tara.operations.log_text import print_log

    try:
        print_log(data_dir, start, end, follow, replica, as_json, typer.echo)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


@app.command("replay")
def replay(
    to: Annotated[int | None, typer.Option("--to", help="The last command; by default the newest.", min=0)] = None,
    app_name: Annotated[str | None, typer.Option("--app", help="By default what the cluster executes.")] = None,
    diff: Annotated[bool, typer.Option("--diff", help="Compare the results with those in the log.")] = False,
    against: Annotated[str | None, typer.Option(help="Compare with what this application answers.")] = None,
    query: Annotated[str | None, typer.Option(help="A question (key-value: a key) to the state.")] = None,
    data_dir: DataDir = DATA_DIR,
    as_json: Json = False,
) -> None:
    """Rebuild the application's state as of a command from the decided log, and compare results.

    Ends with status 1 if results differ.

    Example: tara replay --to 1000 --app stock:Stock --diff
    """
    from tara.operations.replay import Request
    from tara.operations.replay_text import run_replay

    sys.path.insert(0, str(Path.cwd()))
    request = Request(to=to, app=app_name, against=against, diff=diff, query=query)
    if run_replay(data_dir, request, as_json, typer.echo):
        raise typer.Exit(1)


@app.command("backup")
def backup(
    file: Annotated[Path, typer.Argument(help="The file to write; it must not exist.")],
    data_dir: DataDir = DATA_DIR,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Let the running cluster take a new checkpoint first.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write the newest stable checkpoint of a cluster, running or not, to a file.

    Example: tara backup city.backup --fresh --data-dir /var/lib/tara
    """
    from tara.operations.backup import back_up
    from tara.operations.fresh import await_fresh_checkpoint

    if fresh:
        await_fresh_checkpoint(data_dir)
    header = back_up(data_dir, file)
    if as_json:
        _print_json(header)
    else:
        typer.echo(f"checkpoint {header.checkpoint} of cluster {header.cluster:x}: commands up to {header.counter}")


@app.command("verify")
def verify(data_dir: DataDir = DATA_DIR, as_json: Json = False) -> None:
    """Read every file of a data directory, and say which ones are damaged; exit status 1 if there is any. The cluster
    should be down. Nothing is changed: a start repairs what can be repaired.

    Example: tara verify --data-dir /var/lib/tara
    """
    from tara.operations.verify import verify

    scrub = verify(data_dir)
    if as_json:
        _print_json({"data_dir": scrub.data_dir, "files": scrub.files, "damaged": len(scrub.damaged)})
    else:
        for report in scrub.damaged:
            for problem in report.problems:
                typer.echo(f"{report.path}: {problem}")
        typer.echo(f"{len(scrub.files)} files and directories, {len(scrub.damaged)} damaged")
    if scrub.damaged:
        raise typer.Exit(1)


@app.command("restore")
def restore(
    file: Annotated[Path, typer.Argument(help="A file that `tara backup` wrote.")],
    data_dir: Annotated[Path, typer.Option(help="A directory that is empty or not there yet.")],
    config: Annotated[Path | None, typer.Option(help="A TOML file with settings.")] = None,
    app_name: Annotated[str | None, typer.Option("--app", help="key-value, or module:Class.")] = None,
    f: Annotated[int | None, typer.Option("--f", help="Crashes per stage that are survived.")] = None,
    partitions: Annotated[int | None, typer.Option(help="Consensus pipelines.")] = None,
    packing: Annotated[str | None, typer.Option(help="site or node.")] = None,
) -> None:
    """Make the data directory of a new cluster from a backup. Give it the settings that `tara up` will have.

    Example: tara restore city.backup --data-dir /var/lib/tara-2
    """
    from tara.configuration.settings import load_settings
    from tara.operations.backup import restore

    flags = {"data_dir": str(data_dir), "app": app_name, "f": f, "partitions": partitions, "packing": packing}
    cluster = restore(file, load_settings(config, flags=flags))
    typer.echo(f"cluster {cluster.cluster:x} is ready: tara up --data-dir {data_dir}")


SimulatedApp = Annotated[str, typer.Option("--app", help="key-value, coordination, or module:Class.")]
SimulatedDurability = Annotated[str, typer.Option("--durability", help="disk, memory, or both: by turns.")]


@app.command("recover")
def recover(
    from_checkpoint: Annotated[
        bool, typer.Option("--from-checkpoint", help="Go on from the newest intact checkpoint, and lose the rest.")
    ] = False,
    data_dir: DataDir = DATA_DIR,
    also: Annotated[
        list[Path] | None, typer.Option(help="Another directory with checkpoints, say of a server; may be repeated.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also if enough journals are intact.")] = False,
    as_json: Json = False,
) -> None:
    """After the loss of more than f sites: begin a new era from the best checkpoint that is left, and say what is lost.

    Example: tara recover --from-checkpoint --data-dir /var/lib/tara
    """
    from tara.configuration.state import ANY_SITE
    from tara.operations.recovery import Recovery

    if not from_checkpoint:
        raise typer.BadParameter("there is no other way: say --from-checkpoint", param_hint="recover")
    with Recovery(data_dir, also or []) as recovery:
        recovery.check(force)
        for line in recovery.found.statement():
            typer.echo(line, err=as_json)
        if not yes:
            typer.confirm(f"Begin era {recovery.found.next_era}?", abort=True, err=as_json)
        state = recovery.begin()
    if as_json:
        _print_json({"era": state.era, "threshold": state.threshold, "found": recovery.found})
    elif recovery.found.site == ANY_SITE:
        typer.echo(f"era {state.era} is ready: tara up --data-dir {data_dir}")
    else:
        typer.echo(
            f"era {state.era} is ready: copy {data_dir} to at least {state.f} other sites, in the place of what is "
            "there; move it away at the others; then start them all with tara site"
        )


@sim_app.command("run")
def sim_run(
    seeds: Annotated[int, typer.Option(help="How many seeds.", min=1)] = 100,
    start: Annotated[int, typer.Option(help="The first seed.", min=0)] = 0,
    f: Faults = 1,
    partitions: Partitions = 1,
    durability: SimulatedDurability = "both",
    packing: Annotated[str, typer.Option(help="site or node; without: as the seed says.")] = "",
    app_name: SimulatedApp = "key-value",
    jobs: Jobs = CORES,
    as_json: Json = False,
) -> None:
    """Run many seeds: each is a system, a load, faults, and all checks. Exit status 1 if an invariant broke.

    Example: tara sim run --seeds 1000 --jobs 2
    Example: tara sim run --app ledger:Ledger
    """
    from rich.console import Console
    from rich.progress import track

    from tara.simulator.campaign import Job, outcomes, summarize
    from tara.simulator.plan import make_plan
    from tara.simulator.rehearsal import broken_contract

    _look_here()
    console = Console(stderr=True)
    contract = broken_contract(app_name)
    make_plan(0, f, partitions, durability, packing=packing)
    work = [Job(seed, f, partitions, durability, app_name, packing=packing) for seed in range(start, start + seeds)]
    if contract is None:
        summary = summarize(track(outcomes(work, jobs), "seeds", total=len(work), console=console))
    else:
        summary = summarize([])
        summary.contract = contract
    if as_json:
        _print_json(summary)
    elif contract is not None:
        typer.echo(contract)
    else:
        _print_summary(summary, _shape(f, partitions, durability, app_name))
    if summary.violations or contract is not None:
        raise typer.Exit(1)


def _shape(f: int, partitions: int, durability: str, app_name: str) -> str:
    """The options that make a seed that very run."""
    shape = f"--f {f} --partitions {partitions}"
    if durability != "both":
        shape += f" --durability {durability}"
    return shape if app_name == "key-value" else f"{shape} --app {app_name}"


def _print_summary(summary: "Summary", shape: str) -> None:
    runs = summary.runs
    typer.echo(
        f"{runs} runs in {summary.seconds:.0f} s ({', '.join(f'{n} {kind}' for kind, n in summary.durability.items())})"
        f": {summary.commands} commands (median {summary.commands_median:.0f}), {summary.view_changes / runs:.1f} view "
        f"changes, {summary.restarts / runs:.1f} restarts, {summary.rejoins / runs:.1f} rejoins without memory and "
        f"{summary.checkpoints_loaded / runs:.1f} loaded checkpoints a run"
    )
    typer.echo("faults  " + "  ".join(f"{kind} {count}" for kind, count in summary.faults.items()))
    typer.echo("checks  " + "  ".join(f"{kind} {count}" for kind, count in summary.checks.items()))
    for seed, detail in summary.details.items():
        typer.echo(f"VIOLATION seed {seed}: {detail[:500]}   (tara sim replay {seed} {shape} --trace)")
    if not summary.violations:
        typer.echo("no violation")


@sim_app.command("replay")
def sim_replay(
    seed: Annotated[int | None, typer.Argument(help="The seed.", min=0)] = None,
    plan_file: Annotated[Path | None, typer.Option("--plan", help="A file of `tara sim shrink`, not a seed.")] = None,
    f: Faults = 1,
    partitions: Partitions = 1,
    durability: SimulatedDurability = "both",
    app_name: SimulatedApp = "key-value",
    trace: Annotated[bool, typer.Option("--trace", help="Tell what every node received, did and sent.")] = False,
    reports: Annotated[bool, typer.Option("--reports", help="With --trace: also the periodic reports.")] = False,
    as_json: Json = False,
) -> None:
    """Run one seed again, exactly as it was, and tell what happened. Exit status 1 if an invariant broke.

    Example: tara sim replay 42 --trace
    Example: tara sim replay --plan tara-shrunk-42.json
    """
    from tara.simulator.mutants.registry import applied
    from tara.simulator.plan import make_plan
    from tara.simulator.run import play
    from tara.simulator.shrink import read
    from tara.simulator.transcript import Transcript

    _look_here()
    if (seed is None) == (plan_file is None):
        raise typer.BadParameter("give either a seed or --plan")
    mutant = None
    if plan_file is not None:
        reproduction = read(plan_file)
        plan, mutant = reproduction.plan, reproduction.mutant
    else:
        plan = make_plan(seed or 0, f, partitions, durability, app_name)
    transcript = Transcript(reports) if trace else None
    with applied(mutant):
        outcome = play(plan, transcript)
    if transcript is not None:
        for line in transcript.lines:
            typer.echo(line)
    if as_json:
        _print_json(outcome)
    else:
        if mutant is not None:
            typer.echo(f"mutant: {mutant}")
        _print_plan(plan)
        typer.echo(
            f"{outcome.commands} commands, {outcome.view_changes} view changes, {outcome.restarts} restarts, "
            f"{outcome.checkpoints} checkpoints, {outcome.virtual_ms:.0f} ms virtual, fingerprint {outcome.fingerprint}"
        )
        typer.echo(f"VIOLATION {outcome.violation}: {outcome.detail}" if outcome.violation else "no violation")
    if outcome.violation:
        raise typer.Exit(1)


def _print_plan(plan: "Plan") -> None:
    typer.echo(
        f"plan: {plan.app}, {plan.durability}, {plan.packing} packing, {plan.clients} clients with "
        f"{plan.commands_per_client} commands each, window {plan.limits.window}, faults:"
    )
    for fault in plan.faults:
        typer.echo(f"  {fault.at_ms:6} ms  {fault.kind} ({fault.duration_ms} ms)")


@sim_app.command("shrink")
def sim_shrink(
    seed: Annotated[int, typer.Argument(help="A seed that fails.", min=0)],
    f: Faults = 1,
    partitions: Partitions = 1,
    durability: SimulatedDurability = "both",
    app_name: SimulatedApp = "key-value",
    mutant: Annotated[str | None, typer.Option(help="Take this rule away, as `tara sim mutants` does.")] = None,
    runs: Annotated[int, typer.Option(help="Runs to try at most.", min=1)] = 300,
    seconds: Annotated[float, typer.Option(help="How long to try at most.", min=1.0)] = 600.0,
    output: Annotated[Path | None, typer.Option(help="The file to write; tara-shrunk-SEED.json without.")] = None,
    as_json: Json = False,
) -> None:
    """Find the shortest run that still fails like this seed: fewer faults, less noise, fewer clients and commands.
    Writes it to a file that can be replayed. Exit status 1 if the seed does not fail.

    Example: tara sim shrink 42
    Example: tara sim shrink 5 --mutant records_ignored
    """
    from tara.simulator import shrink
    from tara.simulator.campaign import run_plan
    from tara.simulator.mutants.registry import applied, mutant_of
    from tara.simulator.plan import make_plan
    from tara.simulator.subject import subject_of

    _look_here()
    if mutant is not None:
        # As `tara sim mutants` runs its seeds.
        partitions = max(partitions, mutant_of(mutant).partitions)
        durability = mutant_of(mutant).durability if durability == "both" else durability
    plan = make_plan(seed, f, partitions, durability, app_name)
    subject_of(app_name, plan.keys)
    with applied(mutant):
        shrunk = shrink.shrink(plan, run_plan, runs, seconds, lambda text: typer.echo(text, err=True))
    shape = _shape(f, partitions, durability, app_name) + (f" --mutant {mutant}" if mutant else "")
    if shrunk is None:
        typer.echo(f"seed {seed} ({shape}) does not fail: there is nothing to shrink", err=True)
        raise typer.Exit(1)
    file = output or Path(f"tara-shrunk-{seed}.json")
    outcome = shrunk.outcome
    violation = outcome.violation or ""
    shrink.write(
        file, shrink.Reproduction(mutant=mutant, violation=violation, detail=outcome.detail, plan=shrunk.after)
    )
    if as_json:
        _print_json(
            {"file": str(file), "runs": shrunk.runs, "ended": shrunk.ended, "outcome": outcome, "plan": shrunk.after}
        )
        return
    typer.echo(f"{shrunk.runs} runs; {shrunk.ended}")
    typer.echo(f"before: {shrink.describe(shrunk.before)}")
    typer.echo(f"after:  {shrink.describe(shrunk.after)}")
    _print_plan(shrunk.after)
    typer.echo(f"VIOLATION {violation} after {outcome.virtual_ms:.0f} ms: {outcome.detail[:500]}")
    typer.echo(f"replay: tara sim replay --plan {file} --trace")


@sim_app.command("mutants")
def sim_mutants(
    seeds: Annotated[int, typer.Option(help="Seeds to try per mutant.", min=1)] = 1000,
    jobs: Jobs = CORES,
    as_json: Json = False,
) -> None:
    """Take one rule away at a time; the simulator must catch each such mutant. Exit status 1 if one survives.

    Example: tara sim mutants --jobs 2
    """
    from rich.console import Console
    from rich.progress import track

    from tara.simulator.mutants.hunting import hunt_all
    from tara.simulator.mutants.registry import mutants

    console = Console(stderr=True)
    names = [mutant.name for mutant in mutants()]
    findings = []
    for finding in track(hunt_all(seeds, jobs), "mutants", total=len(names), console=console):
        findings.append(finding)
        if not as_json:
            how = f"caught by {finding.by} after {finding.seeds} seeds" if finding.caught else "SURVIVED"
            typer.echo(f"{finding.name:36} {how:40} undoes: {finding.undoes}")
    findings.sort(key=lambda finding: names.index(finding.name))
    if as_json:
        _print_json({"mutants": findings})
    if not all(finding.caught for finding in findings):
        raise typer.Exit(1)


@sim_app.command("coverage")
def sim_coverage(
    seeds: Annotated[int, typer.Option(help="How many seeds, over all shapes.", min=1)] = 100,
    jobs: Jobs = CORES,
    as_json: Json = False,
) -> None:
    """Which lines of the protocol, the host, the client, the storage and the gateway a campaign reaches.

    Example: tara sim coverage --json
    """
    from tara.simulator.coverage import measure

    found = measure(seeds, jobs)
    if as_json:
        _print_json(found)
    else:
        for package, percent in found.packages.items():
            typer.echo(f"{package:10} {percent:6.2f} %")
        for name, lines in found.missed.items():
            typer.echo(f"{name}: {', '.join(map(str, lines))}")
        for name, reason in found.omitted.items():
            typer.echo(f"not counted: {name} ({reason})")
        for violation in found.violations:
            typer.echo(f"VIOLATION {violation}")
    if found.violations:
        raise typer.Exit(1)


@sim_app.command("slow")
def sim_slow(
    mbit: Annotated[float, typer.Option(help="What each site can send, in Mbit/s.", min=1)] = 20.0,
    in_flight: Annotated[int, typer.Option(help="Commands that the client has in flight.", min=1, max=64)] = 1,
    commands: Annotated[int, typer.Option(help="Commands in all.", min=1)] = 50,
    kib: Annotated[int, typer.Option(help="Length of a command, in KiB.", min=1, max=1024)] = 1024,
    as_json: Json = False,
) -> None:
    """Large commands over slow links, with default limits. Exit status 1 if one is not answered, or if there are more
    than 3 view changes.

    Example: tara sim slow --mbit 20 --in-flight 8
    """
    from tara.simulator.slow_links import play

    run = play(mbit, commands, kib << 10, in_flight)
    if as_json:
        _print_json(run)
    else:
        typer.echo(
            f"{run.answered} of {run.commands} commands of {kib} KiB answered over {mbit:g} Mbit/s, "
            f"{in_flight} in flight: {run.seconds} s of virtual time, the slowest {run.slowest_s} s, "
            f"{run.view_changes} view changes"
        )
    if not run.holds:
        raise typer.Exit(1)


@bench_app.command("stream")
def bench_stream(
    seconds: Annotated[float, typer.Option(help="How long to measure, after warming up.", min=1.0)] = 60.0,
    batch: Annotated[int, typer.Option(help="Commands in a micro-batch.", min=1)] = 40_000,
    master: Annotated[str, typer.Option(help="Spark master.")] = "local[2,4]",
    warm_up: Annotated[float, typer.Option(help="Seconds before the measurement.", min=0.0)] = 60.0,
    as_json: Json = False,
) -> None:
    """Measure the streaming runtime: 64-byte commands from a streaming DataFrame, results in files.

    Example: tara bench stream --seconds 60 --json
    """
    from tara.experiments.stream_speed import measure

    report = measure(seconds, batch, master, warm_up, lambda text: typer.echo(text, err=True))
    if as_json:
        _print_json(report)
    else:
        typer.echo(
            f"{report.throughput_per_s:.0f} commands/s, batch p50 {report.batch_ms_p50:.0f} ms, latency p50 "
            f"{report.latency_ms_p50:.0f} ms, state {report.state_bytes} bytes, {report.wrong} wrong"
        )
    if report.wrong:
        raise typer.Exit(1)


@bench_app.command("load")
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
    from tara.configuration.settings import load_settings
    from tara.experiments.live_speed import measure
    from tara.experiments.load_process import LoadPlan

    flags: dict[str, object] = {"durability": durability, "packing": packing, "batch_size": batch, "f": f}
    flags |= {"partitions": partitions, "log": log_decided}
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
    report = measure(load_settings(environment={}, flags=flags), plan, keys)
    if as_json:
        _print_json(report)
    else:
        typer.echo(
            f"{report.throughput_per_s:.0f} commands/s with {clients} clients, p50 {report.latency_ms_p50} ms, "
            f"p99 {report.latency_ms_p99} ms, p99.9 {report.latency_ms_p999} ms, {report.lost} lost, "
            f"{report.duplicated} twice; CPU cores: client {report.cpu_client}, servers {report.cpu_server}"
        )
    if report.lost or report.duplicated or report.errors:
        raise typer.Exit(1)


@bench_app.command("loc")
def bench_loc(as_json: Json = False) -> None:
    """Development effort: code lines by the paper's rule and categories, beside the paper's own figures.

    Example: tara bench loc
    """
    from tara.experiments import code_lines, reference

    lines, beside = code_lines.totals(code_lines.count()), code_lines.beside()
    if as_json:
        _print_json(lines | {"beside": beside})
        return
    typer.echo(f"{'category':22}{'BFT-SMaRt':>10}{'paper':>8}{'here':>8}")
    for category in code_lines.PAPER_CATEGORIES:
        theirs, paper = reference.BFT_SMART_LINES[category], reference.PAPER_LINES[category]
        typer.echo(f"{category.replace('_', ' '):22}{theirs:10}{paper:8}{lines[category]:8}")
    sums = (sum(reference.BFT_SMART_LINES.values()), sum(reference.PAPER_LINES.values()))
    own = sum(lines[category] for category in code_lines.PAPER_CATEGORIES)
    typer.echo(f"{'the paper’s part':22}{sums[0]:10}{sums[1]:8}{own:8}")
    for category in code_lines.BEYOND_CATEGORIES:
        typer.echo(f"{'beyond: ' + category.replace('_', ' '):40}{lines[category]:8}")
    typer.echo(f"{'total':40}{lines['total']:8}")
    for package, count in beside.items():
        typer.echo(f"{'beside: ' + package + '/':40}{count:8}")


@bench_app.command("paper")
def bench_paper(
    quick: Annotated[bool, typer.Option("--quick", help="Each point once, four loads, clusters reused.")] = False,
    only: Annotated[list[str] | None, typer.Option(help="Only this experiment; may be given several times.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Measured seconds per point.", min=0.5)] = None,
    redraw: Annotated[bool, typer.Option("--redraw", help="Measure nothing; make figures and report again.")] = False,
    output: Annotated[Path, typer.Option(help="Where results and figures go.")] = Path("docs/evaluation"),
    page: Annotated[Path, typer.Option(help="The report.")] = Path("docs/evaluation.md"),
    disk: Annotated[Path | None, typer.Option(help="For data on disk; by default where temporary files go.")] = None,
    memory: Annotated[Path, typer.Option(help="For data in memory.")] = Path("/dev/shm"),
) -> None:
    """The paper's evaluation, and the peers beside it: results.json, figures, and a report.

    Exit status 1 if an experiment failed. Results of experiments that are not run again are kept.

    Example: tara bench paper --quick
    """
    import tempfile

    from tara.experiments.evaluation import EXPERIMENTS, evaluate
    from tara.experiments.plan import quick_plan, whole_plan
    from tara.experiments.report import publish

    plan = (quick_plan if quick else whole_plan)(disk or Path(tempfile.gettempdir()), memory, seconds)
    names = [] if redraw else list(only or EXPERIMENTS)
    results = evaluate(plan, names, output / "results.json", lambda line: typer.echo(line, err=True))
    figures = publish(results, page, output)
    typer.echo(f"{page}, with {len(figures)} figures in {output}")
    for name in names:
        if results.sections[name].failure:
            typer.echo(f"{name} failed: {results.sections[name].failure}", err=True)
    if any(results.sections[name].failure for name in names):
        raise typer.Exit(1)


@bench_app.command("protocol")
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
    from tara.experiments.protocol_speed import measure
    from tara.protocol.limits import Limits

    limits = Limits(f=f, partitions=partitions, batch_size=batch)
    report = measure(requests, clients, payload, limits)
    if as_json:
        _print_json(report)
    else:
        typer.echo(
            f"{report.requests_per_s:.0f} requests/s with {clients} clients: {report.microseconds_per_request:.1f} µs "
            f"per request for all {2 * f + 1} sites on one core, {report.checkpoints} checkpoints"
        )


@bench_app.command("zookeeper")
def bench_zookeeper(
    services: Annotated[str, typer.Option(help="tara, zookeeper, or tara,zookeeper.")] = "tara,zookeeper",
    durability: Annotated[str, typer.Option(help="disk, memory, or disk,memory.")] = "disk,memory",
    sessions: Annotated[str, typer.Option(help="Numbers of closed-loop sessions.")] = "1,64,256",
    seconds: Annotated[float, typer.Option(help="Measured seconds, each.", min=0.5)] = 5.0,
    warm_up: Annotated[float, typer.Option(help="Seconds of load before, per operation.", min=0.0)] = 5.0,
    payload: Annotated[int, typer.Option(help="Bytes of a value.", min=1)] = 64,
    as_json: Json = False,
) -> None:
    """The coordination service and Apache ZooKeeper, three servers each, under the same load.

    Example: tara bench zookeeper --sessions 64 --json
    """
    from tara.experiments.zookeeper_speed import measure

    for name, text, known in (
        ("services", services, ("tara", "zookeeper")),
        ("durability", durability, ("disk", "memory")),
    ):
        if not set(text.split(",")) <= set(known):
            raise typer.BadParameter(f"{text}: known are {', '.join(known)}", param_hint=f"--{name}")
    if not all(count.isdigit() and int(count) > 0 for count in sessions.split(",")):
        raise typer.BadParameter(f"{sessions}: must be numbers", param_hint="--sessions")
    report = measure(
        services.split(","),
        durability.split(","),
        [int(count) for count in sessions.split(",")],
        seconds,
        payload,
        warm_up,
        lambda line: typer.echo(line, err=as_json),
    )
    if as_json:
        _print_json(report)


@bench_app.command("zookeeper-scale")
def bench_zookeeper_scale(
    nodes: Annotated[int, typer.Option(help="Znodes.", min=1)] = 100_000,
    sessions: Annotated[int, typer.Option(help="Open sessions.", min=1)] = 1_000,
    seconds: Annotated[float, typer.Option(help="Measured seconds.", min=1.0)] = 10.0,
    as_json: Json = False,
) -> None:
    """The coordination service with many znodes and sessions: memory, checkpoints, restart.

    Example: tara bench zookeeper-scale --nodes 100000
    """
    from tara.experiments.zookeeper_scale import measure

    report = measure(nodes, sessions, seconds, say=lambda line: typer.echo(line, err=True))
    if as_json:
        _print_json(report)
    else:
        memory = ", ".join(f"{megabytes:.0f}" for megabytes in report.memory_mb)
        typer.echo(
            f"{nodes} znodes ({report.creations_per_s:.0f}/s), {sessions} sessions: {memory} MB a site; "
            f"{report.checkpoints} checkpoints of {report.checkpoint_bytes / 1e6:.1f} MB, a write took "
            f"{report.latency_ms_p50} ms (p50), {report.latency_ms_max} ms at most; a killed site served again after "
            f"{report.restart_s} s"
        )


def main() -> None:
    """Run the command line; an error of Tara's own becomes one line and exit status 2."""
    try:
        app(prog_name="tara")
    except Exception as error:
        # Imported here so that commands that need none of the protocol start quickly.
        from tara.protocol.errors import TaraError

        if not isinstance(error, TaraError):
            raise
        message = " ".join(str(error).split()) or type(error).__name__
        _say(f"tara: {message}", err=True)
        sys.exit(2)
