"""`tara put`, `get`, `delete`, `cas` and `list`: keys and values from the command line."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tara.command_options import DATA_DIR, DataDir, Endpoints, Keys

if TYPE_CHECKING:
    from tara.client import KeyValueClient

#: Without a name: its commands stand beside those of the cluster.
commands = typer.Typer()


def _client(endpoints: str | None, data_dir: Path, keys: str | None) -> "KeyValueClient":
    from tara.client import KeyValueClient
    from tara.configuration.state import StateFile

    if endpoints is None:
        state = StateFile(data_dir).read()
        endpoints, keys = ",".join(state.endpoints), keys or state.keys
    return KeyValueClient(endpoints, keys=keys or None)


@commands.command("put")
def put(key: str, value: str, endpoints: Endpoints = None, data_dir: DataDir = DATA_DIR, keys: Keys = None) -> None:
    """Set a key. Example: tara put city Erlangen"""
    with _client(endpoints, data_dir, keys) as client:
        client.put(key, value.encode())


@commands.command("get")
def get(
    key: str,
    endpoints: Endpoints = None,
    data_dir: DataDir = DATA_DIR,
    keys: Keys = None,
    stale: Annotated[bool, typer.Option("--stale", help="Ask one replica only; it may lag.")] = False,
) -> None:
    """Print a key's value; exit status 1 if there is none. Example: tara get city"""
    with _client(endpoints, data_dir, keys) as client:
        value = client.get(key, stale)
    if value is None:
        raise typer.Exit(1)
    typer.echo(value.decode(errors="replace"))


@commands.command("delete")
def delete(key: str, endpoints: Endpoints = None, data_dir: DataDir = DATA_DIR, keys: Keys = None) -> None:
    """Delete a key; exit status 1 if there was none. Example: tara delete city"""
    with _client(endpoints, data_dir, keys) as client:
        if not client.delete(key):
            raise typer.Exit(1)


@commands.command("cas")
def cas(
    key: str,
    value: str,
    expected: Annotated[str | None, typer.Option(help="The value it must have; without: it must not exist.")] = None,
    endpoints: Endpoints = None,
    data_dir: DataDir = DATA_DIR,
    keys: Keys = None,
) -> None:
    """Set a key if it has the expected value; exit status 1 if not. Example: tara cas city Fürth --expected Erlangen"""
    with _client(endpoints, data_dir, keys) as client:
        if not client.compare_and_set(key, None if expected is None else expected.encode(), value.encode()):
            raise typer.Exit(1)


@commands.command("list")
def list_keys(
    prefix: Annotated[str, typer.Argument()] = "",
    endpoints: Endpoints = None,
    data_dir: DataDir = DATA_DIR,
    keys: Keys = None,
) -> None:
    """Print the keys that begin with a prefix. Example: tara list users/"""
    with _client(endpoints, data_dir, keys) as client:
        for key in client.list(prefix):
            typer.echo(key)
