"""Who may send a large frame, and for how long: the policy by itself, and a port as it would be with thousands."""

from collections.abc import Mapping

import pytest

from tara.net import bounds
from tara.net.large_frames import CLIENTS_REMEMBERED_MAX, LOOK_S, STEP_S_MAX, LargeFrames

ROOM = bounds.ARRIVING_BYTES_MAX
HALF = ROOM // 2
PACE = bounds.ARRIVING_BYTES_PER_S


def looked_at(large: LargeFrames, arrived: Mapping[bytes, int], duration_s: float, now_s: float = 0.0) -> list[bytes]:
    """Who was too slow in that time."""
    slow: list[bytes] = []
    for step in range(round(duration_s / LOOK_S) + 1):
        slow += large.too_slow(now_s + step * LOOK_S * 1.01, lambda name: arrived.get(name, 0))
    return slow


def test_frames_arrive_together_as_long_as_there_is_room() -> None:
    large = LargeFrames()
    assert large.begin(b"1", b"alice", HALF)
    assert large.begin(b"2", b"bob", HALF)
    assert not large.begin(b"3", b"carol", 1)
    assert large.reserved_bytes == ROOM
    assert large.end(b"1") == [b"3"]
    assert large.end(b"2") == large.end(b"3") == []
    assert large.reserved_bytes == 0


def test_one_by_itself_may_be_longer() -> None:
    large = LargeFrames()
    assert large.begin(b"1", b"alice", 5 * ROOM)
    assert not large.begin(b"2", b"bob", 5 * ROOM)
    assert not large.begin(b"3", b"carol", 1)
    assert large.end(b"1") == [b"2"]
    assert large.end(b"2") == [b"3"]


def test_nobody_overtakes_a_longer_frame() -> None:
    large = LargeFrames()
    large.begin(b"1", b"alice", HALF)
    assert not large.begin(b"2", b"bob", ROOM)
    assert not large.begin(b"3", b"carol", HALF)
    assert large.end(b"1") == [b"2"]
    assert large.end(b"2") == [b"3"]


def test_clients_take_turns() -> None:
    large = LargeFrames()
    large.begin(b"0", b"alice", ROOM)
    for name, client in ((b"1", b"alice"), (b"2", b"alice"), (b"3", b"alice"), (b"4", b"bob"), (b"5", b"carol")):
        assert not large.begin(name, client, ROOM)
    order, current = [], b"0"
    while admitted := large.end(current):
        (current,) = admitted
        order.append(current)
    assert order == [b"4", b"5", b"1", b"2", b"3"]


def test_who_goes_while_it_waits_is_forgotten() -> None:
    large = LargeFrames()
    large.begin(b"1", b"alice", ROOM)
    large.begin(b"2", b"bob", ROOM)
    large.begin(b"3", b"bob", HALF)
    large.begin(b"4", b"carol", HALF)
    assert large.end(b"2") == []
    assert large.end(b"1") == [b"3", b"4"]
    large.begin(b"5", b"bob", ROOM)
    assert large.end(b"5") == []
    assert large.waiting == 0


def test_when_the_longest_gives_up_those_behind_it_go_on() -> None:
    large = LargeFrames()
    large.begin(b"1", b"alice", HALF)
    large.begin(b"2", b"bob", ROOM)
    large.begin(b"3", b"carol", HALF)
    assert large.end(b"2") == [b"3"]


def test_who_sends_nothing_has_a_moment() -> None:
    large = LargeFrames()
    large.begin(b"1", b"alice", ROOM)
    large.begin(b"2", b"bob", ROOM)
    assert looked_at(large, {}, bounds.ARRIVING_LAG_S_MAX - 2 * LOOK_S) == []
    assert looked_at(large, {}, 4 * LOOK_S, bounds.ARRIVING_LAG_S_MAX)[0] == b"1"


def test_who_comes_at_the_pace_may_end() -> None:
    large = LargeFrames()
    large.begin(b"1", b"alice", ROOM)
    large.begin(b"2", b"bob", ROOM)
    now_s = 0.0
    while now_s * PACE < ROOM:
        assert large.too_slow(now_s, lambda _, arrived=int(now_s * PACE): arrived) == []  # type: ignore[misc]
        now_s += LOOK_S
    assert large.end(b"1") == [b"2"]


def test_who_hurries_and_then_stops_has_to_go() -> None:
    large = LargeFrames()
    large.begin(b"1", b"alice", ROOM)
    large.begin(b"2", b"bob", ROOM)
    assert looked_at(large, {b"1": HALF}, bounds.ARRIVING_LAG_S_MAX - 2 * LOOK_S) == []
    assert looked_at(large, {b"1": HALF}, 4 * LOOK_S, bounds.ARRIVING_LAG_S_MAX)[0] == b"1"


def test_who_has_to_connect_again_does_not_lose_its_turn() -> None:
    """Its kernel gives a connection up that is not read for seconds."""
    large = LargeFrames()
    large.begin(b"0", b"mallory", ROOM)
    large.begin(b"1", b"mallory", ROOM)
    large.begin(b"2", b"bob", ROOM)
    assert large.end(b"2") == []
    large.begin(b"3", b"mallory", ROOM)
    large.begin(b"4", b"bob", ROOM)
    assert large.end(b"0") == [b"4"]


def test_only_so_many_clients_are_remembered() -> None:
    large = LargeFrames()
    for number in range(2 * CLIENTS_REMEMBERED_MAX):
        assert large.begin(b"%d" % number, b"client-%d" % number, 1)
        large.end(b"%d" % number)
    assert len(large._turns) == CLIENTS_REMEMBERED_MAX


def test_time_counts_only_while_others_wait() -> None:
    large = LargeFrames()
    large.begin(b"1", b"alice", ROOM)
    assert looked_at(large, {}, 100.0) == []
    large.begin(b"2", b"bob", ROOM)
    assert looked_at(large, {}, bounds.ARRIVING_LAG_S_MAX - 2 * LOOK_S, 100.0) == []


def test_a_loop_that_stood_still_blames_nobody() -> None:
    large = LargeFrames()
    large.begin(b"1", b"alice", ROOM)
    large.begin(b"2", b"bob", ROOM)
    assert large.too_slow(0.0, lambda _: 0) == []
    assert STEP_S_MAX < bounds.ARRIVING_LAG_S_MAX
    assert large.too_slow(60.0, lambda _: 0) == []


@pytest.mark.parametrize(
    ("bytes_per_s", "frame_s"),
    [(0, bounds.ARRIVING_LAG_S_MAX), (PACE // 2, 2 * bounds.ARRIVING_LAG_S_MAX), (2 * PACE, ROOM / (2 * PACE))],
)
def test_a_client_waits_for_about_one_frame_of_each_other_one(bytes_per_s: int, frame_s: float) -> None:
    """Two hostile keys with 256 connections each, which announce as much as they can, come again when they are hung up,
    and send nothing, too slowly, or just enough. Somebody else has one frame after the other, and connects again every
    five seconds."""
    large, now_s, begun_s = LargeFrames(), 0.0, {}
    count = 0

    def begin(client: bytes) -> bytes:
        nonlocal count
        count += 1
        name = client + b"-%d" % count
        if large.begin(name, client, ROOM):
            begun_s[name] = now_s
        return name

    def end(name: bytes) -> None:
        begun_s.pop(name, None)
        begun_s.update(dict.fromkeys(large.end(name), now_s))

    def arrived(name: bytes) -> int:
        speed = 100 * PACE if name.startswith(b"honest") else bytes_per_s
        return int((now_s - begun_s[name]) * speed)

    for client in (b"mallory", b"trudy"):
        for _ in range(256):
            begin(client)
    waits_s: list[float] = []
    asked_s, connected_s, honest = now_s, now_s, begin(b"honest")
    while len(waits_s) < 20:
        now_s += LOOK_S
        gone = large.too_slow(now_s, arrived)
        for name in {*gone, *(name for name in begun_s if arrived(name) >= ROOM)}:
            end(name)
            if name == honest:
                waits_s.append(now_s - asked_s)
                asked_s, connected_s, honest = now_s, now_s, begin(b"honest")
            else:
                begin(name.partition(b"-")[0])
        if honest not in begun_s and now_s - connected_s > 5.0:
            end(honest)
            connected_s, honest = now_s, begin(b"honest")
    # For one that has begun, and one of each.
    assert max(waits_s) < 3 * (frame_s + 2 * LOOK_S) + 2 * LOOK_S
