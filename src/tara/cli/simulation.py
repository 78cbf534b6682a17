"""`tara sim`: the protocol in the deterministic simulator."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tara.cli.application_path import look_here
from tara.cli.output import print_json
from tara.command_options import Faults, Json, Partitions

if TYPE_CHECKING:
    from rich.console import Console

    from tara.simulator.campaign import Summary
    from tara.simulator.plan import Plan
    from tara.simulator.run import Outcome
    from tara.simulator.shrink import Shrunk

commands = typer.Typer(name="sim", help="Run the protocol in the deterministic simulator.", no_args_is_help=True)

CORES = os.cpu_count() or 1
Jobs = Annotated[int, typer.Option(help="Processes.", min=1)]
SimulatedApp = Annotated[str, typer.Option("--app", help="key-value, coordination, or module:Class.")]
Packing = Annotated[str, typer.Option(help="site or node; without: as the seed says.")]
SimulatedDurability = Annotated[str, typer.Option("--durability", help="disk, memory, or both: by turns.")]


@commands.command("run")
def sim_run(
    seeds: Annotated[int, typer.Option(help="How many seeds.", min=1)] = 100,
    start: Annotated[int, typer.Option(help="The first seed.", min=0)] = 0,
    f: Faults = 1,
    partitions: Partitions = 1,
    durability: SimulatedDurability = "both",
    packing: Packing = "",
    app_name: SimulatedApp = "key-value",
    jobs: Jobs = CORES,
    as_json: Json = False,
) -> None:
    """Run many seeds: each is a system, a load, faults, and all checks. Exit status 1 if an invariant broke.

    Example: tara sim run --seeds 1000 --jobs 2
    Example: tara sim run --app ledger:Ledger
    """
    from rich.console import Console
    from rich.progress import track

    from tara.simulator.campaign import Job, outcomes, summarize
    from tara.simulator.contract_check import broken_contract
    from tara.simulator.plan import make_plan

    look_here()
    console = Console(stderr=True)
    contract = broken_contract(app_name)
    make_plan(0, f, partitions, durability, packing=packing)
    work = [Job(seed, f, partitions, durability, app_name, packing=packing) for seed in range(start, start + seeds)]
    if contract is None:
        shape = _shape(f, partitions, durability, app_name, packing)
        finished = track(outcomes(work, jobs), "seeds", total=len(work), console=console)
        summary = summarize(_telling(finished, console, shape))
    else:
        summary = summarize([])
        summary.contract = contract
    if as_json:
        print_json(summary)
    elif contract is not None:
        typer.echo(contract)
    else:
        _print_summary(summary, _shape(f, partitions, durability, app_name, packing))
    if summary.violations or contract is not None:
        raise typer.Exit(1)


def _telling(finished: "Iterable[Outcome]", console: "Console", shape: str) -> "Iterator[Outcome]":
    """What was found is told at once: all seeds take their time."""
    for outcome in finished:
        if outcome.violation:
            console.print(
                f"{outcome.violation} in seed {outcome.seed}: tara sim replay {outcome.seed} {shape}", markup=False
            )
        yield outcome


def _shape(f: int, partitions: int, durability: str, app_name: str, packing: str) -> str:
    """The options that make a seed that very run."""
    shape = f"--f {f} --partitions {partitions}"
    if durability != "both":
        shape += f" --durability {durability}"
    if packing:
        shape += f" --packing {packing}"
    return shape if app_name == "key-value" else f"{shape} --app {app_name}"


def _print_summary(summary: "Summary", shape: str) -> None:
    runs = summary.runs
    typer.echo(
        f"{runs} runs in {summary.seconds:.0f} s ({', '.join(f'{n} {kind}' for kind, n in summary.durability.items())})"
        f": {summary.commands} commands (median {summary.commands_median:.0f}), {summary.view_changes / runs:.1f} view "
        f"changes, {summary.restarts / runs:.1f} restarts, {summary.rejoins / runs:.1f} rejoins without a journal and "
        f"{summary.bases / runs:.1f} bases ({summary.bases_loaded / runs:.1f} loaded) and "
        f"{summary.replayed / runs:.0f} requests executed again a run"
    )
    typer.echo("faults  " + "  ".join(f"{kind} {count}" for kind, count in summary.faults.items()))
    typer.echo("checks  " + "  ".join(f"{kind} {count}" for kind, count in summary.checks.items()))
    for seed, detail in summary.details.items():
        typer.echo(f"VIOLATION seed {seed}: {detail[:500]}   (tara sim replay {seed} {shape} --trace)")
    if not summary.violations:
        typer.echo("no violation")


@commands.command("replay")
def sim_replay(
    seed: Annotated[int | None, typer.Argument(help="The seed.", min=0)] = None,
    plan_file: Annotated[Path | None, typer.Option("--plan", help="A file of `tara sim shrink`, not a seed.")] = None,
    f: Faults = 1,
    partitions: Partitions = 1,
    durability: SimulatedDurability = "both",
    packing: Packing = "",
    app_name: SimulatedApp = "key-value",
    trace: Annotated[bool, typer.Option("--trace", help="Tell what every node received, did and sent.")] = False,
    reports: Annotated[bool, typer.Option("--reports", help="With --trace: also the periodic reports.")] = False,
    as_json: Json = False,
) -> None:
    """Run one seed again, exactly as it was, and tell what happened. Exit status 1 if an invariant broke.

    Example: tara sim replay 42 --trace
    Example: tara sim replay --plan tara-shrunk-42.json
    """
    from tara.simulator.mutants.registry import applied
    from tara.simulator.plan import make_plan
    from tara.simulator.run import play
    from tara.simulator.shrink import read
    from tara.simulator.transcript import Transcript

    look_here()
    if (seed is None) == (plan_file is None):
        raise typer.BadParameter("give either a seed or --plan")
    mutant = None
    if plan_file is not None:
        reproduction = read(plan_file)
        plan, mutant = reproduction.plan, reproduction.mutant
    else:
        plan = make_plan(seed or 0, f, partitions, durability, app_name, packing=packing)
    transcript = Transcript(reports) if trace else None
    with applied(mutant):
        outcome = play(plan, transcript)
    if transcript is not None:
        for line in transcript.lines:
            typer.echo(line)
    if as_json:
        print_json(outcome)
    else:
        if mutant is not None:
            typer.echo(f"mutant: {mutant}")
        _print_outcome(plan, outcome)
    if outcome.violation:
        raise typer.Exit(1)


def _print_outcome(plan: "Plan", outcome: "Outcome") -> None:
    _print_plan(plan)
    typer.echo(
        f"{outcome.commands} commands, {outcome.view_changes} view changes, {outcome.restarts} restarts, "
        f"{outcome.checkpoints} checkpoints, {outcome.virtual_ms:.0f} ms virtual, fingerprint {outcome.fingerprint}"
    )
    typer.echo(f"VIOLATION {outcome.violation}: {outcome.detail}" if outcome.violation else "no violation")


def _print_plan(plan: "Plan") -> None:
    typer.echo(
        f"plan: {plan.app}, {plan.durability}, {plan.packing} packing, {plan.clients} clients with "
        f"{plan.commands_per_client} commands each, window {plan.limits.window}, faults:"
    )
    for fault in plan.faults:
        typer.echo(f"  {fault.at_ms:6} ms  {fault.kind} ({fault.duration_ms} ms)")


@commands.command("shrink")
def sim_shrink(
    seed: Annotated[int, typer.Argument(help="A seed that fails.", min=0)],
    f: Faults = 1,
    partitions: Partitions = 1,
    durability: SimulatedDurability = "both",
    packing: Packing = "",
    app_name: SimulatedApp = "key-value",
    mutant: Annotated[str | None, typer.Option(help="Take this rule away, as `tara sim mutants` does.")] = None,
    runs: Annotated[int, typer.Option(help="Runs to try at most.", min=1)] = 300,
    seconds: Annotated[float, typer.Option(help="How long to try at most.", min=1.0)] = 600.0,
    output: Annotated[Path | None, typer.Option(help="The file to write; tara-shrunk-SEED.json without.")] = None,
    as_json: Json = False,
) -> None:
    """Find the shortest run that still fails like this seed: fewer faults, less noise, fewer clients and commands.
    Writes it to a file that can be replayed. Exit status 1 if the seed does not fail.

    Example: tara sim shrink 42
    Example: tara sim shrink 5 --mutant records_ignored
    """
    from tara.simulator import shrink
    from tara.simulator.campaign import run_plan
    from tara.simulator.mutants.registry import applied, mutant_of
    from tara.simulator.plan import make_plan
    from tara.simulator.system_under_test import subject_of

    look_here()
    kind = ""
    if mutant is not None:
        # As `tara sim mutants` runs its seeds.
        found = mutant_of(mutant)
        kind, partitions = found.kind, max(partitions, found.partitions)
        durability = found.durability if durability == "both" else durability
        app_name = found.app if app_name == "key-value" else app_name
    plan = make_plan(seed, f, partitions, durability, app_name, kind, packing)
    subject_of(app_name, plan.keys)
    with applied(mutant):
        shrunk = shrink.shrink(plan, run_plan, runs, seconds, lambda text: typer.echo(text, err=True))
    shape = _shape(f, partitions, durability, app_name, packing) + (f" --mutant {mutant}" if mutant else "")
    if shrunk is None:
        typer.echo(f"seed {seed} ({shape}) does not fail: there is nothing to shrink", err=True)
        raise typer.Exit(1)
    file = output or Path(f"tara-shrunk-{seed}.json")
    outcome = shrunk.outcome
    violation = outcome.violation or ""
    shrink.write(
        file, shrink.Reproduction(mutant=mutant, violation=violation, detail=outcome.detail, plan=shrunk.after)
    )
    if as_json:
        print_json(
            {"file": str(file), "runs": shrunk.runs, "ended": shrunk.ended, "outcome": outcome, "plan": shrunk.after}
        )
    else:
        _print_shrunk(shrunk, file)


def _print_shrunk(shrunk: "Shrunk", file: Path) -> None:
    from tara.simulator.shrink import describe

    outcome = shrunk.outcome
    typer.echo(f"{shrunk.runs} runs; {shrunk.ended}")
    typer.echo(f"before: {describe(shrunk.before)}")
    typer.echo(f"after:  {describe(shrunk.after)}")
    _print_plan(shrunk.after)
    typer.echo(f"VIOLATION {outcome.violation} after {outcome.virtual_ms:.0f} ms: {outcome.detail[:500]}")
    typer.echo(f"replay: tara sim replay --plan {file} --trace")


@commands.command("mutants")
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

    from tara.simulator.mutants.hunting import hunt_all
    from tara.simulator.mutants.registry import mutants

    console = Console(stderr=True)
    names = [mutant.name for mutant in mutants()]
    findings = []
    for finding in track(hunt_all(seeds, jobs), "mutants", total=len(names), console=console):
        findings.append(finding)
        if not as_json:
            how = f"caught by {finding.by} after {finding.seeds} seeds" if finding.caught else "SURVIVED"
            typer.echo(f"{finding.name:36} {how:40} undoes: {finding.undoes}")
    findings.sort(key=lambda finding: names.index(finding.name))
    if as_json:
        print_json({"mutants": findings})
    if not all(finding.caught for finding in findings):
        raise typer.Exit(1)


@commands.command("coverage")
def sim_coverage(
    seeds: Annotated[int, typer.Option(help="How many seeds, over all shapes.", min=1)] = 100,
    jobs: Jobs = CORES,
    strict: Annotated[bool, typer.Option("--strict", help="Lines without an explanation are an error, too.")] = False,
    as_json: Json = False,
) -> None:
    """Which lines of the protocol, the host, the client, the storage and the gateway a campaign reaches, and why no
    seed reaches the others. Exit status 1 if less than 95 % of a package is reached, or if an invariant broke.

    Example: tara sim coverage --json
    """
    from tara.simulator.coverage import measure

    found = measure(seeds, jobs)
    if as_json:
        print_json(found)
    else:
        for package, percent in found.packages.items():
            typer.echo(f"{package:10} {percent:6.2f} %")
        for name, places in found.explained.items():
            for place, known in places.items():
                typer.echo(f"{name}: {place} ({', '.join(map(str, known.lines))}): {known.why}")
        for name, lines in found.unexplained.items():
            typer.echo(f"NOT EXPLAINED {name}: {', '.join(map(str, lines))}")
        for name, reason in found.omitted.items():
            typer.echo(f"not counted: {name} ({reason})")
        for violation in found.violations:
            typer.echo(f"VIOLATION {violation}")
    if not found.holds or (strict and found.unexplained):
        raise typer.Exit(1)


@commands.command("slow")
def sim_slow(
    mbit: Annotated[float, typer.Option(help="What each site can send, in Mbit/s.", min=1)] = 20.0,
    in_flight: Annotated[int, typer.Option(help="Commands that the client has in flight.", min=1, max=64)] = 1,
    commands: Annotated[int, typer.Option(help="Commands in all.", min=1)] = 50,
    kib: Annotated[int, typer.Option(help="Length of a command, in KiB.", min=1, max=1024)] = 1024,
    as_json: Json = False,
) -> None:
    """Large commands over slow links, with default limits. Exit status 1 if one is not answered, or if there are more
    than 3 view changes.

    Example: tara sim slow --mbit 20 --in-flight 8
    """
    from tara.simulator.slow_links import play

    run = play(mbit, commands, kib << 10, in_flight)
    if as_json:
        print_json(run)
    else:
        typer.echo(
            f"{run.answered} of {run.commands} commands of {kib} KiB answered over {mbit:g} Mbit/s, "
            f"{in_flight} in flight: {run.seconds} s of virtual time, the slowest {run.slowest_s} s, "
            f"{run.view_changes} view changes"
        )
    if not run.holds:
        raise typer.Exit(1)
