"""Containers whose data directories are apart, as on different hosts: what one lost comes from the others' sockets."""

import json
import shutil
from pathlib import Path

import pytest

from tara.live.observability.events import log_path
from tara.net.keygen import make_cluster_keys
from tara.storage.log_reader import LogReader
from tests.live.processes import Processes, settings_for
from tests.patience import await_condition, patient

INTERVAL = 64


def put(processes: Processes, numbers: range) -> None:
    with patient(processes.endpoints, keys=processes.settings.keys or None) as client:
        for number in numbers:
            client.put(f"key-{number}", str(number).encode() * 100)


def stable(processes: Processes, container: int) -> int:
    return int(processes.status(container).get("executor", {}).get("stable", 0))


@pytest.mark.parametrize("keyed", [False, True], ids=["plain", "keyed"])
def test_a_container_that_lost_its_disk_gets_everything_from_the_others(tmp_path: Path, keyed: bool) -> None:
    flags = {"container_dir": str(tmp_path / "host-{}"), "base_bytes_min": 1 << 15}
    if keyed:
        make_cluster_keys(tmp_path / "keys")
        flags["keys"] = str(tmp_path / "keys")
    with Processes(settings_for(tmp_path / "driver", **flags), log=True) as processes:
        put(processes, range(INTERVAL * 3))
        await_condition(lambda: stable(processes, 1) >= 2, "a stable checkpoint")
        processes.kill(0)
        shutil.rmtree(tmp_path / "host-0")
        put(processes, range(INTERVAL * 3, INTERVAL * 12))
        processes.restart(0)

        await_condition(lambda: processes.node(0, "committer-0").get("state") == "voting", "the committer to vote")
        put(processes, range(INTERVAL * 12, INTERVAL * 13))
        counter = processes.status(1)["executor"]["counter"]
        await_condition(lambda: processes.status(0)["executor"]["counter"] >= counter, "the executor to be there")
        assert processes.status(0)["counters"]["bases_loaded"] >= 1
        await_condition(lambda: processes.status(0)["log"]["gaps"] == 0, "the log to be whole")
        # The rejoined one counts: the others alone are no majority.
        processes.kill(2)
        put(processes, range(5))
        with patient(processes.endpoints, keys=processes.settings.keys or None) as client:
            for number in (0, INTERVAL * 5, INTERVAL * 13 - 1):
                assert client.get(f"key-{number}") == str(number).encode() * 100

    assert "rejoined" in processes.events("site-0")
    assert "base_fetched" in processes.events("site-0")
    assert not (tmp_path / "driver" / "bases-0").exists()
    assert sorted(path.name for path in (tmp_path / "host-1").iterdir()) == [
        "bases-1", "execution-1", "journal-1", "life-1", "log-1", "logs",
    ]  # fmt: skip
    for kind in ("bases", "log"):
        assert not list((tmp_path / "host-0" / f"{kind}-0" / "incoming").iterdir())
    mine, theirs = LogReader(tmp_path / "host-0" / "log-0"), LogReader(tmp_path / "host-1" / "log-1")
    end = min(mine.bounds().end, theirs.bounds().end)
    # What stands before the base that it began with it did not need.
    first = mine.bounds().first
    assert first < INTERVAL * 12
    assert end > INTERVAL * 13
    assert mine.read(first, end).equals(theirs.read(first, end))


def test_a_container_on_another_host_has_no_memory_and_an_old_journal_is_none(tmp_path: Path) -> None:
    """It moves away, and back to where a journal of it still is: that one lacks what it voted elsewhere."""
    flags = {"container_dir": str(tmp_path / "host-{}")}
    with Processes(settings_for(tmp_path / "driver", **flags)) as processes:
        put(processes, range(50))
        for where in (7, 0):
            processes.kill(0)
            processes.moved[0] = where
            processes.restart(0)
            await_condition(lambda: processes.node(0, "committer-0").get("state") == "voting", "the committer to vote")
            put(processes, range(50, 80))
        assert processes.status(0)["counters"]["journals_set_aside"] == 1
        processes.kill(0)
        processes.restart(0)
        # In its place, a journal is good for the next life.
        assert processes.status(0)["counters"]["journals_set_aside"] == 0
        processes.kill(2)
        put(processes, range(80, 90))
        with patient(processes.endpoints) as client:
            assert [client.get(f"key-{number}") for number in (0, 79, 89)] == [
                str(number).encode() * 100 for number in (0, 79, 89)
            ]

    there, back = [[line["event"] for line in _events(tmp_path / f"host-{where}")] for where in (7, 0)]
    assert there.index("rejoining") < there.index("rejoined")
    aside = back.index("journal_set_aside")
    assert back[aside:].index("rejoining") < back[aside:].index("rejoined")
    assert back.count("rejoining") == 1


def _events(directory: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in log_path(str(directory), "site-0").read_text().splitlines()]
