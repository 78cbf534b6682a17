"""`tara drill`: fault drills on a cluster of their own."""

from pathlib import Path
from typing import Annotated

import typer

from tara.cli.output import print_json
from tara.command_options import Json

commands = typer.Typer()


@commands.command("drill")
def drill(
    names: Annotated[
        list[str],
        typer.Argument(
            help="kill, kill-twice, hang, loss, flat, chaos, workers, sites, memory, network, slow-disk, storage, "
            "fuzz, log; or all."
        ),
    ],
    minutes: Annotated[float | None, typer.Option(help="How long flat and chaos last.", min=1.0)] = None,
    state_mb: Annotated[int | None, typer.Option(help="The state of flat, in megabytes.", min=0)] = None,
    seconds: Annotated[float | None, typer.Option(help="How long network and slow-disk last.", min=1.0)] = None,
    kills: Annotated[int | None, typer.Option(help="Kills of memory.", min=1)] = None,
    times: Annotated[int | None, typer.Option(help="Losses of loss.", min=1)] = None,
    frames: Annotated[int | None, typer.Option(help="Hostile frames of fuzz.", min=1000)] = None,
    commands: Annotated[int | None, typer.Option(help="Commands that log reads.", min=1)] = None,
    damages: Annotated[int | None, typer.Option(help="Damages of storage.", min=1)] = None,
    starts: Annotated[int | None, typer.Option(help="Starts of the whole cluster in storage.", min=0)] = None,
    seed: Annotated[int | None, typer.Option(help="Of what chaos, network, storage and fuzz do at random.")] = None,
    as_json: Json = False,
) -> None:
    """Fault drills: a real cluster under load, kills, bad networks, slow disks, hostile frames; and what came of it.

    Exit status 1 if anything was lost, executed twice, out of order, or not as quick as promised.

    Example: tara drill kill hang loss
    Example: tara drill fuzz --frames 1000000 --seed 7 --json
    """
    import tempfile

    from tara.drills.catalogue import run

    chosen = _chosen(names)
    with tempfile.TemporaryDirectory(prefix="tara-drill-") as directory:
        verdicts = run(
            chosen,
            Path(directory),
            lambda line: typer.echo(line, err=True),
            minutes=minutes,
            state_mb=state_mb,
            seconds=seconds,
            kills=kills,
            times=times,
            frames=frames,
            commands=commands,
            damages=damages,
            starts=starts,
            seed=seed,
        )
    for verdict in verdicts:
        if as_json:
            print_json(verdict)
            continue
        typer.echo(f"{verdict.drill}: {'; '.join(verdict.failures) or 'passed'} ({verdict.summary})")
    if any(verdict.failures for verdict in verdicts):
        raise typer.Exit(1)


def _chosen(names: list[str]) -> list[str]:
    from tara.drills.catalogue import DRILLS

    chosen = list(DRILLS) if names == ["all"] else names
    unknown = [name for name in chosen if name not in DRILLS]
    if unknown:
        raise typer.BadParameter(f"no drill {unknown[0]!r}; there are {', '.join(DRILLS)}")
    return chosen
