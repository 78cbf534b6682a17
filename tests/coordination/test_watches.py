"""Who is told of what."""

import pytest

from tara.coordination.codes import Event
from tara.coordination.gateway.watches import Kind, Watches


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
    assert (len(watches), watches.paths, watches.watchers) == (0, 0, 0)


def test_removing_says_whether_there_was_one(watches: Watches[str]) -> None:
    watches.add(Kind.DATA, "/a", "ann")
    assert not watches.remove(Kind.CHILD, "/a", "ann")
    assert watches.remove(Kind.DATA, "/a", "ann")
    assert not watches.remove(Kind.DATA, "/a", "ann")
