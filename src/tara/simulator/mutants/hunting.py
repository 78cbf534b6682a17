"""Hunts mutants: seeds, until one of them breaks with the mutant and holds without it."""

import multiprocessing
import time
from collections.abc import Iterator
from functools import partial

from msgspec import Struct

from tara.simulator.campaign import Job, run_seed
from tara.simulator.mutants.registry import mutant_of, mutants


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
    """Run seeds until the simulator catches the mutant."""
    mutant = mutant_of(name)
    started = time.monotonic()
    for count in range(1, seeds_max + 1):
        job = Job(start + count - 1, 1, mutant.partitions, mutant.durability, mutant.app, mutant.kind)
        with mutant.patch():
            outcome = run_seed(job)
        if outcome.violation == "error":
            raise RuntimeError(f"mutant {name} does not run: {outcome.detail}")
        if outcome.violation and run_seed(job).violation is None:
            seconds = round(time.monotonic() - started, 2)
            return Finding(name, mutant.undoes, True, outcome.violation, count, seconds)
    return Finding(name, mutant.undoes, False, None, seeds_max, round(time.monotonic() - started, 2))
