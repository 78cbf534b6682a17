"""What commands print."""

import os
import sys
from pathlib import Path

import typer


def print_json(value: object) -> None:
    import msgspec

    typer.echo(msgspec.json.encode(value).decode())


def say(line: str, err: bool = False) -> None:
    """What cannot be said (a full disk, no reader) must not end a cluster, nor change the exit status."""
    try:
        typer.echo(line, err=err)
    except OSError:
        # What is in the stream's buffer would be tried again when the process ends.
        stream = sys.stderr if err else sys.stdout
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())
