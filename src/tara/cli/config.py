"""`tara config`: settings."""

from pathlib import Path
from typing import Annotated

import typer

from tara.cli.output import print_json
from tara.command_options import Json

commands = typer.Typer(name="config", help="Look at settings.", no_args_is_help=True)


@commands.command("check")
def config_check(
    file: Annotated[Path, typer.Argument(help="A TOML file with settings.")],
    as_json: Json = False,
) -> None:
    """Check a file with settings; print what would hold, and why. Exit status 1 if a setting is wrong.

    Example: tara config check tara.toml
    """

    from tara.cli.listing import setting_rows, setting_table, show
    from tara.configuration.settings import given_settings, load_settings
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
        print_json({"settings": rows})
    else:
        show(setting_table(rows))
