"""A plan: everything about a run that is decided before it starts, as data, so that it can be shown and changed.

The plan of a seed is drawn from that seed alone. What is drawn while the run goes on (delays, losses, which command
a client sends next) comes from a second generator with the same seed.
"""

import random

import msgspec
from msgspec import Struct

from tara.protocol.errors import ConfigurationError
from tara.protocol.graph import Graph
from tara.protocol.limits import Limits


class Fault(Struct, frozen=True, kw_only=True):
    kind: str
    at_ms: int
    duration_ms: int
    #: A site, or a number to draw targets with; what it means depends on the kind.
    target: int
    other: int


class Plan(Struct, frozen=True, kw_only=True):
    seed: int
    #: The application: a built-in one, or `module:Class`.
    app: str
    limits: Limits
    #: `disk`: committers keep journals. `memory`: none does, and a container that crashes loses everything.
    durability: str
    #: One container per site, or one per node.
    packing: str
    clients: int
    #: How many of them write batches, in sessions with names.
    batch_writers: int
    #: Whether clients of an application that has a gateway speak to that.
    wire: bool
    commands_per_client: int
    keys: int
    #: Long values have up to so many bytes; 0: there are none.
    value_bytes: int
    #: So many of the written values are long.
    long_share: float
    #: Commands that a client sends without waiting.
    pipeline: int
    think_ms: int
    session_timeout_ms: int
    delay_ms: int
    #: What the containers of a site can send to other sites, together; 0: as much as they like, at once.
    rate_mbit: float
    #: Probabilities per frame.
    drop: float
    duplicate: float
    reorder: float
    replay: float
    #: A checkpoint can be read while its holder is down.
    store_shared: bool
    #: What each executor keeps of the decided log, beyond what its bases need.
    log_retention_bytes: int
    #: Faults stop here: the network heals, what is down restarts, and the system has to recover.
    faults_end_ms: int
    #: But f replicas of each stage stay down for good, counted from this site (None: everything comes back).
    lost_site: int | None
    faults: list[Fault]
    #: How much faster or slower than time the clock of a container may run: by this share.
    clock_drift: float = 0.0
    #: How much deeper in the stack a step may be than usual.
    stack_depth: int = 0
    #: What the stores and logs of executors need for a megabyte, whatever they do with it.
    work_megabyte_ms: float = 0.0
    #: Faults that begin when all was well again after the others; they have so much time, and then all is well again.
    late_faults: list[Fault] = []
    late_ms: int = 0
    #: Nothing fails, but commands are long and links are slow: see `tara.simulator.checks.bulk`.
    bulk: bool = False
    #: Clients send what is too long all the same: what front ends say of their limit does not reach them.
    limit_unheard: bool = False


#: Scheduled faults and their weights. Noise (drop, duplicate, reorder, replay) and what follows from other faults
#: (client_retry, torn_tail) are counted when they happen.
SCHEDULED: dict[str, int] = {
    "crash": 6,
    "crash_before_sync": 4,
    "crash_after_sync": 4,
    "crash_in_multicast": 4,
    "crash_in_start": 3,
    "crash_in_storage": 4,
    "crash_stage": 1,
    "crash_stage_again": 1,
    "crash_many": 1,
    "crash_all": 1,
    "amnesia": 4,
    "zombie": 4,
    "forgotten_promise": 3,
    "outdated_record": 3,
    "half_remembered": 3,
    "forgotten_standby": 3,
    "forgetful_witness": 3,
    "pause": 3,
    "suspicion": 3,
    "clock_jump": 2,
    "partition": 4,
    "one_way": 3,
    "partition_inside": 3,
    "slow_link": 3,
    "controller_cut": 3,
    "disk_full": 4,
    "disk_slow": 3,
    "sync_fails": 3,
    "log_damaged": 3,
    "checkpoint_damaged": 4,
    "journal_damaged": 10,
    "store_slow": 1,
    "store_failing": 2,
    "client_restart": 2,
    "client_pause": 1,
    "overload": 2,
    "poison": 2,
    "idle_partition": 2,
    # Not drawn with the others: it needs a plan of its own, see `_with_fatal_command`.
    "fatal_command": 0,
    # Drawn apart, so that they change nothing in other runs.
    "given_up_alive": 0,
    "former_places": 0,
    "late_answers": 0,
    "rotten_checkpoint": 0,
    "torn_blocks": 0,
    "log_gap": 0,
}
#: Each of these is to happen in such a share of the runs, if they have what it takes; drawn by these names.
TOLD_APART = {
    "given_up_alive": ("given-up", 0.2),
    "former_places": ("former-places", 0.2),
    "late_answers": ("late-answers", 0.6),
    "rotten_checkpoint": ("rotten", 0.2),
    "torn_blocks": ("torn", 0.2),
    "log_gap": ("log-gap", 0.2),
}
#: Faults that are drawn apart as well, and the share of the runs that have each of them.
APART = {
    "crash_between": 0.5,
    "torn_record": 0.25,
    "old_disk": 0.35,
    "older_directory": 0.25,
    "older_records": 0.35,
    "life_damaged": 0.2,
    "unreadable": 0.25,
    "orderly_restart": 0.25,
    "odd_commands": 0.5,
    "stage_storm": 0.3,
    "disk_error": 0.6,
    "directory_error": 0.4,
    "marker_lost": 0.3,
    "damage_after_power_cut": 0.3,
    "broken_node": 0.4,
    "many_reads": 0.3,
    "bad_snapshot": 0.3,
    "fatal_snapshot": 0.2,
    # From there on, nothing has to be answered any more; or a new era has to be begun.
    "losses_beyond_f": 0.05,
    "new_era": 0.1,
}
#: Drawn by the name that it had before: so each seed keeps its plan.
DRAWN_AS = {"many_reads": "many_questions"}
#: In so many runs clocks drift; steps are made from deep in the stack; and faults begin anew when all was well.
DRIFT_SHARE = 0.3
DEPTH_SHARE = 0.2
DEEP_COMMANDS = 10
LATE_SHARE = 0.25
#: In so many runs the stores take long for every byte.
LONG_WORK_SHARE = 0.3
LATE_MS = 3_000
#: At most one of these is in a run: after it, the run is judged differently.
ENDING = ("losses_beyond_f", "new_era")
#: In so many runs, clients of an application that has a gateway speak to that.
WIRE_SHARE = 0.7
#: In so many runs there is a command at which the application breaks down; and in so many, commands are long, links
#: are slow and nothing else is wrong.
FATAL_SHARE = 0.2
BULK_SHARE = 0.04
#: The names under which such runs can be asked for.
KINDS = ("fatal", "bulk")
#: Commands of all clients together in a run with long ones, and how many of its values are long.
BULK_COMMANDS = 40
BULK_LONG_SHARE = 0.8
#: What `memory` does not survive, because it takes more than f replicas of a stage at once.
BEYOND_MEMORY = ("crash_stage", "crash_stage_again", "crash_many", "crash_all", "stage_storm")
#: Slots for the orders of an operator.
FATAL_ROOM = 32
DURABILITIES = ("disk", "memory")
PACKINGS = ("site", "node")
NOISE = (
    "read_ordered",
    "overloaded",
    "unacknowledged",
    "drop",
    "duplicate",
    "reorder",
    "replay",
    "client_retry",
    "torn_tail",
    "power_cut",
    "no_room",
    "journal_failed",
    "start_failed",
    "breaks_off",
    "smallest_window",
    "lost_for_good",
    "clock_drift",
    "long_work",
    "deep_stack",
    "narrow_links",
    "bulk",
    "late_faults",
    "stranger",
    "garbage",
    "operator",
    "unread",
    "stale_read",
    "client_timeout",
    "too_large",
    "limit_unheard",
    "command_skipped",
    "command_tried_again",
    "base_ordered",
)
#: Strangers strike so often in a run, and so often somebody sends garbage; drawn apart, so that they change
#: nothing else in it.
STRANGERS = 6
SESSIONS_MAX = 16
GARBAGE = 6


def durability_of(seed: int, durability: str) -> str:
    """What a run of this seed has; a clear error if there is no such durability."""
    if durability == "both":
        return DURABILITIES[seed % 2]
    if durability not in DURABILITIES:
        raise ConfigurationError(f"durability = {durability}: must be one of {', '.join((*DURABILITIES, 'both'))}")
    return durability


def make_plan(
    seed: int,
    f: int = 1,
    partitions: int = 1,
    durability: str = "both",
    app: str = "key-value",
    kind: str = "",
    packing: str = "",
) -> Plan:
    """The plan of a seed. With `both`, even seeds are `disk` and odd ones `memory`. `kind`: `fatal`, with a command at
    which the application breaks down; `bulk`, with long commands and slow links. `kind` and `packing` are as the seed
    says, if they are empty."""
    assert kind in ("", *KINDS), kind
    durability = durability_of(seed, durability)
    if packing and packing not in PACKINGS:
        raise ConfigurationError(f"packing = {packing}: must be one of {', '.join(PACKINGS)}")
    draw = random.Random(f"plan-{seed}")
    # Now and then, a session can keep a few results only.
    session_bytes_max = random.Random(f"kept-{seed}").choice((1_000, 1 << 20, 1 << 20))
    limits = _limits(draw, f, partitions, session_bytes_max)
    bases = random.Random(f"bases-{seed}")
    limits = msgspec.structs.replace(
        limits,
        base_bytes_min=bases.choice((1, 300, 2_000, 10_000)),
        base_interval_ms=bases.choice((1_000, 3_600_000)),
    )
    short = random.Random(f"short-{seed}")
    if is_short := short.random() < 0.2:
        # Not everything that clients want to send may be sent, and what is long travels in pieces.
        limits = msgspec.structs.replace(
            limits, command_bytes_max=1_500, run_bytes_max=2_000, frame_bytes_max=4 * 3_500
        )
        limits = msgspec.structs.replace(limits, link_bytes_max=limits.frame_bytes_max)
    if random.Random(f"narrow-{seed}").random() < 0.4:
        limits = msgspec.structs.replace(limits, source_backlog_bytes_max=400, reads_bytes_max=1_000)
    if random.Random(f"paced-{seed}").random() < 0.1:
        limits = msgspec.structs.replace(limits, proposer_rate_max=2_000.0)
    if random.Random(f"few-{seed}").random() < 0.3:
        # Enough for a client that is restarted again and again, and not for somebody who opens one after the other.
        limits = msgspec.structs.replace(limits, principal_sessions_max=SESSIONS_MAX)
    faults_end_ms = draw.randrange(6_000, 10_000)
    clients = draw.randrange(3, 7)
    values = random.Random(f"values-{seed}").choice((0, 0, 0, 0, 3_000, 3_000, 200_000))
    plan = Plan(
        seed=seed,
        app=app,
        limits=limits,
        durability=durability,
        packing=draw.choice(((packing,) * 3) if packing else ("site", "site", "node")),
        clients=clients,
        batch_writers=random.Random(f"batches-{seed}").choice((0, 0, 1, 2)),
        wire=random.Random(f"wire-{seed}").random() < WIRE_SHARE,
        commands_per_client=draw.randrange(260, 380) // clients,
        keys=draw.randrange(2, 6),
        value_bytes=values,
        long_share=0.1,
        pipeline=draw.choice((1, 1, 2, 4)),
        think_ms=draw.choice((20, 60, 120)),
        session_timeout_ms=draw.choice((1_000, 3_000, 10_000)),
        delay_ms=draw.choice((1, 2, 5)),
        drop=draw.choice((0.0, 0.0, 0.002, 0.02)),
        duplicate=draw.choice((0.0, 0.005, 0.02)),
        reorder=draw.choice((0.0, 0.005, 0.05)),
        replay=draw.choice((0.0, 0.0, 0.005)),
        store_shared=draw.random() < 0.5,
        log_retention_bytes=random.Random(f"log-{seed}").choice((0, 2_000, 1 << 20, 1 << 20)),
        faults_end_ms=faults_end_ms,
        lost_site=draw.randrange(2 * f + 1) if draw.random() < 0.4 else None,
        faults=sorted(
            [
                *_faults(draw, Graph(f, partitions), durability, faults_end_ms),
                *_strangers(seed, faults_end_ms),
                *_told_apart(seed, faults_end_ms),
                *_apart(seed, durability, faults_end_ms),
            ],
            key=lambda fault: fault.at_ms,
        ),
        clock_drift=_share(seed, "drift", DRIFT_SHARE) * 0.05,
        stack_depth=round(_share(seed, "depth", DEPTH_SHARE) * 300),
        work_megabyte_ms=_long_work(seed, values),
        limit_unheard=is_short and short.random() < 0.5,
        # Reports grow with the graph, and have to fit.
        rate_mbit=draw.choice((0.0, 0.0, 0.0, 20.0, 100.0)) * f * f * partitions,
    )
    chance = random.Random(f"bulk-{seed}")
    if kind == "bulk" or (kind == "" and app == "key-value" and chance.random() < BULK_SHARE):
        return _with_bulk(plan, chance)
    chance = random.Random(f"fatal-{seed}")
    if chance.random() < FATAL_SHARE or kind == "fatal":
        return _with_fatal_command(plan, chance)
    return _with_late_faults(plan, random.Random(f"late-{seed}"))


def _long_work(seed: int, value_bytes: int) -> float:
    """A segment has some kilobytes, and more where values are long."""
    draw = random.Random(f"long-work-{seed}")
    per_megabyte_ms = draw.choice((5_000.0, 40_000.0)) / max(value_bytes / 300, 1.0)
    return per_megabyte_ms if draw.random() < LONG_WORK_SHARE else 0.0


def _with_late_faults(plan: Plan, draw: random.Random) -> Plan:
    """Whoever is lost for good stays lost: then there is nobody whom other faults could have."""
    if plan.lost_site is not None or any(fault.kind in ENDING for fault in plan.faults) or draw.random() > LATE_SHARE:
        return plan
    graph = Graph(plan.limits.f, plan.limits.partitions)
    faults = _faults(draw, graph, plan.durability, LATE_MS)
    return msgspec.structs.replace(plan, late_faults=faults, late_ms=LATE_MS)


def _with_bulk(plan: Plan, draw: random.Random) -> Plan:
    """Nothing is lost or late but for what the links cannot carry; at most, the controllers are wrong once. The limits
    are the usual ones, so that they have room for it; or records are longer than what may wait for a link."""
    wrong = Fault(
        kind="suspicion",
        at_ms=draw.randrange(2_000, plan.faults_end_ms - 1_000),
        duration_ms=0,
        target=draw.randrange(1 << 30),
        other=draw.randrange(1 << 30),
    )
    limits = Limits(f=plan.limits.f, partitions=plan.limits.partitions)
    if draw.random() < 0.5:
        frame_bytes_max = 4 * (limits.command_bytes_max + limits.run_bytes_max)
        limits = msgspec.structs.replace(limits, frame_bytes_max=frame_bytes_max, link_bytes_max=frame_bytes_max)
    return msgspec.structs.replace(
        plan,
        bulk=True,
        limits=limits,
        batch_writers=0,
        commands_per_client=BULK_COMMANDS // plan.clients,
        value_bytes=draw.choice((200_000, 1_000_000)),
        long_share=BULK_LONG_SHARE,
        pipeline=draw.choice((1, 4, 8)),
        session_timeout_ms=60_000,
        drop=0.0,
        duplicate=0.0,
        reorder=0.0,
        replay=0.0,
        lost_site=None,
        faults=[wrong] if draw.random() < 0.5 else [],
        clock_drift=0.0,
        work_megabyte_ms=0.0,
        rate_mbit=draw.choice((20.0, 100.0, 1_000.0)) * plan.limits.f**2 * plan.limits.partitions,
    )


def _with_fatal_command(plan: Plan, draw: random.Random) -> Plan:
    """An operator needs all replicas for a skip, so none is lost for good; and room in the windows, beside all that may
    be undecided when the request sources see that nobody executes. As with the usual limits, that is not so long that
    slots are skipped for it."""
    limits = plan.limits
    window = 2 * limits.checkpoint_slots + (2 * limits.f + 1) * limits.source_pending_max + FATAL_ROOM
    fatal = Fault(
        kind="fatal_command",
        at_ms=draw.randrange(500, plan.faults_end_ms - 1_500),
        duration_ms=0,
        target=draw.randrange(1 << 30),
        other=draw.randrange(1 << 30),
    )
    others = [fault for fault in plan.faults if fault.kind not in ENDING]
    return msgspec.structs.replace(
        plan,
        limits=msgspec.structs.replace(limits, window=max(limits.window, window), checkpoint_bytes_max=1 << 20),
        lost_site=None,
        faults=sorted([*others, fatal], key=lambda fault: fault.at_ms),
    )


def _limits(draw: random.Random, f: int, partitions: int, session_bytes_max: int) -> Limits:
    # The smallest legal sizes now and then: they are where windows and checkpoints collide.
    per_partition = draw.choice((1, 4, 8, 16, 32, 128))
    return Limits(
        f=f,
        partitions=partitions,
        checkpoint_interval=per_partition * partitions,
        window=per_partition * draw.choice((2, 2, 3, 4)),
        checkpoint_bytes_max=draw.choice((200, 2_000, 1 << 20, 1 << 20)),
        source_pending_max=draw.choice((4, 16, 64)),
        source_backlog_max=draw.choice((16, 64)),
        batch_size=draw.choice((1, 1, 1, 3, 8)),
        batch_delay_ms=draw.choice((0.0, 0.0, 10.0)),
        run_length_max=draw.choice((4, 64, 1024)),
        source_pending_bytes_max=draw.choice((100, 1_000, 1 << 20)),
        resend_burst=draw.choice((8, 64)),
        resend_bytes_max=draw.choice((1_000, 1_000, 1 << 20)),
        session_pipeline_max=32,
        session_bytes_max=session_bytes_max,
        principal_bytes_max=4 * session_bytes_max,
        sessions_bytes_max=32 * session_bytes_max,
        session_timeout_ms_min=500,
        session_clock_step_ms_max=draw.choice((100, 250)),
        keepalive_interval_ms=200.0,
        report_interval_ms=draw.choice((20.0, 40.0)),
        resend_rounds=draw.choice((2, 3)),
        skip_delay_ms=5.0,
        controller_timeout_ms=draw.choice((150.0, 300.0)),
        controller_timeout_ms_max=1_200.0,
    )


def _share(seed: int, name: str, share: float) -> float:
    """In so many runs something between 0 and 1, else 0."""
    draw = random.Random(f"{name}-{seed}")
    return draw.uniform(0.2, 1.0) if draw.random() < share else 0.0


def _strangers(seed: int, end_ms: int) -> list[Fault]:
    draw = random.Random(f"strangers-{seed}")
    return [
        Fault(
            kind=kind,
            at_ms=draw.randrange(300, end_ms),
            duration_ms=0,
            target=draw.randrange(1 << 30),
            other=draw.randrange(1 << 30),
        )
        for kind in ("stranger",) * STRANGERS + ("garbage",) * GARBAGE + ("operator",) * 2
    ]


def _told_apart(seed: int, end_ms: int) -> list[Fault]:
    faults = []
    for kind, (name, share) in TOLD_APART.items():
        draw = random.Random(f"{name}-{seed}")
        if draw.random() < share:
            at_ms = draw.randrange(300, end_ms - 1_000)
            target, other = draw.randrange(1 << 30), draw.randrange(1 << 30)
            faults.append(Fault(kind=kind, at_ms=at_ms, duration_ms=0, target=target, other=other))
    return faults


def _apart(seed: int, durability: str, end_ms: int) -> list[Fault]:
    faults = []
    for kind, share in APART.items():
        draw = random.Random(f"{DRAWN_AS.get(kind, kind)}-{seed}")
        if draw.random() < share and not (durability == "memory" and kind in BEYOND_MEMORY):
            faults += [
                Fault(
                    kind=kind,
                    at_ms=draw.randrange(300, end_ms - 1_500),
                    duration_ms=draw.choice((50, 200, 700)),
                    target=draw.randrange(1 << 30),
                    other=draw.randrange(1 << 30),
                )
                for _ in range(1 if kind in ENDING else draw.choice((1, 1, 2)))
            ]
    if _share(seed, "depth", DEPTH_SHARE):
        # What gets as deep as it may shows whether that depends on anything.
        draw = random.Random(f"deep-{seed}")
        for _ in range(DEEP_COMMANDS):
            at_ms, target = draw.randrange(300, end_ms - 500), draw.randrange(1 << 30)
            faults.append(Fault(kind="poison", at_ms=at_ms, duration_ms=0, target=target, other=0))
    ends = [fault for fault in faults if fault.kind in ENDING]
    return [fault for fault in faults if fault not in ends[1:]]


def _faults(draw: random.Random, graph: Graph, durability: str, end_ms: int) -> list[Fault]:
    count = draw.randrange(6, 18)
    # A run has about half of the kinds: what is rare beside everything else is frequent among a few.
    swarm = {kind: draw.random() < 0.5 for kind in SCHEDULED}
    swarm["crash"] = True
    weights = [
        0 if (durability == "memory" and kind in BEYOND_MEMORY) or not swarm[kind] else SCHEDULED[kind]
        for kind in SCHEDULED
    ]
    kinds = draw.choices(list(SCHEDULED), weights=weights, k=count)
    faults = [
        Fault(
            kind=kind,
            at_ms=draw.randrange(0 if draw.random() < 0.1 else 300, end_ms - 500),
            duration_ms=draw.choice((50, 200, 700, 2_000)),
            target=draw.randrange(1 << 30),
            other=draw.randrange(1 << 30),
        )
        for kind in kinds
        if kind != "idle_partition" or graph.partitions > 1
    ]
    return sorted(faults, key=lambda fault: fault.at_ms)
