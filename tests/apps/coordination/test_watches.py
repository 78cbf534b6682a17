"""Who is told of what."""

import random

import pytest

from tara.apps.coordination import limits
from tara.apps.coordination.codes import Code, Event, Refusal
from tara.apps.coordination.gateway.watches import Kind, Watches


@pytest.fixture
def watches() -> Watches[str]:
    return Watches()


def test_a_data_watch_is_told_once(watches: Watches[str]) -> None:
    watches.add(Kind.DATA, "/a", "ann")
    assert list(watches.trigger(Event.DATA_CHANGED, "/a")) == [("ann", Event.DATA_CHANGED, "/a")]
    assert list(watches.trigger(Event.DATA_CHANGED, "/a")) == []
    assert len(watches) == 0


def test_a_child_watch_is_told_of_creations_and_deletions_below(watches: Watches[str]) -> None:
    for event in (Event.CREATED, Event.DELETED):
        watches.add(Kind.CHILD, "/a", "ann")
        assert list(watches.trigger(event, "/a/b")) == [("ann", Event.CHILDREN_CHANGED, "/a")]
    watches.add(Kind.CHILD, "/a", "ann")
    assert list(watches.trigger(Event.DATA_CHANGED, "/a/b")) == []
    assert list(watches.trigger(Event.CREATED, "/a/b/c")) == []


def test_a_deletion_is_told_once_to_somebody_who_watches_data_and_children(watches: Watches[str]) -> None:
    watches.add(Kind.DATA, "/a", "ann")
    watches.add(Kind.CHILD, "/a", "ann")
    watches.add(Kind.CHILD, "/", "bob")
    assert list(watches.trigger(Event.DELETED, "/a")) == [
        ("ann", Event.DELETED, "/a"),
        ("bob", Event.CHILDREN_CHANGED, "/"),
    ]
    assert len(watches) == 0


def test_a_persistent_watch_stays(watches: Watches[str]) -> None:
    watches.add(Kind.PERSISTENT, "/a", "ann")
    for _ in range(2):
        assert list(watches.trigger(Event.DATA_CHANGED, "/a")) == [("ann", Event.DATA_CHANGED, "/a")]
        assert list(watches.trigger(Event.CREATED, "/a/b")) == [("ann", Event.CHILDREN_CHANGED, "/a")]
    assert list(watches.trigger(Event.DATA_CHANGED, "/a/b")) == []


def test_a_recursive_watch_sees_everything_below_but_no_child_events(watches: Watches[str]) -> None:
    watches.add(Kind.RECURSIVE, "/a", "ann")
    watches.add(Kind.RECURSIVE, "/", "root")
    assert list(watches.trigger(Event.CREATED, "/a/b/c")) == [
        ("ann", Event.CREATED, "/a/b/c"),
        ("root", Event.CREATED, "/a/b/c"),
    ]
    assert list(watches.trigger(Event.DELETED, "/ab")) == [("root", Event.DELETED, "/ab")]


def test_watches_of_somebody_who_is_gone_are_gone(watches: Watches[str]) -> None:
    for kind in Kind:
        watches.add(kind, "/a", "ann")
    watches.add(Kind.DATA, "/a", "bob")
    watches.drop("ann")
    assert list(watches.trigger(Event.DATA_CHANGED, "/a")) == [("bob", Event.DATA_CHANGED, "/a")]
    watches.sweep(100)
    assert (len(watches), watches.paths, watches.watchers) == (0, 0, 0)


def test_removing_says_whether_there_was_one(watches: Watches[str]) -> None:
    watches.add(Kind.DATA, "/a", "ann")
    assert not watches.remove(Kind.CHILD, "/a", "ann")
    assert watches.remove(Kind.DATA, "/a", "ann")
    assert not watches.remove(Kind.DATA, "/a", "ann")


def test_a_watcher_has_a_bound_in_number() -> None:
    watches: Watches[str] = Watches(count_max=100, own_count_max=3)
    for path in ("/a", "/b", "/c", "/a", "/b"):
        watches.add(Kind.DATA, path, "ann")
    with pytest.raises(Refusal) as refused:
        watches.add(Kind.CHILD, "/a", "ann")
    assert refused.value.code is Code.THROTTLED_OP
    watches.add(Kind.DATA, "/d", "bob")
    assert list(watches.trigger(Event.DATA_CHANGED, "/a")) == [("ann", Event.DATA_CHANGED, "/a")]
    watches.add(Kind.CHILD, "/a", "ann")
    assert len(watches) == 4


def test_a_watcher_has_a_bound_in_bytes() -> None:
    watches: Watches[str] = Watches(count_max=1_000, own_count_max=100)
    path = "/" + "x" * 4_000
    for number in range(3):
        watches.add(Kind.DATA, f"{path}{number}", "ann")
    with pytest.raises(Refusal):
        watches.add(Kind.DATA, path, "ann")
    # Another kind on the same path has no bytes of its own.
    watches.add(Kind.CHILD, f"{path}0", "ann")
    watches.add(Kind.DATA, path, "bob")
    assert watches.bytes == 3 * 4_002 + 4_001


def test_the_table_has_bounds_in_number_and_bytes() -> None:
    watches: Watches[str] = Watches(count_max=10, own_count_max=10)
    for number in range(10):
        watches.add(Kind.DATA, "/a", f"watcher-{number}")
    with pytest.raises(Refusal):
        watches.add(Kind.DATA, "/a", "one-more")
    assert watches.watchers == 10
    watches = Watches(count_max=10, own_count_max=10)
    watches.add(Kind.DATA, "/" + "x" * 1_200, "ann")
    with pytest.raises(Refusal):
        watches.add(Kind.DATA, "/" + "x" * 1_200, "bob")


def test_a_path_that_no_node_can_have_is_not_watched(watches: Watches[str]) -> None:
    with pytest.raises(Refusal) as refused:
        watches.add(Kind.DATA, "/" + "x" * limits.PATH_CHARACTERS_MAX, "ann")
    assert refused.value.code is Code.BAD_ARGUMENTS
    assert len(watches) == watches.watchers == 0


def test_somebody_who_is_gone_is_not_told_and_swept_in_slices(watches: Watches[str]) -> None:
    for number in range(1_000):
        watches.add(Kind.DATA, f"/{number}", "ann")
    watches.add(Kind.RECURSIVE, "/", "ann")
    watches.add(Kind.DATA, "/5", "bob")
    watches.drop("ann")
    assert list(watches.trigger(Event.DATA_CHANGED, "/5")) == [("bob", Event.DATA_CHANGED, "/5")]
    assert list(watches.trigger(Event.DATA_CHANGED, "/6")) == []
    for left in (1_001 - 300, 1_001 - 600, 1_001 - 900):
        watches.sweep(300)
        assert (len(watches), watches.leaving) == (left, True)
    watches.sweep(300)
    assert (len(watches), watches.paths, watches.bytes, watches.leaving) == (0, 0, 0, False)


def test_the_table_is_what_a_plain_one_would_be() -> None:
    """Against a set of (kind, path, watcher), with random calls."""
    draw = random.Random(7)
    watches: Watches[int] = Watches()
    plain: set[tuple[Kind, str, int]] = set()
    names = ["/", "/a", "/a/b", "/a/b/c", "/d"]
    newest = 3
    for _ in range(5_000):
        kind, path, watcher = draw.choice(list(Kind)), draw.choice(names), draw.randrange(newest - 3, newest)
        match draw.randrange(6):
            case 0 | 1 | 2:
                watches.add(kind, path, watcher)
                plain.add((kind, path, watcher))
            case 3:
                assert watches.remove(kind, path, watcher) == ((kind, path, watcher) in plain)
                plain.discard((kind, path, watcher))
            case 4:
                # Who is gone does not come back.
                watches.drop(newest - 3)
                plain = {watch for watch in plain if watch[2] != newest - 3}
                newest += 1
                watches.sweep(draw.randrange(3))
            case _:
                event = draw.choice([Event.CREATED, Event.DELETED, Event.DATA_CHANGED])
                told = set(watches.trigger(event, path))
                assert told == _plain_trigger(plain, event, path)
        assert {watch for watch in plain if not watches.has(*watch)} == set()
    watches.sweep(1_000)
    assert len(watches) == len(plain)
    assert watches.paths == len({path for _, path, _ in plain})


def _plain_trigger(plain: set[tuple[Kind, str, int]], event: Event, path: str) -> set[tuple[int, Event, str]]:
    parent = path[: path.rfind("/")] or "/"
    told = set()
    for kind, watched, watcher in list(plain):
        own = kind is Kind.DATA or kind is Kind.PERSISTENT or (kind is Kind.CHILD and event is Event.DELETED)
        below = path == watched or watched == "/" or path.startswith(watched + "/")
        if (watched == path and own) or (kind is Kind.RECURSIVE and below):
            told.add((watcher, event, path))
            if kind in (Kind.DATA, Kind.CHILD):
                plain.discard((kind, watched, watcher))
    for kind, watched, watcher in list(plain):
        if event is not Event.DATA_CHANGED and watched == parent and kind in (Kind.CHILD, Kind.PERSISTENT):
            told.add((watcher, Event.CHILDREN_CHANGED, parent))
            if kind is Kind.CHILD:
                plain.discard((kind, watched, watcher))
    return told
