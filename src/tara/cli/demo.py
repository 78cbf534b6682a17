"""`tara demo`: the guided tour."""

from typing import Annotated

import typer

from tara.cli.output import print_json
from tara.command_options import Json

commands = typer.Typer()


@commands.command("demo")
def demo(
    seconds: Annotated[float, typer.Option(help="How long the load runs.", min=5.0)] = 20.0,
    as_json: Json = False,
) -> None:
    """A guided tour: a cluster on local Spark, load, two killed leaders, recovery, and the proof that nothing was lost.

    Example: tara demo
    """
    from tara.cli.tour import run

    report = run(typer.echo, seconds)
    if as_json:
        print_json(report)
    else:
        typer.echo(
            f"{report.throughput_per_s:.0f} commands/s, p50 {report.latency_ms_p50:.1f} ms, p99 "
            f"{report.latency_ms_p99:.1f} ms, longest gap {report.gap_ms_max:.0f} ms, {report.restarts} restarts, "
            f"{report.lost} lost, {report.duplicated} executed twice, linearizable: {report.linearizable}, "
            f"replicas equal: {report.replicas_equal}"
        )
    if not report.passed:
        raise typer.Exit(1)
