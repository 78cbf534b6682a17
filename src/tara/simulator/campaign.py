"""Many seeds, on several processes, and their summary."""

import multiprocessing
import statistics
import time
from collections.abc import Iterable, Iterator

from msgspec import Struct

from tara.simulator.plan import make_plan
from tara.simulator.run import Outcome, play, total


class Summary(Struct, kw_only=True):
    runs: int
    commands: int
    commands_median: float
    checkpoints_median: float
    view_changes: int
    restarts: int
    checkpoints_loaded: int
    #: Committers that lost their memory and became full again.
    rejoins: int
    #: Faults by kind, and in how many runs each kind fired.
    faults: dict[str, int]
    fault_runs: dict[str, int]
    #: Checks made, by kind.
    checks: dict[str, int]
    #: Seeds of the runs that violated an invariant, and what they violated.
    violations: list[int]
    details: dict[int, str]
    seconds: float


class Job(Struct, frozen=True):
    seed: int
    f: int
    partitions: int


def run_seed(job: Job) -> Outcome:
    """One run; an unexpected exception is a finding, too."""
    try:
        return play(make_plan(job.seed, job.f, job.partitions))
    except Exception as error:
        return Outcome(seed=job.seed, violation="error", detail=f"{type(error).__name__}: {error}")


def outcomes(jobs: list[Job], processes: int) -> Iterator[Outcome]:
    """Play all, in any order."""
    if processes == 1:
        yield from map(run_seed, jobs)
        return
    # A fresh interpreter per process: nothing is inherited, and a run depends on nothing but its seed.
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(run_seed, jobs, chunksize=1)


def summarize(finished: Iterable[Outcome]) -> Summary:
    """Draw all outcomes and add them up."""
    started = time.monotonic()
    results = list(finished)
    failed = sorted((outcome for outcome in results if outcome.violation), key=lambda outcome: outcome.seed)
    return Summary(
        runs=len(results),
        commands=sum(outcome.commands for outcome in results),
        commands_median=statistics.median([outcome.commands for outcome in results] or [0]),
        checkpoints_median=statistics.median([outcome.checkpoints for outcome in results] or [0]),
        view_changes=sum(outcome.view_changes for outcome in results),
        restarts=sum(outcome.restarts for outcome in results),
        checkpoints_loaded=sum(outcome.checkpoints_loaded for outcome in results),
        rejoins=sum(outcome.rejoins for outcome in results),
        faults=total([outcome.faults for outcome in results]),
        fault_runs=total([dict.fromkeys(outcome.faults, 1) for outcome in results]),
        checks=total([outcome.checks for outcome in results]),
        violations=[outcome.seed for outcome in failed],
        details={outcome.seed: f"{outcome.violation}: {outcome.detail}" for outcome in failed},
        seconds=round(time.monotonic() - started, 2),
    )
