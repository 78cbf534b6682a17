"""`tara stream`: the streaming runtime, from files to files."""

from pathlib import Path
from typing import Annotated

import typer

from tara.cli.output import print_json
from tara.command_options import Faults, Json

commands = typer.Typer()


@commands.command("stream")
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
    from tara.streaming.run import QueryProgress, run

    def show(progress: QueryProgress) -> None:
        text = f"batch {progress.batches}, {progress.commands} commands, {progress.results} results"
        typer.echo(f"\r{text}, {progress.batch_ms} ms/batch ", err=True, nl=False)

    try:
        report = run(source, output, app_name, master, kind, drain, show=show, f=f)
    except KeyboardInterrupt:
        typer.echo("", err=True)
        return
    typer.echo("", err=True)
    if as_json:
        print_json(report)
    else:
        typer.echo(f"{report.commands} commands, {report.results} results in {output / 'results'}")
