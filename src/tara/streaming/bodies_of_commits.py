"""Commits that carry the bodies of their requests once.

All 2f+1 committers tell all 2f+1 executors what they have accepted, so in full each body would go through a shuffle
that many times squared. Here each executor gets it from one committer, that of its own replica; the commits of the
others name it by a digest of its content, which is as good: whoever has a body with that digest has that body. They
come together in one micro-batch. If they do not, because that committer is silent, the executor sends the short commits
back, and gets them whole in the next micro-batch. What a committer sends again to one executor alone is always whole.
"""

from collections.abc import Iterable

from tara.protocol import tuples as t
from tara.streaming.typed_state import LONG_BYTES, Bodies, put_back


def is_long(commit: t.Commit) -> bool:
    """Whether there is anything to leave out."""
    return any(len(request.body) >= LONG_BYTES for request in commit.requests)


def short(commit: t.Commit, bodies: Bodies) -> t.Commit:
    return _with_bodies(commit, [bodies.put(request.body) for request in commit.requests])


def bodies_in(commits: Iterable[t.Commit], bodies: Bodies) -> dict[bytes, bytes]:
    """The long bodies of whole commits, by digest."""
    found = {request.body for commit in commits for request in commit.requests if len(request.body) >= LONG_BYTES}
    return {bodies.put(body)[1:]: body for body in found}


def whole(commit: t.Commit, known: dict[bytes, bytes]) -> t.Commit | None:
    """None: a body is not known."""
    try:
        return _with_bodies(commit, [put_back(request.body, known) for request in commit.requests])
    except KeyError:
        return None


def _with_bodies(commit: t.Commit, found: list[bytes]) -> t.Commit:
    requests = [
        t.Request(request.source, request.epoch, request.number, request.time, body)
        for request, body in zip(commit.requests, found, strict=True)
    ]
    return t.Commit(commit.committer, commit.partition, commit.view, commit.first, requests)
