"""Hunts mutants: seeds, until one of them breaks with the mutant and holds without it."""

import multiprocessing
import time
from collections.abc import Iterator
from functools import partial
from itertools import count as count_up
from itertools import islice

import msgspec
from msgspec import Struct

from tara.simulator.campaign import Job, plan_of, run_plan
from tara.simulator.mutants.registry import Mutant, mutant_of, mutants
from tara.simulator.plan import Plan


class Finding(Struct):
    name: str
    undoes: str
    caught: bool
    #: The check that caught it.
    by: str | None
    #: How many seeds it took.
    seeds: int
    seconds: float


def hunt_all(seeds_max: int, processes: int) -> Iterator[Finding]:
    """Hunt every mutant, in any order."""
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(partial(hunt, seeds_max=seeds_max), [mutant.name for mutant in mutants()])


def hunt(name: str, seeds_max: int, start: int = 0) -> Finding:
    """Run seeds until the simulator catches the mutant; of those that have what it takes, `seeds_max` at most."""
    mutant = mutant_of(name)
    started = time.monotonic()
    for count, plan in enumerate(islice(_plans(mutant, start), seeds_max), 1):
        with mutant.patch():
            outcome = run_plan(plan)
        if outcome.violation == "error":
            raise RuntimeError(f"mutant {name} does not run: {outcome.detail}")
        if outcome.violation and run_plan(plan).violation is None:
            seconds = round(time.monotonic() - started, 2)
            return Finding(name, mutant.undoes, True, outcome.violation, count, seconds)
    return Finding(name, mutant.undoes, False, None, seeds_max, round(time.monotonic() - started, 2))


def _plans(mutant: Mutant, start: int) -> Iterator[Plan]:
    """The runs in which it might be noticed. Where that takes a certain fault, it is the only one: among others, few
    stories come to their point."""
    for seed in count_up(start):
        job = Job(seed, 1, mutant.partitions, mutant.durability, mutant.app, mutant.kind, mutant.packing)
        plan = plan_of(job)
        alone = [fault for fault in plan.faults if fault.kind == mutant.fault]
        if not mutant.fault:
            yield plan
        elif alone:
            yield msgspec.structs.replace(plan, faults=alone, late_faults=[])
