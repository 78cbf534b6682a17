"""Decides whether a recorded history of concurrent operations is linearizable.

Theory of operation. A history is linearizable if every operation can be given an instant between its
invocation and its return so that running the operations one by one, in the order of these instants, on a
sequential model gives the recorded results. Keys are independent, so each is decided alone. For one key the
search is that of Wing and Gong as refined by Lowe: it goes through the returns in order of time, linearizes
operations only when a return demands it ("just in time"), and remembers the configurations it has visited
(how far it came, which pending operations are linearized, the state of the model) so that none is explored
twice. An operation whose outcome is unknown never returns, so that nothing demands it, but it may be
linearized to make another operation possible.

These observations cut the search without changing its answer. The later ones need to know what an operation
does to the state, which a model may tell by a method `effect` (see `ModelWithEffects`):

* Of the pending operations with equal calls that are possible now, only the one that returns first has to be
  tried: what completes the history after another choice also completes it after this one, with the two
  exchanged.
* A configuration need not be explored if another one covers it, that is, can do whatever this one can:
  because it has used fewer operations of unknown outcome, for example.
* An operation that only reads is linearized as soon as the state agrees with its result. That costs nothing.
* What happens directly before an overwrite goes unnoticed by all that comes after it. So, after an overwrite
  has been linearized, the operations that were pending then (they are "on offer") may still be placed
  directly before it, in retrospect, in groups that start with an overwrite themselves. The search never has
  to decide in advance which writes are to be lost: it linearizes at most one overwrite per return, and puts a
  group "aside" like this when a member of it has to return. Thus it hardly matters how many writes are
  pending or have an unknown outcome.

Without `effect` the verdicts are the same, but histories with many operations at a time may take exponential
time. That remains possible with it, as the problem is NP-complete, and so there is a budget; if it is spent,
there is no verdict.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import chain, islice
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

State = TypeVar("State", bound=Hashable)

#: The depth-first search is on its own until it has visited so many configurations without getting further.
_PATIENCE = 5_000

#: A configuration is compared with so many similar ones, to see if they cover it. More rarely pays.
_RIVALS = 32


class CheckBudgetExceeded(RuntimeError):
    """The search has visited as many configurations as it may without finding the answer."""


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation as its client saw it.

    It precedes another one if it returned strictly before the other was invoked; at equal times they are
    concurrent. The client is there for the reader only: a client may have several operations at a time.
    """

    client: Hashable
    invoked: int
    #: None: the outcome is unknown; it may take effect at any time after the invocation, or never.
    returned: int | None
    key: Hashable
    call: Any
    #: Ignored when the outcome is unknown.
    result: Any
    #: What the application calls it; 0: nothing.
    id: int = 0


class Model(Protocol[State]):
    """The sequential behaviour of a key. States are hashable; equal calls behave in the same way."""

    def initial(self, key: Hashable) -> State:
        """The state before any operation."""
        ...

    def step(self, state: State, call: Any) -> tuple[State, Any]:
        """The state after the call, and its result; deterministic."""
        ...


class Effect(enum.Enum):
    """What an operation may do to the state, given all that is known about it."""

    #: It never changes the state when it has the recorded result.
    READS = enum.auto()
    #: The state after it is always the same, and so is its result (which does not matter if it is unknown).
    OVERWRITES = enum.auto()
    #: Anything; this is never wrong.
    UPDATES = enum.auto()


@runtime_checkable
class ModelWithEffects(Protocol):
    """What a model may offer beyond `Model` so that the check is fast."""

    def effect(self, operation: Operation) -> Effect:
        """The effect of the operation. The verdict is worthless if this claims too much."""
        ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer."""

    linearizable: bool
    #: The first key, in order of appearance, whose operations are not linearizable.
    key: Hashable | None
    #: Its operations, in order of invocation, up to the earliest return at which there is no linearization.
    operations: tuple[Operation, ...]
    #: How many configurations were visited, over all keys.
    explored: int


class KeyValueModel:
    """A key of a key-value store; None means that it has no value.

    Calls: ("put", value) results in None; ("get",) in the value or None; ("delete",) in whether there was a
    value; ("cas", expected, new) in whether the value was the expected one, which may be None, and so became
    the new one.
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


#: Configurations that a check may visit, and more for each operation: where nothing is ambiguous, it visits about one.
BUDGET = 5_000_000
BUDGET_PER_OPERATION = 2


def check(history: Iterable[Operation], model: Model[State], budget: int | None = None) -> Verdict:
    """Tell whether the history is linearizable with respect to the model.

    Raises CheckBudgetExceeded if it would have to visit more than `budget` configurations, and ValueError if
    an operation returns before it is invoked.
    """
    explored = 0
    by_key = _by_key(history)
    if budget is None:
        budget = BUDGET + BUDGET_PER_OPERATION * sum(map(len, by_key.values()))
    for key, operations in by_key.items():
        search = _Search(_Timeline(key, operations, model), model, budget - explored)
        linearizable = search.run()
        explored += search.explored
        if not linearizable:
            return Verdict(False, key, search.counterexample(), explored)
    return Verdict(True, None, (), explored)


def _by_key(history: Iterable[Operation]) -> dict[Hashable, list[Operation]]:
    operations: dict[Hashable, list[Operation]] = {}
    for operation in history:
        if operation.returned is not None and operation.returned < operation.invoked:
            raise ValueError(f"operation returns before it is invoked: {operation!r}")
        operations.setdefault(operation.key, []).append(operation)
    return operations


@dataclass(slots=True, eq=False)
class _Entry(Generic[State]):
    """An operation, with what the search needs to know about it all the time."""

    operation: Operation
    call: Any
    result: Any
    unknown: bool
    effect: Effect
    #: Entries with equal groups can replace each other: equal calls or, for overwrites, equal states after.
    group: Hashable
    #: The state after it, if it is an overwrite,
    after: State
    #: ... and whether its result is the one that it always has.
    possible: bool = True
    #: The place in the order of returns; unknown outcomes come after all others.
    rank: int = 0
    #: Stands for it in sets of pending operations, which are integers.
    bit: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class _Epoch(Generic[State]):
    """The pending operations during some successive returns between which nothing is invoked."""

    #: The set of all of them, and of those among them that were already pending in the epoch before.
    pending: int
    kept: int
    #: Those whose outcome is known, by effect. They stay until the end of the epoch, even if they return.
    reads: tuple[_Entry[State], ...]
    updates: tuple[_Entry[State], ...]
    overwrites: tuple[_Entry[State], ...]
    read_set: int
    update_set: int
    overwrite_set: int
    fresh_reads: tuple[_Entry[State], ...]
    #: How many of the timeline's. These accumulate, so that it would be costly to have copies in all epochs.
    unknown_updates: int
    unknown_overwrites: int


class _Timeline(Generic[State]):
    """The operations of one key, arranged for the search: the returns in order, and the epoch of each."""

    def __init__(self, key: Hashable, operations: Sequence[Operation], model: Model[State]) -> None:
        self.initial = model.initial(key)
        self.operations = sorted(operations, key=lambda operation: operation.invoked)
        self.returns: list[_Entry[State]] = []
        self.epochs: list[_Epoch[State]] = []
        self.unknown_updates: list[_Entry[State]] = []
        self.unknown_overwrites: list[_Entry[State]] = []
        self.unknown_set = 0
        self._pending: dict[Effect, dict[int, _Entry[State]]] = {effect: {} for effect in Effect}
        self._pending_set = 0
        self._free_bits: list[int] = []
        self._bits = 0
        self._arrange([self._entry(operation, model) for operation in self.operations])

    def _entry(self, operation: Operation, model: Model[State]) -> _Entry[State]:
        effect = model.effect(operation) if isinstance(model, ModelWithEffects) else Effect.UPDATES
        unknown = operation.returned is None
        group = _group(operation.call)
        entry = _Entry(operation, operation.call, operation.result, unknown, effect, group, self.initial)
        if effect is Effect.OVERWRITES:
            entry.after, result = model.step(self.initial, operation.call)
            entry.possible = unknown or bool(result == operation.result)
            entry.group = entry.after
        return entry

    def _arrange(self, entries: list[_Entry[State]]) -> None:
        times = [
            (entry.operation.returned, index)
            for index, entry in enumerate(entries)
            if entry.operation.returned is not None
        ]
        times.sort()
        for entry in entries:
            entry.rank = len(times)
        arrived = 0
        for rank, (time, index) in enumerate(times):
            first = arrived
            # What is invoked at the time of a return is concurrent with it, hence "<=".
            while arrived < len(entries) and entries[arrived].operation.invoked <= time:
                arrived += 1
            if arrived > first:
                epoch = self._new_epoch(entries[first:arrived])
            entries[index].rank = rank
            self.returns.append(entries[index])
            self.epochs.append(epoch)
            self._remove(entries[index])

    def _new_epoch(self, arrivals: list[_Entry[State]]) -> _Epoch[State]:
        kept = self._pending_set
        for entry in arrivals:
            self._add(entry)
        reads, updates, overwrites = (
            self._pending[effect] for effect in (Effect.READS, Effect.UPDATES, Effect.OVERWRITES)
        )
        return _Epoch(
            pending=self._pending_set,
            kept=kept,
            reads=tuple(reads.values()),
            updates=tuple(updates.values()),
            overwrites=tuple(overwrites.values()),
            read_set=sum(reads),
            update_set=sum(updates),
            overwrite_set=sum(overwrites),
            fresh_reads=tuple(entry for entry in arrivals if entry.bit in reads),
            unknown_updates=len(self.unknown_updates),
            unknown_overwrites=len(self.unknown_overwrites),
        )

    def _add(self, entry: _Entry[State]) -> None:
        if entry.unknown and entry.effect is Effect.READS:
            return  # It changes nothing and nobody knows what it read.
        # A bit is used again after its operation has returned, so that sets stay small. An unknown outcome
        # gets one that was never used: thus a single set tells the unknown from the known, at all times.
        if self._free_bits and not entry.unknown:
            entry.bit = self._free_bits.pop()
        else:
            entry.bit = 1 << self._bits
            self._bits += 1
        self._pending_set |= entry.bit
        if not entry.unknown:
            self._pending[entry.effect][entry.bit] = entry
            return
        self.unknown_set |= entry.bit
        unknown = self.unknown_updates if entry.effect is Effect.UPDATES else self.unknown_overwrites
        unknown.append(entry)

    def _remove(self, entry: _Entry[State]) -> None:
        del self._pending[entry.effect][entry.bit]
        self._pending_set ^= entry.bit
        self._free_bits.append(entry.bit)


def _group(call: Any) -> Hashable:
    try:
        hash(call)
    except TypeError:
        return object()  # Equal to nothing else.
    group: Hashable = call
    return group


class _Configuration(NamedTuple, Generic[State]):
    """A point of the search: all that matters of the path that led to it."""

    #: The first return whose operation is not linearized.
    position: int
    #: The pending operations that are linearized.
    done: int
    #: The other ones that were already pending when the last overwrite was linearized: they may go before it.
    offered: int
    state: State
    #: Whether an overwrite was linearized for this return: another one would make the first superfluous.
    overwritten: bool = False
    #: While a group is being put aside: the state after the part of it that there is.
    aside: tuple[State] | None = None


class _Turn(NamedTuple, Generic[State]):
    """A configuration, and what there is at its position."""

    configuration: _Configuration[State]
    epoch: _Epoch[State]
    leaver: _Entry[State]


class _Moves(Generic[State]):
    """Which configurations follow from one."""

    def __init__(self, timeline: _Timeline[State], model: Model[State]) -> None:
        self._timeline = timeline
        self._step = model.step

    def start(self) -> _Configuration[State]:
        epoch = self._timeline.epochs[0]
        done = self._absorb(epoch.reads, 0, epoch.pending, self._timeline.initial)
        return self._settle(0, done, 0, self._timeline.initial)

    def successors(self, configuration: _Configuration[State]) -> Iterator[_Configuration[State]]:
        """The ways to go on, on demand and the most promising first."""
        position = configuration.position
        turn = _Turn(configuration, self._timeline.epochs[position], self._timeline.returns[position])
        if configuration.aside is None:
            return self._go_on(turn)
        return self._go_on_aside(turn, configuration.aside[0])

    def _go_on(self, turn: _Turn[State]) -> Iterator[_Configuration[State]]:
        configuration, epoch, leaver = turn
        yield from self._update_idly(turn)
        updates = self._updates(epoch, epoch.pending & ~configuration.done, configuration.state)
        others = []
        for entry, state in updates:
            if entry is leaver or self._fits(leaver, state):
                yield self._update(turn, entry, state)
            else:
                others.append((entry, state))
        if not configuration.overwritten:
            yield from self._overwrite_to_fit(turn)
            yield from self._begin_aside(turn)
            yield from self._overwrite_to_update(turn)
        for entry, state in others:
            yield self._update(turn, entry, state)

    def _update_idly(self, turn: _Turn[State]) -> Iterator[_Configuration[State]]:
        """Linearize at once all updates that happen to change nothing.

        They could be meant for another state, so this is just a guess. Models without effects live on it.
        """
        state = turn.configuration.state
        done = turn.configuration.done
        for entry in turn.epoch.updates:
            if not done & entry.bit and self._step(state, entry.call) == (state, entry.result):
                done |= entry.bit
        if done != turn.configuration.done:
            yield self._proceed(turn, done, state)

    def _update(self, turn: _Turn[State], entry: _Entry[State], state: State) -> _Configuration[State]:
        done = turn.configuration.done | entry.bit
        return self._proceed(turn, self._absorb(turn.epoch.reads, done, turn.epoch.pending, state), state)

    def _proceed(self, turn: _Turn[State], done: int, state: State) -> _Configuration[State]:
        position, _, offered, _, overwritten, _ = turn.configuration
        if done & turn.leaver.bit:
            return self._settle(position, done, offered, state)
        return _Configuration(position, done, offered & ~done, state, overwritten)

    def _overwrite_to_fit(self, turn: _Turn[State]) -> Iterator[_Configuration[State]]:
        """Linearize an overwrite that lets the leaver leave: itself, or one that gives the state it needs."""
        configuration, epoch, leaver = turn
        for entry in self._overwrites(turn, epoch.pending & ~configuration.done):
            if entry is leaver or self._fits(leaver, entry.after):
                yield self._overwrite(turn, entry)

    def _overwrite_to_update(self, turn: _Turn[State]) -> Iterator[_Configuration[State]]:
        """Linearize an overwrite from which updates may lead to the state that the leaver needs."""
        configuration, epoch, leaver = turn
        pending = epoch.pending & ~configuration.done
        for entry in self._overwrites(turn, pending):
            promising = entry is leaver or self._fits(leaver, entry.after)
            if not promising and self._updates(epoch, pending, entry.after):
                yield self._overwrite(turn, entry)

    def _overwrite(self, turn: _Turn[State], entry: _Entry[State]) -> _Configuration[State]:
        position = turn.configuration.position
        pending = turn.epoch.pending
        done = self._absorb(turn.epoch.reads, turn.configuration.done | entry.bit, pending, entry.after)
        if done & turn.leaver.bit:
            return self._settle(position, done, pending, entry.after)
        return _Configuration(position, done, pending & ~done, entry.after, overwritten=True)

    def _begin_aside(self, turn: _Turn[State]) -> Iterator[_Configuration[State]]:
        """Begin a group before the last overwrite, in which the leaver is going to be."""
        offered = turn.configuration.offered
        if offered & turn.leaver.bit:
            for entry in self._overwrites(turn, offered):
                yield from self._put_aside(turn, entry, entry.after)

    def _go_on_aside(self, turn: _Turn[State], state: State) -> Iterator[_Configuration[State]]:
        for entry, after in self._updates(turn.epoch, turn.configuration.offered, state):
            yield from self._put_aside(turn, entry, after)

    def _put_aside(
        self,
        turn: _Turn[State],
        entry: _Entry[State],
        after: State,
    ) -> Iterator[_Configuration[State]]:
        position, done, offered, state, _, _ = turn.configuration
        done = self._absorb(turn.epoch.reads, done | entry.bit, offered, after)
        offered &= ~done
        if done & turn.leaver.bit:
            yield self._settle(position, done, offered, state)
        # The group may have to grow even so: what it leads to is forgotten when it is complete.
        if self._updates(turn.epoch, offered, after):
            yield _Configuration(position, done, offered, state, aside=(after,))

    def _settle(self, position: int, done: int, offered: int, state: State) -> _Configuration[State]:
        """Go to the next return that is not linearized."""
        returns = self._timeline.returns
        epochs = self._timeline.epochs
        while done & returns[position].bit:
            position += 1
            if position == len(returns):
                return _Configuration(position, 0, 0, state)
            epoch = epochs[position]
            if epoch is not epochs[position - 1]:
                offered &= epoch.kept
                done = self._absorb(epoch.fresh_reads, done & epoch.kept, epoch.pending, state)
        offered &= ~done
        # Nothing will have to be put aside when nothing is on offer that has to return.
        return _Configuration(position, done, offered if offered & ~self._timeline.unknown_set else 0, state)

    def _absorb(self, reads: Iterable[_Entry[State]], done: int, eligible: int, state: State) -> int:
        """Linearize the eligible reads that agree with the state."""
        step = self._step
        eligible &= ~done
        for entry in reads:
            if eligible & entry.bit and step(state, entry.call)[1] == entry.result:
                done |= entry.bit
        return done

    def _fits(self, entry: _Entry[State], state: State) -> bool:
        return bool(self._step(state, entry.call)[1] == entry.result)

    def _updates(
        self,
        epoch: _Epoch[State],
        eligible: int,
        state: State,
    ) -> list[tuple[_Entry[State], State]]:
        """The eligible updates that are possible, one of each group, with the states after them."""
        chosen: dict[Hashable, tuple[_Entry[State], State]] = {}
        unknown = islice(self._timeline.unknown_updates, epoch.unknown_updates)
        for entry in chain(epoch.updates, unknown):
            if eligible & entry.bit:
                rival = chosen.get(entry.group)
                if rival is None or entry.rank <= rival[0].rank:
                    after, result = self._step(state, entry.call)
                    # There is no use in an unknown outcome that changes nothing: it may as well never happen.
                    if after != state if entry.unknown else result == entry.result:
                        chosen[entry.group] = entry, after
        return sorted(chosen.values(), key=lambda choice: choice[0].rank)

    def _overwrites(self, turn: _Turn[State], eligible: int) -> Collection[_Entry[State]]:
        """The eligible overwrites that may be of use to the leaver, one of each group."""
        leaver = turn.leaver
        if leaver.effect is Effect.OVERWRITES:
            # Any other one directly before it had better be put aside, when it has to return.
            return (leaver,) if leaver.possible else ()
        chosen: dict[Hashable, _Entry[State]] = {}
        unknown = islice(self._timeline.unknown_overwrites, turn.epoch.unknown_overwrites)
        for entry in chain(turn.epoch.overwrites, unknown):
            if eligible & entry.bit and entry.possible:
                rival = chosen.get(entry.group)
                # Of those that never return it takes the last, which is the least likely to be on offer.
                if rival is None or entry.rank <= rival.rank:
                    chosen[entry.group] = entry
        return chosen.values()


class _Visited(Generic[State]):
    """The configurations visited so far, to tell whether they cover another one."""

    def __init__(self, timeline: _Timeline[State]) -> None:
        self._timeline = timeline
        self._variants: dict[Hashable, dict[tuple[int, int], None]] = {}

    def add(self, configuration: _Configuration[State]) -> bool:
        """Note the configuration and tell that it is new, unless it is covered."""
        position, done, offered, state, overwritten, aside = configuration
        epoch = self._timeline.epochs[position]
        essence = position, done & epoch.update_set, state, overwritten, aside
        variants = self._variants.setdefault(essence, {})
        if (done, offered) in variants or self._covered(done, offered, variants, epoch):
            return False
        variants[done, offered] = None
        return True

    def _covered(
        self,
        done: int,
        offered: int,
        variants: Iterable[tuple[int, int]],
        epoch: _Epoch[State],
    ) -> bool:
        """Whether one of the variants can do without what this one has done, and has all that is open to it.

        It is good to have read, to have unknown outcomes left, and to have more on offer. An overwrite on
        offer is as good as done, for it can be put aside when it has to return, and better, for it need not.
        """
        reads = epoch.read_set
        overwrites = epoch.overwrite_set
        optional = overwrites | self._timeline.unknown_set
        for other_done, other_offered in islice(variants, _RIVALS):
            ahead = done & ~other_done
            if (
                not other_done & ~done & optional
                and not ahead & (reads | (overwrites & ~other_offered))
                and not offered & ~other_offered & ~(other_done & reads)
            ):
                return True
        return False


class _Search(Generic[State]):
    """The search for a linearization of one key.

    Two strategies share the work. Going deep is the fastest way to a linearization if there are many of them,
    which is the usual case. Going broad, return by return, visits all alternatives, but the best ones of each
    return come first and cover most of the others; it joins in while the first strategy is stuck.
    """

    def __init__(self, timeline: _Timeline[State], model: Model[State], budget: int) -> None:
        self._timeline = timeline
        self._moves = _Moves(timeline, model)
        self._budget = budget
        self._end = len(timeline.returns)
        self._furthest = 0
        self._explored_at_furthest = 0
        self.explored = 0

    def run(self) -> bool:
        """Tell whether there is a linearization."""
        if self._end == 0:
            return True
        deep, broad = self._go_deep(), self._go_broad()
        answer = None
        while answer is None:
            answer = next(deep)
            if answer is None and self.explored - self._explored_at_furthest > _PATIENCE:
                answer = next(broad)
        return answer

    def counterexample(self) -> tuple[Operation, ...]:
        """The operations invoked up to the return that cannot be passed, when there is no linearization."""
        limit = self._timeline.returns[self._furthest].operation.returned
        assert limit is not None
        return tuple(operation for operation in self._timeline.operations if operation.invoked <= limit)

    def _go_deep(self) -> Iterator[bool | None]:
        """Yield the answer, or None after each configuration before."""
        visited = _Visited(self._timeline)
        stack = [iter((self._moves.start(),))]
        while stack:
            configuration = next(stack[-1], None)
            if configuration is None:
                stack.pop()
            elif configuration.position == self._end:
                self._count(configuration)
                yield True
                return
            elif visited.add(configuration):
                self._count(configuration)
                stack.append(self._moves.successors(configuration))
                yield None
        yield False

    def _go_broad(self) -> Iterator[bool | None]:
        """Yield the answer, or None after each configuration before."""
        position = 0
        visited = _Visited(self._timeline)
        queue = [(0, 0, 0, self._moves.start())]
        serial = 0
        while queue:
            configuration = heappop(queue)[-1]
            if configuration.position == self._end:
                self._count(configuration)
                yield True
                return
            if configuration.position > position:
                position = configuration.position
                visited = _Visited(self._timeline)
            if visited.add(configuration):
                self._count(configuration)
                for successor in self._moves.successors(configuration):
                    serial += 1
                    used = (successor.done & self._timeline.unknown_set).bit_count()
                    heappush(queue, (successor.position, used, serial, successor))
                yield None
        yield False

    def _count(self, configuration: _Configuration[State]) -> None:
        if self.explored >= self._budget:
            reached = f"return {self._furthest} of {self._end}"
            raise CheckBudgetExceeded(f"no verdict within {self._budget} configurations; came to {reached}")
        self.explored += 1
        if configuration.position > self._furthest:
            self._furthest = configuration.position
            self._explored_at_furthest = self.explored
