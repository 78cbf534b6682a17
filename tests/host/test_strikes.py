"""Which places of the application are barred, life by life."""

from tara.host.strikes import BARRED_MAX, Strikes, next_life
from tara.protocol.places import RESTORATION, SNAPSHOT


def lives(*ends: int, begin: Strikes | None = None) -> Strikes:
    strikes = Strikes() if begin is None else begin
    for place in ends:
        strikes = next_life(strikes, place)
    return strikes


def test_one_end_at_a_command_bars_nothing() -> None:
    assert lives(7) == Strikes(7, 1, [])


def test_two_ends_in_a_row_at_one_command_bar_it() -> None:
    assert lives(7, 7).barred == [7]


def test_ends_at_different_commands_bar_nothing() -> None:
    assert lives(7, 8, 7, 9).barred == []


def test_snapshots_of_different_bases_are_the_same_to_the_application() -> None:
    """The log grows until the process is started again, so the next base is always another one."""
    strikes = lives(SNAPSHOT | 7, SNAPSHOT | 9)
    assert strikes == Strikes(SNAPSHOT | 9, 2, [SNAPSHOT])
    assert lives(0, SNAPSHOT | 12, begin=strikes).barred == [SNAPSHOT]
    assert lives(SNAPSHOT | 7, 0, SNAPSHOT | 9).barred == []
    assert lives(SNAPSHOT | 7, 7, SNAPSHOT | 9).barred == []


def test_restorations_of_different_bases_are_not() -> None:
    """Another base may be smaller, or intact."""
    assert lives(RESTORATION | 7, RESTORATION | 9).barred == []
    assert lives(RESTORATION | 7, RESTORATION | 7).barred == [RESTORATION | 7]


def test_a_life_that_ended_nowhere_breaks_the_row() -> None:
    assert lives(7, 0, 7).barred == []


def test_what_is_barred_stays_barred() -> None:
    assert lives(7, 7, 0, 9, 7).barred == [7]


def test_only_so_many_are_remembered() -> None:
    ends = [number for number in range(1, BARRED_MAX + 3) for _ in range(2)]
    assert lives(*ends).barred == list(range(3, BARRED_MAX + 3))
