"""Where answers go: to who asked, whoever else names the same session."""

from tara.host.routes import Routes
from tara.protocol import tuples as t


def command(principal: bytes, session: int, number: int = 0) -> t.Command:
    return t.Command(session, number, 0, b"", t.EXECUTE if session else t.OPEN, principal)


def result(principal: bytes, session: int, number: int = 0) -> t.Result:
    return t.Result(session, number, 1, t.OK, b"", principal)


def test_a_stranger_does_not_take_the_owner_s_answers() -> None:
    routes = Routes()
    routes.learn(b"alice's", command(b"alice", 5))
    routes.learn(b"mallory's", command(b"mallory", 5))
    assert routes.of_result(result(b"alice", 5)) == b"alice's"
    assert routes.of_result(result(b"mallory", 5)) == b"mallory's"
    assert routes.of_result(result(b"nobody", 5)) is None


def test_a_stranger_does_not_take_the_answer_to_an_opening() -> None:
    routes = Routes()
    routes.learn(b"alice's", command(b"alice", 0, 4711))
    routes.learn(b"mallory's", command(b"mallory", 0, 4711))
    assert routes.of_result(result(b"alice", 0, 4711)) == b"alice's"
    assert routes.of_result(result(b"alice", 0, 4711)) is None
    assert routes.of_result(result(b"mallory", 0, 4711)) == b"mallory's"


def test_an_owner_is_answered_where_it_was_last_heard() -> None:
    routes = Routes()
    for connection in (b"first", b"second"):
        routes.learn(connection, command(b"alice", 5))
    assert routes.of_result(result(b"alice", 5)) == b"second"


def test_who_names_many_sessions_costs_nobody_else_an_answer() -> None:
    routes = Routes(capacity=100, per_connection_max=80)
    routes.learn(b"alice's", command(b"alice", 5))
    routes.learn(b"alice's", command(b"alice", 0, 6))
    for connection in (b"one of mallory's", b"another of mallory's"):
        for number in range(1, 1000):
            routes.learn(connection, command(b"mallory", number))
            routes.learn(connection, command(b"mallory", 0, number))
    assert routes.of_command(command(b"alice", 5)) == b"alice's"
    assert routes.of_command(command(b"alice", 0, 6)) == b"alice's"
    # A command whose route is forgotten is nobody's: it is not an error.
    assert routes.of_command(command(b"mallory", 1)) is None


def test_an_event_goes_to_the_owner_or_to_everybody() -> None:
    routes = Routes()
    routes.learn(b"alice's", command(b"alice", 5))
    routes.learn(b"mallory's", command(b"mallory", 5))
    assert routes.of_event(t.Event(5, 1, b"", b"alice")) == {b"alice's"}
    assert routes.of_event(t.Event(0, 1, b"")) == {b"alice's", b"mallory's"}
    assert routes.of_event(t.Event(6, 1, b"", b"alice")) == set()
