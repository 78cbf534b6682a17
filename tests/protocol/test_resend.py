"""Who is sent what again: only those that lack something old and do not move."""

from hypothesis import given
from hypothesis import strategies as st

from tara.protocol.resend import Laggards

ROUNDS = 2
#: Per round: how much more was sent, and how far the receiver's position moved.
histories = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=25)


@given(histories)
def test_who_has_all_that_was_sent_some_rounds_ago_does_not_lag(history: list[tuple[int, int]]) -> None:
    laggards = Laggards(1, ROUNDS)
    sent_by_round: list[int] = []
    sent = position = 0
    for more, moved in history:
        sent += more
        sent_by_round.append(sent)
        old = sent_by_round[-ROUNDS - 1] if len(sent_by_round) > ROUNDS else 0
        position = min(max(position + moved, old), sent)
        laggards.next_round(sent)
        assert not laggards.lags(0, position)


@given(histories)
def test_never_before_the_first_rounds_are_over(history: list[tuple[int, int]]) -> None:
    laggards = Laggards(1, ROUNDS)
    for more, _ in history[:ROUNDS]:
        laggards.next_round(10 + more)
        assert not laggards.lags(0, 0)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=25))
def test_who_moves_every_round_is_left_alone_until_it_was_sent_a_burst(moves: list[int]) -> None:
    laggards = Laggards(1, ROUNDS)
    position = 0
    for move in moves:
        laggards.next_round(1000)
        assert not laggards.lags(0, position)
        position += move


@given(st.integers(1, 5), st.integers(0, 99))
def test_who_is_stuck_lags_once_in_so_many_rounds(rounds: int, position: int) -> None:
    laggards = Laggards(1, rounds)
    answers = []
    for _ in range(6 * rounds + 1):
        laggards.next_round(100)
        answers.append(laggards.lags(0, position))
        if answers[-1]:
            laggards.resent(0, 100)
    first = answers.index(True)
    assert first == rounds
    # A burst may be lost: it is repeated, but only after as many rounds without movement.
    assert [turn for turn, lags in enumerate(answers) if lags] == list(range(first, len(answers), rounds))


def stuck(laggards: Laggards, receiver: int, position: int) -> None:
    """Let a receiver stand still until it lags."""
    for _ in range(ROUNDS):
        laggards.next_round(100)
        assert not laggards.lags(receiver, position)
    laggards.next_round(100)
    assert laggards.lags(receiver, position)


def test_the_next_burst_follows_as_soon_as_the_last_was_taken() -> None:
    laggards = Laggards(1, ROUNDS)
    stuck(laggards, 0, 10)
    laggards.resent(0, 30)
    laggards.next_round(100)
    assert laggards.lags(0, 30)


def test_a_burst_that_is_half_taken_is_waited_for() -> None:
    laggards = Laggards(1, ROUNDS)
    stuck(laggards, 0, 10)
    laggards.resent(0, 30)
    laggards.next_round(100)
    assert not laggards.lags(0, 29)


def test_receivers_are_judged_one_by_one() -> None:
    laggards = Laggards(2, ROUNDS)
    for turn in range(ROUNDS + 1):
        laggards.next_round(100)
        lagging = [laggards.lags(0, 5), laggards.lags(1, 10 + turn)]
    assert lagging == [True, False]


def test_a_reset_starts_the_rounds_again() -> None:
    laggards = Laggards(1, ROUNDS)
    stuck(laggards, 0, 10)
    laggards.resent(0, 20)
    laggards.reset()
    stuck(laggards, 0, 20)


def test_nobody_lags_when_nothing_was_sent() -> None:
    laggards = Laggards(1, ROUNDS)
    answers = []
    for _ in range(10):
        laggards.next_round(0)
        answers.append(laggards.lags(0, 0))
    assert not any(answers)
