"""Which nodes share a container."""

from collections.abc import Iterable

from tara.protocol.graph import Graph, Stage

#: What faces the clients.
FRONT_END = (Stage.REQUEST_SOURCE, Stage.REPLY_SINK)


def placement_of(graph: Graph, packing: str) -> list[list[int]]:
    """The node numbers of each container. What faces the clients of a site stays together in any case: the answer to a
    command comes out where the command went in."""
    numbers = range(len(graph.names))
    by_site = [[number for number in numbers if graph.site(graph.names[number]) == site] for site in range(graph.sites)]
    if packing == "site":
        return by_site
    front_ends = [[number for number in site if graph.names[number].stage in FRONT_END] for site in by_site]
    return front_ends + [[number] for number in numbers if graph.names[number].stage not in FRONT_END]


def serves_clients(graph: Graph, numbers: Iterable[int]) -> bool:
    """Whether a container with these nodes is a front end."""
    return any(graph.names[number].stage is Stage.REPLY_SINK for number in numbers)


def container_label(graph: Graph, packing: str, numbers: list[int]) -> str:
    site = graph.site(graph.names[numbers[0]])
    if packing == "site":
        return f"site-{site}"
    return f"front-end-{site}" if serves_clients(graph, numbers) else graph.label(numbers[0])
