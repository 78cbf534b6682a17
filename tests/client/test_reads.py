"""Questions on their way: answered, late, refused."""

from tara.client.errors import ClientError, CommandFailed, NotReachable
from tara.client.reads import PATIENCE_S, Question, Reads
from tara.protocol import tuples as t


class Asked:
    """A question and what came of it."""

    def __init__(self, stale: bool = False, deadline_s: float = 10.0) -> None:
        self.outcomes: list[bytes | ClientError] = []
        self.question = Question(b"?", stale, deadline_s, self.outcomes.append)


def test_an_answer_finds_its_question() -> None:
    reads, first, second = Reads(), Asked(), Asked(stale=True)
    reads.submit(first.question)
    reads.submit(second.question)
    sent = reads.due(0.0)
    assert [read.stale for read in sent] == [False, True]
    assert reads.due(0.0) == []
    reads.hear(sent[1].id, t.OK, b"two")
    reads.hear(sent[0].id, t.FAILED, b"no")
    reads.hear(sent[0].id, t.OK, b"again")
    assert second.outcomes == [b"two"]
    assert [type(outcome) for outcome in first.outcomes] == [CommandFailed]


def test_a_late_question_is_to_be_ordered_and_the_front_end_to_be_left() -> None:
    reads, asked = Reads(), Asked()
    reads.submit(asked.question)
    (sent,) = reads.due(0.0)
    assert reads.late(PATIENCE_S / 2) == []
    assert not reads.move_on
    assert 0 < reads.wait_s(PATIENCE_S / 2) <= PATIENCE_S
    assert reads.late(PATIENCE_S) == [asked.question]
    assert reads.move_on
    reads.hear(sent.id, t.OK, b"too late")
    assert asked.outcomes == []


def test_a_refused_question_is_ordered_at_once() -> None:
    reads, asked = Reads(), Asked()
    reads.submit(asked.question)
    (sent,) = reads.due(0.0)
    reads.hear(sent.id, t.OVERLOADED, b"")
    assert reads.wait_s(0.0) == 0.0
    assert reads.late(0.0) == [asked.question]
    assert not reads.move_on


def test_a_stale_question_is_asked_again_until_its_time_is_up() -> None:
    reads, asked = Reads(), Asked(stale=True, deadline_s=PATIENCE_S * 1.5)
    reads.submit(asked.question)
    (first,) = reads.due(0.0)
    assert reads.late(PATIENCE_S) == []
    (second,) = reads.due(PATIENCE_S)
    assert second.id != first.id
    assert reads.late(PATIENCE_S * 2) == []
    assert [type(outcome) for outcome in asked.outcomes] == [NotReachable]
    assert reads.due(PATIENCE_S * 2) == []
