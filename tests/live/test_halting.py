"""No command ends the service: applications that break down, in real processes, over real sockets."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tara import cli
from tara.client.connection import Client
from tara.client.errors import CommandFailed, ServiceHalted
from tara.operations import health
from tests.live.processes import Processes, settings_for
from tests.patience import await_condition

APP = "tests.live.fatal:Fatal"
PATIENCE_S = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Processes]:
    with Processes(settings_for(tmp_path / "data", app=APP)) as processes:
        yield processes


@pytest.fixture
def client(cluster: Processes) -> Iterator[Client]:
    with Client(cluster.endpoints, timeout_s=PATIENCE_S) as connected:
        yield connected


def halted_at(cluster: Processes) -> list[int | None]:
    """The command at which each executor has halted."""
    states: list[dict[str, Any]] = [cluster.status(container).get("executor", {}) for container in range(3)]
    return [state["halted"]["counter"] if state.get("halted") else None for state in states]


def equal(cluster: Processes) -> bool:
    states = [cluster.status(container)["executor"] for container in range(3)]
    return len({(state["next"], state["digest"]) for state in states}) == 1 and states[0]["digest"] is not None


def lives(cluster: Processes) -> list[int]:
    return list(cluster.registry.state.lives)


@pytest.mark.parametrize("word", [b"exit", b"interrupt"])
def test_what_ends_a_program_fails_the_command_and_nothing_else(
    cluster: Processes, client: Client, word: bytes
) -> None:
    before = lives(cluster)
    with pytest.raises(CommandFailed, match=r"the application raised (SystemExit|KeyboardInterrupt)"):
        client.execute(word)
    with pytest.raises(CommandFailed, match="the application raised"):
        client.query(word)
    assert client.execute(b"a") == b"a"
    assert client.query(b"?") == b"a"
    assert lives(cluster) == before


def test_an_interrupt_of_the_terminal_does_not_reach_the_application(cluster: Processes, client: Client) -> None:
    for process in cluster.processes.values():
        assert process.pid is not None
        os.kill(process.pid, signal.SIGINT)
    assert client.execute(b"a") == b"a"
    assert all(process.is_alive() for process in cluster.processes.values())


def test_without_memory_everybody_is_told_at_which_command_and_why(cluster: Processes, client: Client) -> None:
    before = lives(cluster)
    assert client.execute(b"a") == b"a"
    told = "halted at command 3: the application raised MemoryError"
    with pytest.raises(ServiceHalted, match=told):
        client.execute(b"memory")
    await_condition(lambda: halted_at(cluster) == [3, 3, 3], "all executors to halt")
    with pytest.raises(ServiceHalted, match=told):
        client.execute(b"b")
    with pytest.raises(ServiceHalted, match=told):
        client.query(b"?")
    with pytest.raises(ServiceHalted, match=told):
        client.query(b"?", stale=True)
    with Client(cluster.endpoints, timeout_s=PATIENCE_S) as another, pytest.raises(ServiceHalted, match=told):
        another.execute(b"c")
    status = {
        "f": 1, "partitions": 1, "checkpoints_per_window": 1,
        "containers": [{"up": True, **cluster.status(container)} for container in range(3)],
    }  # fmt: skip
    assert health.halted(status) == {f"executor-{replica}": told for replica in range(3)}
    assert not health.full_strength(status)
    (event,) = [line for line in cluster.log("site-0") if line["event"] == "halted"]
    assert (event["level"], event["node"], event["details"]["counter"]) == ("error", "executor-0", 3)
    assert event["details"]["reason"] == "the application raised MemoryError"
    # Everything else lives on.
    assert lives(cluster) == before
    assert cluster.node(0, "committer-0")["state"] == "voting"
    assert cluster.active_proposers() == 1


def test_one_replica_without_memory_halts_alone_and_a_checkpoint_takes_it_on(
    cluster: Processes, client: Client
) -> None:
    assert client.execute(b"a") == b"a"
    # Only this one is the process that it names.
    pid = cluster.processes[1].pid
    assert client.execute(b"memory@%d" % (pid or 0)) == b"a,memory"
    await_condition(lambda: halted_at(cluster) == [None, 3, None], "one executor to halt")
    assert client.execute(b"b") == b"a,memory,b"
    with Client(cluster.registry.endpoints[1], timeout_s=PATIENCE_S) as there:
        # Its front end names the others.
        assert there.execute(b"c") == b"a,memory,b,c"
    for _ in range(100):
        client.execute(b"d")
    await_condition(lambda: halted_at(cluster) == [None, None, None], "a checkpoint to take it on")
    assert "executes_again" in cluster.events("site-1")
    cluster.registry.want_digests()
    await_condition(lambda: equal(cluster), "equal states")


def revive(cluster: Processes) -> None:
    """What Spark does: start whatever has ended again."""
    for container, process in list(cluster.processes.items()):
        if not process.is_alive():
            process.join()
            cluster.start(container)


@pytest.mark.parametrize("word", [b"gone", b"killed", b"crash"])
def test_a_command_that_takes_the_process_with_it_does_so_twice(
    cluster: Processes, client: Client, word: bytes
) -> None:
    assert client.execute(b"a") == b"a"
    before = lives(cluster)
    client.submit(word)

    def all_halted() -> bool:
        revive(cluster)
        return halted_at(cluster) == [3, 3, 3]

    await_condition(all_halted, "all executors to halt")
    assert lives(cluster) == [life + 2 for life in before]
    told = "halted at command 3: it has ended the process of this replica twice in a row"
    # Nobody listens any more where the first client knows front ends: in these processes ports are drawn.
    with Client(cluster.endpoints, timeout_s=PATIENCE_S) as another, pytest.raises(ServiceHalted, match=told):
        another.execute(b"b")
    ended = [line for line in cluster.log("site-2") if line["event"] == "ended_in_application"]
    assert [line["details"] for line in ended] == [{"at": "command 3", "times": times} for times in (1, 2)]
    # Another life does not try it again.
    cluster.kill(0)
    cluster.restart(0)
    await_condition(lambda: halted_at(cluster) == [3, 3, 3], "the restarted one to halt again")


def tara(cluster: Processes, *arguments: str) -> tuple[int, str]:
    """Exit status, and what was said."""
    done = CliRunner().invoke(cli.app, [*arguments, "--data-dir", cluster.settings.data_dir])
    return done.exit_code, str(done.exception) if done.exception else done.output


def test_an_operator_gets_the_service_past_a_command_without_memory(cluster: Processes, client: Client) -> None:
    assert client.execute(b"a") == b"a"
    fatal = client.submit(b"memory")
    with pytest.raises(ServiceHalted):
        fatal.result()
    await_condition(lambda: halted_at(cluster) == [3, 3, 3], "all executors to halt")
    with Client(cluster.endpoints, timeout_s=PATIENCE_S) as another:
        # Passed on before anybody knew, and not answered before the skip.
        status, said = tara(cluster, "skip", "2")
        assert status != 0
        assert "is past command 2" in said
        said = "command 3 is skipped on all replicas; its client has a failed result\n"
        assert tara(cluster, "skip", "3") == (0, said)
        assert another.execute(b"b") == b"a,b"
    # The same session goes on.
    assert client.execute(b"c") == b"a,b,c"
    await_condition(lambda: halted_at(cluster) == [None] * 3, "all to execute")
    cluster.registry.want_digests()
    await_condition(lambda: equal(cluster), "equal states")
    status, said = tara(cluster, "skip", "3")
    assert status != 0
    assert "is past command 3" in said


def test_an_operator_gets_the_service_past_a_command_that_ends_processes(cluster: Processes) -> None:
    with Client(cluster.endpoints, timeout_s=PATIENCE_S) as first:
        assert first.execute(b"a") == b"a"
        first.submit(b"killed")

        def all_halted() -> bool:
            revive(cluster)
            return halted_at(cluster) == [3, 3, 3]

        await_condition(all_halted, "all executors to halt")
    assert tara(cluster, "skip", "3")[0] == 0
    with Client(cluster.endpoints, timeout_s=PATIENCE_S) as client:
        assert client.execute(b"b") == b"a,b"
        # A life that replays everything passes it by, too.
        for container in range(3):
            cluster.kill(container)
            cluster.restart(container)
    await_condition(lambda: halted_at(cluster) == [None] * 3, "all to execute")
    with Client(cluster.endpoints, timeout_s=PATIENCE_S) as client:
        assert client.execute(b"c") == b"a,b,c"
    cluster.registry.want_digests()
    await_condition(lambda: equal(cluster), "equal states")


def test_a_command_that_lacked_something_can_be_executed_again(
    cluster: Processes, client: Client, tmp_path: Path
) -> None:
    lacking = tmp_path / "no-memory"
    lacking.touch()
    assert client.execute(b"a") == b"a"
    fatal = client.submit(b"memory~" + bytes(lacking))
    with pytest.raises(ServiceHalted):
        fatal.result()
    await_condition(lambda: halted_at(cluster) == [3, 3, 3], "all executors to halt")
    lacking.unlink()
    assert tara(cluster, "skip", "3", "--retry") == (0, "command 3 is executed again\n")
    assert client.execute(b"b") == b"a,memory,b"


def test_a_command_that_one_replica_has_executed_is_not_skipped(cluster: Processes, client: Client) -> None:
    assert client.execute(b"a") == b"a"
    # Two of three lack the memory; the one that has it is no majority for a checkpoint.
    lacking = b"@".join(b"%d" % (cluster.processes[container].pid or 0) for container in (0, 1))
    client.submit(b"memory@" + lacking)
    await_condition(lambda: halted_at(cluster) == [3, 3, None], "two executors to halt")
    status, said = tara(cluster, "skip", "3")
    assert status != 0
    assert "site-2 is past command 3: it has executed it" in said
    assert halted_at(cluster) == [3, 3, None]


def test_a_read_that_takes_the_process_with_it_is_refused_the_third_time(cluster: Processes) -> None:
    where = cluster.registry.endpoints[0]
    for _ in range(2):
        with Client(where, timeout_s=PATIENCE_S) as client:
            assert client.execute(b"a")
            client.submit_query(b"gone", stale=True)
            await_condition(lambda: not cluster.processes[0].is_alive(), "the process to end")
        cluster.restart(0)
        where = cluster.registry.endpoints[0]
    with Client(where, timeout_s=PATIENCE_S) as client:
        assert client.execute(b"a")
        with pytest.raises(CommandFailed, match="ended the process"):
            client.query(b"gone", stale=True)
    assert halted_at(cluster) == [None, None, None]
