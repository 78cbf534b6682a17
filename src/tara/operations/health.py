"""How a cluster is doing, read off its status: what `tara status --json` prints, and what the registry has at hand."""

from typing import Any

Status = dict[str, Any]


def leader(status: Status, partition: int = 0) -> Status | None:
    """The container of the active proposer; of several (one of them does not know yet), that of the highest view."""
    found = [
        (proposer["view"], container)
        for container in status["containers"]
        if (proposer := _node(container, partition, "proposer")) and proposer["mode"] == "active"
    ]
    return max(found, key=lambda pair: pair[0])[1] if found else None


def executors(status: Status) -> list[Status]:
    return [container["executor"] for container in status["containers"] if "executor" in container]


def full_strength(status: Status) -> bool:
    """Every committer votes, those of a partition in one view, and every executor holds the checkpoint that it knows to
    be stable. Reports are not of one moment: that checkpoint may be older than another one's, by what fits a window."""
    replicas = 2 * status["f"] + 1
    if not all(container["up"] for container in status["containers"]) or halted(status):
        return False
    for partition in range(status["partitions"]):
        committers = [
            (container["partitions"][str(partition)]["view"], committer["started"])
            for container in status["containers"]
            if (committer := _node(container, partition, "committer"))
        ]
        if len(committers) != replicas or len(set(committers)) != 1 or not committers[0][1]:
            return False
    states = executors(status)
    recent = max((state["stable"] for state in states), default=0) - status["checkpoints_per_window"]
    return len(states) == replicas and all(
        max(state["checkpoints"], default=0) >= state["stable"] >= recent for state in states
    )


def halted(status: Status) -> dict[str, str]:
    """Nodes that have stopped, and why: by a broken invariant, or by what the application did."""
    found: dict[str, str] = {}
    for container in status["containers"]:
        found.update(container.get("counters", {}).get("halted", {}))
    return found


def replicas_equal(status: Status) -> bool | None:
    """Whether all executors have the same state; None while they are not equally far, or their digests not known."""
    states = executors(status)
    if len(states) != 2 * status["f"] + 1 or len({state["next"] for state in states}) != 1:
        return None
    digests = {state.get("digest") for state in states}
    return None if None in digests else len(digests) == 1


def counter(status: Status) -> int:
    """Commands that the furthest replica has executed."""
    return max((int(state["counter"]) for state in executors(status)), default=0)


def logs_whole(status: Status) -> bool:
    """Whether every executor has read its part of the decided log, and no segment of it is missing."""
    logs = [container.get("log") for container in status["containers"] if "executor" in container]
    return all(log is not None and log["unread"] == 0 and log["gaps"] == 0 for log in logs)


def bases_saved(status: Status) -> int:
    """By all sites together, in their present lives."""
    return sum(int(container.get("counters", {}).get("bases_saved", 0)) for container in status["containers"])


def view(status: Status) -> int:
    """The highest one of any committer."""
    return max(
        int(partition.get("view", 0))
        for container in status["containers"]
        for partition in container.get("partitions", {}).values()
    )


def _node(container: Status, partition: int, stage: str) -> Status | None:
    found: Status | None = container.get("partitions", {}).get(str(partition), {}).get(stage)
    return found
