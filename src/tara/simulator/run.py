"""One run: a plan, played to its end and judged."""

from collections import Counter
from hashlib import blake2b

from msgspec import Struct

from tara.client.session import PATIENCE_S_MAX
from tara.protocol import tuples as t
from tara.protocol.graph import Stage
from tara.protocol.nodes.committer import Committer
from tara.protocol.nodes.executor import Executor
from tara.protocol.nodes.proposer import Mode, Proposer
from tara.protocol.nodes.view_source import ViewSource
from tara.simulator import eras
from tara.simulator.checks import bulk
from tara.simulator.checks.log_check import check_logs
from tara.simulator.checks.rebuilt_states import check_rebuilt
from tara.simulator.checks.sequential import complete_log
from tara.simulator.checks.violation import Violation
from tara.simulator.container import DATA
from tara.simulator.faults import nemesis
from tara.simulator.plan import Plan
from tara.simulator.transcript import Transcript
from tara.simulator.world import World

#: Virtual time in which every command is answered once the faults have stopped, and all replicas agree once the
#: clients have stopped.
RECOVERY_MS = 8_000
#: Virtual time in which the views must not change any more.
QUIET_MS = 2_000


class Outcome(Struct, kw_only=True):
    seed: int
    durability: str = "disk"
    violation: str | None = None
    detail: str = ""
    commands: int = 0
    view_changes: int = 0
    restarts: int = 0
    checkpoints: int = 0
    bases: int = 0
    bases_loaded: int = 0
    replayed: int = 0
    rejoins: int = 0
    virtual_ms: float = 0.0
    faults: dict[str, int] = {}
    checks: dict[str, int] = {}
    #: Of everything that happened; equal runs have equal fingerprints.
    fingerprint: str = ""


def play(plan: Plan, transcript: Transcript | None = None) -> Outcome:
    world = World(plan, transcript)
    violation: Violation | None = None
    try:
        nemesis.schedule(world, plan.faults)
        world.start()
        world.run_until(plan.faults_end_ms)
        _recover(world)
        if plan.late_faults and not world.beyond:
            nemesis.go_on(world)
            world.run_until(world.now_ms + plan.late_ms)
            _recover(world)
        _check_history(world)
        if plan.bulk:
            bulk.check(world)
        if not world.beyond:
            world.monitor.finish()
            check_logs(world, DATA, _is_led(world))
            check_rebuilt(world, DATA)
        world.inspect_all()
    except Violation as found:
        violation = found
        if transcript is not None:
            transcript.say(world.now_ms, f"VIOLATION {found}")
    return Outcome(
        seed=plan.seed,
        durability=plan.durability,
        violation=violation.kind if violation else None,
        detail=violation.detail if violation else "",
        commands=sum(client.answered for client in world.clients),
        view_changes=world.monitor.view_changes,
        restarts=world.restarts,
        checkpoints=world.monitor.stable,
        bases=world.bases_saved,
        bases_loaded=world.bases_loaded,
        replayed=world.replayed,
        rejoins=world.rejoins,
        virtual_ms=round(world.now_ms, 3),
        faults=dict(sorted(world.faults.items())),
        checks=dict(sorted(world.monitor.checks.items())),
        fingerprint=_fingerprint(world),
    )


def answer_ms(plan: Plan) -> float:
    """How long a command may wait for its answer. A client that turns to a site that is gone notices by its patience
    alone; `RECOVERY_MS` has room for one such site, and with a higher f there are more of them. Where one result is
    more than all sessions may keep together, its client may have gone with it, and the others are refused until that
    session expires."""
    held_up = plan.value_bytes > plan.limits.sessions_bytes_max
    silent_ms = (plan.limits.f - 1) * PATIENCE_S_MAX * 1e3
    return RECOVERY_MS + silent_ms + (plan.session_timeout_ms if held_up else 0) + bulk.transfer_ms(plan)


def _recover(world: World) -> None:
    """The faults end, and the system is what it was: at full strength. If more was lost than it survives, nothing has
    to happen any more, but what happens has to be right."""
    nemesis.heal(world)
    if world.beyond:
        world.run_until(world.now_ms + QUIET_MS)
        return
    _await_answers(world)
    _await_quiet(world)


def _fingerprint(world: World) -> str:
    digest = blake2b(digest_size=16)
    for client in world.clients:
        for operation in client.history:
            digest.update(repr((operation.invoked, operation.returned, operation.call, operation.result)).encode())
    digest.update(repr((world.now_ms, sorted(world.faults.items()), sorted(world.monitor.checks.items()))).encode())
    return digest.hexdigest()


def _await_answers(world: World) -> None:
    """Every command is answered in bounded time. That a command ends processes is a fault like others: it does so twice
    on each replica at most, and the time counts from the last one."""
    healed_ms, allowed_ms = world.now_ms, answer_ms(world.plan)
    while not all(client.done for client in world.clients):
        world.run_until(world.now_ms + 50)
        for client in world.clients:
            waited_ms = world.now_ms - max(client.waiting_since_ms, healed_ms, world.ended_ms)
            if waited_ms > allowed_ms:
                flight = sorted(client.in_flight)
                raise Violation("liveness", f"client {client.index} waits for {flight}; {_positions(world)}")
        world.monitor.checks["liveness"] += 1


def _await_quiet(world: World) -> None:
    """Laggards catch up, and the views stop changing."""
    deadline_ms = world.now_ms + RECOVERY_MS + bulk.transfer_ms(world.plan)
    quiet_since_ms, before = world.now_ms, _views(world)
    while True:
        world.run_until(world.now_ms + 50)
        views = _views(world)
        if views != before:
            quiet_since_ms, before = world.now_ms, views
        if world.now_ms - quiet_since_ms >= QUIET_MS and _converged(world):
            break
        if world.now_ms > deadline_ms:
            raise Violation("liveness", f"no common state: {_positions(world)}")
    world.monitor.checks["liveness"] += 1


def _views(world: World) -> list[int]:
    return [node.acceptor.view for _, node in world.nodes_of(Stage.COMMITTER) if isinstance(node, Committer)]


def _converged(world: World) -> bool:
    """Every replica that is not lost is there, in one view per partition; all have the same state and hold the stable
    checkpoint; and every proposer could take over."""
    committers = [node for _, node in world.nodes_of(Stage.COMMITTER) if isinstance(node, Committer)]
    executors = [node for _, node in world.nodes_of(Stage.EXECUTOR) if isinstance(node, Executor)]
    if any(not container.alive for container in world.containers if not container.lost):
        return False
    if not world.is_at_full_strength():
        return False
    if any(container.gateway is not None and not container.gateway.serving for container in world.containers):
        return False
    for partition in range(world.plan.limits.partitions):
        mine = [node for node in committers if node.partition == partition]
        if len({node.acceptor.view for node in mine}) > 1 or any(node.acceptor.recovering for node in mine):
            return False
        if not _proposers_are_known(world, partition):
            return False
        # A view whose proposer is gone stays as it is until there is something to propose.
        uneven = len({(node.acceptor.started, node.acceptor.commits.pos) for node in mine}) > 1 or any(
            node.acceptor.holes for node in mine
        )
        if _has_leader(world, partition) and uneven:
            return False
    if len({node.next for node in executors}) > 1:
        # Without a leader and without commands nothing is sent to a laggard; it catches up with the next command.
        return not _is_led(world)
    states = {(t.encode(node.sessions.state()), b"".join(node.application.snapshot())) for node in executors}
    if len(states) > 1:
        raise Violation("agreement", f"executors at {executors[0].next} have different states{world.subject.suspicion}")
    return True


def _proposers_are_known(world: World, partition: int) -> bool:
    """Whether the view sources know every living proposer: the next view may be its."""
    sources = [node for name, node in world.nodes_of(Stage.VIEW_SOURCE) if name.partition == partition]
    return all(
        source.incarnations[world.graph.member(Stage.PROPOSER, name.replica)] >= proposer.boot.incarnation
        for name, proposer in world.nodes_of(Stage.PROPOSER)
        if name.partition == partition
        for source in sources
        if isinstance(source, ViewSource)
    )


def _is_led(world: World) -> bool:
    return all(_has_leader(world, partition) for partition in range(world.plan.limits.partitions))


def _has_leader(world: World, partition: int) -> bool:
    return any(
        isinstance(node, Proposer) and node.mode is Mode.ACTIVE
        for name, node in world.nodes_of(Stage.PROPOSER)
        if name.partition == partition
    )


def _positions(world: World) -> str:
    committers = [
        (
            name.partition,
            name.replica,
            node.acceptor.view,
            node.acceptor.started,
            node.acceptor.commits.min,
            node.acceptor.commits.pos,
        )
        for name, node in world.nodes_of(Stage.COMMITTER)
        if isinstance(node, Committer)
    ]
    executors = [
        (name.replica, node.next, node.stable.current, [learner.position for learner in node._learners])
        for name, node in world.nodes_of(Stage.EXECUTOR)
        if isinstance(node, Executor)
    ]
    return f"committers (p, i, view, started, min, pos) {committers}; executors (i, next, stable, pos) {executors}"


def _check_history(world: World) -> None:
    for client in world.clients:
        client.finish()
    history = [operation for client in world.clients for operation in client.history]
    logs = [complete_log(era.monitor.log) for era in world.former]
    logs.append(complete_log(world.monitor.log, world.threshold * world.plan.limits.checkpoint_interval))
    for part, log in zip(eras.histories(world, history), logs, strict=True):
        world.subject.judge(part, log, world.plan.limits)
    world.monitor.checks["linearizable"] += len(history)


def total(counters: list[dict[str, int]]) -> dict[str, int]:
    result: Counter[str] = Counter()
    for counter in counters:
        result.update(counter)
    return dict(sorted(result.items()))
