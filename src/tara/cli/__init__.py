"""The command line, ``tara``: what it consists of, and how errors become a line and an exit status.

Whoever has commands offers them as `commands`, a `typer.Typer`: with a name they are a group of their own (`tara sim
run`), without one they stand beside the others (`tara up`). An application's are in the `command_line` module of its
package. What a command needs is imported when it runs, so that `tara --help` is quick.
"""

import sys

import typer

from tara.apps.coordination import command_line as coordination
from tara.apps.key_value import command_line as key_value
from tara.cli import bench, cluster, config, demo, drill, keys, operations, simulation, streaming, version
from tara.cli.output import say

#: The commands that the built-in applications offer.
APPLICATIONS = (key_value.commands, coordination.commands)

app = typer.Typer(
    name="tara",
    help="Crash-tolerant state-machine replication as a stream-processing graph.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Commands and groups below inherit this.
    context_settings={"help_option_names": ["-h", "--help"]},
)
# As `tara --help` lists them.
for _commands in (
    demo.commands,
    cluster.commands,
    *APPLICATIONS,
    operations.commands,
    streaming.commands,
    drill.commands,
    simulation.commands,
    bench.commands,
    keys.commands,
    config.commands,
    version.commands,
):
    app.add_typer(_commands)


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
        say(f"tara: {message}", err=True)
        sys.exit(2)
