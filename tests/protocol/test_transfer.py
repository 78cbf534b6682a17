"""What a controller allows for large requests."""

import itertools

import pytest

from tara.protocol import tuples as t
from tara.protocol.transfer import ALLOWANCE_MS_MAX, MARGIN, SAMPLES, Transfer

MEGABYTE = 1 << 20


def progress(decided: int, life: int = 1, executor: int = 0) -> t.Progress:
    return t.Progress(executor, 0, life, [], 0, 0, 0, 0, decided)


CLOCK = itertools.count(1_000_000, 1_000_000)


def note(transfer: Transfer, progress: t.Progress, took_ms: float | None) -> None:
    """An executor reports what was decided after so long, in a wait of its own."""
    now_ms = float(next(CLOCK))
    transfer.note(progress, None if took_ms is None else now_ms - took_ms, now_ms)


def test_short_requests_get_nothing() -> None:
    transfer = Transfer()
    transfer.expect(0, 1_000)
    assert transfer.allowance_ms == 0


def test_before_anything_is_known_a_slow_link_is_allowed_for() -> None:
    """1 MiB, five times, over 10 Mbit/s."""
    transfer = Transfer()
    transfer.expect(0, MEGABYTE)
    assert transfer.allowance_ms == pytest.approx(5 * MEGABYTE * 8 / 10e6 * 1e3, rel=0.01)


@pytest.mark.parametrize("took_ms", [20.0, 20_000.0])
def test_then_it_is_what_requests_have_taken(took_ms: float) -> None:
    transfer = Transfer()
    transfer.expect(0, MEGABYTE)
    for number in range(SAMPLES + 1):
        note(transfer, progress(number * MEGABYTE), took_ms)
    assert transfer.allowance_ms == pytest.approx(min(MARGIN * took_ms, ALLOWANCE_MS_MAX))


def test_the_slowest_of_the_last_ones_counts() -> None:
    transfer = Transfer()
    transfer.expect(0, MEGABYTE)
    for number in range(SAMPLES):
        note(transfer, progress(number * MEGABYTE), 1_000.0 if number == 3 else 20.0)
    assert transfer.allowance_ms == pytest.approx(MARGIN * 1_000.0)
    for number in range(SAMPLES, 2 * SAMPLES + 1):
        note(transfer, progress(number * MEGABYTE), 20.0)
    assert transfer.allowance_ms == pytest.approx(MARGIN * 20.0)


def test_small_decisions_and_new_lives_say_nothing_about_links() -> None:
    transfer = Transfer()
    transfer.expect(0, MEGABYTE)
    before = transfer.allowance_ms
    for number in range(20):
        note(transfer, progress(number * 100), 50.0)
        note(transfer, progress(MEGABYTE, life=number + 2), 50.0)
        note(transfer, progress(9 * MEGABYTE, life=1), 50.0)
    assert transfer.allowance_ms == before


def test_what_was_too_short_is_doubled_and_bounded() -> None:
    transfer = Transfer()
    transfer.expect(0, MEGABYTE)
    before = transfer.allowance_ms
    transfer.was_too_short()
    assert transfer.allowance_ms == 2 * before
    for _ in range(100):
        transfer.was_too_short()
    assert transfer.allowance_ms == ALLOWANCE_MS_MAX


def test_long_requests_are_forgotten_by_and_by() -> None:
    transfer = Transfer()
    transfer.expect(0, MEGABYTE)
    for _ in range(30):
        transfer.forget()
    assert transfer.allowance_ms == 0


def test_a_doubling_ends_when_all_is_quick() -> None:
    """It was the proposer that was gone, not the link that was slow. Requests need not be long enough for samples."""
    transfer = Transfer()
    transfer.expect(0, MEGABYTE)
    before = transfer.allowance_ms
    for _ in range(5):
        transfer.was_too_short()
    for _ in range(5):
        transfer.forget()
    transfer.expect(0, MEGABYTE)
    assert transfer.allowance_ms == before


def test_what_is_known_to_be_needed_stays_allowed() -> None:
    """One long request on a very slow link shows what the next one will take, however quick all is in between."""
    transfer = Transfer()
    transfer.expect(0, MEGABYTE)
    for _ in range(3):
        transfer.was_too_short()
    note(transfer, progress(0), 0.0)
    note(transfer, progress(MEGABYTE), 20_000.0)
    for _ in range(30):
        transfer.forget()
    transfer.expect(0, MEGABYTE)
    assert transfer.allowance_ms >= 2 * 20_000.0


def test_one_quick_request_does_not_end_a_doubling() -> None:
    """It may have been decided by what had arrived before."""
    transfer = Transfer()
    transfer.expect(0, MEGABYTE)
    transfer.was_too_short()
    doubled = transfer.allowance_ms
    note(transfer, progress(0), 0.0)
    note(transfer, progress(MEGABYTE), 0.0)
    assert transfer.allowance_ms == doubled


def test_one_decision_at_most_doubles_what_is_allowed() -> None:
    """A clock has jumped, or a process has stood still; the next ones show that the link is as it was."""
    transfer = Transfer()
    transfer.expect(0, MEGABYTE)
    for number in range(SAMPLES):
        note(transfer, progress(number * MEGABYTE), 1_500.0)
    before = transfer.allowance_ms
    note(transfer, progress(SAMPLES * MEGABYTE), 60_000.0)
    assert transfer.allowance_ms == pytest.approx(2 * before)
    for number in range(SAMPLES + 1, 2 * SAMPLES + 1):
        note(transfer, progress(number * MEGABYTE), 1_500.0)
    assert transfer.allowance_ms == pytest.approx(before)


def test_a_decision_counts_when_f_plus_1_have_it_and_once() -> None:
    transfer = Transfer()
    transfer.expect(0, MEGABYTE)
    before = transfer.allowance_ms
    for executor in range(3):
        note(transfer, progress(0, executor=executor), None)
    note(transfer, progress(MEGABYTE, executor=0), None)
    assert transfer.allowance_ms == before
    note(transfer, progress(MEGABYTE, executor=1), 2_000.0)
    raised = transfer.allowance_ms
    assert before < raised
    note(transfer, progress(MEGABYTE, executor=2), None)
    assert transfer.allowance_ms == raised


def test_links_that_took_no_time_at_all_are_allowed_for_again_when_that_was_too_short() -> None:
    transfer = Transfer()
    transfer.expect(0, MEGABYTE)
    before = transfer.allowance_ms
    for number in range(SAMPLES):
        note(transfer, progress(number * MEGABYTE), 0.0)
    assert transfer.allowance_ms == 0
    transfer.was_too_short()
    assert transfer.allowance_ms == before


def test_what_is_decided_in_one_wait_took_that_time_together() -> None:
    """A source waits while requests of others are decided, one after the other."""
    transfer = Transfer()
    transfer.expect(0, MEGABYTE)
    transfer.note(progress(0), None, 0.0)
    for number in range(1, SAMPLES + 1):
        transfer.note(progress(number * MEGABYTE), 1.0, 1.0 + number * 1_000.0)
    assert transfer.allowance_ms == pytest.approx(MARGIN * 1_000.0)


def test_long_requests_are_forgotten_when_others_are_decided_and_no_source_has_more() -> None:
    transfer = Transfer()
    transfer.expect(0, MEGABYTE)
    transfer.expect(1, 100)
    before = transfer.allowance_ms
    for number in range(30):
        note(transfer, progress(100 * number), 10.0)
    assert transfer.allowance_ms == before
    transfer.expect(0, 100)
    assert transfer.allowance_ms == before
    for number in range(30, 60):
        note(transfer, progress(100 * number), 10.0)
    assert transfer.allowance_ms == 0
