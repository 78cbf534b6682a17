"""What a front end knows of the replica of its site."""

from tara.host.executor_condition import REPORTS_MISSED_MAX, SiteCondition, described
from tara.protocol import tuples as t
from tara.protocol.limits import Limits

LIMITS = Limits(report_interval_ms=50.0)
HALTED = t.Halted(2, 17, 0, "no memory")


def test_it_executes_until_it_says_otherwise() -> None:
    assert SiteCondition(LIMITS).halted(0.0) is None


def test_clients_are_told_the_command_and_the_reason() -> None:
    condition = SiteCondition(LIMITS)
    condition.hear(HALTED, 0.0)
    assert condition.halted(1.0) == b"replica 2 has halted at command 17: no memory"


def test_a_checkpoint_is_named() -> None:
    assert described(t.Halted(2, 17, 3, "x")) == "halted at checkpoint 3, behind command 17: x"


def test_one_that_executes_again_is_believed_at_once() -> None:
    condition = SiteCondition(LIMITS)
    condition.hear(HALTED, 0.0)
    condition.hear(t.Halted(2, 0, 0, ""), 1.0)
    assert condition.halted(2.0) is None


def test_what_is_not_repeated_is_forgotten() -> None:
    condition = SiteCondition(LIMITS)
    patience_ms = REPORTS_MISSED_MAX * LIMITS.report_interval_ms
    condition.hear(HALTED, 0.0)
    assert condition.halted(patience_ms - 1) is not None
    assert condition.halted(patience_ms) is None
    condition.hear(HALTED, 2 * patience_ms)
    assert condition.halted(2 * patience_ms) is not None
