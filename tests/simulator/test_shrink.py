"""Failing runs become small, stay the same failure, and can be replayed from a file."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tara.cli import app
from tara.protocol.errors import ConfigurationError
from tara.simulator import shrink
from tara.simulator.campaign import run_plan
from tara.simulator.mutants.registry import applied
from tara.simulator.plan import Plan, make_plan
from tara.simulator.run import Outcome

runner = CliRunner()


def size(plan: Plan) -> int:
    return len(plan.faults) * plan.clients * plan.commands_per_client


def test_a_failing_run_becomes_small_and_fails_in_the_same_way() -> None:
    plan = make_plan(7)
    with applied("records_ignored"):
        told: list[str] = []
        first = run_plan(plan)
        shrunk = shrink.shrink(plan, run_plan, 40, 300.0, told.append)
        assert shrunk is not None
        again = run_plan(shrunk.after)

    assert shrunk.runs <= 40
    assert len(shrunk.after.faults) < len(plan.faults)
    assert size(shrunk.after) < size(plan) / 4
    assert first.violation == shrunk.outcome.violation == again.violation
    assert again.fingerprint == shrunk.outcome.fingerprint
    assert run_plan(shrunk.after).violation is None, "the mutant is what makes it fail"
    assert len(told) > 1


def breaks_if(condition: bool, plan: Plan) -> Outcome:
    return Outcome(seed=plan.seed, violation="made up" if condition else None)


def test_what_the_failure_needs_is_all_that_is_left() -> None:
    """A run that is no simulation: it fails if there is a certain fault, two clients, and some noise."""
    plan = make_plan(8)
    needed = plan.faults[3]

    def run(candidate: Plan) -> Outcome:
        kinds = [fault.kind for fault in candidate.faults]
        return breaks_if(needed.kind in kinds and candidate.clients >= 2 and candidate.duplicate > 0, candidate)

    shrunk = shrink.shrink(plan, run, 1_000, 60.0, lambda text: None)

    assert shrunk is not None
    assert shrunk.ended == "nothing more can be taken away"
    assert [fault.kind for fault in shrunk.after.faults] == [needed.kind]
    assert (shrunk.after.clients, shrunk.after.commands_per_client) == (2, 1)
    assert (shrunk.after.drop, shrunk.after.reorder, shrunk.after.replay) == (0, 0, 0)
    assert shrunk.after.duplicate > 0


def test_another_failure_is_not_taken_for_the_same() -> None:
    plan = make_plan(8)

    def run(candidate: Plan) -> Outcome:
        return Outcome(seed=candidate.seed, violation="first" if candidate == plan else "second")

    shrunk = shrink.shrink(plan, run, 1_000, 60.0, lambda text: None)

    assert shrunk is not None
    assert shrunk.after == plan


def test_the_number_of_runs_is_bounded() -> None:
    runs = 0

    def run(candidate: Plan) -> Outcome:
        nonlocal runs
        runs += 1
        return breaks_if(True, candidate)

    shrunk = shrink.shrink(make_plan(8), run, 7, 60.0, lambda text: None)

    assert shrunk is not None
    assert runs == shrunk.runs == 7
    assert shrunk.ended == "7 runs are spent"


def test_the_command_writes_a_file_that_replays(tmp_path: Path) -> None:
    file = tmp_path / "shrunk.json"
    options = ["--mutant", "records_ignored", "--runs", "6", "--output", str(file)]

    result = runner.invoke(app, ["sim", "shrink", "7", *options])

    assert result.exit_code == 0, result.output
    assert f"tara sim replay --plan {file} --trace" in result.output
    replayed = runner.invoke(app, ["sim", "replay", "--plan", str(file)])
    assert replayed.exit_code == 1
    assert "mutant: records_ignored" in replayed.output
    assert "VIOLATION chosen" in replayed.output


def test_a_seed_that_does_not_fail_is_said_to(tmp_path: Path) -> None:
    file = tmp_path / "shrunk.json"

    result = runner.invoke(app, ["sim", "shrink", "334", "--output", str(file)])

    assert result.exit_code == 1
    assert "seed 334 (--f 1 --partitions 1) does not fail" in result.output
    assert not file.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not a plan"),
        ('{"version": 1, "violation": "x"}', "not a plan"),
        ('{"version": 9}', "has format version 9, this is version 1"),
        (None, "No such file"),
    ],
)
def test_a_file_that_is_no_plan_is_refused(content: str | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigurationError, match=message):
        shrink.read(file)


def test_an_unknown_mutant_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"mutant = nobody: must be one of .*stale_records"):
        applied("nobody")


@pytest.mark.parametrize("arguments", [[], ["3", "--plan", "plan.json"]])
def test_a_replay_is_of_a_seed_or_of_a_plan(arguments: list[str]) -> None:
    result = runner.invoke(app, ["sim", "replay", *arguments])

    assert result.exit_code == 2
    assert "either a seed or --plan" in result.output
