"""Tells a run as a story: what each node received, did and sent, in readable lines."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tara.host.placement import container_label
from tara.protocol import tuples as t
from tara.protocol.graph import Receivers
from tara.protocol.node import Outbox

if TYPE_CHECKING:
    from tara.simulator.container import SimulatedContainer
    from tara.simulator.world import World


class Transcript:
    """Collects lines. Periodic reports are left out unless asked for: they are most of the traffic."""

    PERIODIC = (t.CommitterStatus, t.ExecutorStatus, t.Stable, t.Target, t.Progress, t.Advance, t.View)

    def __init__(self, reports: bool = False) -> None:
        self.lines: list[str] = []
        self._reports = reports

    def say(self, now_ms: float, text: str) -> None:
        self.lines.append(f"[{now_ms:10.3f}] {text}")

    def container(self, world: "World", container: "SimulatedContainer", what: str) -> None:
        self.say(world.now_ms, f"{self._who(world, container)} (life {container.life}) {what}")

    def _who(self, world: "World", container: "SimulatedContainer") -> str:
        return container_label(world.graph, world.plan.packing, container.numbers)

    def step(
        self, world: "World", container: "SimulatedContainer", number: int, tuple_: t.Tuple | None, outbox: Outbox
    ) -> None:
        """A node processed a tuple (None: the time passed)."""
        emitted = [pair for pair in outbox.emitted if self._worth_telling(pair[0])]
        told = [pair for pair in outbox.told if self._worth_telling(pair[0])]
        heard = tuple_ is not None and self._worth_telling(tuple_)
        if not (heard or emitted or told or outbox.persisted):
            return
        cause = "time passes" if tuple_ is None else f"receives {describe(tuple_)}"
        self.say(world.now_ms, f"{world.graph.label(number)} {cause}")
        for entry in outbox.persisted:
            self.lines.append(f"{'':13}  persists {describe(entry)}")
        for verb, pairs in (("emits", emitted), ("tells", told)):
            for sent, receivers in pairs:
                self.lines.append(f"{'':13}  {verb} {describe(sent)} → {_names(world, receivers)}")

    def _worth_telling(self, tuple_: t.Tuple) -> bool:
        return self._reports or not isinstance(tuple_, self.PERIODIC)


def _names(world: "World", receivers: Receivers) -> str:
    if receivers.numbers[0] < 0:
        return str(receivers.stage)
    if len(receivers.numbers) == 1:
        return world.graph.label(receivers.numbers[0])
    return f"{receivers.stage}s"


def _slots(first: int, count: int) -> str:
    return f"slot {first}" if count == 1 else f"slots {first}..{first + count - 1}"


def _requests(requests: Iterable[t.Request]) -> str:
    return " ".join(
        "no-op" if request.source < 0 else f"{request.source}.{request.epoch}.{request.number}" for request in requests
    )


def describe(tuple_: object) -> str:
    """One line for any tuple or journal entry; requests are written source.epoch.number."""
    match tuple_:
        case t.Submit(commands):
            return "Submit " + " ".join(f"{c.session}#{c.number}" for c in commands)
        case t.Requests(requests):
            return f"Requests {_requests(requests)}"
        case t.Proposal():
            where = _slots(tuple_.first, len(tuple_.requests))
            return f"Proposal view {tuple_.view} {where}: {_requests(tuple_.requests)}"
        case t.Commit():
            where = _slots(tuple_.first, len(tuple_.requests))
            return f"Commit view {tuple_.view} {where}: {_requests(tuple_.requests)} from {tuple_.committer}"
        case t.Results():
            return "Results " + " ".join(f"{r.session}#{r.number}" for r in tuple_.results)
        case t.Record():
            views = " ".join(str(slot.view) for slot in tuple_.slots)
            return (
                f"Record view {tuple_.view} from {tuple_.committer}: slots [{tuple_.minimum}, {tuple_.end}), "
                f"accepted in views {views or '-'}"
            )
        case t.Start():
            senders = " ".join(str(credential.committer) for credential in tuple_.credentials)
            return f"Start view {tuple_.view}: slots [{tuple_.first}, {tuple_.next}) from the records of {senders}"
        case t.Vote():
            return f"Vote for view {tuple_.view} from {tuple_.controller}"
        case t.View():
            return f"View {tuple_.view} from {tuple_.source}"
        case t.Presence():
            return f"Presence of member {tuple_.member}, incarnation {tuple_.incarnation}, view {tuple_.view}"
        case t.Mark():
            return f"Mark checkpoint {tuple_.checkpoint.number}"
        case t.Base():
            return f"Base at checkpoint {tuple_.checkpoint.number}"
        case t.Drawn():
            what = "pieces of the state" if tuple_.is_state else "chunks"
            return f"Drawn {len(tuple_.chunks)} {what} of base {tuple_.number}"
        case t.BaseSaved():
            return f"Saved base {tuple_.number}"
        case t.Saved():
            return f"Saved checkpoint {tuple_.checkpoint.number}"
        case t.Load():
            return f"Load checkpoint {tuple_.minimum} or newer"
        case t.Loaded():
            begin = f"base {tuple_.base.number}" if tuple_.base else "nothing"
            return f"Loaded {begin}, and requests up to checkpoint {tuple_.until}"
        case t.Restoring() | t.Resume():
            return f"{type(tuple_).__name__} base {tuple_.number}"
        case t.Replay():
            return f"Replay {_slots(tuple_.first, len(tuple_.requests)).replace('slot', 'number')}"
        case t.Executed():
            return f"Executed {_slots(tuple_.first, len(tuple_.requests)).replace('slot', 'number')}"
        case t.Voted():
            return f"Voted view {tuple_.view} {_slots(tuple_.first, len(tuple_.requests))}"
        case t.Promised():
            return f"Promised view {tuple_.view}"
        case t.Started():
            return f"Started view {tuple_.view} at slot {tuple_.first}"
        case t.Restored():
            return f"Restored view {tuple_.view}, {len(tuple_.holes)} holes"
        case t.Collected():
            return f"Collected slots below {tuple_.stable}"
        case t.Stable():
            return f"Stable checkpoint {tuple_.checkpoint.number} from {tuple_.source}"
        case t.ExecutorStatus():
            positions = " ".join(map(str, tuple_.positions))
            return f"ExecutorStatus of {tuple_.executor}: position {positions}, checkpoints " + (
                " ".join(str(checkpoint.number) for checkpoint in tuple_.checkpoints) or "-"
            )
        case t.CommitterStatus():
            return f"CommitterStatus of {tuple_.committer}: view {tuple_.view} position {tuple_.position}"
        case t.Target():
            return f"Target of source {tuple_.source}: {tuple_.reach[1]} in epoch {tuple_.reach[0]}"
        case t.Progress():
            return f"Progress of executor {tuple_.executor}: position {tuple_.position}"
    return type(tuple_).__name__
