"""The simulator itself: it is deterministic, its faults and checks happen, and it can fail."""

import os
import subprocess
import sys
from collections import Counter
from unittest import mock

import msgspec
import pytest

from tara.client.session import PATIENCE_S_MAX
from tara.protocol.errors import ConfigurationError
from tara.simulator.campaign import Job, run_seed, summarize
from tara.simulator.checks.bulk import transfer_ms
from tara.simulator.container import DATA, SimulatedContainer
from tara.simulator.plan import APART, BEYOND_MEMORY, NOISE, SCHEDULED, make_plan
from tara.simulator.run import RECOVERY_MS, Outcome, answer_ms, play
from tara.simulator.transcript import Transcript
from tara.simulator.world import World


def total(outcomes: list[Outcome]) -> Counter[str]:
    """Require that no run breaks an invariant, and add up what happened."""
    totals: Counter[str] = Counter()
    for outcome in outcomes:
        assert outcome.violation is None, f"seed {outcome.seed}: {outcome.violation}: {outcome.detail}"
        totals.update(outcome.checks)
        totals.update(
            commands=outcome.commands,
            view_changes=outcome.view_changes,
            restarts=outcome.restarts,
            checkpoints=outcome.checkpoints,
            bases_loaded=outcome.bases_loaded,
            replayed=outcome.replayed,
        )
    return totals


CHECKS = [
    "agreement",
    "bounds",
    "chosen",
    "digests",
    "exactly_once",
    "held",
    "linearizable",
    "liveness",
    "monotonic",
    "one_proposal",
    "owners",
    "promises",
    "records",
    "stability",
]


@pytest.fixture(scope="module")
def with_journals() -> list[Outcome]:
    """Runs with every kind of fault."""
    seeds = (309, 317, 320, 321, 326, 334, 339, 342, 349, 355, 360, 366, 370)
    return [run_seed(Job(seed, 1, 1, "disk")) for seed in seeds]


def check_runs(outcomes: list[Outcome]) -> None:
    totals, count = total(outcomes), len(outcomes)
    assert totals["commands"] >= 200 * count
    assert totals["view_changes"] >= count
    assert totals["restarts"] >= count
    assert totals["checkpoints"] >= count
    assert totals["bases_loaded"] > 0
    assert totals["replayed"] > 0
    assert [check for check in CHECKS if totals[check] == 0] == []


def test_no_violation_and_every_check_runs(with_journals: list[Outcome]) -> None:
    check_runs(with_journals + [run_seed(Job(seed, 1, 1)) for seed in range(4)])


@pytest.mark.parametrize(("f", "partitions", "count"), [(2, 1, 2), (1, 3, 3)])
def test_no_violation_in_other_shapes(f: int, partitions: int, count: int) -> None:
    check_runs([run_seed(Job(seed, f, partitions)) for seed in range(count)])


@pytest.mark.parametrize(("f", "count"), [(1, 6), (2, 2)])
def test_without_journals_what_crashes_rejoins_and_never_more_than_f_at_once(f: int, count: int) -> None:
    lost: list[int] = []
    crash = World.crash

    def crash_and_count(self: World, container: SimulatedContainer, power: bool = False) -> None:
        crash(self, container, power)
        assert not any(box.disk.paths(DATA, (".journal",)) for box in self.containers)
        down = Counter(self.graph.names[number].partition for number in self.rejoins_due)
        if not (self.closed or self.beyond):
            # Else that is what the fault is about.
            lost.append(max(down.values(), default=0))

    with mock.patch.object(World, "crash", crash_and_count):
        summary = summarize(run_seed(Job(seed, f, 1, "memory")) for seed in range(count))

    assert summary.details == {}
    assert summary.durability == {"memory": count}
    assert max(lost) == f
    assert summary.rejoins >= count
    assert not set(summary.faults) & {*BEYOND_MEMORY, "torn_tail"}


def test_seeds_alternate_between_disk_and_memory() -> None:
    assert [make_plan(seed).durability for seed in range(4)] == ["disk", "memory", "disk", "memory"]
    assert make_plan(1, durability="disk").durability == "disk"
    with pytest.raises(ConfigurationError, match="must be one of disk, memory, both"):
        make_plan(1, durability="paper")


def test_every_fault_kind_fires(with_journals: list[Outcome]) -> None:
    # They need several partitions, or a run without anything else.
    rare = {"idle_partition", "half_remembered", "former_places", "bulk"}
    kinds = {*SCHEDULED, *NOISE, *APART} - rare
    missing = kinds.difference(*(outcome.faults for outcome in with_journals))
    # Other code draws other faults: then some more runs have what is missing.
    for seed in range(300, 400):
        planned = {fault.kind for fault in make_plan(seed, 1, 1, "disk").faults}
        if missing & planned or missing - SCHEDULED.keys():
            missing -= run_seed(Job(seed, 1, 1, "disk")).faults.keys()

    assert missing == set()


FINGERPRINT = """
from tara.simulator.plan import make_plan
from tara.simulator.run import Outcome, play
from tara.simulator.transcript import Transcript
transcript = Transcript(reports=True)
print(play(make_plan({seed}, 1, {partitions}), transcript).fingerprint)
print("\\n".join(transcript.lines))
"""


@pytest.mark.parametrize(("seed", "partitions"), [(3, 1), (5, 2)])
def test_a_seed_is_one_run_in_any_process(seed: int, partitions: int) -> None:
    stories = []
    for hash_seed in ("0", "4711"):
        program = FINGERPRINT.format(seed=seed, partitions=partitions)
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
        stories.append(done.stdout)

    assert len(stories[0]) > 100_000
    assert stories[0] == stories[1]


def test_the_transcript_does_not_change_the_run() -> None:
    plan = make_plan(11)

    assert play(plan).fingerprint == play(plan, Transcript()).fingerprint


def test_long_commands_over_slow_links_take_their_time() -> None:
    """Nothing fails; short commands wait behind long ones, and once their clients gave up and sent all of them again
    elsewhere, so that more than half of what was ordered had been ordered before."""
    outcome = run_seed(Job(59, 1, 1, "memory", kind="bulk"))
    assert (outcome.violation, outcome.faults["bulk"], outcome.checks["bulk"]) == (None, 1, 1)


def test_a_result_that_fills_all_sessions_may_hold_up_the_others_until_its_session_expires() -> None:
    """As in this run, whose clients wait for one that is done."""
    plan = make_plan(30727, packing="node")
    assert plan.value_bytes > plan.limits.sessions_bytes_max
    assert answer_ms(plan) == RECOVERY_MS + plan.session_timeout_ms + transfer_ms(plan)
    assert play(plan).violation is None
    roomy = msgspec.structs.replace(plan, value_bytes=plan.limits.sessions_bytes_max)
    assert answer_ms(roomy) == RECOVERY_MS + transfer_ms(roomy)


def test_with_a_higher_f_a_client_may_turn_to_more_sites_that_are_gone() -> None:
    plan = msgspec.structs.replace(make_plan(0, f=2), value_bytes=0)
    assert answer_ms(plan) == RECOVERY_MS + PATIENCE_S_MAX * 1e3


def test_a_proposer_that_is_lost_among_long_commands_on_slow_links_is_replaced_in_time() -> None:
    """After two suspicions that nobody had waited for. They are not to make the controllers wait for longer."""
    plan = make_plan(5166)
    assert (plan.packing, plan.rate_mbit, plan.value_bytes) == ("node", 20.0, 200_000)
    assert play(plan).violation is None
