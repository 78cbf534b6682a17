"""A real cluster on local Spark: real processes, sockets, files and kills."""

import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tara.client import CommandFailed, CommandTooLarge, KeyValueClient, NotReachable
from tara.configuration.settings import Settings, load_settings
from tara.live.spark import Cluster
from tests.frames import Frames
from tests.patience import await_condition, patient

pytestmark = pytest.mark.spark


def settings_for(directory: Path) -> Settings:
    flags = {"data_dir": str(directory), "checkpoint_interval": 512, "window": 2048}
    return load_settings(environment={}, flags=flags)


def endpoints(cluster: Cluster) -> str:
    return ",".join(cluster.registry.endpoints)


def views(cluster: Cluster) -> list[int]:
    return [member.status["partitions"]["0"]["view"] for member in cluster.registry.members if member.status]


def leader(cluster: Cluster) -> int:
    """The container of the active proposer."""
    for container, member in enumerate(cluster.registry.members):
        if member.status.get("partitions", {}).get("0", {}).get("proposer", {}).get("mode") == "active":
            return container
    return -1


def equal_states(cluster: Cluster) -> bool:
    cluster.registry.want_digests()
    states = [(executor["next"], executor.get("digest")) for executor in cluster.registry.executors()]
    return len(states) == len(cluster.registry.members) and len(set(states)) == 1 and states[0][1] is not None


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = Cluster(settings_for(tmp_path_factory.mktemp("live")))
    running.start()
    await_condition(lambda: leader(running) >= 0, "an active proposer")
    yield running
    running.stop()


def test_the_key_value_store_answers(cluster: Cluster) -> None:
    with patient(endpoints(cluster)) as client:
        client.put("city", b"Erlangen")

        assert client.get("city") == b"Erlangen"
        assert client.compare_and_set("city", b"Erlangen", b"Bamberg")
        assert not client.compare_and_set("city", b"Erlangen", b"Hof")
        assert client.list("ci") == ["city"]
        assert client.delete("city")
        assert client.get("city") is None
        await_condition(lambda: client.get("city", stale=True) is None, "the delete at the replica that is asked")


def test_bad_commands_get_clear_errors(cluster: Cluster) -> None:
    with patient(endpoints(cluster)) as client:
        with pytest.raises(CommandFailed, match="not a key-value command"):
            client.client.execute(b"\xc1")
        with pytest.raises(CommandTooLarge, match="bytes"):
            client.client.execute(bytes(2 << 20))
        client.put("still", b"alive")
        assert client.get("still") == b"alive"


def test_garbage_at_a_port_is_counted_and_dropped(cluster: Cluster) -> None:
    with Frames(cluster.registry.endpoints[0]) as connection:
        for garbage in (b"", b"\xc1\xc1", b"\x93\x01\x02", b"x" * 10_000):
            connection.send(garbage)
        await_condition(
            lambda: cluster.registry.members[0].status["counters"]["frames_bad"] >= 4, "the bad frames to be counted"
        )
    with patient(endpoints(cluster)) as client:
        client.put("after", b"garbage")


def test_nobody_there_is_said(cluster: Cluster) -> None:
    with KeyValueClient("127.0.0.1:1", timeout_s=0.5) as client, pytest.raises(NotReachable):
        client.put("a", b"b")


def test_spark_shows_what_each_job_hosts(cluster: Cluster) -> None:
    with urllib.request.urlopen(f"{cluster.ui}/api/v1/applications", timeout=10) as answer:
        application = msgspec.json.decode(answer.read())[0]["id"]
    with urllib.request.urlopen(f"{cluster.ui}/api/v1/applications/{application}/jobs", timeout=10) as answer:
        descriptions = sorted(job["description"] for job in msgspec.json.decode(answer.read()))

    assert [text.partition(":")[0] for text in descriptions] == ["site-0", "site-1", "site-2"]
    assert descriptions[1].startswith("site-1: life 1 + attempt of the task; request_source-1, proposer-1, committer-1")


def test_a_container_with_a_damaged_journal_comes_back_with_its_memory(cluster: Cluster) -> None:
    """Spark starts it again; it must not die of the same journal again and again."""
    with patient(endpoints(cluster)) as client:
        client.put("before", b"damage")
    victim = (leader(cluster) + 1) % 3
    life = cluster.registry.state.lives[victim]
    directory = Path(cluster.settings.data_dir)
    segment = max((directory / f"journal-{victim}").glob("*.journal"))
    with segment.open("r+b") as file:
        file.seek(segment.stat().st_size // 2)
        file.write(bytes(64))
    os.kill(cluster.registry.members[victim].pid, signal.SIGKILL)

    await_condition(lambda: cluster.registry.state.lives[victim] > life, "Spark to start the container again")
    member = cluster.registry.members[victim]
    await_condition(
        lambda: member.status.get("nodes", {}).get(f"committer-{victim}", {}).get("state") == "voting",
        "the committer to vote again",
    )
    assert cluster.registry.state.lives[victim] == life + 1
    assert member.status["counters"]["journals_repaired"] == 1
    assert (directory / f"journal-{victim}" / "damaged").is_dir()
    with patient(endpoints(cluster)) as client:
        assert client.get("before") == b"damage"


def test_a_container_that_cannot_start_is_tried_again_with_patience(cluster: Cluster) -> None:
    """Its journal's place is taken: it says so, Spark tries again, and it starts when the place is free."""
    victim = (leader(cluster) + 1) % 3
    directory = Path(cluster.settings.data_dir) / f"journal-{victim}"
    aside = directory.with_name("aside")
    directory.rename(aside)
    directory.write_bytes(b"not a directory")
    life = cluster.registry.state.lives[victim]
    os.kill(cluster.registry.members[victim].pid, signal.SIGKILL)

    await_condition(lambda: cluster.registry.state.lives[victim] >= life + 3, "several attempts")
    lines = (Path(cluster.settings.data_dir) / "logs" / f"site-{victim}.log").read_text().splitlines()
    failures = [event for event in map(msgspec.json.decode, lines) if event["event"] == "failed"]
    assert "cannot be used" in failures[-1]["details"]["reason"]
    pauses = [event["details"]["pause_s"] for event in failures]
    assert pauses == sorted(pauses)
    assert pauses[-1] > pauses[0]
    directory.unlink()
    aside.rename(directory)
    member = cluster.registry.members[victim]
    await_condition(
        lambda: member.status.get("nodes", {}).get(f"committer-{victim}", {}).get("state") == "voting", "a start"
    )
