"""Clusters: start one, see how it is, harm it, stop it."""

from pathlib import Path
from typing import Annotated

import typer

from tara.cli.output import print_json
from tara.cli.serving import gateway_options, plain, serve_cluster, serve_site
from tara.command_options import (
    DATA_DIR,
    ConfigFile,
    DataDir,
    FaultsSetting,
    Json,
    Keys,
    PackingSetting,
    PartitionsSetting,
)

commands = typer.Typer()

DataDirSetting = Annotated[Path | None, typer.Option(help="Where the cluster keeps its state.")]
LogSetting = Annotated[
    bool | None, typer.Option("--log/--no-log", help="Keep the decided commands, for `tara log` and Spark.")
]
MetricsPortSetting = Annotated[int | None, typer.Option(help="Of the Prometheus endpoint; by default a free one.")]
KeysSetting = Annotated[str | None, typer.Option(help="The directory with the cluster's keys.")]
GatewaySetting = Annotated[
    list[str] | None, typer.Option(help="KEY=VALUE: an option of the application's front end; may be repeated.")
]


@commands.command("up")
def up(
    config: ConfigFile = None,
    data_dir: DataDirSetting = None,
    master: Annotated[str | None, typer.Option(help="Spark master; by default Spark runs in this process.")] = None,
    app_name: Annotated[str | None, typer.Option("--app", help="key-value, coordination, or module:Class.")] = None,
    f: FaultsSetting = None,
    partitions: PartitionsSetting = None,
    durability: Annotated[str | None, typer.Option(help="disk or memory.")] = None,
    packing: PackingSetting = None,
    log_decided: LogSetting = None,
    port: Annotated[int | None, typer.Option(help="Of the first front end; by default free ones.")] = None,
    metrics_port: MetricsPortSetting = None,
    gateway: GatewaySetting = None,
    host: Annotated[str | None, typer.Option(help="The address to bind; beyond loopback only with --keys.")] = None,
    keys: KeysSetting = None,
    found: Annotated[
        bool, typer.Option("--found", help="Create a new cluster, also in a directory that exists already.")
    ] = False,
) -> None:
    """Start a cluster and serve until interrupted, or until `tara down`. A new cluster is created if the data directory
    does not exist; in an existing directory only with --found, because a disk may not be mounted there.

    Example: tara up --data-dir /var/lib/tara --f 1
    """
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
        "gateway": gateway_options(gateway),
        "host": host,
        "keys": keys,
    }
    serve_cluster(config, flags, found)


@commands.command("site")
def site(
    number: Annotated[int, typer.Option("--site", help="Which of the sites this is, from 0.", min=0)],
    config: Annotated[Path | None, typer.Option(help="A TOML file with settings; the same at every site.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where this site keeps its state.")] = None,
    found: Annotated[
        bool, typer.Option("--found", help="The cluster is new: found it, together with all the other sites.")
    ] = False,
    sites: Annotated[str | None, typer.Option(help="host:port,host:port of all sites, each with four ports.")] = None,
    master: Annotated[str | None, typer.Option(help="Spark master of this site.")] = None,
    keys: KeysSetting = None,
    metrics_port: MetricsPortSetting = None,
) -> None:
    """Run one site of a cluster whose sites each have a driver of their own, until interrupted or `tara down`.

    Example: tara site --site 0 --config cluster.toml --found
    """
    flags = {
        "data_dir": None if data_dir is None else str(data_dir),
        "sites": sites,
        "master": master,
        "keys": keys,
        "metrics_port": metrics_port,
    }
    serve_site(config, flags, number, found)


@commands.command("endpoints")
def show_endpoints(data_dir: DataDir = DATA_DIR) -> None:
    """Print where clients connect, as they want it. Example: export TARA_ENDPOINTS=$(tara endpoints)"""
    from tara.configuration.state import StateFile

    typer.echo(",".join(plain(StateFile(data_dir).read().endpoints)))


@commands.command("down")
def down(data_dir: DataDir = DATA_DIR, keys: Keys = None) -> None:
    """Stop the cluster of a data directory, and wait until it is down. Example: tara down"""
    from tara.live import control
    from tara.operations.registry_client import ask, await_down

    typer.echo(ask(data_dir, control.AskDown(), keys).decode())
    await_down(data_dir)


@commands.command("status")
def status(data_dir: DataDir = DATA_DIR, keys: Keys = None, as_json: Json = False) -> None:
    """How the cluster is: containers, lives, views, positions, rates, latencies. Example: tara status --json"""
    import msgspec

    from tara.cli.listing import show, status_tables
    from tara.live import control
    from tara.operations.registry_client import ask

    answer = ask(data_dir, control.AskStatus(), keys)
    if as_json:
        typer.echo(answer.decode())
        return
    show(*status_tables(msgspec.json.decode(answer)))


@commands.command("nodes")
def nodes(data_dir: DataDir = DATA_DIR, keys: Keys = None, as_json: Json = False) -> None:
    """Every node: where it runs, and what it does. Example: tara nodes --json"""
    import msgspec

    from tara.cli.listing import node_rows, node_table, show
    from tara.live import control
    from tara.operations.registry_client import ask

    rows = node_rows(msgspec.json.decode(ask(data_dir, control.AskStatus(), keys)))
    if as_json:
        print_json({"nodes": rows})
    else:
        show(node_table(rows))


@commands.command("kill")
def kill(
    target: Annotated[str, typer.Argument(help="A node (proposer-1) or a site (site-0).")],
    data_dir: DataDir = DATA_DIR,
    keys: Keys = None,
) -> None:
    """A fault drill: end the process of a node or site with SIGKILL. Example: tara kill proposer-1"""
    from tara.live import control
    from tara.operations.registry_client import ask

    typer.echo(ask(data_dir, control.AskKill(target), keys).decode())
