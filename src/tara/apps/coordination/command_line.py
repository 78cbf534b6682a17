"""`tara zk`: znodes from the command line."""

import os
import queue
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tara.apps.coordination.client import CoordinationClient

commands = typer.Typer(name="zk", help="Znodes of a coordination service, or of any ZooKeeper.", no_args_is_help=True)

Hosts = Annotated[
    str | None,
    typer.Option(help="host:port,host:port; by default those of the data directory's cluster.", envvar="TARA_ZK_HOSTS"),
]
DataDir = Annotated[Path, typer.Option(help="Where the cluster keeps its state.")]
DATA_DIR = Path("tara-data")
#: A password on a command line could be read by everybody on the host.
AUTH_VARIABLE = "TARA_ZK_AUTH"
Auth = Annotated[
    list[str] | None,
    typer.Option("--auth", metavar="USER", help="Prove to be this user; asks for the password. May be repeated."),
]
AuthFile = Annotated[
    Path | None,
    typer.Option(
        help="A file with a line user:password for each identity to prove, which nobody else may read. Without it, "
        f"{AUTH_VARIABLE} is looked at, which has the same lines."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
ZPath = Annotated[str, typer.Argument(metavar="PATH", help="The path of a znode.")]
Version = Annotated[int, typer.Option(help="The version it must have; -1: any.")]


def hosts_of(data_dir: Path) -> str:
    """The front ends of a running cluster."""
    import msgspec

    from tara.live import control
    from tara.operations.registry_client import ask
    from tara.protocol.errors import ConfigurationError

    status = msgspec.json.decode(ask(data_dir, control.AskStatus()))
    gateways = [container.get("gateway") for container in status["containers"]]
    found = [gateway["address"] for gateway in gateways if gateway and gateway["address"]]
    if not found:
        raise ConfigurationError(f"the cluster in {data_dir} has no ZooKeeper front end (tara up --app coordination)")
    return ",".join(found)


def credentials_of(users: list[str] | None, file: Path | None) -> list[str]:
    """`user:password` of every identity that is to be proved."""
    from tara.net.certificates import read_secret
    from tara.protocol.errors import ConfigurationError

    for user in users or ():
        if ":" in user:
            raise ConfigurationError(
                f"--auth {user.partition(':')[0]}:…: everybody on this host can read a command line; give the user "
                f"only, and be asked for the password, or use --auth-file or {AUTH_VARIABLE}"
            )
    where = str(file) if file is not None else AUTH_VARIABLE
    text = read_secret(file).decode() if file is not None else os.environ.get(AUTH_VARIABLE, "")
    found = [line for line in text.splitlines() if line]
    if any(":" not in line for line in found):
        raise ConfigurationError(f"{where}: every line must be user:password")
    return found + [f"{user}:{typer.prompt(f'password of {user}', hide_input=True, err=True)}" for user in users or ()]


def _client(hosts: str | None, data_dir: Path, auth: list[str] | None, auth_file: Path | None) -> "CoordinationClient":
    from tara.apps.coordination.client import CoordinationClient

    identities = credentials_of(auth, auth_file)
    client = CoordinationClient(hosts or hosts_of(data_dir))
    try:
        client.start()
        for credentials in identities:
            client.add_auth("digest", credentials)
    except BaseException:
        client.stop()
        raise
    return client


@commands.command("ls")
def ls(
    path: Annotated[str, typer.Argument(metavar="PATH", help="The path of a znode.")] = "/",
    recursive: Annotated[bool, typer.Option("--recursive", "-R", help="Everything below, as paths.")] = False,
    hosts: Hosts = None,
    data_dir: DataDir = DATA_DIR,
    auth: Auth = None,
    auth_file: AuthFile = None,
) -> None:
    """Print the names of the children. Example: tara zk ls /"""
    from tara.apps.coordination.errors import NoNode
    from tara.apps.coordination.paths import child_of

    with _client(hosts, data_dir, auth, auth_file) as client:
        if not recursive:
            for name in client.get_children(path):
                typer.echo(name)
            return
        pending = [path]
        while pending:
            parent = pending.pop()
            typer.echo(parent)
            try:
                names = client.get_children(parent)
            except NoNode:
                continue
            pending += [child_of(parent, name) for name in reversed(names)]


@commands.command("get")
def get(
    path: ZPath,
    sync: Annotated[bool, typer.Option("--sync", help="See everything that was answered to anybody before.")] = False,
    hosts: Hosts = None,
    data_dir: DataDir = DATA_DIR,
    auth: Auth = None,
    auth_file: AuthFile = None,
) -> None:
    """Print the data of a znode. Example: tara zk get /config"""
    with _client(hosts, data_dir, auth, auth_file) as client:
        if sync:
            client.sync(path)
        _print_data(client.get(path)[0])


def _print_data(data: bytes) -> None:
    typer.echo(data.decode(errors="backslashreplace"))


@commands.command("set")
def set_data(
    path: ZPath,
    value: str,
    version: Version = -1,
    hosts: Hosts = None,
    data_dir: DataDir = DATA_DIR,
    auth: Auth = None,
    auth_file: AuthFile = None,
) -> None:
    """Set the data of a znode. Example: tara zk set /config on --version 3"""
    with _client(hosts, data_dir, auth, auth_file) as client:
        client.set(path, value.encode(), version)


@commands.command("create")
def create(
    path: ZPath,
    value: Annotated[str, typer.Argument()] = "",
    sequence: Annotated[bool, typer.Option("--sequence", "-s", help="Append a number.")] = False,
    container: Annotated[bool, typer.Option("--container", "-c", help="Goes with its last child.")] = False,
    ttl_ms: Annotated[int, typer.Option("--ttl-ms", "-t", help="Goes when it was not changed for so long.")] = 0,
    parents: Annotated[bool, typer.Option("--parents", "-p", help="Also make missing parents.")] = False,
    hosts: Hosts = None,
    data_dir: DataDir = DATA_DIR,
    auth: Auth = None,
    auth_file: AuthFile = None,
) -> None:
    """Make a znode and print its path. Example: tara zk create -s /jobs/job- resize"""
    with _client(hosts, data_dir, auth, auth_file) as client:
        typer.echo(
            client.create(path, value.encode(), sequence=sequence, container=container, ttl_ms=ttl_ms, makepath=parents)
        )


@commands.command("delete")
def delete(
    path: ZPath,
    version: Version = -1,
    recursive: Annotated[bool, typer.Option("--recursive", "-R", help="With everything below.")] = False,
    hosts: Hosts = None,
    data_dir: DataDir = DATA_DIR,
    auth: Auth = None,
    auth_file: AuthFile = None,
) -> None:
    """Delete a znode. Example: tara zk delete -R /jobs"""
    with _client(hosts, data_dir, auth, auth_file) as client:
        client.delete(path, version, recursive)


@commands.command("stat")
def stat(
    path: ZPath,
    as_json: Json = False,
    hosts: Hosts = None,
    data_dir: DataDir = DATA_DIR,
    auth: Auth = None,
    auth_file: AuthFile = None,
) -> None:
    """Print what is known of a znode; exit status 1 if there is none. Example: tara zk stat /config --json"""
    with _client(hosts, data_dir, auth, auth_file) as client:
        found = client.exists(path)
    if found is None:
        typer.echo(f"tara: {path}: no node", err=True)
        raise typer.Exit(1)
    fields = found._asdict()
    if as_json:
        import msgspec

        typer.echo(msgspec.json.encode(fields).decode())
    else:
        for name, value in fields.items():
            typer.echo(f"{name:16} {value}")


@commands.command("watch")
def watch(
    path: ZPath,
    recursive: Annotated[bool, typer.Option("--recursive", "-R", help="Also everything below.")] = False,
    count: Annotated[int, typer.Option(help="End after so many events; 0: never.")] = 0,
    hosts: Hosts = None,
    data_dir: DataDir = DATA_DIR,
    auth: Auth = None,
    auth_file: AuthFile = None,
) -> None:
    """Print what happens to a znode, until interrupted. Example: tara zk watch -R /jobs"""
    from tara.apps.coordination.wire_client import State, WatchEvent

    heard: queue.SimpleQueue[WatchEvent | State] = queue.SimpleQueue()
    with _client(hosts, data_dir, auth, auth_file) as client:
        client.add_listener(heard.put)
        client.add_watch(path, heard.put, recursive)
        typer.echo(f"watching {path}", err=True)
        told = 0
        try:
            while not count or told < count:
                event = heard.get()
                if isinstance(event, WatchEvent):
                    told += 1
                    typer.echo(f"{event.event.name.lower().replace('_', ' ')} {event.path}")
                else:
                    typer.echo(event.value, err=True)
                    if event is State.LOST:
                        # The watch went with the session.
                        client.run(client.asynchronous.wait_connected())
                        client.add_watch(path, heard.put, recursive)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
