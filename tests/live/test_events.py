"""Structured logs in real files."""

import contextlib
import io
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from tara.live.observability import events
from tara.live.observability.events import EventLog
from tests.live.small_disk import SmallDisk


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_event_is_one_line_with_all_fields(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "site-0.log"
    event_log = EventLog(path, 0xAB, "site-0")
    event_log.life = 3
    event_log.info("view_entered", "committer-0", 7)
    event_log.warning("kill", target="site\n1")

    first, second = lines(path)
    assert list(first) == ["time", "level", "cluster", "container", "life", "event", "node", "view", "details"]
    assert (first["cluster"], first["container"], first["life"]) == ("ab", "site-0", 3)
    assert (first["event"], first["node"], first["view"], first["level"]) == ("view_entered", "committer-0", 7, "info")
    assert (second["node"], second["view"], second["details"]) == (None, None, {"target": "site\n1"})


def test_warnings_are_kept_for_the_driver_and_shown(tmp_path: Path) -> None:
    stream = io.StringIO()
    event_log = EventLog(tmp_path / "log", 1, "registry", stream)
    event_log.info("quiet")
    event_log.warning("loud")
    event_log.error("louder")

    kept = [json.loads(line)["event"] for line in event_log.take_warnings()]
    assert kept == ["loud", "louder"]
    assert event_log.take_warnings() == []
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["loud", "louder"]


def test_a_flood_is_one_line_with_the_number_of_those_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    event_log = EventLog(path, 1, "site-0")
    for _ in range(1000):
        event_log.flood("bad_frame", reason="x")
    assert len(lines(path)) == 1

    monkeypatch.setattr(events, "QUIET_S", 0.0)
    event_log.flood("bad_frame", reason="x")
    assert lines(path)[1]["details"] == {"reason": "x", "left_out_before": 999}


def test_files_are_rotated_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "LOG_BYTES_MAX", 2_000)
    for life in range(3):
        event_log = EventLog(tmp_path / "log", 1, "site-0")
        event_log.life = life
        for number in range(100):
            event_log.info("event", number=number)
        event_log.close()

    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "log.1", "log.2", "log.3"]
    assert all(path.stat().st_size <= 2_000 for path in tmp_path.iterdir())
    newest = lines(tmp_path / "log.1") + lines(tmp_path / "log")
    assert newest[-1]["details"] == {"number": 99}
    numbers = [line["details"]["number"] for line in newest]
    assert numbers == list(range(numbers[0], 100))


def test_a_log_that_cannot_be_written_is_counted(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    event_log = EventLog(tmp_path / "file" / "site-0.log", 1, "site-0")
    event_log.error("halted")

    assert event_log.errors == 1
    assert len(event_log.take_warnings()) == 1


def test_a_stream_that_cannot_be_written_is_counted(tmp_path: Path) -> None:
    """Whoever logs must not die of it, nor wait for it: a full disk, a pipe without a reader, one that is not read."""
    reader, writer = os.pipe()
    os.close(reader)
    unread, full = os.pipe()
    os.set_blocking(full, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(full, b"x" * 4096):
            pass
    os.set_blocking(full, True)
    closed = (tmp_path / "closed").open("w")
    closed.close()

    for stream in (open("/dev/full", "w"), os.fdopen(writer, "w"), os.fdopen(full, "w"), closed):  # noqa: SIM115
        with contextlib.closing(stream):
            event_log = EventLog(tmp_path / "log", 1, "registry", stream)
            event_log.warning("restarted")
            event_log.show(b'{"event":"halted"}')

            assert event_log.errors == 2
            assert lines(tmp_path / "log")[-1]["event"] == "restarted"
            event_log.close()
    os.close(unread)


def test_a_long_line_is_shown_whole(tmp_path: Path) -> None:
    with (tmp_path / "shown").open("w") as stream:
        EventLog(None, 1, "registry", stream).warning("failed", reason="x" * 100_000)

    (line,) = lines(tmp_path / "shown")
    assert line["details"] == {"reason": "x" * 100_000}


def test_what_json_cannot_say_is_written_all_the_same(tmp_path: Path) -> None:
    event_log = EventLog(tmp_path / "log", 1, "site-0")
    event_log.warning("failed", reason="caf\udce9", error=ValueError("no"), number=1 << 80)

    (line,) = lines(tmp_path / "log")
    assert line["details"] == {"reason": r"'caf\udce9'", "error": "ValueError('no')", "number": str(1 << 80)}


def test_a_line_that_the_disk_took_in_part_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "log"
    event_log = EventLog(path, 1, "site-0")
    event_log.info("first")
    with SmallDisk(path.stat().st_size + 10):
        event_log.info("torn")
    event_log.info("last")

    first, torn, last = path.read_text().splitlines()
    assert (json.loads(first)["event"], len(torn), json.loads(last)["event"]) == ("first", 10, "last")
    assert event_log.errors == 1


def test_threads_do_not_mix_their_lines(tmp_path: Path) -> None:
    event_log = EventLog(tmp_path / "log", 1, "site-0")

    def write() -> None:
        for _ in range(200):
            event_log.info("event", text="x" * 100)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(lines(tmp_path / "log")) == 800
