"""The codec: what is written is read, and nothing that is not there is believed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tara.apps.coordination import jute
from tara.apps.coordination.jute import JuteError, Reader, Stat

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.one_of(st.none(), st.binary(max_size=50)))
def test_buffers_come_back(value: bytes | None) -> None:
    reader = Reader(jute.pack_buffer(value))
    assert reader.buffer() == value
    assert reader.rest == 0


@given(st.lists(TEXT))
def test_vectors_of_strings_come_back(values: list[str]) -> None:
    assert Reader(jute.pack_texts(values)).texts() == values


@given(st.lists(st.tuples(st.integers(0, 31), TEXT, TEXT)).map(tuple))
def test_access_lists_come_back(acl: jute.Acl) -> None:
    assert Reader(jute.pack_acl(acl)).acl() == acl


def test_a_stat_has_68_bytes_in_zookeepers_order() -> None:
    fields = Stat(*range(1, 12))
    data = jute.STAT.pack(*fields)
    assert len(data) == 68
    assert Stat.read(Reader(data)) == fields


def test_nothing_reads_as_empty() -> None:
    assert Reader(jute.pack_int(-1)).text() == ""
    assert Reader(jute.pack_int(-1)).texts() == []


@pytest.mark.parametrize("length", [-2, 5, 1 << 30])
def test_a_length_beyond_the_data_is_refused(length: int) -> None:
    with pytest.raises(JuteError, match="length"):
        Reader(jute.pack_int(length) + b"1234").buffer()
    with pytest.raises(JuteError, match="vector"):
        Reader(jute.pack_int(length) + b"1234").texts()


def test_bytes_that_are_not_text_are_refused() -> None:
    with pytest.raises(JuteError, match="UTF-8"):
        Reader(jute.pack_buffer(b"\xff\xfe")).text()


@given(st.binary(max_size=60))
def test_garbage_never_raises_anything_else(data: bytes) -> None:
    for read in (Reader.text, Reader.texts, Reader.acl, Reader.long, Reader.flag, Reader.buffer):
        try:
            read(Reader(data))
        except JuteError:
            continue
