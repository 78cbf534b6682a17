"""What goes wrong around a container: damaged journals, full disks, foreign frames. Real processes and files."""

import io
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tara.application import Put
from tara.host import client_wire, peer_wire
from tara.protocol import tuples as t
from tara.storage.journal import MARKER_FILE
from tests.frames import Frames
from tests.live.processes import Processes, settings_for
from tests.patience import DEADLINE_S, await_condition, patient


def put_some(processes: Processes, count: int, prefix: str = "key") -> dict[str, bytes]:
    with patient(processes.endpoints) as client:
        for number in range(count):
            client.put(f"{prefix}-{number}", str(number).encode())
    return {f"{prefix}-{number}": str(number).encode() for number in range(count)}


def all_there(processes: Processes, expected: dict[str, bytes]) -> bool:
    with patient(processes.endpoints) as client:
        return {key: client.get(key) for key in expected} == expected


def flip(segment: Path) -> None:
    """Flip a bit in the middle of what was synced."""
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(bytes(data))


def cut(segment: Path) -> None:
    """The last votes are gone, though they were synced."""
    os.truncate(segment, segment.stat().st_size - 300)


@pytest.mark.parametrize("harm", [flip, cut, Path.unlink], ids=["flip", "cut", "remove"])
def test_a_damaged_journal_is_repaired(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    """The committer keeps its promises and its journal, and the next view tells it what it lacks."""
    stderr = io.StringIO()
    with Processes(settings_for(tmp_path), stderr) as processes:
        expected = put_some(processes, 50)
        processes.kill(0)
        harm(max((tmp_path / "journal-0").glob("*.journal")))
        processes.restart(0)

        expected |= put_some(processes, 20, "after")
        await_condition(
            lambda: (
                processes.node(0, "committer-0").get("state") == "voting"
                and "holes" not in processes.node(0, "committer-0")
            ),
            "the committer to know all that it accepted",
        )
        # It counts as before: the others alone are no majority.
        processes.kill(2)
        assert all_there(processes, expected)
        expected |= put_some(processes, 5, "at last")
        counters = processes.status(0)["counters"]
        assert (counters["journals_repaired"], counters["journals_set_aside"]) == (1, 0)

    events = processes.events("site-0")
    assert "journal_repaired" in events
    assert "rejoining" not in events
    assert "journal_repaired" in stderr.getvalue()


def test_a_journal_that_does_not_tell_what_was_promised_is_set_aside(tmp_path: Path) -> None:
    """Its end is damaged, and so is the end marker: the committer rejoins without a journal."""
    stderr = io.StringIO()
    with Processes(settings_for(tmp_path), stderr) as processes:
        expected = put_some(processes, 50)
        processes.kill(0)
        cut(max((tmp_path / "journal-0").glob("*.journal")))
        (tmp_path / "journal-0" / MARKER_FILE).unlink()
        processes.restart(0)

        await_condition(lambda: processes.node(0, "committer-0").get("state") == "voting", "the committer to vote")
        expected |= put_some(processes, 20, "after")
        # The rejoined one counts: the others alone are no majority.
        processes.kill(2)
        assert all_there(processes, expected)
        counters = processes.status(0)["counters"]
        assert (counters["journals_repaired"], counters["journals_set_aside"]) == (0, 1)
        assert processes.registry.members[0].status["partitions"]["0"]["committer"]["recovering"] is False

    assert list((tmp_path / "journal-0.damaged-1").glob("*.journal"))
    events = [event for event in processes.events("site-0") if event != "base_saved"]
    assert events.index("journal_set_aside") < events.index("rejoining") < events.index("rejoined")
    assert "journal_set_aside" in stderr.getvalue()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """The journal of site 0 on a file system that is soon full."""
    directory = tmp_path / "journal-0"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(directory)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system is not permitted here")
    yield directory
    subprocess.run(["umount", str(directory)], check=True)


def test_a_full_disk_stops_one_container_and_loses_nothing(tmp_path: Path, small_disk: Path) -> None:
    stderr = io.StringIO()
    with Processes(settings_for(tmp_path), stderr) as processes:
        expected = put_some(processes, 20)
        filler = small_disk / "filler"
        with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
            while True:
                file.write(bytes(4096))
        # Room for a part of a record: it must be cut before the next attempt.
        os.truncate(filler, filler.stat().st_size - 4096)
        first = processes.processes[0]
        with patient(processes.endpoints) as client:
            expected |= {f"full-{number}": bytes(1000) for number in range(20)}
            puts = [
                client.client.submit(msgspec.msgpack.encode(Put(f"full-{number}", bytes(1000)))) for number in range(20)
            ]
            await_condition(lambda: "journal_waits" in processes.events("site-0"), "the journal to wait")
            # It does not wait for ever: it is free again before anything else is looked at.
            filler.unlink()
            for put in puts:
                put.result()
        await_condition(lambda: time.monotonic() - processes.registry.members[0].heard_at < 0.6, "it to go on")
        assert first.is_alive()
        assert all_there(processes, expected)

        processes.kill(0)
        processes.restart(0)
        await_condition(lambda: processes.node(0, "committer-0").get("state") == "voting", "the committer to vote")
        processes.kill(2)
        assert all_there(processes, expected)
    assert "journal_set_aside" not in processes.events("site-0")


@pytest.mark.slow
def test_a_disk_that_stays_full_ends_the_container_with_a_message(tmp_path: Path, small_disk: Path) -> None:
    stderr = io.StringIO()
    with Processes(settings_for(tmp_path), stderr) as processes:
        expected = put_some(processes, 20)
        filler = small_disk / "filler"
        with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
            while True:
                file.write(bytes(4096))
        expected |= put_some(processes, 40, "full")
        processes.processes[0].join(timeout=DEADLINE_S)
        assert processes.processes[0].exitcode == 1
        await_condition(lambda: "cannot be written: No space left" in stderr.getvalue(), "the reason on stderr")

        filler.unlink()
        processes.restart(0)
        await_condition(lambda: processes.node(0, "committer-0").get("state") == "voting", "the committer to vote")
        assert all_there(processes, expected)


def test_frames_of_another_shape_are_dropped_and_counted(tmp_path: Path) -> None:
    with Processes(settings_for(tmp_path)) as processes:
        registry = processes.registry
        address = registry.members[0].peer_address
        assert address is not None
        # A status with more partitions than there are: an index error in a node, if it got there.
        status = t.CommitterStatus(9, 7, 1, 1, 1, 1, 5, 0)
        header = peer_wire.Header(
            t.FORMAT_VERSION, registry.state.cluster, registry.state.era, 1, 1, registry.shape + 1
        )
        everywhere = tuple(range(len(registry.graph.names)))
        frame = peer_wire.OutgoingFrame(header, [(everywhere, msgspec.Raw(peer_wire.encode(status)))], [], [])
        with Frames(address) as connection:
            for _ in range(3):
                connection.send(peer_wire.encode(frame))
            await_condition(lambda: processes.status(0)["counters"]["frames_foreign"] >= 3, "the frames to be counted")
        put_some(processes, 3)
        assert processes.processes[0].is_alive()
    foreign = [line for line in processes.log("site-0") if line["event"] == "foreign_frame"]
    assert len(foreign) == 1
    assert foreign[0]["details"]["reason"].endswith("another shape")


def test_the_log_tells_the_story_of_a_cluster(tmp_path: Path) -> None:
    with Processes(settings_for(tmp_path)) as processes:
        put_some(processes, 200)
        await_condition(lambda: processes.active_proposers() == 1, "one active proposer")
        leader, view = next(
            (container, node["view"])
            for container in range(2)
            if (node := processes.node(container, f"proposer-{container}"))["state"] == "active"
        )
        os.kill(processes.registry.members[leader].pid, signal.SIGKILL)
        processes.restart(leader)
        await_condition(
            lambda: processes.registry.ready() and processes.active_proposers() > 0, "another active proposer"
        )
        put_some(processes, 5, "then")

    story = processes.log(f"site-{leader}")
    starts = [(line["life"], line["details"]["how"]) for line in story if line["event"] == "started"]
    assert starts == [(1, "genesis"), (2, "rejoined")]
    assert ("became_active", f"proposer-{leader}") in [(line["event"], line["node"]) for line in story]
    assert {"view_entered", "stopped"} <= {line["event"] for line in story}
    other = processes.log(f"site-{1 - leader}")
    assert any(line["view"] > view for line in other if line["event"] == "became_active")
    registry = processes.events("registry")
    assert registry.count("registered") == 3
    assert registry.count("restarted") == 1
    # Views may change often on a busy machine, but no command has a line of its own.
    assert len(story) < 200


def metrics(processes: Processes) -> dict[str, float]:
    """What Prometheus reads: the sum of each metric's samples."""
    with urllib.request.urlopen(processes.registry.metrics_address, timeout=DEADLINE_S) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = answer.read().decode()
    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            totals[sample.name] = totals.get(sample.name, 0) + sample.value
    return totals


def test_metrics_are_served_and_add_up(tmp_path: Path) -> None:
    with Processes(settings_for(tmp_path, base_bytes_min=1_000)) as processes:
        put_some(processes, 200)
        await_condition(
            lambda: (
                sum(processes.status(container)["counters"]["results"] for container in range(3)) >= 200
                and sum(processes.status(container)["counters"]["bases_saved"] for container in range(3)) >= 3
            ),
            "the heartbeats",
        )
        # On a busy machine a view may change just now, or a heartbeat be late.
        await_condition(
            lambda: (served := metrics(processes))["tara_proposer_active"] == 1 and served["tara_up"] == 3,
            "one active proposer and nobody silent",
        )
        totals = metrics(processes)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(processes.registry.metrics_address + "x", timeout=DEADLINE_S)
    # The session's opening is a command, too; its end may come after the heartbeat. What came late is sent again.
    assert totals["tara_commands_total"] >= 201
    assert totals["tara_latency_seconds_count"] >= 200 // 16
    assert totals["tara_journal_sync_seconds_count"] == totals["tara_journal_syncs_total"] > 100
    assert totals["tara_bases_saved_total"] >= 3
    assert totals["tara_view_changes_total"] >= 3
    assert totals["tara_cpu_seconds_total"] > 0


def test_an_overload_is_told_once(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, source_pending_max=1, source_backlog_max=1, durability="memory")
    with Processes(settings) as processes:
        openings = [t.Command(0, nonce, 0, msgspec.msgpack.encode(30_000), t.OPEN) for nonce in range(1, 300)]
        request = peer_wire.encode(client_wire.ClientRequest(t.FORMAT_VERSION, openings, [], bytes(16)))
        with Frames(processes.registry.endpoints[0]) as connection:
            connection.send(request)
            refused: set[int] = set()
            while t.OVERLOADED not in refused:
                refused |= {result.status for result in client_wire.decode_reply(connection.receive()).results}
        await_condition(lambda: "overload_end" in processes.events("site-0"), "the end of the overload")
        story = [event for event in processes.events("site-0") if event.startswith("overload")]
        assert story == ["overload_begin", "overload_end"]
        assert processes.status(0)["counters"]["overloaded"] > 200
