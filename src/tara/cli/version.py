"""`tara version`."""

from typing import Annotated

import typer

import tara

commands = typer.Typer()


@commands.command("version")
def show_version(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
) -> None:
    """Print the version."""
    if as_json:
        import json
        import platform

        typer.echo(json.dumps({"version": tara.__version__, "python": platform.python_version()}))
    else:
        typer.echo(f"tara {tara.__version__}")
