"""Operations: the decided log, backups, what is left after a loss, sessions, commands that cannot be executed."""

from pathlib import Path
from typing import Annotated

import typer

from tara.cli.application_path import look_here
from tara.cli.output import print_json
from tara.command_options import (
    DATA_DIR,
    ConfigFile,
    DataDir,
    FaultsSetting,
    Json,
    Keys,
    PackingSetting,
    PartitionsSetting,
)

commands = typer.Typer()


@commands.command("log")
def log(
    start: Annotated[
        int | None, typer.Option("--from", help="The first command counter; by default the oldest.")
    ] = None,
    end: Annotated[int | None, typer.Option("--to", help="The counter to stop before.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for new commands.")] = False,
    replica: Annotated[int | None, typer.Option(help="Whose log; by default the one that reaches furthest.")] = None,
    endpoints: Annotated[
        str | None, typer.Option(help="host:port,host:port: read it from there, and not from the data directory.")
    ] = None,
    keys: Keys = None,
    data_dir: DataDir = DATA_DIR,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object per line.")] = False,
) -> None:
    """Print the decided commands in their order, with their results.

    Example: tara log --from 1000 --to 1010; tara log --endpoints 10.0.0.1:7001,10.0.0.2:7001 --follow
    """
    from tara.operations.log_text import print_log, print_remote_log

    if endpoints is not None and replica is not None:
        raise typer.BadParameter("--replica goes with a data directory, not with --endpoints")
    try:
        if endpoints is None:
            print_log(data_dir, start, end, follow, replica, as_json, typer.echo)
        else:
            print_remote_log(endpoints, keys, start, end, follow, as_json, typer.echo)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


@commands.command("replay")
def replay(
    to: Annotated[int | None, typer.Option("--to", help="The last command; by default the newest.", min=0)] = None,
    app_name: Annotated[str | None, typer.Option("--app", help="By default what the cluster executes.")] = None,
    diff: Annotated[bool, typer.Option("--diff", help="Compare the results with those in the log.")] = False,
    against: Annotated[str | None, typer.Option(help="Compare with what this application answers.")] = None,
    query: Annotated[str | None, typer.Option(help="A question (key-value: a key) to the state.")] = None,
    data_dir: DataDir = DATA_DIR,
    as_json: Json = False,
) -> None:
    """Rebuild the application's state as of a command from bases and the decided log, and compare results.

    Ends with status 1 if results differ.

    Example: tara replay --to 1000 --app stock:Stock --diff
    """
    from tara.operations.replay import ReplayOrder
    from tara.operations.replay_text import run_replay

    look_here()
    request = ReplayOrder(to=to, app=app_name, against=against, diff=diff, query=query)
    if run_replay(data_dir, request, as_json, typer.echo):
        raise typer.Exit(1)


@commands.command("backup")
def backup(
    file: Annotated[Path, typer.Argument(help="The file to write; it must not exist.")],
    data_dir: DataDir = DATA_DIR,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Let the running cluster come to a new checkpoint first.")
    ] = False,
    at: Annotated[
        int | None, typer.Option("--at", help="The last command that is to be in it, by its counter.", min=0)
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the state of a cluster, running or not, to a file: that at its newest stable checkpoint, or, with --at,
    that as of any command that its logs reach. The state is rebuilt from a base and the log, by executing commands
    again with the cluster's application: run it where that can be imported.

    Example: tara backup city.backup --fresh --data-dir /var/lib/tara
    Example: tara backup before.backup --at 1233
    """
    from tara.operations.backup import back_up
    from tara.operations.fresh_checkpoint import await_fresh_checkpoint

    if fresh and at is not None:
        raise typer.BadParameter("--fresh and --at contradict each other")
    look_here()
    if fresh:
        await_fresh_checkpoint(data_dir)
    header = back_up(data_dir, file, at)
    if as_json:
        print_json(header)
        return
    what = f"checkpoint {header.checkpoint}" if at is None else f"the state behind checkpoint {header.checkpoint}"
    typer.echo(f"{what} of cluster {header.cluster:x}: commands up to {header.counter}")
    if at is not None and header.counter < at:
        typer.echo(f"command {header.counter + 1} was executed together with others, up to {at} or beyond", err=True)


@commands.command("restore")
def restore(
    file: Annotated[Path, typer.Argument(help="A file that `tara backup` wrote.")],
    data_dir: Annotated[Path, typer.Option(help="A directory that is empty or not there yet.")],
    config: ConfigFile = None,
    app_name: Annotated[str | None, typer.Option("--app", help="key-value, or module:Class.")] = None,
    f: FaultsSetting = None,
    partitions: PartitionsSetting = None,
    packing: PackingSetting = None,
) -> None:
    """Make the data directory of a new cluster from a backup. Give it the settings that `tara up` will have.

    Example: tara restore city.backup --data-dir /var/lib/tara-2
    """
    from tara.configuration.settings import load_settings
    from tara.operations.backup import restore

    flags = {"data_dir": str(data_dir), "app": app_name, "f": f, "partitions": partitions, "packing": packing}
    cluster = restore(file, load_settings(config, flags=flags))
    typer.echo(f"cluster {cluster.cluster:x} is ready: tara up --data-dir {data_dir}")


@commands.command("verify")
def verify(
    data_dir: DataDir = DATA_DIR,
    running: Annotated[
        bool, typer.Option("--running", help="Compare the states of a running cluster's replicas instead.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Read every file of a data directory, and say which ones are damaged; exit status 1 if there is any. The cluster
    should be down. Nothing is changed: a start repairs what can be repaired.

    With --running, every executor of the running cluster takes a base at one same checkpoint, and their digests are
    compared; exit status 1 if they differ, or if one is missing.

    Example: tara verify --data-dir /var/lib/tara
    Example: tara verify --running
    """
    if running:
        _compare_states(data_dir, as_json)
        return
    from tara.operations.verify import verify

    scrub = verify(data_dir)
    if as_json:
        print_json({"data_dir": scrub.data_dir, "files": scrub.files, "damaged": len(scrub.damaged)})
    else:
        for report in scrub.damaged:
            for problem in report.problems:
                typer.echo(f"{report.path}: {problem}")
        typer.echo(f"{len(scrub.files)} files and directories, {len(scrub.damaged)} damaged")
    if scrub.damaged:
        raise typer.Exit(1)


def _compare_states(data_dir: Path, as_json: bool) -> None:
    from tara.operations.running_states import compare_states

    found = compare_states(data_dir)
    if as_json:
        print_json({"checkpoint": found.checkpoint, "digests": found.digests, "equal": found.equal})
    else:
        for label, digest in found.digests.items():
            why = found.halted.get(label, "none in time")
            typer.echo(f"{label}: {digest or why}")
        typer.echo(f"checkpoint {found.checkpoint}: the states {'are equal' if found.equal else 'are NOT known equal'}")
    if not found.equal:
        raise typer.Exit(1)


@commands.command("recover")
def recover(
    from_checkpoint: Annotated[
        bool, typer.Option("--from-checkpoint", help="Go on from the last command that can be had, and lose the rest.")
    ] = False,
    data_dir: DataDir = DATA_DIR,
    also: Annotated[
        list[Path] | None, typer.Option(help="Another data directory, say of a server; may be repeated.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also if enough journals are intact.")] = False,
    as_json: Json = False,
) -> None:
    """After the loss of more than f sites: begin a new era with the furthest state that bases and logs lead to, and say
    what is lost. The state is rebuilt by executing commands again with the cluster's application.

    Example: tara recover --from-checkpoint --data-dir /var/lib/tara
    """
    from tara.configuration.state import ANY_SITE
    from tara.operations.recovery import Recovery

    if not from_checkpoint:
        raise typer.BadParameter("there is no other way: say --from-checkpoint", param_hint="recover")
    look_here()
    with Recovery(data_dir, also or []) as recovery:
        recovery.check(force)
        for line in recovery.found.statement():
            typer.echo(line, err=as_json)
        if not yes:
            typer.confirm(f"Begin era {recovery.found.next_era}?", abort=True, err=as_json)
        state = recovery.begin()
    if as_json:
        print_json({"era": state.era, "threshold": state.threshold, "found": recovery.found})
    elif recovery.found.site == ANY_SITE:
        typer.echo(f"era {state.era} is ready: tara up --data-dir {data_dir}")
    else:
        typer.echo(
            f"era {state.era} is ready: copy {data_dir} to at least {state.f} other sites, in the place of what is "
            "there; move it away at the others; then start them all with tara site"
        )


@commands.command("sessions")
def sessions(
    action: Annotated[str, typer.Argument(help="close ID or close NAME; nothing: list them.")] = "",
    which: Annotated[str, typer.Argument(help="The id or the name of a session.")] = "",
    data_dir: DataDir = DATA_DIR,
    keys: Keys = None,
    as_json: Json = False,
) -> None:
    """The sessions of all clients: whose they are, how long they have been silent, what they keep. Or close one.

    For operators: with keys, whoever has a key of the cluster; without, whoever can read the data directory.

    Example: tara sessions --json
    Example: tara sessions close orders
    """
    from tara.cli.listing import session_table, show
    from tara.operations.operator import Operator
    from tara.operations.sessions import close_session, list_sessions, session_fields

    if action not in ("", "close") or bool(action) != bool(which):
        raise typer.BadParameter("say `tara sessions`, or `tara sessions close` and the id or name of a session")
    operator = Operator(data_dir, keys)
    if action:
        closed = close_session(operator, which)
        if as_json:
            print_json({"closed": session_fields(closed)})
        else:
            typer.echo(f"session {closed.id} is closed")
        return
    rows = list_sessions(operator)
    if as_json:
        print_json({"sessions": [session_fields(row) for row in rows]})
    else:
        show(session_table(rows))


@commands.command("skip")
def skip(
    counter: Annotated[int, typer.Argument(help="The command's counter, as `tara status` names it.", min=1)],
    lost: Annotated[
        list[str] | None, typer.Option(help="A container, such as site-2, that will never come back with its data.")
    ] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Have it executed again instead.")] = False,
    data_dir: DataDir = DATA_DIR,
    keys: Keys = None,
) -> None:
    """Get a service that has halted past a command that no replica can execute: its client gets a failed result.

    Refused if a replica has executed the command, or does not answer. `--retry` is for a command that lacked something
    which is there now, such as memory: the replicas that have halted at it execute it (again).

    Example: tara skip 17
    Example: tara skip 17 --lost site-2
    """
    import msgspec

    from tara.live import control
    from tara.operations import skipping
    from tara.operations.operator import Operator
    from tara.operations.registry_client import ask

    operator = Operator(data_dir, keys)
    if retry:
        skipping.retry(operator, counter)
        typer.echo(f"command {counter} is executed again")
        return
    skipping.skip(operator, lambda: msgspec.json.decode(ask(data_dir, control.AskStatus(), keys)), counter, lost or ())
    typer.echo(f"command {counter} is skipped on all replicas; its client has a failed result")
