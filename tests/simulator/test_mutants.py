"""Versions of the code with one rule taken away: the simulator catches them."""

import msgspec
import pytest

from tara.simulator.campaign import Job, run_seed
from tara.simulator.mutants.hunting import hunt
from tara.simulator.mutants.registry import applied, mutants
from tara.simulator.plan import Fault, make_plan
from tara.simulator.run import play


def test_there_are_enough_mutants_with_names_of_their_own() -> None:
    assert len(mutants()) >= 75
    assert len({mutant.name for mutant in mutants()}) == len(mutants())


@pytest.mark.parametrize("name", [mutant.name for mutant in mutants()])
def test_what_a_mutant_replaces_is_still_called_like_that(name: str) -> None:
    with applied(name):
        pass


#: Some, each with a seed that catches it. Other code draws other faults: then the hunt goes on from there. `tara sim
#: mutants` hunts all of them.
QUICK = {
    "stale_records": 1,
    "records_ignored": 0,
    "next_off_by_one": 0,
    "proposer_starts_active": 0,
    "votes_of_any_view": 21,
    "too_few_records": 12,
    "promise_forgotten": 0,
    "forgotten_when_proposed": 8,
    "any_start_restores_memory": 8,
    "stamped_again": 0,
    "no_duplicate_filter": 0,
    "early_command_executes": 0,
    "unanimous_controllers": 74,
    "load_tried_once": 1,
    "owner_not_compared": 0,
    "skips_what_was_executed": 5,
    "answers_the_wrong_connection": 0,
    "answers_another_read": 0,
    "sender_says_who_it_is": 0,
    "fragments_in_any_order": 0,
    "changes_front_ends_without_the_number": 0,
    "acknowledges_too_much": 1,
    "journal_is_not_synced": 0,
    "durable_slot_is_written": 0,
    "segments_dropped_early": 0,
    "marker_is_not_compared": 0,
    "older_marker_is_believed": 0,
    "losses_are_not_told": 0,
    "reads_overtake_writes": 1,
    "watches_are_lost": 1,
    "gone_and_still_held": 7,
    "older_directory_is_trusted": 16,
    "log_is_left_behind": 10,
    "base_of_a_later_state": 0,
    "sessions_change_while_they_are_encoded": 0,
    "digest_begins_anew": 0,
    "learners_stay_behind": 0,
    "runs_are_passed_over": 1,
    "gaps_stay": 1,
    "each_base_is_another_snapshot": 1,
    "announced_over_a_gap": 7,
    "way_ends_somewhere": 7,
    "who_arrives_pauses": 78,
    "log_is_not_synced": 0,
    "last_base_is_removed": 2,
    "segments_are_not_compared": 0,
    "counter_goes_on": 34,
    "former_session_waits": 34,
    "depth_is_absolute": 20,
}


@pytest.mark.parametrize(("name", "seed"), QUICK.items())
def test_a_mutant_is_caught(name: str, seed: int) -> None:
    assert hunt(name, seeds_max=50, start=seed).caught


def test_a_mutant_is_gone_afterwards() -> None:
    hunt("records_ignored", seeds_max=3)

    assert run_seed(Job(0, 1, 1)).violation is None


#: Stories, and the rules that they are told for: partitions, durability, and a seed whose world has what it takes.
STORIES = {
    "outdated_record": ("records_of_past_incarnations", 1, "both", 1),
    "half_remembered": ("recovering_committer_in_segment_head", 2, "disk", 2),
    "forgetful_witness": ("recovering_committer_answers_reads", 1, "both", 1),
    "forgotten_standby": ("presence_announced_once", 1, "disk", 3),
    "given_up_alive": ("any_incarnation_may_vote", 1, "both", 0),
    "former_places": ("place_of_a_former_life", 2, "disk", 5),
    "late_answers": ("answers_of_a_former_life", 1, "disk", 4),
}


@pytest.mark.parametrize("story", STORIES)
def test_a_story_catches_the_mutant_that_it_is_told_for(story: str) -> None:
    mutant, partitions, durability, seed = STORIES[story]
    faults = [Fault(kind=story, at_ms=1_500, duration_ms=700, target=seed, other=seed)]
    plan = msgspec.structs.replace(make_plan(seed, 1, partitions, durability), faults=faults)
    outcome = play(plan)
    assert (outcome.violation, outcome.faults[story]) == (None, 1)
    with applied(mutant):
        assert play(plan).violation is not None
