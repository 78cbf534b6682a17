"""The command line, ``tara``."""

import json
import platform
import sys
from typing import Annotated

import typer

from tara import __version__

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

bench_app = typer.Typer(help="Measure performance.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")


@app.command("version")
def show_version(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
) -> None:
    """Print the version."""
    if as_json:
        typer.echo(json.dumps({"version": __version__, "python": platform.python_version()}))
    else:
        typer.echo(f"tara {__version__}")


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
        typer.echo(f"tara: {message}", err=True)
        sys.exit(2)
