"""What nodes count for those who watch: repetitions and views. The counts change nothing that they emit."""

from tara.protocol import tuples as t
from tara.protocol.graph import Stage
from tara.protocol.nodes.committer import Committer
from tara.protocol.nodes.request_source import RequestSource
from tests.protocol.driver import Bench, open_session


def test_a_request_source_counts_requests_that_it_sends_again() -> None:
    bench = Bench()
    source = bench.make(RequestSource, Stage.REQUEST_SOURCE)
    source.feed(t.Submit([open_session(1), open_session(2)]))
    assert source.node.resent == 0

    sent = []
    for round_ in range(1, 5):
        step = source.tick(round_ * bench.limits.report_interval_ms)
        sent += [(tuple_, receivers) for tuple_, receivers in step.emitted if isinstance(tuple_, t.Requests)]

    to_proposers = [run for run, receivers in sent if receivers == bench.graph.all(Stage.PROPOSER)]
    relayed = [run for run, receivers in sent if receivers == bench.graph.others(Stage.REQUEST_SOURCE, 0)]
    assert to_proposers == relayed
    assert source.node.resent == sum(len(run.requests) for run in to_proposers) > 0
    assert (source.node.pending, source.node.backlog) == (2, 0)


def test_a_committer_counts_the_views_it_enters_and_the_records_it_sends_again() -> None:
    bench = Bench()
    committer = bench.make(Committer, Stage.COMMITTER)
    committer.feed(*bench.views(1))
    committer.feed(*bench.views(1, sources=[2]))
    committer.feed(*bench.views(4))
    assert (committer.node.views_entered, committer.node.resent) == (2, 0)

    records = []
    for round_ in range(1, 12):
        step = committer.tick(round_ * bench.limits.report_interval_ms)
        records += [tuple_ for tuple_, _ in step.emitted if isinstance(tuple_, t.Record)]

    assert records
    assert committer.node.resent == len(records)
