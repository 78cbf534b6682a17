"""Reads on their way: answered, late, refused."""

from tara.client.errors import ClientError, CommandFailed, CommandTooLarge, NotReachable
from tara.client.reads import ANSWERS_BYTES_MAX, PATIENCE_S, PATIENCE_S_MAX, Reads, ReadSubmission
from tara.host.client_wire import REQUEST_BYTES_MAX
from tara.protocol import tuples as t


class Asked:
    """A read and what came of it."""

    def __init__(self, stale: bool = False, deadline_s: float = 10.0) -> None:
        self.outcomes: list[bytes | ClientError] = []
        self.read = ReadSubmission(b"?", stale, deadline_s, self.outcomes.append)


def test_an_answer_finds_its_read() -> None:
    reads, first, second = Reads(), Asked(), Asked(stale=True)
    reads.submit(first.read)
    reads.submit(second.read)
    sent = reads.due(0.0)
    assert [read.stale for read in sent] == [False, True]
    assert reads.due(0.0) == []
    reads.hear(sent[1].id, t.OK, b"two", 0.0)
    reads.hear(sent[0].id, t.FAILED, b"no", 0.0)
    reads.hear(sent[0].id, t.OK, b"again", 0.0)
    assert second.outcomes == [b"two"]
    assert [type(outcome) for outcome in first.outcomes] == [CommandFailed]


def test_a_late_read_is_to_be_ordered_and_the_front_end_to_be_left() -> None:
    reads, asked = Reads(), Asked()
    reads.submit(asked.read)
    (sent,) = reads.due(0.0)
    assert reads.late(PATIENCE_S / 2) == []
    assert not reads.move_on
    assert 0 < reads.wait_s(PATIENCE_S / 2) <= PATIENCE_S
    assert reads.late(PATIENCE_S) == [asked.read]
    assert reads.move_on
    reads.hear(sent.id, t.OK, b"too late", 0.0)
    assert asked.outcomes == []


def test_while_answers_come_a_read_may_take_longer_but_not_for_ever() -> None:
    reads, others = Reads(), [Asked() for _ in range(20)]
    patient = Asked()
    reads.submit(patient.read)
    for other in others:
        reads.submit(other.read)
    sent = reads.due(0.0)
    step_s = PATIENCE_S / 2
    now_s = 0.0
    for read in sent[1:]:
        now_s += step_s
        if now_s >= PATIENCE_S_MAX:
            break
        assert reads.late(now_s) == []
        reads.hear(read.id, t.OK, b"long", now_s)
    assert reads.late(PATIENCE_S_MAX)[0] is patient.read


def test_a_read_that_is_refused_twice_is_ordered_at_once() -> None:
    reads, asked = Reads(), Asked()
    reads.submit(asked.read)
    for _ in range(2):
        (sent,) = reads.due(0.0)
        reads.hear(sent.id, t.OVERLOADED, b"", 0.0)
        assert reads.wait_s(0.0) == 0.0
    assert reads.late(0.0) == [asked.read]
    assert not reads.move_on


def test_where_answers_are_long_only_so_many_are_asked_for_as_a_front_end_sends_at_once() -> None:
    reads, asked = Reads(), [Asked(deadline_s=1.0) for _ in range(100)]
    for one in asked:
        reads.submit(one.read)
    sent = reads.due(0.0)
    assert len(sent) == 100
    length = ANSWERS_BYTES_MAX // 4
    for read in sent[:50]:
        reads.hear(read.id, t.OK, bytes(length), 0.1)
    for read in sent[50:]:
        reads.hear(read.id, t.OVERLOADED, b"", 0.1)
    again = reads.due(0.1)
    assert len(again) == 4
    assert reads.due(0.1) == []
    reads.hear(again[0].id, t.OK, bytes(length), 0.2)
    assert len(reads.due(0.2)) == 1
    # What waits for room until its time is up is ordered, where it is told so.
    assert len(reads.late(1.0)) == 46 - 1 + 4


def test_a_stale_read_is_sent_again_until_its_time_is_up() -> None:
    reads, asked = Reads(), Asked(stale=True, deadline_s=PATIENCE_S * 1.5)
    reads.submit(asked.read)
    (first,) = reads.due(0.0)
    assert reads.late(PATIENCE_S) == []
    (second,) = reads.due(PATIENCE_S)
    assert second.id != first.id
    assert reads.late(PATIENCE_S * 2) == []
    assert [type(outcome) for outcome in asked.outcomes] == [NotReachable]
    assert reads.due(PATIENCE_S * 2) == []


def test_every_read_is_told_when_its_time_is_up() -> None:
    """Also one that waits behind others with more time, and where every connection breaks before it is old."""
    reads, patient, hurried, ordered = Reads(), Asked(True, 1000.0), Asked(True, 1.0), Asked(deadline_s=1.0)
    for asked in (patient, hurried, ordered):
        reads.submit(asked.read)
    now_s = 0.0
    late: list[ReadSubmission] = []
    while now_s < 1.2:
        reads.due(now_s)
        late += reads.late(now_s)
        reads.send_again()
        now_s += PATIENCE_S / 4
    assert [type(outcome) for outcome in hurried.outcomes] == [NotReachable]
    assert late == [ordered.read]
    assert patient.outcomes == []


def test_a_long_read_waits_until_it_is_known_what_a_front_end_takes() -> None:
    reads, outcomes = Reads(), list[bytes | ClientError]()
    reads.submit(ReadSubmission(bytes(REQUEST_BYTES_MAX + 1), False, 10.0, outcomes.append))
    reads.long_may_go = False
    assert reads.due(0.0) == []
    assert reads.wait_s(0.0) > 0
    reads.long_may_go, reads.bytes_max = True, REQUEST_BYTES_MAX
    assert reads.due(0.0) == []
    assert [type(outcome) for outcome in outcomes] == [CommandTooLarge]
    assert reads.wait_s(0.0) > 0
