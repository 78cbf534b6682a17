"""A state of a given size: many values, written once, and looked for in the end."""

from tara.application import Get
from tara.bench.load import LoadReport, key_of, value_of
from tara.bench.load_process import UNTIL_STOPPED_S, LoadPlan, LoadProcess
from tara.client import Client
from tara.protocol import tuples as t

#: Those that write them.
WRITERS = 256
TIMEOUT_S = 600.0
#: Values that are read at once.
READ_AHEAD = 256


def write_all(endpoints: str, values: int, value_bytes: int) -> LoadReport:
    """Those that a load with so many values goes on to write."""
    plan = LoadPlan(
        endpoints=endpoints,
        clients=WRITERS,
        values=values,
        seconds=UNTIL_STOPPED_S,
        warm_up_s=0.0,
        payload_bytes=value_bytes,
        interval_s=0.2,
    )
    load, answered = LoadProcess(plan), 0
    for _, count in load.seconds():
        answered += count
        if answered >= values:
            # What was sent by then is waited for, and that is all of them.
            load.stop()
    return load.finish()


def missing_values(endpoints: str, values: int, value_bytes: int) -> int:
    """Values that are not what was written."""
    expected, missing = t.encode(value_of(value_bytes)), 0
    with Client(endpoints, timeout_s=TIMEOUT_S) as client:
        for first in range(0, values, READ_AHEAD):
            indexes = range(first, min(first + READ_AHEAD, values))
            answers = [client.submit_query(t.encode(Get(key_of(index)))) for index in indexes]
            missing += sum(answer.result() != expected for answer in answers)
    return missing
