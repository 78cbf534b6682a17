"""Many seeds, on several processes, and their summary."""

import multiprocessing
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec import Struct

from tara.simulator.plan import Plan, make_plan
from tara.simulator.run import Outcome, play, total


class Summary(Struct, kw_only=True):
    runs: int
    #: How many of them kept journals (`disk`), and how many lost everything with each crash (`memory`).
    durability: dict[str, int]
    commands: int
    commands_median: float
    checkpoints_median: float
    view_changes: int
    restarts: int
    bases: int
    bases_loaded: int
    #: Requests that were executed again.
    replayed: int
    #: Committers that lost their journals and became full again.
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
    #: How an application of one's own breaks its contract; nothing is run then.
    contract: str | None = None


class Job(Struct, frozen=True):
    seed: int
    f: int
    partitions: int
    durability: str = "both"
    app: str = "key-value"
    #: One of `tara.simulator.plan.KINDS`; empty: as the seed says.
    kind: str = ""
    #: One container per `site` or per `node`; empty: as the seed says.
    packing: str = ""


def plan_of(job: Job) -> Plan:
    return make_plan(job.seed, job.f, job.partitions, job.durability, job.app, job.kind, job.packing)


def run_seed(job: Job) -> Outcome:
    return run_plan(plan_of(job))


def run_plan(plan: Plan) -> Outcome:
    """One run; an unexpected exception is a finding, too."""
    try:
        return play(plan)
    except Exception as error:
        detail = f"{type(error).__name__}: {error}"
        return Outcome(seed=plan.seed, durability=plan.durability, violation="error", detail=detail)


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
        durability=dict(Counter(outcome.durability for outcome in results)),
        commands=sum(outcome.commands for outcome in results),
        commands_median=statistics.median([outcome.commands for outcome in results] or [0]),
        checkpoints_median=statistics.median([outcome.checkpoints for outcome in results] or [0]),
        view_changes=sum(outcome.view_changes for outcome in results),
        restarts=sum(outcome.restarts for outcome in results),
        bases=sum(outcome.bases for outcome in results),
        bases_loaded=sum(outcome.bases_loaded for outcome in results),
        replayed=sum(outcome.replayed for outcome in results),
        rejoins=sum(outcome.rejoins for outcome in results),
        faults=total([outcome.faults for outcome in results]),
        fault_runs=total([dict.fromkeys(outcome.faults, 1) for outcome in results]),
        checks=total([outcome.checks for outcome in results]),
        violations=[outcome.seed for outcome in failed],
        details={outcome.seed: f"{outcome.violation}: {outcome.detail}" for outcome in failed},
        seconds=round(time.monotonic() - started, 2),
    )
