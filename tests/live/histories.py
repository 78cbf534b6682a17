"""What executors hand to their hosts, for tests of the log and of backups: real executors, histories of all sorts."""

import random
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from tara.application import Get, KeyValueStore, Put
from tara.protocol import tuples as t
from tara.protocol.graph import Stage
from tara.protocol.nodes.executor import Executor
from tests.protocol.driver import Bench, Driven, batch, commits, open_session, session_id

INTERVAL = 16


def bench(interval: int = INTERVAL) -> Bench:
    return Bench(window=8192, checkpoint_interval=interval, sessions_max=6, session_pipeline_max=4)


def executor(made_by: Bench, genesis: bool = True) -> Driven[Executor]:
    return made_by.make(Executor, Stage.EXECUTOR, genesis=genesis, application=KeyValueStore)


def history(seed: int, count: int) -> list[t.Request]:
    """Requests with everything that can happen to a command: batches, commands that are early, sent twice, refused or
    broken, sessions that are opened, refused, closed and that expire, no-ops, and requests without commands."""
    rng = random.Random(seed)
    reference = executor(bench())
    next_numbers: dict[int, int] = {}
    requests: list[t.Request] = []
    time_ms = 1_000_000
    for slot in range(count):
        time_ms += 400 if rng.random() < 0.3 else 1
        commands = []
        for _ in range(rng.choice((0, 1, 1, 1, 2, 5))):
            commands.append(_some_command(rng, next_numbers, slot))
        made = t.NOOP if rng.random() < 0.05 else batch(slot, commands, source=rng.randrange(3), time=time_ms)
        requests.append(made)
        for results in reference.feed(*commits([made], first=slot)).of(t.Results):
            for result in results.results:
                if result.session == 0 and result.status == t.OK:
                    next_numbers.setdefault(session_id(result), 0)
    return requests


def _some_command(rng: random.Random, next_numbers: dict[int, int], slot: int) -> t.Command:
    if not next_numbers or rng.random() < 0.1:
        # The largest nonce is beyond what a signed column holds.
        return open_session(nonce=rng.choice((slot, 2**64 - 1)), timeout_ms=rng.choice((1_000, 100_000)))
    session = rng.choice(sorted(next_numbers))
    number = next_numbers[session] + rng.choice((-1, 0, 0, 0, 0, 0, 1, 9))
    next_numbers[session] = max(next_numbers[session], number + 1 if number < next_numbers[session] + 1 else 0)
    acknowledged = max(number - 2, 0)
    match rng.randrange(12):
        case 0:
            return t.Command(session, number if number > 0 else 0, acknowledged, b"", t.CLOSE)
        case 1:
            return t.Command(session, 0, 0, b"", t.KEEPALIVE)
        case 2:
            return t.Command(session, max(number, 0), acknowledged, b"\xc1")
        case 3:
            return t.Command(session, max(number, 0), acknowledged, msgspec.msgpack.encode(Get("k1")), t.QUERY)
        case _:
            put = Put(f"k{rng.randrange(9)}", b"v%d" % slot)
            return t.Command(session, max(number, 0), acknowledged, msgspec.msgpack.encode(put))


def puts(count: int, value: bytes = b"value") -> list[t.Request]:
    """One session that writes, one command a request."""
    opened = batch(0, [open_session(timeout_ms=3_600_000)], time=1_000)
    payloads = [msgspec.msgpack.encode(Put(f"key-{number}", value)) for number in range(count - 1)]
    return [
        opened,
        *(
            batch(number + 1, [t.Command(1, number, number, payload)], time=1_001 + number)
            for number, payload in enumerate(payloads)
        ),
    ]


def handed_over(
    node: Driven[Executor], requests: Sequence[t.Request], cuts: Sequence[int] = (), first: int = 0
) -> list[t.Executed | t.Mark]:
    """What the executor gives its host for these requests, when they are decided in runs with these ends."""
    steps = [
        node.feed(*commits(requests[start:end], first=first + start))
        for start, end in pairwise([0, *cuts, len(requests)])
        if start < end
    ]
    return [tuple_ for step in steps for tuple_, _ in step.emitted if isinstance(tuple_, t.Executed | t.Mark)]
