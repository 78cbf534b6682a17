"""What is checked in a run, by name. `docs/simulator.md` has this as a table: `python -m tara.simulator.tables`."""

#: A violation names one of these.
CHECKS: dict[str, str] = {
    "agreement": (
        "executors' logs, results and agreed times are equal at every index; what executes was accepted by f+1 "
        "committers; final states are equal"
    ),
    "digests": "checkpoints of one number have one digest, and so have bases; one that was drawn is that of the state",
    "one_proposal": "one request per (partition, view, slot); one life of one proposer starts a view",
    "chosen": "what f+1 committers accepted in a view is what every higher view proposes for the slot",
    "held": "what an active proposer holds it has proposed in its view, or will propose, or it is decided",
    "promises": "the views of a committer's promises and votes never fall, over all its lives with one incarnation",
    "records": "a record holds, per slot, the accept with the highest view below its own",
    "suspicions": "a view that controllers asked for was asked for by f+1 of them at the same time",
    "reads": "an executor that answers a read has executed everything that any had executed when it was sent",
    "promises_kept": (
        "a committer that is not recovering holds, or has collected, every slot that was decided with a vote of its "
        "replica, in whichever life"
    ),
    "replay": "the journal would bring a committer back as it is",
    "exactly_once": "no operation executes twice; its results are equal everywhere; an answer implies an execution",
    "owners": "what executes in a session was sent by the principal that opened it",
    "stability": (
        "no window is ahead of the threshold; a stable checkpoint has f+1 copies when it becomes stable (less those "
        "that `amnesia` took)"
    ),
    "durable": (
        "when an executor hears that a checkpoint is durable, what its disk has for good leads there: an intact base, "
        "and every segment behind it (less what was damaged in this life and not noticed yet)"
    ),
    "bounds": (
        "pending, held and decided requests, votes, backlogs, what is kept for sessions and what waits for a log stay "
        "within the limits"
    ),
    "bytes": "what nodes and sites keep is, counted anew, what they take it for, and within its bound",
    "monotonic": "views, thresholds, positions and counters never fall within a life",
    "results": "a command fails only if it was made to fail (an application of your own may also refuse)",
    "invariant": "an application of your own is in no state that its simulation forbids",
    "claims": "a batch that was claimed is written once, however many clients write it",
    "strikes": "no third life in a row ends in a snapshot of the application",
    "answers": "the answer to a read is one that a replica gave to this very read",
    "stale_reads": "the answer to a stale read is a value that somebody wrote",
    "events": "an event tells of a command that was executed",
    "rebuilding": (
        "the state that is rebuilt from bases and logs, as of whichever command, has what was executed up to there and "
        "nothing else; also from files of which some are damaged"
    ),
    "recovery": (
        "a new era begins with the furthest state that bases and logs lead to, and that has exactly what was executed "
        "before it"
    ),
    "bulk": "long commands depose no proposer, do not hold up a new view, and are not ordered again and again",
    "sleeps": "a client that has something to do does not sleep",
    "log": "the decided log of each replica has the commands that were executed, without a gap",
    "storage": "nothing is found damaged that no fault has damaged",
    "store": "no store of an executor gives up",
    "routes": "results are handed to a gateway only where there is one",
    "wire": (
        "a client of the coordination service gets its answers in the order of its requests, zxids that never go "
        "back, its own writes, and the events of its watches before it sees the changes"
    ),
    "gateway": "no front end of the coordination service fails",
    "halted": "no node halts, and no assertion in a node fails, unless a fault made it",
    "refused": "no site refuses a frame or a message of an honest sender",
    "linearizable": "there is an order of the clients' operations that explains all results",
    "liveness": (
        "everything is answered; laggards catch up; views come to rest; every executor that is left holds the stable "
        "checkpoint; the view sources know every proposer"
    ),
}
