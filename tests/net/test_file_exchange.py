"""Files between hosts, with real sockets: pieces, interruptions, and what is not given away."""

import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tara.net import file_exchange as exchange
from tara.net.certificates import load_keys
from tara.net.file_exchange import BASES, LOG, PIECE_BYTES, ExchangeError, FetchedFiles, FileServer
from tara.net.keygen import make_cluster_keys
from tara.net.server import Address
from tests.frames import Frames
from tests.patience import DEADLINE_S

NAME = "000000000007.base"
CONTENT = Random(7).randbytes(3 * PIECE_BYTES + 1000)


class Host:
    """Serves what is in its directory, as a container does."""

    def __init__(self, directory: Path, keys: Path | None = None) -> None:
        directory.mkdir(exist_ok=True)
        loaded = None if keys is None else load_keys(keys)
        self.bad: list[str] = []
        self._server = FileServer(Address("127.0.0.1", 0), (5, 1), loaded, on_bad=self.bad.append)
        self.address = self._server.address
        self._server.start({(BASES, 0): directory, (LOG, 0): directory})

    def stop(self) -> None:
        self._server.stop()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is there answers, however slow the machine is."""
    monkeypatch.setattr(exchange, "_TIMEOUT_S", DEADLINE_S)


@pytest.fixture
def impatient(patient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """For those who wait for nobody."""
    monkeypatch.setattr(exchange, "_TIMEOUT_S", 0.5)


@pytest.fixture
def there(tmp_path: Path) -> Path:
    directory = tmp_path / "there"
    directory.mkdir()
    (directory / NAME).write_bytes(CONTENT)
    return directory


@pytest.fixture
def host(there: Path) -> Iterator[Host]:
    running = Host(there)
    yield running
    running.stop()


def remote_files(tmp_path: Path, host: Host | None, kind: str = BASES, cluster: int = 5) -> FetchedFiles:
    address = None if host is None else host.address
    return FetchedFiles(kind, (cluster, 1), tmp_path / "here" / "incoming", lambda replica: address)


def test_a_file_of_many_pieces_arrives(tmp_path: Path, host: Host) -> None:
    with remote_files(tmp_path, host) as remote:
        assert list(remote.names(0)) == [NAME]
        assert remote.fetch(0, NAME).read_bytes() == CONTENT
        remote.forget(NAME)
        assert not remote.path(NAME).exists()


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, 2 * PIECE_BYTES])
def test_files_of_any_size_arrive(tmp_path: Path, there: Path, host: Host, size: int) -> None:
    (there / NAME).write_bytes(CONTENT[:size])
    with remote_files(tmp_path, host) as remote:
        assert remote.fetch(0, NAME).read_bytes() == CONTENT[:size]


def test_an_interrupted_file_goes_on_where_it_was(tmp_path: Path, there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also from another replica, and in another process: what counts is in the file."""
    first = Host(there)
    asked: list[int] = []
    answer = exchange._piece

    def piece(path: Path, request: exchange.FileRequest) -> exchange.FileReply:
        asked.append(request.offset)
        if len(asked) == 2:
            raise OSError(5, "the disk is gone")
        return answer(path, request)

    monkeypatch.setattr(exchange, "_piece", piece)
    with remote_files(tmp_path, first) as remote, pytest.raises(ExchangeError, match="the disk is gone"):
        remote.fetch(0, NAME)
    first.stop()
    second = Host(there)
    with remote_files(tmp_path, second) as remote:
        assert remote.fetch(0, NAME).read_bytes() == CONTENT
    second.stop()

    assert asked == [0, *(PIECE_BYTES * index for index in (1, 1, 2, 3)), len(CONTENT)]


def test_a_leftover_that_is_too_long_is_replaced(tmp_path: Path, host: Host) -> None:
    with remote_files(tmp_path, host) as remote:
        remote.path(NAME).parent.mkdir(parents=True)
        remote.path(NAME).write_bytes(bytes(len(CONTENT) + 1))
        assert remote.fetch(0, NAME).read_bytes() == CONTENT


def test_leftovers_that_nobody_needs_are_removed(tmp_path: Path, host: Host) -> None:
    with remote_files(tmp_path, host) as remote:
        remote.fetch(0, NAME)
        remote.path("000000000003.base").write_bytes(b"old")
        remote.forget_others([NAME])
        assert [path.name for path in remote.path(NAME).parent.iterdir()] == [NAME]


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "000000000007.base.tmp", "cluster.json", "."])
def test_nothing_else_is_given_away(tmp_path: Path, there: Path, host: Host, name: str) -> None:
    (tmp_path / "secret").write_text("secret")
    (there / "000000000007.base.tmp").write_text("unfinished")
    (there / "cluster.json").write_text("state")
    with remote_files(tmp_path, host) as remote:
        assert list(remote.names(0)) == [NAME]
        with pytest.raises(ExchangeError, match="no such file"):
            remote._ask(0, name)


def test_a_file_that_is_gone_is_an_error(tmp_path: Path, there: Path, host: Host) -> None:
    (there / NAME).unlink()
    with remote_files(tmp_path, host) as remote, pytest.raises(ExchangeError, match="No such file"):
        remote.fetch(0, NAME)


def test_another_cluster_gets_nothing(tmp_path: Path, host: Host) -> None:
    with remote_files(tmp_path, host, cluster=6) as remote, pytest.raises(ExchangeError, match="of that cluster"):
        remote.names(0)
    with remote_files(tmp_path, host) as remote, pytest.raises(ExchangeError, match="no bases of replica 1"):
        remote.names(1)


@pytest.mark.usefixtures("impatient")
def test_who_is_not_there_is_given_up(tmp_path: Path, there: Path) -> None:
    gone = Host(there)
    gone.stop()
    for host in (gone, None):
        with remote_files(tmp_path, host) as remote, pytest.raises(ExchangeError, match="not reachable"):
            remote.names(0)


def test_closing_ends_the_waiting(tmp_path: Path, there: Path) -> None:
    gone = Host(there)
    gone.stop()
    remote = remote_files(tmp_path, gone)
    threading.Timer(0.2, remote.closing.set).start()
    with remote, pytest.raises(ExchangeError, match="not reachable"):
        remote.names(0)


def test_nonsense_does_not_end_the_server(tmp_path: Path, host: Host) -> None:
    with Frames(host.address) as stranger:
        for nonsense in (b"", b"\xc1", b"ab", b"\x97\x01\x05\x01\xa3xyz\x00\xa0\x00"):
            stranger.send(nonsense)
        assert stranger.receive()
    assert len(host.bad) == 3
    with remote_files(tmp_path, host) as remote:
        assert list(remote.names(0)) == [NAME]


def test_one_that_asks_for_much_and_reads_nothing_is_answered_little(tmp_path: Path, host: Host) -> None:
    request = exchange._encode(exchange.FileRequest(1, 5, 1, BASES, 0, NAME, 0))
    with Frames(host.address) as greedy:
        for _ in range(2000):
            greedy.send(request)
        with remote_files(tmp_path, host) as remote:
            assert remote.fetch(0, NAME).read_bytes() == CONTENT
        unread = [incoming.connection.unsent_bytes for incoming in host._server._server._port.by_name.values()]
        assert max(unread) <= exchange._UNREAD_BYTES_MAX + 2 * PIECE_BYTES


def test_files_are_for_members_only(tmp_path: Path, there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_cluster_keys(tmp_path / "keys")
    host = Host(there, tmp_path / "keys")
    with monkeypatch.context() as hasty, remote_files(tmp_path, host) as remote:
        hasty.setattr(exchange, "_TIMEOUT_S", 0.5)
        with pytest.raises(ExchangeError, match="not reachable"):
            remote.names(0)
    keys = load_keys(tmp_path / "keys")
    with FetchedFiles(BASES, (5, 1), tmp_path / "in", lambda replica: host.address, keys) as remote:
        assert remote.fetch(0, NAME).read_bytes() == CONTENT
    host.stop()
