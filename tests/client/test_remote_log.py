"""The decided log over the network, with real sockets: the same rows as in the files, whatever becomes of a site."""

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tara.client import Forbidden, NotReachable, Refused
from tara.client.remote_log import RemoteLogReader
from tara.net import bounds, log_server
from tara.net import log_wire as wire
from tara.net.certificates import Keys, load_keys
from tara.net.channel import Channel
from tara.net.framing import Splitter, framed
from tara.net.keygen import make_client_keys, make_cluster_keys
from tara.storage.log_blocks import LogBlocks, LogBounds
from tara.storage.log_format import LogError
from tara.storage.log_reader import LogReader, LogTruncated
from tests.log_sites import LogSite, endpoints_of, log_sites
from tests.patience import DEADLINE_S, await_condition
from tests.storage.logs import behind, names, opened, simple, three_logs, write, written

COMMANDS = 100
#: Their answers are more than what the kernel keeps for a connection.
REQUESTS = 500


@pytest.fixture
def logs(tmp_path: Path) -> list[Path]:
    """Of three replicas, with the commands 1 to 100."""
    return three_logs(tmp_path)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorter than the shortest block."""
    monkeypatch.setattr(bounds, "LOG_PIECE_BYTES", 100)


def reader(sites: list[LogSite], **options: object) -> RemoteLogReader:
    return RemoteLogReader(endpoints_of(sites), timeout_s=DEADLINE_S, **options)  # type: ignore[arg-type]


def test_rows_are_those_of_the_files(logs: list[Path]) -> None:
    with log_sites(*logs) as sites, reader(sites) as remote:
        assert remote.bounds() == LogBounds(1, COMMANDS + 1)
        assert remote.read(1).equals(LogReader(logs[0]).read(1))
        assert remote.read(17, 42).equals(LogReader(logs[0]).read(17, 42))
        assert remote.read(50, 30).num_rows == 0


@pytest.mark.usefixtures("small_pieces")
def test_a_block_may_be_longer_than_a_piece(logs: list[Path]) -> None:
    with log_sites(logs[0]) as sites, reader(sites) as remote:
        assert remote.read(1).equals(LogReader(logs[0]).read(1))
        assert remote.read(60, 61).column("counter").to_pylist() == [60]


def test_a_log_that_grows_is_followed(tmp_path: Path) -> None:
    handed = simple(COMMANDS)
    writer, _ = opened(tmp_path)
    place = behind(handed, 2)
    write(writer, handed[:place])
    writer.flush()
    with log_sites(tmp_path) as sites, reader(sites) as remote:
        end = remote.bounds().end
        assert 1 < end <= COMMANDS
        seen: list[int] = []

        def some_more() -> bool:
            nonlocal place
            write(writer, handed[place : place + 1])
            writer.flush()
            place += 1
            return len(seen) >= COMMANDS

        for batch in remote.follow(1, some_more, poll_s=0.01):
            seen += batch.column("counter").to_pylist()
    assert seen == list(range(1, COMMANDS + 1))


@pytest.mark.usefixtures("small_pieces")
def test_a_site_that_ends_is_replaced_by_another(logs: list[Path]) -> None:
    with log_sites(*logs) as sites, reader(sites) as remote:
        seen: list[pa.RecordBatch] = []
        for batch in remote.batches(1):
            seen.append(batch)
            if len(seen) in (2, 4):
                sites[len(seen) // 2 - 1].stop()
        assert len(seen) > 4
        assert pa.Table.from_batches(seen).equals(LogReader(logs[0]).read(1))


@pytest.mark.usefixtures("small_pieces")
def test_a_site_that_is_behind_says_so_and_another_is_asked(tmp_path: Path) -> None:
    handed = simple(COMMANDS)
    short = written(tmp_path / "short", handed[: behind(handed, 2)])
    whole = written(tmp_path / "whole", handed)
    with log_sites(short.directory, whole.directory) as sites, reader(sites) as remote:
        assert remote.bounds() == LogBounds(1, COMMANDS + 1)
        assert remote.read(1).equals(whole.read(1))


def test_what_no_site_has_is_waited_for_and_then_told(tmp_path: Path) -> None:
    handed = simple(COMMANDS)
    written(tmp_path, handed[: behind(handed, 2)])
    with log_sites(tmp_path) as sites, RemoteLogReader(endpoints_of(sites), timeout_s=0.3) as remote:
        end = remote.bounds().end
        with pytest.raises(LogError, match=f"command {end} cannot be read .* has the commands up to {end - 1}"):
            list(remote.exactly(1, end + 1))


def test_what_was_dropped_is_told_with_the_first_command_that_is_there(logs: list[Path]) -> None:
    for directory in logs[:2]:
        (directory / names(directory)[0]).unlink()
    first = LogReader(logs[0]).bounds().first
    assert first > 1
    with log_sites(*logs[:2]) as sites, reader(sites) as remote, pytest.raises(LogTruncated) as caught:
        remote.read(1)
    assert (caught.value.wanted, caught.value.first) == (1, first)
    assert f"begins at {first}" in str(caught.value)
    with log_sites(*logs) as sites, reader(sites) as remote:
        # Somebody still has it.
        assert remote.read(1).equals(LogReader(logs[2]).read(1))


@pytest.mark.parametrize("place", [0.3, 0.5, 0.9])
def test_what_is_damaged_comes_from_another_site(logs: list[Path], place: float) -> None:
    whole = LogReader(logs[1]).read(1)
    for name in names(logs[0]):
        path = logs[0] / name
        data = bytearray(path.read_bytes())
        data[int(len(data) * place)] ^= 0x55
        path.write_bytes(data)
    with log_sites(*logs) as sites, reader(sites) as remote:
        assert remote.read(1).equals(whole)
    with (
        log_sites(logs[0]) as sites,
        RemoteLogReader(endpoints_of(sites), timeout_s=0.3) as remote,
        pytest.raises(LogError, match="command 1 cannot be read"),
    ):
        remote.read(1)


@pytest.mark.usefixtures("small_pieces")
def test_a_tail_may_become_a_segment_while_it_is_read(tmp_path: Path) -> None:
    handed = simple(COMMANDS)
    writer, _ = opened(tmp_path)
    place = behind(handed, 3)
    write(writer, handed[: place - 1])
    writer.flush()
    tail = names(tmp_path, "tail")
    with log_sites(tmp_path) as sites, reader(sites) as remote:
        counters: list[int] = []
        for batch in remote.batches(1):
            counters += batch.column("counter").to_pylist()
            if place and counters[-1] >= int(tail[0].split("-")[1].split(".")[0]):
                write(writer, handed[place - 1 : place])
                place = 0
    assert names(tmp_path, "tail") == []
    assert counters == list(range(1, len(counters) + 1))


def test_another_cluster_s_log_is_not_gone_on_with(tmp_path: Path, logs: list[Path]) -> None:
    writer, _ = opened(tmp_path / "other", cluster=8)
    write(writer, simple(COMMANDS + 100))
    writer.flush()
    with log_sites(logs[0], tmp_path / "other") as sites, reader(sites) as remote:
        assert sum(batch.num_rows for batch in remote.exactly(1, 50)) == 49
        with pytest.raises(LogError, match="belongs to cluster 8, era 1"):
            remote.bounds()
        sites[0].stop()
        with pytest.raises(LogError, match="belongs to cluster 8, era 1"):
            list(remote.exactly(50, 60))


def test_sites_tell_where_the_others_are(logs: list[Path]) -> None:
    with log_sites(*logs) as sites, reader(sites[:1]) as remote:
        sites[0].endpoints = [f"tcp://{site.endpoint}" for site in sites]
        remote.bounds()
        assert remote.endpoints == endpoints_of(sites)
        sites[0].stop()
        assert remote.read(1).equals(LogReader(logs[0]).read(1))


def test_bytes_become_commands(logs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with log_sites(*logs) as sites, reader(sites) as remote:
        assert remote.advance(1, 1 << 30) == COMMANDS + 1
        some = remote.advance(1, 1)
        assert 1 < some <= COMMANDS
        assert some < remote.advance(1, 2000) <= COMMANDS + 1
        assert remote.advance(COMMANDS + 1, 100) == COMMANDS + 1
        monkeypatch.setattr(bounds, "LOG_BLOCKS_MAX", 1)
        assert remote.advance(1, 1 << 30) == some


def test_nobody_there_is_told() -> None:
    with RemoteLogReader("127.0.0.1:1", timeout_s=0.2) as remote:
        with pytest.raises(NotReachable, match=r"no answer from 127\.0\.0\.1:1"):
            remote.bounds()
        with pytest.raises(NotReachable, match=r"command 1 cannot be read after 0\.2 s"):
            list(remote.exactly(1, 2))


def test_a_site_without_a_log_says_so(tmp_path: Path) -> None:
    with (
        log_sites(tmp_path / "nowhere") as sites,
        RemoteLogReader(endpoints_of(sites), timeout_s=0.2) as remote,
        pytest.raises(LogError, match="no decided log here"),
    ):
        remote.bounds()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("keys")
    make_cluster_keys(directory)
    make_client_keys(directory, "alice")
    make_client_keys(directory, "auditor", observer=True)
    return directory


@pytest.fixture
def member(keys: Path) -> Keys:
    return load_keys(keys)


@pytest.fixture
def keyed(logs: list[Path], member: Keys) -> Iterator[list[LogSite]]:
    with log_sites(*logs, keys=member) as sites:
        yield sites


@pytest.mark.parametrize("who", [".", "clients/auditor"])
def test_members_and_observers_may_read(keys: Path, logs: list[Path], keyed: list[LogSite], who: str) -> None:
    with reader(keyed, keys=keys / who) as remote:
        assert remote.read(1).equals(LogReader(logs[0]).read(1))


def test_clients_may_not_read_what_others_have_sent(keys: Path, keyed: list[LogSite]) -> None:
    with reader(keyed, keys=keys / "clients" / "alice") as remote:
        with pytest.raises(Forbidden, match="only members and observers may read the log"):
            remote.bounds()
        with pytest.raises(Forbidden):
            list(remote.exactly(1, 2))


def test_one_site_that_does_not_know_an_observer_yet_is_passed_over(keys: Path, logs: list[Path], member: Keys) -> None:
    """What is authorized is in files, which differ between hosts while they change."""
    with log_sites(*logs, keys=member) as sites:
        sites[0].log._admits = lambda principal: False
        with reader(sites, keys=keys / "clients" / "auditor") as remote:
            assert remote.read(1).equals(LogReader(logs[0]).read(1))
        for site in sites[1:]:
            site.stop()
        with reader(sites, keys=keys / "clients" / "auditor") as remote, pytest.raises(Forbidden):
            list(remote.exactly(1, 2))


def test_who_has_no_keys_is_refused(keyed: list[LogSite]) -> None:
    with RemoteLogReader(endpoints_of(keyed), timeout_s=0.3) as remote, pytest.raises(Refused, match="requires keys"):
        remote.bounds()


def request(ticket: int, what: int = wire.PIECE, counter: int = 1) -> bytes:
    return wire.encode(wire.LogRequest(wire.VERSION, ticket, what, counter))


def test_who_does_not_read_keeps_one_piece_here_and_disturbs_nobody(tmp_path: Path) -> None:
    written(tmp_path, simple(2_000, interval=1024), interval=1024)
    with log_sites(tmp_path) as sites:
        host, _, port = sites[0].endpoint.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as lazy:
            lazy.sendall(b"".join(framed(request(ticket)) for ticket in range(REQUESTS)))
            await_condition(lambda: sites[0].log.kept_bytes > 0, "it does not read")
            with reader(sites) as remote:
                assert remote.read(1).equals(LogReader(tmp_path).read(1))
            assert 0 < sites[0].log.kept_bytes <= bounds.LOG_PIECE_BYTES + bounds.LOG_REQUEST_BYTES_MAX
            # All that it asked for comes when it reads, in its order.
            tickets: list[int] = []
            splitter = Splitter(1 << 20)
            while len(tickets) < REQUESTS:
                tickets += [wire.decode_reply(frame).ticket for frame in splitter.feed(lazy.recv(1 << 16))]
            assert tickets == list(range(REQUESTS))


def test_the_one_that_was_silent_longest_goes_when_there_are_too_many(
    logs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "READERS_OF_THE_LOG_MAX", 2)
    with log_sites(logs[0]) as sites:
        channels = []
        for _ in range(3):
            channel = Channel(f"tcp://{sites[0].endpoint}", None)
            channel.send(request(1, wire.BOUNDS))
            await_condition(channel.receive, "an answer")
            channels.append(channel)

        def is_closed() -> bool:
            channels[0].receive()
            return channels[0].broken

        await_condition(is_closed, "the first one was closed")
        assert sites[0].log.readers == 2
        assert sites[0].bad == ["too many readers of the log"]
        for channel in channels:
            channel.close()


def test_clients_who_may_not_read_take_nobody_s_place(
    keys: Path, logs: list[Path], member: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "READERS_OF_THE_LOG_MAX", 2)
    with log_sites(logs[0], keys=member) as sites, reader(sites, keys=keys / "clients" / "auditor") as remote:
        remote.bounds()
        alice = load_keys(keys / "clients" / "alice")
        channels = []
        for _ in range(4):
            channel = Channel(f"tcp://{sites[0].endpoint}", alice)
            await_condition(lambda channel=channel: channel.receive() or channel.open, "a connection")  # type: ignore[misc]
            channel.send(request(1, wire.BOUNDS))
            await_condition(lambda channel=channel: channel.receive() or channel.broken, "an answer")  # type: ignore[misc]
            channels.append(channel)
        assert sites[0].log.readers == 2
        # It is still the connection that it was.
        before = remote._sites[0].channel
        remote.bounds()
        assert remote._sites[0].channel is before
        for channel in channels:
            channel.close()


@pytest.mark.parametrize("message", [request(1) + b"x", b"\x92\xa3log\xc0", request(1)[:-1]])
def test_who_sends_rubbish_is_hung_up_on(logs: list[Path], message: bytes) -> None:
    with log_sites(logs[0]) as sites:
        channel = Channel(f"tcp://{sites[0].endpoint}", None)
        channel.send(message)

        def is_closed() -> bool:
            channel.receive()
            return channel.broken

        await_condition(is_closed, "it was closed")
        assert len(sites[0].bad) == 1
        channel.close()


def closed(channels: list[Channel]) -> int:
    """How many of them."""
    for channel in channels:
        channel.receive()
    return sum(channel.broken for channel in channels)


def test_long_requests_do_not_wait_until_somebody_looks_at_them(
    logs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "LOG_SHARE", 1e-9)
    monkeypatch.setattr(bounds, "LOG_SAVED_S", 0.0)
    with log_sites(logs[0]) as sites:
        channels = [Channel(f"tcp://{sites[0].endpoint}", None) for _ in range(3)]
        for channel in channels:
            channel.send(b"\x9a\xa3log".ljust(bounds.LOG_REQUEST_BYTES_MAX + 1))
        await_condition(lambda: closed(channels) == 3, "they were closed")
        assert sites[0].bad == ["a reader of the log: a long request"] * 3
        for channel in channels:
            channel.close()


def test_so_many_wait_to_be_looked_at_and_no_more(logs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "READERS_OF_THE_LOG_MAX", 2)
    busy, goes_on = threading.Event(), threading.Event()

    def admits(principal: object) -> bool:
        busy.set()
        return goes_on.wait(DEADLINE_S)

    with log_sites(logs[0]) as sites:
        sites[0].log._admits = admits
        channels = [Channel(f"tcp://{sites[0].endpoint}", None) for _ in range(6)]
        channels[0].send(request(1))
        await_condition(lambda: channels[0].receive() or busy.is_set(), "the thread is busy")
        for channel in channels[1:]:
            channel.send(request(1))
        await_condition(lambda: closed(channels) == 3, "those who came first were closed")
        assert sites[0].bad == ["too many readers of the log"] * 3
        goes_on.set()
        await_condition(lambda: closed(channels) == 4, "of the others, two stay")
        assert sites[0].log.readers == 2
        for channel in channels:
            channel.close()


def test_who_is_one_too_many_goes_also_while_nobody_is_served(
    logs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "READERS_OF_THE_LOG_MAX", 2)
    monkeypatch.setattr(bounds, "LOG_SHARE", 1e-9)
    monkeypatch.setattr(bounds, "LOG_SAVED_S", 0.0)
    monkeypatch.setattr(log_server, "_POLL_S", 10 * DEADLINE_S)
    with log_sites(logs[0]) as sites:
        channels = [Channel(f"tcp://{sites[0].endpoint}", None) for _ in range(4)]
        for channel in channels:
            channel.send(request(1))
        await_condition(lambda: closed(channels) == 2, "two were closed")
        assert sites[0].log.answered <= 1
        for channel in channels:
            channel.close()


def test_a_request_that_asks_for_nothing_known_is_answered(logs: list[Path]) -> None:
    with log_sites(logs[0]) as sites:
        channel = Channel(f"tcp://{sites[0].endpoint}", None)
        channel.send(request(1, what=99))
        answers: list[bytes] = []

        def is_answered() -> bool:
            answers.extend(channel.receive())
            return bool(answers)

        await_condition(is_answered, "an answer")
        reply = wire.decode_reply(answers[0])
        assert (reply.status, reply.message) == (wire.FAILED, "nobody here knows what 99 asks for")
        channel.close()


@pytest.mark.parametrize("skip", [1 << 40, (1 << 63) - 1, (1 << 64) - 1])
def test_a_block_that_is_shorter_than_what_somebody_has_of_it_comes_from_its_beginning(
    logs: list[Path], skip: int
) -> None:
    whole, again = (LogBlocks(logs[0]).piece(1, 1 << 20, skip=skip) for skip in (0, skip))
    assert again == whole


def test_readers_get_a_share_of_one_processor(logs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "LOG_SHARE", 0.02)
    monkeypatch.setattr(bounds, "LOG_SAVED_S", 0.0)
    with log_sites(logs[0]) as sites:
        channel = Channel(f"tcp://{sites[0].endpoint}", None)
        began_s, answers = time.monotonic(), 0
        while time.monotonic() - began_s < 1.0:
            channel.send(request(1))
            await_condition(channel.receive, "an answer")
            answers += 1
        channel.close()
        assert sites[0].log.used_s < 0.1
        assert answers > 5


def test_a_tail_that_is_begun_anew_is_looked_at_again(tmp_path: Path) -> None:
    """A container that starts again may cut the tail of its former life."""
    handed = simple(60)
    writer, _ = opened(tmp_path)
    write(writer, handed[:-1])
    writer.flush()
    known = LogBlocks(tmp_path)
    before = known.bounds()
    (tail,) = tmp_path.glob("*.tail")
    data = tail.read_bytes()
    # As long as it was, but with other blocks.
    tail.write_bytes(data[:-7])
    assert known.bounds().end <= before.end
    tail.write_bytes(data)
    assert known.bounds() == LogBlocks(tmp_path).bounds() == before
