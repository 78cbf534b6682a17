"""Threads that end without having been told to: somebody notices."""

import json
import threading
from pathlib import Path

import pytest

from tara.application import KeyValueStore
from tara.live.observability.events import log_path
from tara.live.observability.supervised import supervised
from tests.live.processes import Processes, settings_for
from tests.patience import await_condition


def run_supervised(error: BaseException | None, may_end: bool) -> list[tuple[str, BaseException | None]]:
    ended: list[tuple[str, BaseException | None]] = []

    def target() -> None:
        if error is not None:
            raise error

    run = supervised("name", target, lambda: may_end, lambda name, reason: ended.append((name, reason)))
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return ended


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(0)])
@pytest.mark.parametrize("may_end", [True, False])
def test_an_exception_is_always_reported(error: BaseException, may_end: bool) -> None:
    assert run_supervised(error, may_end) == [("name", error)]


def test_a_return_is_reported_unless_the_thread_may_end() -> None:
    assert run_supervised(None, may_end=True) == []
    assert run_supervised(None, may_end=False) == [("name", None)]


class LosesAThread(KeyValueStore):
    """In one of the containers, a thread fails when it is told to, as one of the container's own might."""

    def __init__(self) -> None:
        super().__init__()
        try:
            Path("chosen").touch(exist_ok=False)
        except FileExistsError:
            return
        threading.Thread(target=self._fail, name="mine", daemon=True).start()

    def _fail(self) -> None:
        await_condition(Path("fail").exists, "to be told to fail")
        raise IndexError("no such thing")


def test_a_container_whose_thread_ends_says_so_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = f"{__name__}:{LosesAThread.__name__}"
    with Processes(settings_for(tmp_path / "data", app=app)) as cluster:
        (tmp_path / "fail").touch()
        processes = cluster.processes
        await_condition(lambda: not all(process.is_alive() for process in processes.values()), "a container to end")
        (ended,) = [number for number, process in processes.items() if not process.is_alive()]
        lines = log_path(tmp_path / "data", f"site-{ended}").read_text().splitlines()

    reasons = [json.loads(line)["details"]["reason"] for line in lines if '"failed"' in line]
    assert len(reasons) == 1
    assert "the thread `mine` ended: IndexError('no such thing')" in reasons[0]
