"""Golden transcripts: whole interactions, told by the nodes, compared as text.

A change of behaviour shows up as a diff of these stories. To accept it: TARA_UPDATE_TRANSCRIPTS=1 make test.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tara.application import Get, Put
from tara.protocol.limits import Limits
from tara.simulator.scene import Scene
from tara.simulator.transcript import Transcript

HERE = Path(__file__).parent
SMALL = Limits(checkpoint_interval=4, window=8, keepalive_interval_ms=60_000)


def quietly_started(limits: Limits, transcript: Transcript) -> tuple[Scene, int]:
    """A running system and an open session; the transcript starts after that."""
    scene = Scene(limits, transcript=transcript)
    scene.run(300)
    session = scene.open()
    scene.run(100)
    transcript.lines.clear()
    return scene, session


def request_handling(transcript: Transcript) -> None:
    """One write from the client to its answer, then the same write again."""
    scene, session = quietly_started(SMALL, transcript)
    scene.title("a write at site 0")
    key = scene.send(session, Put("city", b"Erlangen"))
    scene.wait(key)
    scene.run(20)
    scene.title("the client sends it again, through site 2: the answer comes from the cache")
    scene.send_again(key, site=2)
    scene.run(20)


def garbage_collection(transcript: Transcript) -> None:
    """Four slots make a checkpoint; when two executors hold it, the windows move."""
    scene, session = quietly_started(SMALL, transcript)
    scene.title("writes up to the checkpoint")
    for number in range(3):
        scene.call(session, Put(f"key-{number}", b"value"))
    scene.run(100)


def view_change(transcript: Transcript) -> None:
    """The active proposer's site crashes; the other proposer takes over."""
    scene, session = quietly_started(SMALL, transcript)
    scene.call(session, Put("before", b"1"))
    scene.run(100)
    transcript.lines.clear()
    leader = scene.leader()
    assert leader is not None
    scene.title("the site of the active proposer crashes")
    scene.crash(leader)
    key = scene.send(session, Put("after", b"2"))
    scene.wait(key)


def recovery(transcript: Transcript) -> None:
    """A site that was down for longer than the windows reach comes back."""
    scene, session = quietly_started(SMALL, transcript)
    site = scene.world.containers[2]
    scene.crash(site)
    for number in range(14):
        scene.call(session, Put(f"key-{number}", b"value"))
    scene.run(200)
    transcript.lines.clear()
    scene.title("site 2 starts again")
    scene.restart(site)
    scene.run(300)
    assert scene.states_equal()


def partitions(transcript: Transcript) -> None:
    """Two partitions, one of them idle: it skips, and the merged order goes on."""
    scene, session = quietly_started(
        Limits(partitions=2, checkpoint_interval=8, window=8, keepalive_interval_ms=60_000), transcript
    )
    scene.title("two writes, both through partition 0")
    scene.send(session, Put("left", b"1"), partition=0)
    key = scene.send(session, Get("left"), partition=0)
    scene.wait(key)


@pytest.mark.parametrize("story", [request_handling, garbage_collection, view_change, recovery, partitions])
def test_story_is_unchanged(story: Callable[[Transcript], None]) -> None:
    transcript = Transcript()
    story(transcript)
    text = "\n".join([story.__doc__ or "", "", *transcript.lines, ""])
    path = HERE / f"{story.__name__}.txt"
    if os.environ.get("TARA_UPDATE_TRANSCRIPTS"):
        path.write_text(text)
    assert path.read_text() == text
