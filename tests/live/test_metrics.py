"""Histograms, sampled latencies, rates, and the text that Prometheus reads."""

import random
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tara.host.latency import BOUNDS_S, SAMPLE_EVERY, SAMPLES_MAX, Histogram, LatencySampler
from tara.live.observability.metrics import Recent, process_report, quantile_s, recent_report
from tara.live.observability.prometheus import COUNTERS, render
from tara.protocol import tuples as t


def command(session: int, number: int) -> t.Command:
    return t.Command(session, number, 0, b"")


def result(session: int, number: int) -> t.Result:
    return t.Result(session, number, 0, t.OK, b"")


def test_quantiles_are_within_a_bucket_of_the_truth() -> None:
    numbers = random.Random(7)
    values = sorted(numbers.lognormvariate(-6.0, 1.0) for _ in range(10_000))
    histogram = Histogram()
    for value in values:
        histogram.add(value)

    for share in (0.5, 0.9, 0.99):
        found, true = quantile_s(histogram.counts, share), values[int(share * len(values))]
        assert found is not None
        assert true / 1.42 < found < true * 1.42
    assert sum(histogram.counts) == len(values)
    assert histogram.sum_s == pytest.approx(sum(values))


def test_quantiles_of_nothing_and_of_the_largest() -> None:
    histogram = Histogram()
    assert quantile_s(histogram.counts, 0.5) is None
    histogram.add(1e9)
    assert quantile_s(histogram.counts, 0.5) == BOUNDS_S[-1]


def test_bounds_rise_and_a_value_on_a_bound_is_below_it() -> None:
    assert list(BOUNDS_S) == sorted(set(BOUNDS_S))
    histogram = Histogram()
    histogram.add(BOUNDS_S[3])
    assert histogram.counts[3] == 1


def test_one_command_in_sixteen_is_timed() -> None:
    sampler = LatencySampler()
    for number in range(10 * SAMPLE_EVERY):
        sampler.arrived([command(5, number)], 1.0)
        sampler.answered([result(5, number)], lambda: 1.0)

    assert sampler.requests == 10 * SAMPLE_EVERY
    assert sum(sampler.histogram.counts) == 10


def test_a_sample_is_closed_by_its_own_result_only() -> None:
    sampler = LatencySampler()
    sampler.arrived([command(5, 1)], 1.0)
    sampler.answered([result(5, 0), result(6, 1), t.Result(5, 1, 0, t.OVERLOADED, b"")], lambda: 1.0)
    assert sum(sampler.histogram.counts) == 0

    sampler.answered([result(5, 1)], lambda: 1.5)

    assert sum(sampler.histogram.counts) == 1
    assert sampler.histogram.sum_s == 0.5


def test_samples_without_an_answer_are_bounded() -> None:
    sampler = LatencySampler()
    for session in range(1, SAMPLE_EVERY * SAMPLES_MAX * 2):
        sampler.arrived([command(session, 0)], 1.0)

    assert len(sampler._open) == SAMPLES_MAX


def best_s(work: Callable[[], object]) -> float:
    """The shortest of many tries: the one in which the machine did nothing else."""
    times = []
    for _ in range(50):
        begin_s = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin_s)
    return min(times)


def test_the_sampler_costs_little_beside_what_is_done_in_any_case() -> None:
    """Where a microsecond was the bound, the coding of a command took a fifth of one, and so did a sample."""
    sampler = LatencySampler()
    commands = [[command(session, 0)] for session in range(1, 65)]
    results = [[result(session, 0)] for session in range(1, 65)]
    encode, decode = msgspec.msgpack.encode, msgspec.msgpack.Decoder(list[t.Command]).decode

    def sample() -> None:
        for some in commands:
            sampler.arrived(some, 1.0)
        for few in results:
            sampler.answered(few, lambda: 2.0)

    def code() -> None:
        for some in commands:
            decode(encode(some))

    assert best_s(sample) < 5 * best_s(code)


def heartbeat(commands: int, latency: Histogram) -> dict[str, Any]:
    histograms = {"latency": latency.report(), "journal_sync": Histogram().report()}
    return {"counters": {"commands": commands, "results": commands - 1}, "histograms": histograms}


def test_rates_and_latencies_are_those_of_the_last_seconds() -> None:
    recent, latency = Recent(), Histogram()
    assert recent_report([recent])["commands_per_s"] == 0.0
    for second in range(20):
        latency.add(0.001 if second < 10 else 0.1)
        recent.add(float(second), heartbeat(100 * second if second < 10 else 1000 * second, latency))

    report = recent_report([recent, Recent()])

    assert report["commands_per_s"] == 1000.0
    assert report["latency_ms_p50"] == pytest.approx(100.0, rel=0.42)
    assert report["journal_sync_ms_p99"] is None


def test_the_process_has_memory_and_used_time() -> None:
    report = process_report()

    assert report["rss_bytes"] > 10 << 20
    assert report["cpu_s"] > 0


def status() -> dict[str, Any]:
    """Of a cluster of which one container has not reported yet."""
    latency = Histogram()
    for value in (0.0001, 0.001, 0.001, 99.0):
        latency.add(value)
    counters = {key: number for number, (key, _, _) in enumerate(COUNTERS)}
    site = {"container": "site-0", "up": True, "life": 3, "restarts": 2}
    site |= {
        "counters": counters | {"halted": {"executor-0": "AssertionError()"}},
        "histograms": {"latency": latency.report(), "journal_sync": Histogram().report()},
        "process": {"rss_bytes": 1 << 30, "cpu_s": 1.5},
        "executor": {"counter": 9, "sessions": 1, "stable": 4},
        "nodes": {
            "committer-p1-0": {"state": "voting", "view": 7, "position": 5, "resent": 3, "views_entered": 2},
            "proposer-p1-0": {"state": "active", "view": 7},
            "request_source-p1-0": {"state": "open", "pending": 1, "backlog": 0},
            "executor-0": {"state": "halted", "reason": "AssertionError()"},
        },
    }
    names = {"cluster": "ab", "era": 1, "f": 1, "partitions": 2, "packing": "site", "durability": "disk"}
    down = {"container": 'si"te\\1', "up": False, "life": 1, "restarts": 0}
    return names | {"app": "m:A", "log_errors": 5, "containers": [site, down]}


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_text_is_what_prometheus_reads() -> None:
    found = samples(render(status()))
    site = ("container", "site-0")
    node = (site, ("node", "committer-p1-0"), ("partition", "1"))

    assert found["tara_up", (site,)] == 1
    assert found["tara_up", (("container", 'si"te\\1'),)] == 0
    assert found["tara_driver_log_errors_total", ()] == 5
    assert found["tara_halted_nodes", (site,)] == 1
    assert found["tara_resident_memory_bytes", (site,)] == 1 << 30
    assert found["tara_node_view", node] == 7
    assert found["tara_resends_total", node] == 3
    assert found["tara_proposer_active", (site, ("node", "proposer-p1-0"), ("partition", "1"))] == 1
    for number, (_, name, _) in enumerate(COUNTERS):
        assert found[name, (site,)] == number


def test_every_metric_has_a_type_and_a_help_and_is_there_once() -> None:
    lines = render(status()).splitlines()
    helps = [line.split()[2] for line in lines if line.startswith("# HELP")]
    types = [line.split()[2] for line in lines if line.startswith("# TYPE")]

    assert helps == types
    assert len(set(types)) == len(types)
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        assert family.documentation
        assert family.type in ("counter", "gauge", "histogram")


def test_buckets_are_cumulative_and_end_with_infinity() -> None:
    families = {family.name: family for family in text_string_to_metric_families(render(status()))}
    latency = families["tara_latency_seconds"]
    buckets = [sample for sample in latency.samples if sample.name.endswith("_bucket")]
    values = [sample.value for sample in buckets]

    assert values == sorted(values)
    assert buckets[-1].labels["le"] == "+Inf"
    assert values[-1] == 4
    assert values[-2] == 3
    assert [sample.value for sample in latency.samples if sample.name.endswith("_count")] == [4]
    assert [sample.value for sample in latency.samples if sample.name.endswith("_sum")] == [pytest.approx(99.0021)]
