"""`tara bench paper`, `loc`, `zookeeper` and `zookeeper-scale`: what the evaluation measures. Needs the checkout."""

from pathlib import Path
from typing import Annotated

import typer

from tara.cli.checkout import use_evaluation
from tara.cli.output import print_json
from tara.command_options import Json

commands = typer.Typer()


@commands.command("paper")
def bench_paper(
    quick: Annotated[bool, typer.Option("--quick", help="Each point once, four loads, clusters reused.")] = False,
    only: Annotated[list[str] | None, typer.Option(help="Only this experiment; may be given several times.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Measured seconds per point.", min=0.5)] = None,
    redraw: Annotated[bool, typer.Option("--redraw", help="Measure nothing; make figures and report again.")] = False,
    output: Annotated[Path, typer.Option(help="Where results and figures go.")] = Path("docs/evaluation"),
    page: Annotated[Path, typer.Option(help="The report.")] = Path("docs/evaluation.md"),
    disk: Annotated[Path | None, typer.Option(help="For data on disk; by default where temporary files go.")] = None,
    memory: Annotated[Path, typer.Option(help="For data in memory.")] = Path("/dev/shm"),
) -> None:
    """The paper's evaluation, and the peers beside it: results.json, figures, and a report.

    Exit status 1 if an experiment failed. Results of experiments that are not run again are kept.

    Example: tara bench paper --quick
    """
    import tempfile

    use_evaluation("tara bench paper", "matplotlib")
    from evaluation.experiments import EXPERIMENTS, evaluate
    from evaluation.plan import quick_plan, whole_plan
    from evaluation.report import publish

    plan = (quick_plan if quick else whole_plan)(disk or Path(tempfile.gettempdir()), memory, seconds)
    names = [] if redraw else list(only or EXPERIMENTS)
    results = evaluate(plan, names, output / "results.json", lambda line: typer.echo(line, err=True))
    figures = publish(results, page, output)
    typer.echo(f"{page}, with {len(figures)} figures in {output}")
    for name in names:
        if results.sections[name].failure:
            typer.echo(f"{name} failed: {results.sections[name].failure}", err=True)
    if any(results.sections[name].failure for name in names):
        raise typer.Exit(1)


@commands.command("loc")
def bench_loc(as_json: Json = False) -> None:
    """Development effort: code lines by the paper's rule and categories, beside the paper's own figures.

    Example: tara bench loc
    """
    use_evaluation("tara bench loc")
    from evaluation import code_lines, reference

    files = code_lines.count()
    lines, packages, others = code_lines.totals(files), code_lines.live_packages(files), code_lines.other_packages()
    if as_json:
        print_json(lines | {"packages": packages, "other_packages": others})
        return
    typer.echo(f"{'category':22}{'BFT-SMaRt':>10}{'paper':>8}{'here':>8}")
    for category in code_lines.PAPER_CATEGORIES:
        theirs, paper = reference.BFT_SMART_LINES[category], reference.PAPER_LINES[category]
        typer.echo(f"{category.replace('_', ' '):22}{theirs:10}{paper:8}{lines[category]:8}")
    sums = (sum(reference.BFT_SMART_LINES.values()), sum(reference.PAPER_LINES.values()))
    own = sum(lines[category] for category in code_lines.PAPER_CATEGORIES)
    typer.echo(f"{'the paper’s part':22}{sums[0]:10}{sums[1]:8}{own:8}")
    for category in code_lines.BEYOND_CATEGORIES:
        typer.echo(f"{'beyond: ' + category.replace('_', ' '):40}{lines[category]:8}")
    typer.echo(f"{'the live path':40}{lines['total']:8}")
    typer.echo("")
    for package, count in packages.items():
        typer.echo(f"{'live path: ' + package:40}{count:8}")
    for package, count in others.items():
        typer.echo(f"{'other: ' + package:40}{count:8}")
    typer.echo(f"{'all':40}{lines['total'] + sum(others.values()):8}")


@commands.command("zookeeper")
def bench_zookeeper(
    services: Annotated[str, typer.Option(help="tara, zookeeper, or tara,zookeeper.")] = "tara,zookeeper",
    durability: Annotated[str, typer.Option(help="disk, memory, or disk,memory.")] = "disk,memory",
    sessions: Annotated[str, typer.Option(help="Numbers of closed-loop sessions.")] = "1,64,256",
    seconds: Annotated[float, typer.Option(help="Measured seconds, each.", min=0.5)] = 5.0,
    warm_up: Annotated[float, typer.Option(help="Seconds of load before, per operation.", min=0.0)] = 5.0,
    payload: Annotated[int, typer.Option(help="Bytes of a value.", min=1)] = 64,
    as_json: Json = False,
) -> None:
    """The coordination service and Apache ZooKeeper, three servers each, under the same load.

    Example: tara bench zookeeper --sessions 64 --json
    """
    use_evaluation("tara bench zookeeper")
    from evaluation.zookeeper_speed import measure

    for name, text, known in (
        ("services", services, ("tara", "zookeeper")),
        ("durability", durability, ("disk", "memory")),
    ):
        if not set(text.split(",")) <= set(known):
            raise typer.BadParameter(f"{text}: known are {', '.join(known)}", param_hint=f"--{name}")
    if not all(count.isdigit() and int(count) > 0 for count in sessions.split(",")):
        raise typer.BadParameter(f"{sessions}: must be numbers", param_hint="--sessions")
    report = measure(
        services.split(","),
        durability.split(","),
        [int(count) for count in sessions.split(",")],
        seconds,
        payload,
        warm_up,
        lambda line: typer.echo(line, err=as_json),
    )
    if as_json:
        print_json(report)


@commands.command("zookeeper-scale")
def bench_zookeeper_scale(
    nodes: Annotated[int, typer.Option(help="Znodes.", min=1)] = 100_000,
    sessions: Annotated[int, typer.Option(help="Open sessions.", min=1)] = 1_000,
    seconds: Annotated[float, typer.Option(help="Measured seconds.", min=1.0)] = 10.0,
    as_json: Json = False,
) -> None:
    """The coordination service with many znodes and sessions: memory, a base, restart.

    Example: tara bench zookeeper-scale --nodes 100000
    """
    use_evaluation("tara bench zookeeper-scale")
    from evaluation.zookeeper_scale import measure

    report = measure(nodes, sessions, seconds, say=lambda line: typer.echo(line, err=True))
    if as_json:
        print_json(report)
    else:
        memory = ", ".join(f"{megabytes:.0f}" for megabytes in report.memory_mb)
        typer.echo(
            f"{nodes} znodes ({report.creations_per_s:.0f}/s), {sessions} sessions: {memory} MB a site; "
            f"{report.checkpoints} checkpoints and a base of {report.base_bytes / 1e6:.1f} MB, a write took "
            f"{report.latency_ms_p50} ms (p50), {report.latency_ms_max} ms at most; a killed site served again after "
            f"{report.restart_s} s"
        )
