"""Who is sent what again: only those that lack something old, do not move, and have been heard of."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tara.protocol.backoff import BACKOFF_MAX
from tara.protocol.resend import ROUND_BYTES, Laggards

ROUNDS = 2
#: Per round: how much more was sent, and how far the receiver's position moved.
histories = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=25)


class Sender:
    """Sends to receivers that, unless told otherwise, report in every round."""

    def __init__(self, receivers: int = 1, rounds: int = ROUNDS) -> None:
        self.laggards = Laggards(receivers, rounds)
        self.round = 0
        #: Bytes of a burst.
        self.size = 0

    def turn(self, *positions: int, sent: int = 100, life: int = 1, silent: bool = False) -> list[bool]:
        """A round; says of each receiver whether it lags."""
        self.laggards.next_round(sent)
        if not silent:
            self.round += 1
        heard = (life, self.round)
        return [
            self.laggards.lags(index, position, heard, lambda: self.size) for index, position in enumerate(positions)
        ]

    def bursts(self, rounds: int, position: int, silent: bool = False) -> list[int]:
        """The rounds, counted from 1, in which a receiver that stands still gets a burst."""
        return [turn for turn in range(1, rounds + 1) if self.turn(position, silent=silent) == [True]]


@given(histories)
def test_who_has_all_that_was_sent_some_rounds_ago_does_not_lag(history: list[tuple[int, int]]) -> None:
    sender = Sender()
    sent_by_round: list[int] = []
    sent = position = 0
    for more, moved in history:
        sent += more
        sent_by_round.append(sent)
        old = sent_by_round[-ROUNDS - 1] if len(sent_by_round) > ROUNDS else 0
        position = min(max(position + moved, old), sent)
        assert sender.turn(position, sent=sent) == [False]


@given(histories)
def test_never_before_the_first_rounds_are_over(history: list[tuple[int, int]]) -> None:
    sender = Sender()
    for more, _ in history[:ROUNDS]:
        assert sender.turn(0, sent=10 + more) == [False]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=25))
def test_who_moves_every_round_is_left_alone(moves: list[int]) -> None:
    sender = Sender()
    position = 0
    for move in moves:
        assert sender.turn(position, sent=1000) == [False]
        position += move


@given(st.integers(1, 3), st.integers(0, 99))
def test_fruitless_bursts_become_rarer_up_to_a_maximum(rounds: int, position: int) -> None:
    """A burst may be lost: it is repeated, but a receiver that cannot use it is not to be flooded."""
    sender = Sender(rounds=rounds)
    bursts = sender.bursts(100 * rounds, position)
    pauses = [later - earlier for earlier, later in pairwise([1, *bursts])]
    assert pauses[:6] == [rounds * factor for factor in (1, 2, 4, 8, 16, 16)]
    assert max(pauses) == BACKOFF_MAX * rounds


def test_who_begins_a_new_life_gets_a_burst_at_once() -> None:
    sender = Sender()
    for _ in range(2 * ROUNDS):
        sender.turn(100)
    assert [sender.turn(40, life=2) for _ in range(2 * ROUNDS + 1)] == [[True], *[[False]] * (2 * ROUNDS - 1), [True]]
    assert sender.turn(100, life=3) == [False]


def test_who_is_heard_of_for_the_first_time_gets_a_burst_at_once() -> None:
    sender = Sender()
    for _ in range(ROUNDS + 1):
        sender.laggards.next_round(100)
    assert [sender.turn(40), sender.turn(40)] == [[True], [False]]


def test_movement_ends_the_long_pauses() -> None:
    sender = Sender()
    sender.bursts(60, 10)
    assert sender.turn(11) == [False]
    assert sender.bursts(20, 11) == [ROUNDS, 3 * ROUNDS, 7 * ROUNDS]


@pytest.mark.parametrize("first_life", [1, 5])
def test_who_was_not_heard_of_since_the_last_burst_gets_none(first_life: int) -> None:
    """It is down, or the burst is still on its way to it. One report more, and it gets the next."""
    sender = Sender()
    for _ in range(ROUNDS):
        sender.turn(10, life=first_life)
    assert sender.turn(10, life=first_life) == [True]
    assert [sender.turn(10, life=first_life, silent=True) for _ in range(50)] == [[False]] * 50
    assert sender.turn(10, life=first_life) == [True]


def test_who_was_never_heard_of_gets_nothing() -> None:
    laggards = Laggards(1, ROUNDS)
    for _ in range(50):
        laggards.next_round(100)
        assert not laggards.lags(0, 0, (0, 0), lambda: 0)


def test_a_new_life_counts_as_heard_although_its_rounds_begin_again() -> None:
    laggards = Laggards(1, ROUNDS)
    answers = []
    for heard in [(1, 700), (1, 701), (1, 702), (2, 1), (2, 2), (2, 3), (2, 4)]:
        laggards.next_round(100)
        answers.append(laggards.lags(0, 10, heard, lambda: 0))
    assert answers == [False, False, True, True, False, False, False]


def stuck(sender: Sender, position: int) -> None:
    """Let a receiver stand still until it lags."""
    assert sender.bursts(ROUNDS + 1, position) == [ROUNDS + 1]


def test_the_next_burst_follows_as_soon_as_the_last_was_taken() -> None:
    sender = Sender()
    stuck(sender, 10)
    sender.laggards.resent(0, 30)
    assert sender.turn(30) == [True]


def test_who_moved_beyond_its_burst_is_slow_and_left_alone() -> None:
    sender = Sender()
    stuck(sender, 10)
    sender.laggards.resent(0, 30)
    assert [sender.turn(position) for position in (31, 32, 30)] == [[False], [False], [True]]


def test_a_burst_that_is_half_taken_is_waited_for() -> None:
    sender = Sender()
    stuck(sender, 10)
    sender.laggards.resent(0, 30)
    assert sender.turn(29) == [False]


def test_receivers_are_judged_one_by_one() -> None:
    sender = Sender(receivers=2)
    turns = [sender.turn(5, 10 + turn) for turn in range(ROUNDS + 1)]
    assert turns[-1] == [True, False]


def test_a_reset_starts_the_rounds_again() -> None:
    """Also the pauses, and what was taken: in a new view, what did not help before may help now."""
    sender = Sender()
    sender.bursts(60, 10)
    sender.laggards.resent(0, 10)
    sender.laggards.reset()
    stuck(sender, 10)


def test_nobody_lags_when_nothing_was_sent() -> None:
    sender = Sender()
    assert not any(sender.turn(0, sent=0) == [True] for _ in range(10))


def test_what_is_long_is_not_sent_again_before_a_slow_link_could_have_carried_it() -> None:
    short, long = Sender(), Sender()
    long.size = 20 * ROUND_BYTES
    assert short.bursts(15, position=3)[0] <= ROUNDS + 1
    assert long.bursts(40, position=3)[0] >= 20
