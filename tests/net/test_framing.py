"""Frames in a stream of bytes: whole, in their order, however the stream is cut."""

import tracemalloc
from random import Random

import pytest

from tara.net.errors import Broken
from tara.net.framing import (
    TLS_ALERT,
    Splitter,
    begins_a_tls_alert,
    begins_a_tls_client,
    begins_like_tls,
    framed,
    refusal,
    refusal_in,
)

SIZES = (0, 1, 3, 100, 65_536, 131_068, 131_069, 131_073, 400_000)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("frames_max", [1, 2, 1000])
def test_frames_come_whole_and_in_order_however_the_stream_is_cut(seed: int, frames_max: int) -> None:
    random = Random(seed)
    frames = [random.randbytes(random.choice(SIZES)) for _ in range(20)]
    stream = b"".join(map(framed, frames))
    splitter = Splitter(1 << 20)
    found: list[bytes] = []
    position = 0
    while position < len(stream):
        step = random.choice((1, 3, 1000, 65_536, 262_144, 1_000_000))
        some = splitter.feed(stream[position : position + step], frames_max)
        position += step
        assert len(some) <= frames_max
        found += some
        while splitter.unread:
            some = splitter.feed(b"", frames_max)
            assert len(some) <= frames_max
            found += some
    assert found == frames
    assert splitter.arriving_bytes == splitter.begun_bytes == 0


def test_it_tells_what_arrives() -> None:
    splitter = Splitter(1 << 20)
    assert splitter.feed(framed(b"x") + framed(bytes(500_000))[:1_000]) == [b"x"]
    assert (splitter.arriving_bytes, splitter.begun_bytes) == (500_004, 1_000)
    assert splitter.feed(bytes(100)) == []
    assert splitter.begun_bytes == 1_100


@pytest.mark.parametrize("step", [1, 100, 20_000, 262_144])
def test_a_frame_takes_the_room_of_what_has_come_of_it(step: int) -> None:
    """However long it claims to be, and in however small pieces it comes."""
    splitter = Splitter(1 << 30)
    tracemalloc.start()
    try:
        splitter.feed((1 << 30).to_bytes(4, "little"))
        for _ in range(1_000_000 // step):
            assert splitter.feed(bytes(step)) == []
        kept, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert splitter.begun_bytes == 4 + 1_000_000 // step * step
    assert kept <= most < 1.3 * 1_000_000 + 2 * step


@pytest.mark.parametrize("length", [(1 << 20) + 1, (1 << 32) - 1])
def test_a_frame_that_is_too_long_is_refused_before_it_comes(length: int) -> None:
    with pytest.raises(Broken, match=f"a frame of {length} bytes"):
        Splitter(1 << 20).feed(length.to_bytes(4, "little") + b"x")


def test_a_refusal_is_text_and_never_begins_like_tls() -> None:
    for reason in ("", "no", "a reason", "x" * 2000):
        frame = refusal(reason)
        assert not begins_like_tls(frame)
        assert refusal_in(frame[4:]) == reason[:200].strip()
    assert refusal_in(b"\x93\x01\x90\x90") is None


def test_the_first_bytes_tell_who_speaks_tls() -> None:
    greeting = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
    assert begins_like_tls(greeting)
    assert begins_a_tls_client(greeting)
    assert begins_a_tls_alert(TLS_ALERT)
    # A frame whose length has the same bytes is a message all the same: those are arrays.
    assert not begins_a_tls_client(b"\x16\x03\x01\x00\x93\x96\x01\x90")
    assert not begins_a_tls_alert(b"\x15\x03\x03\x00\x93\x96\x01\x90")
