"""Decides whether a recorded history of concurrent operations is linearizable.

Theory of operation. A history is linearizable if every operation can be given one instant between its
invocation and its return such that running the operations one by one in the order of those instants, on a
sequential model, produces the recorded results. Linearizability is compositional, so each key is decided
alone. For one key the search is that of Wing and Gong with the refinements of Lowe: it walks over the returns
in order of time, linearizes operations only when a return demands it ("just in time"), and remembers every
configuration (how far it came, which pending operations are linearized, state of the model) it has visited so
that none is explored twice. It is a depth-first search on an explicit stack; an operation whose outcome is
unknown never returns, so nothing ever demands it, but it may be linearized to make another one possible.

Three observations cut the search without changing its answer. The last two need to know what an operation does
to the state, which a model may tell by an `effect` method (`ModelWithEffects`):

* Of pending operations with equal calls that fit now, only the one that returns first has to be tried: whatever
  completes the history after another one was chosen also completes it with the two exchanged.
* An operation that only reads is linearized as soon as the state agrees with its result: doing so costs nothing.
* Whatever is executed directly before an overwrite goes unnoticed by everything after it. So, once an overwrite
  has been linearized, each operation that was pending then (it is "offered") may still be placed directly before
  that overwrite, in retrospect, provided it is part of a group that itself starts with an overwrite. The search
  therefore never has to decide beforehand which writes are to be lost: between two returns it linearizes at most
  one overwrite, and it places groups in retrospect ("aside") when a member of them has to return. With this a
  register with distinct values takes polynomial time, however many writes are pending or have unknown outcomes.

Without `effect` the answers are the same, but a history with many concurrent operations that is not linearizable
may need exponential time. The budget bounds it: when it is used up, no verdict is given.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, compress, islice
from operator import not_
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

State = TypeVar("State", bound=Hashable)

DEFAULT_BUDGET = 5_000_000


class CheckBudgetExceeded(RuntimeError):
    """The search visited as many configurations as it was allowed to and has not found the answer."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation as its client saw it.

    An operation precedes another one if it returned strictly before the other was invoked; operations that touch
    at equal times are concurrent. The client is only there for the reader: the check does not look at it.
    """

    client: Hashable
    invoked: int
    returned: int | None
    """None: the outcome is unknown; it may take effect at any time after it was invoked, or never."""
    key: Hashable
    call: Any
    result: Any
    """Ignored when the outcome is unknown."""


class Model(Protocol[State]):
    """The sequential behaviour of one key. States are immutable and hashable; equal calls behave equally."""

    def initial(self, key: Hashable) -> State:
        """The state of the key before any operation."""
        ...

    def step(self, state: State, call: Any) -> tuple[State, Any]:
        """The state after the call and its result; deterministic."""
        ...


class Effect(enum.Enum):
    """What an operation can do to the state of its key, given all that is known of it."""

    READS = "reads"
    """In no state in which it can give its recorded result does it change the state."""
    OVERWRITES = "overwrites"
    """The state after it and its result (unless the outcome is unknown) do not depend on the state before it."""
    UPDATES = "updates"
    """Anything else; always a correct answer."""


@runtime_checkable
class ModelWithEffects(Protocol):
    """What a model may offer beyond `Model` to make the check of difficult histories feasible."""

    def effect(self, operation: Operation) -> Effect:
        """The effect of the operation; a wrong answer other than UPDATES makes the verdict worthless."""
        ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer of a check."""

    linearizable: bool
    key: Hashable | None
    """The first key, in order of appearance, that is not linearizable."""
    operations: tuple[Operation, ...]
    """The operations of that key invoked up to the first return that cannot be explained, by invocation.

    The operation that cannot be explained together with what returned before it is the one among them with the
    earliest return that leaves the history without a linearization: all earlier returns have one.
    """
    explored: int
    """How many configurations were visited, over all keys."""


class KeyValueModel:
    """A key of a key-value store; None stands for an absent value.

    Calls: ("put", value) gives None; ("get",) gives the value or None; ("delete",) tells whether there was a
    value; ("cas", expected, new) tells whether the value was the expected one (None: absent) and so was replaced.
    """

    def initial(self, key: Hashable) -> Hashable:
        return None

    def step(self, state: Hashable, call: Any) -> tuple[Hashable, Any]:
        match call:
            case ("get",):
                return state, state
            case ("put", value):
                return value, None
            case ("delete",):
                return None, state is not None
            case ("cas", expected, new):
                return (new, True) if state == expected else (state, False)
        raise ValueError(f"not a call of a key-value store: {call!r}")

    def effect(self, operation: Operation) -> Effect:
        unknown = operation.returned is None
        match operation.call:
            case ("get",):
                return Effect.READS
            case ("put", _):
                return Effect.OVERWRITES
            case ("delete",) if unknown:
                return Effect.OVERWRITES
            case ("delete",) | ("cas", _, _) if not unknown and not operation.result:
                return Effect.READS
        return Effect.UPDATES


def check(history: Iterable[Operation], model: Model[State], budget: int = DEFAULT_BUDGET) -> Verdict:
    """Tells whether the history is linearizable with respect to the model.

    Raises CheckBudgetExceeded if that takes more than `budget` visited configurations, and ValueError if an
    operation returns before it is invoked.
    """
    explored = 0
    for key, operations in _by_key(history).items():
        search = _Search(_Timeline(key, operations, model), model)
        linearizable = search.run(budget - explored)
        explored += search.explored
        if not linearizable:
            return Verdict(False, key, search.counterexample(), explored)
    return Verdict(True, None, (), explored)


def _by_key(history: Iterable[Operation]) -> dict[Hashable, list[Operation]]:
    operations_of: dict[Hashable, list[Operation]] = {}
    for operation in history:
        if operation.returned is not None and operation.returned < operation.invoked:
            raise ValueError(f"operation returns before it is invoked: {operation!r}")
        operations_of.setdefault(operation.key, []).append(operation)
    return operations_of


@dataclass(slots=True, eq=False)
class _Entry(Generic[State]):
    """An operation with what the search has to know of it at every turn."""

    operation: Operation
    call: Any
    result: Any
    unknown: bool
    effect: Effect
    group: Hashable
    """Entries of equal groups are interchangeable: equal calls or, for overwrites, equal states after them."""
    overwritten: State
    """For overwrites: the state after it."""
    possible: bool = True
    """For overwrites: whether the recorded result is the one it always has."""
    rank: int = 0
    """Its place in the order of returns; unknown outcomes come after all others."""
    bit: int = 0
    """Its lane in the sets of operations; no two operations that are pending together have the same."""


@dataclass(slots=True, eq=False)
class _Epoch(Generic[State]):
    """The pending operations for a run of returns between which nothing is invoked."""

    kept: int
    """Those that were pending in the epoch before, too."""
    visible: int
    """All of them."""
    fresh_reads: tuple[_Entry[State], ...]
    reads: tuple[_Entry[State], ...]
    updates: tuple[_Entry[State], ...]
    overwrites: tuple[_Entry[State], ...]
    unknown_updates: int
    """How many of the timeline's, which pile up, so that copies of them for every epoch would be costly."""
    unknown_overwrites: int


class _Timeline(Generic[State]):
    """The operations of one key, arranged for the search: returns in order of time, divided into epochs."""

    def __init__(self, key: Hashable, operations: Sequence[Operation], model: Model[State]) -> None:
        self.initial = model.initial(key)
        self.operations = sorted(operations, key=lambda operation: operation.invoked)
        self.returns: list[_Entry[State]] = []
        self.epochs: list[_Epoch[State]] = []
        self.epoch_of: list[int] = []
        self.unknown_updates: list[_Entry[State]] = []
        self.unknown_overwrites: list[_Entry[State]] = []
        self._pending: dict[Effect, dict[int, _Entry[State]]] = {effect: {} for effect in Effect}
        self._free_bits: list[int] = []
        self._lanes = 0
        self._live = 0
        self.unknown = 0
        """All operations with unknown outcomes; they keep their lanes."""
        self._arrange([self._entry(operation, model) for operation in self.operations])

    def _entry(self, operation: Operation, model: Model[State]) -> _Entry[State]:
        effect = model.effect(operation) if isinstance(model, ModelWithEffects) else Effect.UPDATES
        unknown = operation.returned is None
        group = _group(operation.call)
        entry = _Entry(operation, operation.call, operation.result, unknown, effect, group, self.initial)
        if effect is Effect.OVERWRITES:
            entry.overwritten, result = model.step(self.initial, operation.call)
            entry.possible = unknown or bool(result == operation.result)
            entry.group = entry.overwritten
        return entry

    def _arrange(self, arrivals: list[_Entry[State]]) -> None:
        # Where an invocation and a return have the same time the invocation comes first: they are concurrent.
        returning = [(entry.operation.returned, place) for place, entry in enumerate(arrivals) if not entry.unknown]
        self.returns = [arrivals[place] for _, place in sorted(returning)]
        for entry in arrivals:
            entry.rank = len(self.returns)
        arrived = 0
        for rank, leaver in enumerate(self.returns):
            leaver.rank = rank
            first = arrived
            while arrived < len(arrivals) and arrivals[arrived].operation.invoked <= leaver.operation.returned:
                arrived += 1
            if arrived > first:
                self._begin_epoch(arrivals[first:arrived])
            self.epoch_of.append(len(self.epochs) - 1)
            del self._pending[leaver.effect][leaver.bit]
            self._free_bits.append(leaver.bit)
            self._live &= ~leaver.bit

    def _begin_epoch(self, newcomers: list[_Entry[State]]) -> None:
        kept = self._live
        for entry in newcomers:
            self._admit(entry)
        pending = self._pending
        fresh_reads = (entry for entry in newcomers if entry.effect is Effect.READS and not entry.unknown)
        self.epochs.append(
            _Epoch(
                kept=kept,
                visible=self._live,
                fresh_reads=tuple(fresh_reads),
                reads=tuple(pending[Effect.READS].values()),
                updates=tuple(pending[Effect.UPDATES].values()),
                overwrites=tuple(pending[Effect.OVERWRITES].values()),
                unknown_updates=len(self.unknown_updates),
                unknown_overwrites=len(self.unknown_overwrites),
            )
        )

    def _admit(self, entry: _Entry[State]) -> None:
        if entry.unknown and entry.effect is Effect.READS:
            return  # Nobody knows what it read and it changes nothing: it constrains nothing.
        if self._free_bits:
            entry.bit = self._free_bits.pop()
        else:
            entry.bit = 1 << self._lanes
            self._lanes += 1
        self._live |= entry.bit
        if entry.unknown:
            self.unknown |= entry.bit
        if not entry.unknown:
            self._pending[entry.effect][entry.bit] = entry
        elif entry.effect is Effect.UPDATES:
            self.unknown_updates.append(entry)
        else:
            self.unknown_overwrites.append(entry)


def _group(call: Any) -> Hashable:
    try:
        hash(call)
    except TypeError:
        return object()  # Equal to nothing else.
    return call  # type: ignore[no-any-return]


class _Configuration(NamedTuple, Generic[State]):
    """How far the search has come on one path. The return at `position` is the first that is not linearized."""

    position: int
    done: int
    """The pending operations that are linearized."""
    offered: int
    """The others that were already pending when the last overwrite was linearized: they may go before it."""
    state: State
    overwritten: bool = False
    """An overwrite has been linearized since the last return: another one before the next would be in vain."""
    aside: tuple[State] | None = None
    """While a group is being placed before the last overwrite: the state it has led to so far."""


class _Visited(Generic[State]):
    """The configurations visited so far.

    One is covered by another that differs only in that it has used fewer of the unknown outcomes, none of which
    is ever demanded, and has more operations on offer: whatever completes the one completes the other, too.
    """

    def __init__(self, unknown: int) -> None:
        self._unknown = unknown
        self._variants: dict[_Configuration[State], list[tuple[int, int]]] = {}

    def add(self, configuration: _Configuration[State]) -> bool:
        """Notes the configuration, unless it is covered by those that were noted before."""
        used = configuration.done & self._unknown
        offered = configuration.offered
        common = configuration._replace(done=configuration.done ^ used, offered=0)
        variants = self._variants.setdefault(common, [])
        for other_used, other_offered in variants:
            if not other_used & ~used and not offered & ~other_offered:
                return False
        variants.append((used, offered))
        return True


class _Search(Generic[State]):
    """The search for a linearization of one key."""

    def __init__(self, timeline: _Timeline[State], model: Model[State]) -> None:
        self._timeline = timeline
        self._step = model.step
        self._furthest = 0
        self.explored = 0

    def run(self, budget: int) -> bool:
        """Tells whether there is a linearization."""
        end = len(self._timeline.returns)
        if end == 0:
            return True
        visited = _Visited[State](self._timeline.unknown)
        # The alternatives are generated on demand: in most places the first one will do.
        stack: list[Iterator[_Configuration[State]]] = [iter((self._start(),))]
        while stack:
            configuration = next(stack[-1], None)
            if configuration is None:
                stack.pop()
            elif visited.add(configuration):
                if self.explored >= budget:
                    raise CheckBudgetExceeded(f"no verdict within the budget; at return {self._furthest} of {end}")
                self.explored += 1
                self._furthest = max(self._furthest, configuration.position)
                if configuration.position == end:
                    return True
                stack.append(self._successors(configuration))
        return False

    def counterexample(self) -> tuple[Operation, ...]:
        """After a failed run: the operations invoked up to the return that no path got past."""
        unexplained = self._timeline.returns[self._furthest].operation
        assert unexplained.returned is not None
        operations = self._timeline.operations
        return tuple(operation for operation in operations if operation.invoked <= unexplained.returned)

    def _start(self) -> _Configuration[State]:
        epoch = self._timeline.epochs[0]
        done = self._absorb(epoch.fresh_reads, 0, epoch.visible, self._timeline.initial)
        return self._settle(0, done, 0, self._timeline.initial)

    def _settle(self, position: int, done: int, offered: int, state: State) -> _Configuration[State]:
        """Passes the returns of linearized operations."""
        timeline = self._timeline
        returns = timeline.returns
        epoch_of = timeline.epoch_of
        while done & returns[position].bit:
            position += 1
            if position == len(returns):
                return _Configuration(position, 0, 0, timeline.initial)
            if epoch_of[position] != epoch_of[position - 1]:
                epoch = timeline.epochs[epoch_of[position]]
                offered &= epoch.kept
                done = self._absorb(epoch.fresh_reads, done & epoch.kept, epoch.visible, state)
        offered &= ~done
        if not offered & ~timeline.unknown:
            offered = 0
        return _Configuration(position, done, offered, state)

    def _absorb(self, reads: Iterable[_Entry[State]], done: int, eligible: int, state: State) -> int:
        """Linearizes the eligible reads that agree with the state."""
        step = self._step
        eligible &= ~done
        for entry in reads:
            if eligible & entry.bit and step(state, entry.call)[1] == entry.result:
                done |= entry.bit
        return done

    def _successors(self, configuration: _Configuration[State]) -> Iterator[_Configuration[State]]:
        """The ways to go on, the most promising first."""
        epoch = self._timeline.epochs[self._timeline.epoch_of[configuration.position]]
        leaver = self._timeline.returns[configuration.position]
        if configuration.aside is not None:
            return self._extend_aside(configuration, configuration.aside[0], epoch, leaver)
        return self._extend(configuration, epoch, leaver)

    def _extend(
        self, configuration: _Configuration[State], epoch: _Epoch[State], leaver: _Entry[State]
    ) -> Iterator[_Configuration[State]]:
        yield from self._update_idly(configuration, epoch, leaver)
        updates = self._updates(epoch, epoch.visible & ~configuration.done, configuration.state)
        helpful = [entry is leaver or self._fits(leaver, state) for entry, state in updates]
        for entry, state in compress(updates, helpful):
            yield self._update(configuration, epoch, leaver, entry, state)
        if not configuration.overwritten:
            yield from self._overwrite_and_fit(configuration, epoch, leaver)
            yield from self._begin_aside(configuration, epoch, leaver)
            yield from self._overwrite_and_update(configuration, epoch, leaver)
        for entry, state in compress(updates, map(not_, helpful)):
            yield self._update(configuration, epoch, leaver, entry, state)

    def _update_idly(
        self, configuration: _Configuration[State], epoch: _Epoch[State], leaver: _Entry[State]
    ) -> Iterator[_Configuration[State]]:
        """Linearizes at once all updates that happen to change nothing.

        This is but a guess, as they might be needed elsewhere: it makes models that do not tell effects usable.
        """
        state = configuration.state
        done = configuration.done
        for entry in epoch.updates:
            if not done & entry.bit and self._step(state, entry.call) == (state, entry.result):
                done |= entry.bit
        if done != configuration.done:
            yield self._proceed(configuration, leaver, done, state)

    def _update(
        self,
        configuration: _Configuration[State],
        epoch: _Epoch[State],
        leaver: _Entry[State],
        entry: _Entry[State],
        state: State,
    ) -> _Configuration[State]:
        done = self._absorb(epoch.reads, configuration.done | entry.bit, epoch.visible, state)
        return self._proceed(configuration, leaver, done, state)

    def _proceed(
        self, configuration: _Configuration[State], leaver: _Entry[State], done: int, state: State
    ) -> _Configuration[State]:
        """Moves on to the next return if the present one is accounted for."""
        position, _, offered, _, overwritten, _ = configuration
        if done & leaver.bit:
            return self._settle(position, done, offered, state)
        return _Configuration(position, done, offered & ~done, state, overwritten)

    def _overwrite_and_fit(
        self, configuration: _Configuration[State], epoch: _Epoch[State], leaver: _Entry[State]
    ) -> Iterator[_Configuration[State]]:
        """Linearizes an overwrite after which, or by which, the present return is possible."""
        for entry in self._overwrites(epoch, epoch.visible & ~configuration.done, leaver):
            if entry is leaver or self._fits(leaver, entry.overwritten):
                yield self._overwrite(configuration, epoch, leaver, entry)

    def _overwrite_and_update(
        self, configuration: _Configuration[State], epoch: _Epoch[State], leaver: _Entry[State]
    ) -> Iterator[_Configuration[State]]:
        """Linearizes an overwrite after which the present return is not possible, but may become so by updates."""
        if leaver.effect is Effect.OVERWRITES:
            return
        pending = epoch.visible & ~configuration.done
        for entry in self._overwrites(epoch, pending, leaver):
            if not self._fits(leaver, entry.overwritten) and self._updates(epoch, pending, entry.overwritten):
                yield self._overwrite(configuration, epoch, leaver, entry)

    def _overwrite(
        self,
        configuration: _Configuration[State],
        epoch: _Epoch[State],
        leaver: _Entry[State],
        entry: _Entry[State],
    ) -> _Configuration[State]:
        state = entry.overwritten
        done = self._absorb(epoch.reads, configuration.done | entry.bit, epoch.visible, state)
        if done & leaver.bit:
            return self._settle(configuration.position, done, epoch.visible, state)
        return _Configuration(configuration.position, done, epoch.visible & ~done, state, overwritten=True)

    def _begin_aside(
        self, configuration: _Configuration[State], epoch: _Epoch[State], leaver: _Entry[State]
    ) -> Iterator[_Configuration[State]]:
        """Starts a group before the last overwrite that is to account for the present return."""
        if configuration.offered & leaver.bit:
            for entry in self._overwrites(epoch, configuration.offered, leaver):
                yield from self._go_aside(configuration, epoch, leaver, entry, entry.overwritten)

    def _extend_aside(
        self, configuration: _Configuration[State], state: State, epoch: _Epoch[State], leaver: _Entry[State]
    ) -> Iterator[_Configuration[State]]:
        for entry, after in self._updates(epoch, configuration.offered, state):
            yield from self._go_aside(configuration, epoch, leaver, entry, after)

    def _go_aside(
        self,
        configuration: _Configuration[State],
        epoch: _Epoch[State],
        leaver: _Entry[State],
        entry: _Entry[State],
        aside: State,
    ) -> Iterator[_Configuration[State]]:
        position, done, offered, state, _, _ = configuration
        done = self._absorb(epoch.reads, done | entry.bit, offered, aside)
        if done & leaver.bit:
            yield self._settle(position, done, offered, state)
        # Nothing can be added to the group later, so that it may have to grow beyond what is demanded now.
        if self._updates(epoch, offered & ~done, aside):
            yield _Configuration(position, done, offered & ~done, state, aside=(aside,))

    def _fits(self, entry: _Entry[State], state: State) -> bool:
        return bool(self._step(state, entry.call)[1] == entry.result)

    def _updates(self, epoch: _Epoch[State], eligible: int, state: State) -> list[tuple[_Entry[State], State]]:
        """The eligible updates that are possible in the state, one of each group, with the state after them."""
        chosen: dict[Hashable, tuple[_Entry[State], State]] = {}
        unknown = islice(self._timeline.unknown_updates, epoch.unknown_updates)
        for entry in chain(epoch.updates, unknown):
            rival = chosen.get(entry.group)
            if eligible & entry.bit and (rival is None or entry.rank <= rival[0].rank):
                after, result = self._step(state, entry.call)
                # An unknown outcome that leaves the state as it is makes no difference to no effect at all.
                if after != state if entry.unknown else result == entry.result:
                    chosen[entry.group] = entry, after
        return list(chosen.values())

    def _overwrites(self, epoch: _Epoch[State], eligible: int, leaver: _Entry[State]) -> Collection[_Entry[State]]:
        """The eligible overwrites, one of each group, that are worth linearizing for the present return."""
        if leaver.effect is Effect.OVERWRITES:
            # It would undo any other.
            return (leaver,) if leaver.possible else ()
        chosen: dict[Hashable, _Entry[State]] = {}
        unknown = islice(self._timeline.unknown_overwrites, epoch.unknown_overwrites)
        for entry in chain(epoch.overwrites, unknown):
            if eligible & entry.bit and entry.possible:
                rival = chosen.get(entry.group)
                # Of those that never return, the one invoked last is of the least use elsewhere.
                if rival is None or entry.rank <= rival.rank:
                    chosen[entry.group] = entry
        return chosen.values()
