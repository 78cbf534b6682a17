"""What an operator's command line does next, from what replicas report."""

from typing import Any

from tara.host.skipping import ReplicaReport, Step, next_step


def report(name: str = "site-0", **fields: Any) -> ReplicaReport:
    usual = ReplicaReport(name, up=True, executed=6, halted_at=7, asked=False)
    return usual._replace(**fields)


def test_when_all_have_halted_there_they_are_asked() -> None:
    assert next_step([report(), report("site-1")], 7)[0] is Step.ASK
    assert next_step([report(asked=True), report("site-1")], 7)[0] is Step.ASK


def test_when_all_know_it_is_confirmed() -> None:
    assert next_step([report(asked=True), report("site-1", asked=True)], 7)[0] is Step.CONFIRM


def test_one_that_is_past_the_command_is_named() -> None:
    past = report("site-1", executed=7, halted_at=None)
    step, why = next_step([report(asked=True), past], 7)
    assert step is Step.REFUSE
    assert why.startswith("site-1 is past command 7")
    assert next_step([report(up=False), past], 7)[0] is Step.REFUSE


def test_one_that_has_halted_elsewhere_or_is_on_its_way_is_waited_for() -> None:
    assert next_step([report(halted_at=5, executed=4)], 7) == (Step.WAIT, "site-0 has not halted at command 7")
    assert next_step([report(halted_at=None, executed=None)], 7)[0] is Step.WAIT


def test_one_that_says_nothing_is_waited_for() -> None:
    silent = report("site-2", up=False, executed=None, halted_at=None)
    assert next_step([report(asked=True), silent], 7) == (Step.WAIT, "site-2 does not answer")
