"""What a client that comes back asks for."""

from tara.apps.coordination import wire_client
from tara.apps.coordination.wire_client import WatchKind


def test_many_watches_come_back_in_requests_that_a_server_takes() -> None:
    paths = {kind: [f"/{kind.value}/{number:040}" for number in range(10_000)] for kind in WatchKind}
    batches = list(wire_client._batches(paths))
    for kind in WatchKind:
        assert [path for batch in batches for path in batch[kind]] == paths[kind]
    sizes = [sum(4 + len(path) for some in batch.values() for path in some) for batch in batches]
    assert max(sizes) < wire_client.SET_WATCHES_BYTES + 100
    assert min(sizes[:-1]) > wire_client.SET_WATCHES_BYTES - 100


def test_nothing_is_asked_for_without_watches() -> None:
    assert list(wire_client._batches({kind: [] for kind in WatchKind})) == []
