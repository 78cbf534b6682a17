"""The command line, ``tara``."""

import json
import os
import platform
import sys
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from tara import __version__

if TYPE_CHECKING:
    from tara.simulator.campaign import Summary

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


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, on the last line.")]
Faults = Annotated[int, typer.Option("--f", help="Crashes per stage that are survived.", min=0, max=3)]
Partitions = Annotated[int, typer.Option(help="Consensus pipelines that are merged into one order.", min=1, max=8)]
CORES = os.cpu_count() or 1
Jobs = Annotated[int, typer.Option(help="Processes.", min=1)]


def _print_json(value: object) -> None:
    typer.echo(msgspec.json.encode(value).decode())


@app.command("demo")
def demo(as_json: Json = False) -> None:
    """A simulated story: writes, a crashed leader, the view change, recovery.

    Example: tara demo
    """
    from tara.demo import tell

    report = tell(typer.echo)
    if as_json:
        _print_json(report)
    else:
        typer.echo(f"{report.writes} writes, {report.lost} lost, {report.gap_ms:.0f} ms without an answer.")
    if not report.passed:
        raise typer.Exit(1)


@sim_app.command("run")
def sim_run(
    seeds: Annotated[int, typer.Option(help="How many seeds.", min=1)] = 100,
    start: Annotated[int, typer.Option(help="The first seed.", min=0)] = 0,
    f: Faults = 1,
    partitions: Partitions = 1,
    jobs: Jobs = CORES,
    as_json: Json = False,
) -> None:
    """Run many seeds: each is a system, a load, faults, and all checks. Exit status 1 if an invariant broke.

    Example: tara sim run --seeds 1000 --jobs 2
    """
    from rich.console import Console
    from rich.progress import track

    from tara.simulator.campaign import Job, outcomes, summarize

    work = [Job(seed, f, partitions) for seed in range(start, start + seeds)]
    console = Console(stderr=True)
    summary = summarize(track(outcomes(work, jobs), "seeds", total=len(work), console=console))
    if as_json:
        _print_json(summary)
    else:
        _print_summary(summary)
    if summary.violations:
        raise typer.Exit(1)


def _print_summary(summary: "Summary") -> None:
    runs = summary.runs
    typer.echo(
        f"{runs} runs in {summary.seconds:.0f} s: {summary.commands} commands (median {summary.commands_median:.0f}), "
        f"{summary.view_changes / runs:.1f} view changes, {summary.restarts / runs:.1f} restarts and "
        f"{summary.checkpoints_loaded / runs:.1f} loaded checkpoints a run"
    )
    typer.echo("faults  " + "  ".join(f"{kind} {count}" for kind, count in summary.faults.items()))
    typer.echo("checks  " + "  ".join(f"{kind} {count}" for kind, count in summary.checks.items()))
    for seed, detail in summary.details.items():
        typer.echo(f"VIOLATION seed {seed}: {detail[:500]}   (tara sim replay {seed} --trace)")
    if not summary.violations:
        typer.echo("no violation")


@sim_app.command("replay")
def sim_replay(
    seed: Annotated[int, typer.Argument(help="The seed.", min=0)],
    f: Faults = 1,
    partitions: Partitions = 1,
    trace: Annotated[bool, typer.Option("--trace", help="Tell what every node received, did and sent.")] = False,
    reports: Annotated[bool, typer.Option("--reports", help="With --trace: also the periodic reports.")] = False,
    as_json: Json = False,
) -> None:
    """Run one seed again, exactly as it was, and tell what happened. Exit status 1 if an invariant broke.

    Example: tara sim replay 42 --trace
    """
    from tara.simulator.plan import make_plan
    from tara.simulator.run import play
    from tara.simulator.transcript import Transcript

    plan = make_plan(seed, f, partitions)
    transcript = Transcript(reports) if trace else None
    outcome = play(plan, transcript)
    if transcript is not None:
        for line in transcript.lines:
            typer.echo(line)
    if as_json:
        _print_json(outcome)
    else:
        typer.echo(f"plan: {plan.packing} packing, {plan.clients} clients, window {plan.limits.window}, faults:")
        for fault in plan.faults:
            typer.echo(f"  {fault.at_ms:6} ms  {fault.kind} ({fault.duration_ms} ms)")
        typer.echo(
            f"{outcome.commands} commands, {outcome.view_changes} view changes, {outcome.restarts} restarts, "
            f"{outcome.checkpoints} checkpoints, {outcome.virtual_ms:.0f} ms virtual, fingerprint {outcome.fingerprint}"
        )
        typer.echo(f"VIOLATION {outcome.violation}: {outcome.detail}" if outcome.violation else "no violation")
    if outcome.violation:
        raise typer.Exit(1)


@sim_app.command("mutants")
def sim_mutants(
    seeds: Annotated[int, typer.Option(help="Seeds to try per mutant.", min=1)] = 1000,
    jobs: Jobs = CORES,
    as_json: Json = False,
) -> None:
    """Take one rule away at a time; the simulator must catch each such mutant. Exit status 1 if one survives.

    Example: tara sim mutants --jobs 2
    """
    from rich.console import Console
    from rich.progress import track

    from tara.simulator.mutants import MUTANTS, hunt_all

    console = Console(stderr=True)
    findings = list(track(hunt_all(seeds, jobs), "mutants", total=len(MUTANTS), console=console))
    order = {mutant.name: index for index, mutant in enumerate(MUTANTS)}
    findings.sort(key=lambda finding: order[finding.name])
    if as_json:
        _print_json({"mutants": findings})
    else:
        for finding in findings:
            how = f"caught by {finding.by} after {finding.seeds} seeds" if finding.caught else "SURVIVED"
            typer.echo(f"{finding.name:36} {how:40} undoes: {finding.undoes}")
    if not all(finding.caught for finding in findings):
        raise typer.Exit(1)


@bench_app.command("protocol")
def bench_protocol(
    requests: Annotated[int, typer.Option(help="Requests to run.", min=1)] = 100_000,
    clients: Annotated[int, typer.Option(help="Closed-loop clients.", min=1)] = 64,
    payload: Annotated[int, typer.Option(help="Bytes of a written value.", min=0)] = 64,
    f: Faults = 1,
    partitions: Partitions = 1,
    batch: Annotated[int, typer.Option(help="Commands per request.", min=1)] = 1,
    as_json: Json = False,
) -> None:
    """Speed of the pure code: all nodes of all sites in one process, no sockets, no files.

    Example: tara bench protocol --clients 64
    """
    from tara.experiments.protocol_speed import measure
    from tara.protocol.limits import Limits

    limits = Limits(f=f, partitions=partitions, batch_size=batch)
    report = measure(requests, clients, payload, limits)
    if as_json:
        _print_json(report)
    else:
        typer.echo(
            f"{report.requests_per_s:.0f} requests/s with {clients} clients: {report.microseconds_per_request:.1f} µs "
            f"per request for all {2 * f + 1} sites on one core, {report.checkpoints} checkpoints"
        )


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
