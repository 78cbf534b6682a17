"""The figures of the paper, for comparison: L. Lawniczak and T. Distler, *Stream-based State-Machine Replication*.

Three servers with 4 cores each (Xeon E3-1275, 3.6 GHz), up to five machines for the clients, Java on Heron, in memory,
with a coordination service as the application.
"""

from evaluation.code_lines import (
    DATA_STRUCTURES,
    GARBAGE_COLLECTION,
    INFRASTRUCTURE,
    REQUEST_HANDLING,
    VIEW_CHANGE,
)

#: Table I, code lines.
BFT_SMART_LINES = {
    REQUEST_HANDLING: 905,
    GARBAGE_COLLECTION: 551,
    VIEW_CHANGE: 867,
    DATA_STRUCTURES: 756,
    INFRASTRUCTURE: 918,
}
PAPER_LINES = {
    REQUEST_HANDLING: 274,
    GARBAGE_COLLECTION: 185,
    VIEW_CHANGE: 297,
    DATA_STRUCTURES: 421,
    INFRASTRUCTURE: 299,
}

#: Requests per second at saturation.
BFT_SMART_UNBATCHED_PER_S = 4_300
PAPER_UNBATCHED_PER_S = 13_000
PAPER_BATCHED_PER_S = 40_000
PAPER_BATCH_SIZE = 5

#: A throttled proposer, and a throughput with P partitions that counts as P times that of one.
THROTTLED_PER_S = 800
#: Of the ideal 4, what P = 4 is to reach at least.
PARTITIONS_RATIO_MIN = 3.6

#: When the active proposer is killed.
CRASHES_AT_S = (60.0, 120.0)
FAILURES_SECONDS = 180.0
