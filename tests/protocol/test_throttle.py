"""The throttle of a proposer: exact over time, bounded at once, deterministic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tara.protocol import tuples as t
from tara.protocol.errors import ConfigurationError
from tara.protocol.limits import Limits
from tara.protocol.throttle import KEPT_MS, Throttle
from tests.paper.test_request_handling import active_proposer
from tests.protocol.driver import Bench, requests


def proposed(bench: Bench, count: int, ticks: list[float]) -> list[int]:
    """How many requests an active proposer with so many at hand has proposed after each tick."""
    proposer = active_proposer(bench)
    done = sum(len(p.requests) for p in proposer.feed(t.Requests(requests(0, count))).of(t.Proposal))
    after = [done]
    for now_ms in ticks:
        done += sum(len(p.requests) for p in proposer.tick(now_ms).of(t.Proposal))
        after.append(done)
    return after


def test_a_throttled_proposer_proposes_at_its_rate() -> None:
    bench = Bench(proposer_rate_max=800, window=4096, source_pending_max=4096)
    after = proposed(bench, 2000, [5.0 * tick for tick in range(1, 201)])
    assert after[0] == 0
    assert after[1:5] == [4, 8, 12, 16]
    assert after[-1] == 800


def test_without_a_rate_everything_is_proposed_at_once() -> None:
    bench = Bench(window=4096, source_pending_max=4096)
    assert proposed(bench, 2000, [])[0] == 2000


def test_a_pause_does_not_become_a_burst() -> None:
    bench = Bench(proposer_rate_max=1000, window=4096, source_pending_max=4096)
    assert proposed(bench, 2000, [60_000.0])[1] == KEPT_MS


def test_a_rate_below_one_per_tick_is_kept_too() -> None:
    bench = Bench(proposer_rate_max=10)
    assert proposed(bench, 8, [5.0 * tick for tick in range(1, 101)])[-1] == 5


def test_a_negative_rate_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="proposer_rate_max"):
        Limits(proposer_rate_max=-1)


@given(st.floats(0.1, 1e5), st.lists(st.floats(0.0, 200.0), max_size=50))
def test_never_more_than_the_rate_and_what_was_kept(rate: float, steps_ms: list[float]) -> None:
    throttle, now_ms, taken = Throttle(rate, 0.0), 0.0, 0
    for step_ms in steps_ms:
        now_ms += step_ms
        count = throttle.allowance(now_ms)
        throttle.take(count)
        taken += count
    assert taken <= rate * now_ms / 1e3 + 1e-6


def test_time_that_falls_gives_nothing() -> None:
    throttle = Throttle(1000, 100.0)
    assert throttle.allowance(50.0) == 0
    assert throttle.allowance(110.0) == 10
