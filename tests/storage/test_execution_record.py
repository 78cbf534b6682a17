"""What outlives a process that the application has ended."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tara.host.strikes import BARRED_MAX, Strikes
from tara.operations.verify import check_record
from tara.protocol.errors import TaraError
from tara.protocol.places import CELLS, EXECUTED
from tara.storage.execution_record import FILE_BYTES, ExecutionRecord, record_path


def opened(directory: Path, cluster: int = 5, era: int = 1) -> ExecutionRecord:
    return ExecutionRecord(record_path(directory, 0), cluster, era)


def end_at(directory: Path, place: int) -> None:
    """A life that ends there."""
    opened(directory).cell[0] = place


def test_a_life_that_ends_by_a_signal_leaves_its_place(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path; from tests.storage.test_execution_record import opened\n"
        "opened(Path(sys.argv[1])).cell[0] = 7\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
        assert done.returncode == -signal.SIGKILL
    assert opened(tmp_path).strikes == Strikes(7, 2, [7])


def test_a_new_record_knows_nothing(tmp_path: Path) -> None:
    record = opened(tmp_path)
    assert record.strikes == Strikes()
    assert record.trouble is None


def test_two_lives_that_end_at_one_place_bar_it_and_it_stays_barred(tmp_path: Path) -> None:
    end_at(tmp_path, 7)
    end_at(tmp_path, 7)
    assert opened(tmp_path).strikes.barred == [7]
    assert opened(tmp_path).strikes.barred == [7]


def test_a_place_that_was_left_is_not_held_against_it(tmp_path: Path) -> None:
    for _ in range(3):
        record = opened(tmp_path)
        record.cell[0] = 7
        record.cell[0] = 0
    assert opened(tmp_path).strikes.barred == []


def test_what_is_not_barred_any_more_is_not_in_the_next_life_either(tmp_path: Path) -> None:
    end_at(tmp_path, 7)
    end_at(tmp_path, 7)
    record = opened(tmp_path)
    record.unbar(7)
    assert record.strikes.barred == []
    record.cell[0] = 7
    assert opened(tmp_path).strikes == Strikes(7, 1, [])


def test_what_was_executed_is_known_in_later_lives(tmp_path: Path) -> None:
    opened(tmp_path).cell[EXECUTED] = 17
    assert opened(tmp_path).executed == 17
    assert opened(tmp_path).executed == 17
    assert opened(tmp_path, era=2).executed == 0


@pytest.mark.parametrize(("cluster", "era"), [(6, 1), (5, 2)])
def test_the_record_of_another_cluster_or_era_is_refused(tmp_path: Path, cluster: int, era: int) -> None:
    end_at(tmp_path, 7)
    end_at(tmp_path, 7)
    record = opened(tmp_path, cluster, era)
    assert record.strikes.barred == []
    assert record.trouble is not None


def test_the_most_that_can_be_remembered_has_room(tmp_path: Path) -> None:
    for number in range(BARRED_MAX + 1):
        end_at(tmp_path, (1 << 64) - 1 - number)
        end_at(tmp_path, (1 << 64) - 1 - number)
    assert len(opened(tmp_path).strikes.barred) == BARRED_MAX


def test_damage_to_the_newer_slot_costs_one_life_and_any_other_is_noticed(tmp_path: Path) -> None:
    """Whatever byte behind the cells is damaged, what was barred before the last life is still barred, or it is said
    that nothing is known."""
    end_at(tmp_path, 7)
    end_at(tmp_path, 7)
    end_at(tmp_path, 0)
    end_at(tmp_path, 0)
    path = record_path(tmp_path, 0)
    intact = path.read_bytes()
    assert len(intact) == FILE_BYTES
    for place in range(8 * CELLS, FILE_BYTES, 7):
        path.write_bytes(intact[:place] + bytes([intact[place] ^ 1]) + intact[place + 1 :])
        assert opened(tmp_path).strikes.barred == [7]


def test_a_record_can_be_checked_without_beginning_a_life(tmp_path: Path) -> None:
    end_at(tmp_path, 7)
    path = record_path(tmp_path, 0)
    before = path.read_bytes()
    check_record(path, 5, 1)
    assert path.read_bytes() == before
    with pytest.raises(TaraError, match="of another cluster or era"):
        check_record(path, 5, 2)
    path.write_bytes(bytes(FILE_BYTES))
    with pytest.raises(TaraError, match="damaged"):
        check_record(path, 5, 1)
    path.write_bytes(b"")
    with pytest.raises(TaraError, match="has 0 bytes"):
        check_record(path, 5, 1)


@pytest.mark.parametrize("data", [b"", b"x", bytes(FILE_BYTES), os.urandom(FILE_BYTES), bytes(10 * FILE_BYTES)])
def test_what_is_no_record_is_begun_anew(tmp_path: Path, data: bytes) -> None:
    record_path(tmp_path, 0).write_bytes(data)
    record = opened(tmp_path)
    assert record.strikes.barred == []
    assert record.trouble is not None
    end_at(tmp_path, 7)
    end_at(tmp_path, 7)
    again = opened(tmp_path)
    assert (again.strikes.barred, again.trouble) == ([7], None)
