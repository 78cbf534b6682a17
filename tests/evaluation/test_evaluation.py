"""The evaluation: results on disk, figures, the report, and tiny real runs."""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from matplotlib.image import imread
from typer.testing import CliRunner

from evaluation import figures, reference, report, results
from evaluation.code_lines import PAPER_CATEGORIES
from evaluation.experiments import DISK, EXPERIMENTS, MEMORY, OWN, evaluate
from evaluation.failures import CRASH, FULL_STRENGTH, RESTART, VIEW_CHANGE, service_after_last_crash
from evaluation.machine import Machine, describe
from evaluation.peers.etcd import Etcd
from evaluation.peers.zookeeper import ZooKeeper
from evaluation.plan import COMPARED_CLIENTS, Plan, quick_plan, whole_plan
from evaluation.results import (
    Moment,
    Point,
    Results,
    ResultsError,
    Sample,
    Section,
    Series,
    Step,
    Timeline,
    throughput,
)
from evaluation.step_costs import JOURNAL, PEER_FRAMES, step_costs
from tara.bench.processors import CpuMeter, CpuUse
from tara.cli import app
from tara.protocol.errors import ConfigurationError


def tiny(directory: Path, **changes: object) -> Plan:
    plan = quick_plan(directory, directory, 0.5)
    fast = {"warm_up_s": 0.2, "first_warm_up_s": 0.2, "clients": (2, 8), "step_requests": 500}
    return msgspec.structs.replace(plan, **(fast | changes))


def silent(line: str) -> None:
    pass


def test_the_quick_plan_measures_once_with_four_loads_and_the_whole_one_at_least_three_times(tmp_path: Path) -> None:
    quick, whole = quick_plan(tmp_path, tmp_path), whole_plan(tmp_path, tmp_path)
    assert (quick.repetitions, len(quick.clients), quick.crashes_at_s) == (1, 4, (15.0, 30.0))
    assert whole.repetitions >= 3
    assert (whole.clients[0], whole.clients[-1], whole.crashes_at_s) == (1, 512, (60.0, 120.0))
    for plan in (quick, whole):
        assert set(COMPARED_CLIENTS) <= set(plan.clients)
        assert plan.batch_sizes[0] == reference.PAPER_BATCH_SIZE < plan.batch_sizes[-1]
        assert plan.partitions == (1, 2, 3, 4)
        assert (plan.payload_bytes[0], plan.payload_bytes[-1]) == (64, 65_536)
        assert (plan.read_shares[0], plan.read_shares[-1]) == (0.0, 1.0)


def test_the_references_are_the_papers_sums() -> None:
    assert sum(reference.BFT_SMART_LINES.values()) == 3_997
    assert sum(reference.PAPER_LINES.values()) == 1_476


def sample(rate: float, cpu: CpuUse | None = None) -> Sample:
    return Sample(throughput_per_s=rate, latency_ms_p50=2.0, latency_ms_p99=9.0, gap_ms_max=rate / 10, cpu=cpu)


def test_a_point_has_a_median_and_a_spread() -> None:
    point = Point(x=1, clients=1, samples=[sample(10.0), sample(40.0), sample(20.0)])
    assert point.throughput_per_s == 20.0
    assert point.spread(throughput) == (10.0, 20.0)
    assert point.server_us is None


def test_the_cost_of_a_request_is_processor_time_over_answers() -> None:
    point = Point(x=1, clients=1, samples=[sample(10_000.0, CpuUse(client=0.1, server=0.5, other=0.0)), sample(0.0)])
    assert point.server_us == pytest.approx(50.0)


def test_results_come_back_from_the_file(tmp_path: Path) -> None:
    found = all_results()
    results.save(found, tmp_path / "deep" / "results.json")
    assert results.load(tmp_path / "deep" / "results.json") == found
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["results.json"]


def test_no_file_is_no_results_and_a_bad_one_is_an_error(tmp_path: Path) -> None:
    assert results.load(tmp_path / "results.json") == Results()
    (tmp_path / "results.json").write_text('{"version": 1, "sections"')
    with pytest.raises(ResultsError, match=r"results\.json"):
        results.load(tmp_path / "results.json")
    (tmp_path / "results.json").write_text('{"version": 99}')
    with pytest.raises(ResultsError, match="format 99"):
        results.load(tmp_path / "results.json")


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ResultsError, match="cannot be written"):
        results.save(Results(), tmp_path / "file" / "results.json")


PEER_NAMES = ("etcd", "zookeeper", "pysyncobj")


def series(
    system: str, setting: str, durability: str, points: Mapping[int, float], clients: int | None = None
) -> Series:
    cpu = CpuUse(client=0.2, server=1.5, other=0.01)
    return Series(
        system=system,
        setting=setting,
        durability=durability,
        points=[
            Point(x=x, clients=clients or int(x), samples=[sample(rate * share, cpu) for share in (0.9, 1.0, 1.2)])
            for x, rate in points.items()
        ],
    )


CURVE = {1: 1_000.0, 64: 14_000.0, 256: 20_000.0}


def timeline() -> Timeline:
    rates = [(second / 4, 0.0 if 20 <= second <= 22 else 10_000.0) for second in range(1, 80)]
    kinds = [(5.0, CRASH), (5.4, VIEW_CHANGE), (6.0, RESTART), (7.0, FULL_STRENGTH), (12.0, CRASH)]
    moments = [Moment(at_s=at_s, kind=kind, what="site-1") for at_s, kind in kinds]
    return Timeline(interval_s=0.25, rates=rates, moments=moments, gap_ms_max=640.0, lost=0)


def all_results() -> Results:
    machine = Machine(
        processor="Z80",
        cores=2,
        memory_gib=24.0,
        kernel="Linux",
        disk="ext4",
        disk_sync_ms=0.5,
        load_before=0.1,
        versions=dict.fromkeys(("tara", *PEER_NAMES), "1.0"),
    )

    def section(**content: object) -> Section:
        given = {"measured_at": "2026-01-01T00:00:00+00:00", "took_s": 1.0, "seconds": 3.0, "repetitions": 3}
        return Section(quick=False, machine=machine, **(given | content))  # type: ignore[arg-type]

    peers = [series(name, "", where, CURVE) for name in PEER_NAMES for where in (DISK, MEMORY)]
    peers[1] = series("etcd", "", MEMORY, {64: 28_000.0, 256: 10_000.0})
    return Results(
        sections={
            "effort": section(
                lines={"total": 3_000, **dict.fromkeys(PAPER_CATEGORIES, 500), "storage": 500}, packages={"net": 3_000}
            ),
            "unbatched": section(series=[series(OWN, "key-value", MEMORY, CURVE)]),
            "coordination": section(series=[series(OWN, "coordination service, setData", MEMORY, CURVE)]),
            "batched": section(series=[series(OWN, f"batch size {size}", MEMORY, CURVE) for size in (5, 50)]),
            "durability": section(series=[series(OWN, "key-value", DISK, CURVE)]),
            "partitions": section(series=[series(OWN, "throttled", MEMORY, {1: 800, 2: 1_600, 4: 3_100}, 128)]),
            "failures": section(timelines=[timeline()]),
            "faults": section(series=[series(OWN, f"f = {f}", MEMORY, CURVE) for f in (1, 2)]),
            "payload": section(
                series=[series(OWN, f"{n} clients", MEMORY, {64: 9_000 + n, 65_536: 500}, n) for n in (16, 64)]
            ),
            "reads": section(
                series=[
                    series(OWN, "", DISK, {0: 5_000, 50: 7_000, 100: 19_000}, 64),
                    series(OWN, "", MEMORY, {0: 9_000, 50: 12_000, 100: 20_000}, 64),
                ]
            ),
            "steps": section(
                steps=[Step(step="executors", microseconds=[9.0]), Step(step=JOURNAL, microseconds=[50.0])]
            ),
            "peers": section(series=peers, skipped=["other: not installed (apt-get install other)"]),
            "leader_kill": section(
                series=[series(name, "", DISK, {64: 6_000.0 + len(name)}) for name in (OWN, *PEER_NAMES)]
            ),
        }
    )


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a report on everything: its page, and its figures."""
    directory = tmp_path_factory.mktemp("published")
    drawn = report.publish(all_results(), directory / "page.md", directory / "figures")
    assert drawn == list(figures.FIGURES)
    return directory


def test_every_figure_is_drawn_as_svg_and_png_with_axes_and_units(published: Path) -> None:
    directory = published / "figures"
    for name in figures.FIGURES:
        text = " ".join(ElementTree.parse(directory / f"{name}.svg").getroot().itertext())
        assert any(unit in text for unit in ("requests/s]", "[ms]", "[µs]")), name
        height, width = imread(directory / f"{name}.png").shape[:2]
        assert width > height > 500
    assert "[1,000 requests/s]" in (directory / "unbatched.svg").read_text()


def test_equal_results_give_equal_figures(published: Path, tmp_path: Path) -> None:
    figures.draw_all(all_results(), tmp_path)
    for name in figures.FIGURES:
        assert (tmp_path / f"{name}.svg").read_bytes() == (published / "figures" / f"{name}.svg").read_bytes()


def test_without_results_there_is_a_report_without_figures(tmp_path: Path) -> None:
    assert report.publish(Results(), tmp_path / "page.md", tmp_path / "figures") == []
    assert "Nothing has been measured" in (tmp_path / "page.md").read_text()


def test_experiments_that_failed_half_way_spoil_nothing(tmp_path: Path) -> None:
    found = all_results()
    for section in found.sections.values():
        section.steps, section.timelines, section.lines = [], [], {}
        for each in section.series:
            each.points = []
    assert report.publish(found, tmp_path / "page.md", tmp_path) == []


def test_the_report_has_every_figure_and_ratio(published: Path) -> None:
    page = (published / "page.md").read_text()
    assert all(f"(figures/{name}.svg)" in page for name in figures.FIGURES)
    # The paper's maximum, partitions, crashes, lines.
    assert "| requests/s, unbatched, memory | 20,000 | 13,000 (the paper's; 1.54 ×) | yes |" in page
    assert "| requests/s, batch size 5, memory | 20,000 | 40,000 (the paper's; 0.50 ×) | no |" in page
    assert "| throughput of the most partitions ÷ that of one | 3.88 | 3.6 | yes |" in page
    assert "| service after the second crash ÷ before the first | 1.00 |" in page
    assert "| **the live path** |  |  | **3,000** |  |  |" in page
    assert "| `net` | live path | 3,000 |" in page
    # Peers, with the spread of the repetitions.
    assert "| etcd | 64 | 28,000 (25,200–33,600) | 0.50 |" in page
    assert "**etcd is ahead** with 64 clients, memory: 2.00 times our throughput" in page
    assert "other: not installed (apt-get install other)" in page
    assert page.count("is ahead") == 1
    assert "| 65,536 | memory | 64 | 500 (450–600) | 0.06 |" in page


def test_the_report_says_what_is_doubtful(tmp_path: Path) -> None:
    found = all_results()
    section = found.sections["unbatched"]
    section.quick, section.seconds, section.failure = True, 1.0, "LoadError: no answer"
    section.series[0].points[0].samples[0].cpu = CpuUse(client=0.95, server=0.5, other=0.7)
    section.series[0].points[0].samples[0].errors = 3
    del found.sections["reads"]
    report.publish(found, tmp_path / "page.md", tmp_path)
    page = (tmp_path / "page.md").read_text()
    for text in (
        "each point once, so without a spread: unbatched",
        "too short to be trusted: unbatched",
        "Not measured: reads",
        "`unbatched` failed: LoadError: no answer",
        "something else used the machine (up to 0.70 cores)",
        "3 answers were errors",
        "may be what limits: Tara with 1",
    ):
        assert text in page


def test_service_after_the_last_crash_is_a_share_of_that_before_the_first() -> None:
    found = timeline()
    assert service_after_last_crash(found) == pytest.approx(1.0)
    found.rates = [(at_s, 0.0 if at_s > 12 else rate) for at_s, rate in found.rates]
    assert service_after_last_crash(found) == 0.0


def test_the_machine_is_described(tmp_path: Path) -> None:
    machine = describe(tmp_path)
    assert machine.cores >= 1
    assert machine.disk_sync_ms > 0
    assert machine.versions["tara"].startswith("0.")
    assert list(tmp_path.iterdir()) == []


def test_a_meter_tells_who_used_the_processors() -> None:
    meter = CpuMeter([], os.getpid())
    end_s = time.process_time() + 0.2
    while time.process_time() < end_s:
        pass
    used = meter.stop()
    assert used.client is not None
    assert used.client > 0
    assert used.server == 0.0


def test_steps_are_measured_on_the_real_code(tmp_path: Path) -> None:
    costs = step_costs(500, 16, 64, tmp_path)
    assert all(microseconds > 0 for microseconds in costs.values())
    assert {"request source", "proposers", "committers", "executors", PEER_FRAMES, JOURNAL} <= set(costs)
    assert list((tmp_path / "journal-2").glob("*"))


def test_an_unknown_experiment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no experiment 'speed'; there are effort"):
        evaluate(tiny(tmp_path), ["speed"], tmp_path / "results.json", silent)


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such directory"):
        evaluate(tiny(tmp_path / "none"), ["effort"], tmp_path / "results.json", silent)


def test_what_fails_is_written_down_and_the_rest_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(run: object) -> None:
        """Breaks."""
        raise ResultsError("no luck")

    monkeypatch.setitem(EXPERIMENTS, "effort", broken)
    found = evaluate(tiny(tmp_path), ["effort", "steps"], tmp_path / "results.json", silent)
    assert found.sections["effort"].failure == "ResultsError: no luck"
    assert found.sections["steps"].steps
    assert results.load(tmp_path / "results.json") == found


def test_a_missing_peer_is_skipped_with_a_line_that_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("evaluation.experiments.PEERS", (Etcd, ZooKeeper))
    found = evaluate(tiny(tmp_path), ["peers"], tmp_path / "results.json", silent)
    assert found.sections["peers"].skipped == [
        "etcd: not installed (apt-get install etcd-server)",
        "zookeeper: not installed (apt-get install zookeeper)",
    ]
    assert found.sections["peers"].series == []


def test_the_command_writes_results_figures_and_report(tmp_path: Path) -> None:
    arguments = ["--quick", "--output", str(tmp_path / "out"), "--page", str(tmp_path / "page.md")]
    result = CliRunner().invoke(app, ["bench", "paper", "--only", "effort", *arguments])
    assert result.exit_code == 0, result.output
    written = json.loads((tmp_path / "out" / "results.json").read_text())
    effort = written["sections"]["effort"]
    assert sum(effort["packages"].values()) == effort["lines"]["total"] > 0
    (tmp_path / "page.md").unlink()
    assert CliRunner().invoke(app, ["bench", "paper", "--redraw", *arguments]).exit_code == 0
    assert "## Development effort" in (tmp_path / "page.md").read_text()


@pytest.mark.slow
@pytest.mark.spark
def test_a_tiny_run_on_real_clusters(tmp_path: Path) -> None:
    """Two throttled partitions; and a leader that is killed while the moments are noted."""
    plan = tiny(tmp_path, seconds=2.0, partitions=(2,), crashes_at_s=(1.0,), failures_seconds=3.0)
    found = evaluate(plan, ["partitions", "failures"], tmp_path / "results.json", silent)
    assert [section.failure for section in found.sections.values()] == ["", ""]
    (point,) = found.sections["partitions"].series[0].points
    # At most twice the throttle; whatever else the machine does can only make it less.
    assert 0 < point.throughput_per_s < 2.2 * reference.THROTTLED_PER_S
    (only,) = point.samples
    assert only.cpu is not None and only.cpu.client is not None
    assert 0 < only.cpu.client < only.cpu.server
    (seen,) = found.sections["failures"].timelines
    assert {CRASH, VIEW_CHANGE, RESTART, FULL_STRENGTH} <= {moment.kind for moment in seen.moments}
    # All were answered at last, also those who waited when the leader died: the service went on.
    assert seen.lost == 0
    assert sum(rate for _, rate in seen.rates) > 0
