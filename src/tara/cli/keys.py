"""`tara keygen`: keys."""

from pathlib import Path
from typing import Annotated

import typer

commands = typer.Typer()


@commands.command("keygen")
def keygen(
    directory: Annotated[Path, typer.Argument(help="The directory with the cluster's keys.")],
    client: Annotated[str | None, typer.Option(help="Make a key for this client, and authorize it.")] = None,
    observer: Annotated[bool, typer.Option("--observer", help="The client may read the decided log, too.")] = False,
) -> None:
    """Make a cluster's authority and its members' certificate, or the certificate of a client.

    Example: tara keygen /etc/tara/keys; tara keygen /etc/tara/keys --client alice
    """
    if observer and client is None:
        raise typer.BadParameter("--observer goes with --client NAME")
    from tara.net.keygen import make_client_keys, make_cluster_keys

    if client is None:
        make_cluster_keys(directory)
        typer.echo(f"{directory}: on every host of the cluster, for its user only (tara up --keys {directory})")
    else:
        target = make_client_keys(directory, client, observer)
        typer.echo(f"{target}: for {client} only (tara get … --keys DIRECTORY, or TARA_KEYS)")
