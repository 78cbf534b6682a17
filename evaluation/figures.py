"""The evaluation's figures, as SVG and PNG. Drawn from the results only."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from evaluation import failures, reference
from evaluation.results import (
    Point,
    Results,
    Section,
    Series,
    gap,
    latency_p50,
    throughput,
)
from evaluation.step_costs import JOURNAL

#: Colours that can be told apart also by those who see few, in the order in which curves take them.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_MARKERS = "osD^vPX"
_OWN_COLOUR = _COLOURS[0]
_KIND_STYLES = {
    failures.CRASH: ("#C00000", "-"),
    failures.VIEW_CHANGE: ("#E69F00", "--"),
    failures.RESTART: ("#56B4E9", "-."),
    failures.FULL_STRENGTH: ("#009E73", ":"),
}
WIDTH, HEIGHT = 6.4, 4.0


def draw_all(results: Results, directory: Path) -> list[str]:
    """Draw what there are results for; returns the names of the figures."""
    directory.mkdir(parents=True, exist_ok=True)
    drawn = []
    settings: Any = {
        "font.size": 10,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "grid.alpha": 0.3,
        # Text stays text; and equal figures give equal files.
        "svg.fonttype": "none",
        "svg.hashsalt": "tara",
    }
    with mpl.rc_context(settings):
        for name, draw in FIGURES.items():
            figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
            FigureCanvasAgg(figure)
            if not draw(results, figure.subplots()):
                continue
            # Without the date, so that equal results give equal files.
            figure.savefig(directory / f"{name}.svg", metadata={"Date": None})
            figure.savefig(directory / f"{name}.png", dpi=150)
            drawn.append(name)
    return drawn


def _section(results: Results, name: str) -> Section | None:
    section = results.sections.get(name)
    return section if section is not None and (section.series or section.timelines or section.steps) else None


def _all_series(results: Results, *names: str) -> list[Series]:
    """Those with points: an experiment that failed may have left empty ones."""
    found = [series for name in names if (section := _section(results, name)) for series in section.series]
    return [series for series in found if series.points]


def _thousands(axis_value: float, _: int) -> str:
    return f"{axis_value / 1e3:g}"


def _throughput_axis(axes: Axes) -> None:
    axes.set_xlabel("Throughput [1,000 requests/s]")
    axes.xaxis.set_major_formatter(FuncFormatter(_thousands))
    axes.set_xlim(left=0)


def _error_bars(points: Sequence[Point], of: Callable[..., float]) -> tuple[list[float], list[float]] | None:
    """From the least to the largest; none where nothing was repeated."""
    if all(len(point.samples) < 2 for point in points):
        return None
    spreads = [point.spread(of) for point in points]
    return [low for low, _ in spreads], [high for _, high in spreads]


def _curves(axes: Axes, series: Iterable[Series], label: Callable[[Series], str]) -> None:
    """Throughput to the right, latency upwards, one mark per number of clients."""
    for number, each in enumerate(series):
        points = sorted(each.points, key=lambda point: point.clients)
        axes.errorbar(
            [point.throughput_per_s for point in points],
            [point.median(latency_p50) for point in points],
            xerr=_error_bars(points, throughput),
            yerr=_error_bars(points, latency_p50),
            label=label(each),
            color=_COLOURS[number % len(_COLOURS)],
            marker=_MARKERS[number % len(_MARKERS)],
            markersize=5,
            capsize=2,
        )
        for point in (points[0], points[-1]):
            axes.annotate(
                f"{point.clients}",
                (point.throughput_per_s, point.median(latency_p50)),
                textcoords="offset points",
                xytext=(5, 5),
                fontsize=8,
                color=_COLOURS[number % len(_COLOURS)],
            )
    axes.set_yscale("log")
    axes.set_ylabel("Latency, median [ms]")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    _throughput_axis(axes)


def _paper_line(axes: Axes, value: float, text: str) -> None:
    axes.axvline(value, color="#777777", linestyle="--", linewidth=1, label=text)
    axes.set_xlim(right=max(axes.get_xlim()[1], value * 1.08))


def _legend(axes: Axes, **where: Any) -> None:
    axes.legend(fontsize=8, framealpha=0.9, **where)


def _legend_below(axes: Axes, ncols: int, **what: Any) -> None:
    """Where lines go everywhere."""
    _legend(axes, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=ncols, **what)


def unbatched(results: Results, axes: Axes) -> bool:
    series = [*_all_series(results, "unbatched"), *_all_series(results, "coordination")]
    if not series:
        return False
    _curves(axes, series, lambda each: each.label)
    _paper_line(axes, reference.PAPER_UNBATCHED_PER_S, "paper: Tara on Heron, maximum")
    axes.axvline(
        reference.BFT_SMART_UNBATCHED_PER_S,
        color="#777777",
        linestyle=":",
        linewidth=1,
        label="paper: BFT-SMaRt, maximum",
    )
    axes.set_title("Unbatched: one command per request (numbers: clients)")
    _legend_below(axes, 2)
    return True


def batched(results: Results, axes: Axes) -> bool:
    series = _all_series(results, "batched")
    if not series:
        return False
    _curves(axes, series, lambda each: each.label)
    _paper_line(axes, reference.PAPER_BATCHED_PER_S, f"paper: batch size {reference.PAPER_BATCH_SIZE}, maximum")
    axes.set_title("Batched: several commands per request (numbers: clients)")
    _legend_below(axes, 3)
    return True


def partitions(results: Results, axes: Axes) -> bool:
    series = _all_series(results, "partitions")
    if not series:
        return False
    points = series[0].points
    axes.bar(
        [point.x for point in points],
        [point.throughput_per_s for point in points],
        yerr=_error_bars(points, throughput),
        color=_OWN_COLOUR,
        width=0.6,
        capsize=3,
        label=series[0].label,
    )
    first = points[0].throughput_per_s
    axes.plot(
        [point.x for point in points],
        [first * point.x / points[0].x for point in points],
        color="#555555", marker="_", markersize=14, linestyle=":", label="P times that of one partition",
    )  # fmt: skip
    for point in points:
        axes.annotate(
            f"{point.throughput_per_s / first:.2f} ×" if first else "",
            (point.x, point.throughput_per_s / 2),
            ha="center",
            color="white",
        )
    axes.set_xlabel("Partitions P")
    axes.set_ylabel("Throughput [requests/s]")
    axes.set_xticks([point.x for point in points])
    axes.grid(visible=False, axis="x")
    axes.set_title("Partitions with throttled proposers")
    _legend(axes, loc="upper left")
    return True


def proposer_failures(results: Results, axes: Axes) -> bool:
    section = _section(results, "failures")
    if section is None or not section.timelines:
        return False
    timeline = section.timelines[0]
    axes.plot(
        [at_s for at_s, _ in timeline.rates],
        [rate for _, rate in timeline.rates],
        color="#333333",
        linewidth=1,
        label="throughput",
    )
    known: set[str] = set()
    for moment in timeline.moments:
        colour, style = _KIND_STYLES[moment.kind]
        axes.axvline(
            moment.at_s,
            color=colour,
            linestyle=style,
            linewidth=1.3,
            label=None if moment.kind in known else moment.kind,
        )
        known.add(moment.kind)
    axes.set_xlabel("Time [s]")
    axes.set_ylabel("Throughput [1,000 requests/s]")
    axes.yaxis.set_major_formatter(FuncFormatter(_thousands))
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0, right=timeline.rates[-1][0] if timeline.rates else None)
    axes.set_title("The active proposer's site is killed, twice")
    _legend_below(axes, 5)
    return True


def durability(results: Results, axes: Axes) -> bool:
    series = [each for each in _all_series(results, "unbatched", "durability") if each.setting == "key-value"]
    if not _all_series(results, "durability"):
        return False
    names = {"disk": "votes on disk (fsync)", "memory": "votes in memory"}
    _curves(axes, series, lambda each: names[each.durability])
    axes.set_title("Durability (numbers: clients)")
    _legend(axes)
    return True


def faults(results: Results, axes: Axes) -> bool:
    series = _all_series(results, "faults")
    if not series:
        return False
    _grouped_bars(axes, series, [point.clients for point in series[0].points], throughput)
    axes.set_xlabel("Clients")
    axes.set_ylabel("Throughput [1,000 requests/s]")
    axes.yaxis.set_major_formatter(FuncFormatter(_thousands))
    axes.set_title("Three sites (f = 1) and five (f = 2)")
    _legend(axes)
    return True


def _grouped_bars(axes: Axes, series: Sequence[Series], groups: Sequence[int], of: Callable[..., float]) -> None:
    """A group of bars for each number of clients, in it a bar for each series."""
    width = 0.8 / max(len(series), 1)
    for number, each in enumerate(series):
        found = [(place, point) for place, clients in enumerate(groups) if (point := each.at(clients)) is not None]
        points = [point for _, point in found]
        axes.bar(
            [place + (number - (len(series) - 1) / 2) * width for place, _ in found],
            [point.median(of) for point in points],
            yerr=_error_bars(points, of),
            width=width * 0.92,
            capsize=2,
            label=each.label,
            color=_COLOURS[number % len(_COLOURS)],
        )
    axes.set_xticks(range(len(groups)), [f"{clients}" for clients in groups])
    axes.grid(visible=False, axis="x")


def payload(results: Results, axes: Axes) -> bool:
    series = _all_series(results, "payload")
    if not series:
        return False
    bytes_axes = axes.twinx()
    for number, each in enumerate(series):
        sizes = [point.x for point in each.points]
        colour, marker = _COLOURS[number % len(_COLOURS)], _MARKERS[number % len(_MARKERS)]
        axes.errorbar(
            sizes,
            [point.throughput_per_s for point in each.points],
            yerr=_error_bars(each.points, throughput),
            color=colour,
            marker=marker,
            capsize=3,
            label=f"{each.setting}: requests/s (left)",
        )
        bytes_axes.plot(
            sizes,
            [point.throughput_per_s * point.x / (1 << 20) for point in each.points],
            color=colour,
            marker=marker,
            linestyle="--",
            label=f"{each.setting}: MiB/s (right)",
        )
    sizes = sorted({point.x for each in series for point in each.points})
    axes.set_xscale("log", base=2)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(sizes, [_size(size) for size in sizes])
    axes.set_xlabel("Value written")
    axes.set_ylabel("Throughput [1,000 requests/s]")
    axes.yaxis.set_major_formatter(FuncFormatter(_thousands))
    axes.set_ylim(bottom=0)
    bytes_axes.spines["right"].set_visible(True)
    bytes_axes.set_ylabel("Values [MiB/s]")
    bytes_axes.set_ylim(bottom=0)
    bytes_axes.grid(visible=False)
    axes.set_title("Size of the values")
    lines = [*axes.get_legend_handles_labels()[0], *bytes_axes.get_legend_handles_labels()[0]]
    _legend_below(axes, 2, handles=lines)
    return True


def _size(count: float) -> str:
    return f"{count / 1024:g} KiB" if count >= 1024 else f"{count:g} B"


def reads(results: Results, axes: Axes) -> bool:
    series = _all_series(results, "reads")
    if not series:
        return False
    for each, line in zip(series, ("-", "--"), strict=False):
        points = each.points
        axes.errorbar(
            [point.x for point in points],
            [point.throughput_per_s for point in points],
            yerr=_error_bars(points, throughput),
            color=_OWN_COLOUR, marker="o", linestyle=line, capsize=3, label=each.durability,
        )  # fmt: skip
    axes.legend()
    axes.set_xlabel("Share of linearizable reads [%]")
    axes.set_ylabel("Throughput [1,000 requests/s]")
    axes.yaxis.set_major_formatter(FuncFormatter(_thousands))
    axes.set_ylim(bottom=0)
    axes.set_title(f"Reads and writes, {series[0].points[0].clients} clients")
    return True


def steps(results: Results, axes: Axes) -> bool:
    section = _section(results, "steps")
    if section is None:
        return False
    found = [step for step in reversed(section.steps) if step.step != JOURNAL]
    medians = [sorted(step.microseconds)[len(step.microseconds) // 2] for step in found]
    axes.barh([step.step for step in found], medians, color=_OWN_COLOUR)
    for place, value in enumerate(medians):
        axes.annotate(
            f"{value:.2f}", (value, place), textcoords="offset points", xytext=(4, 0), va="center", fontsize=8
        )
    axes.margins(x=0.12)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("Time per request, all three sites [µs]")
    axes.set_title("What a request costs, by step")
    return True


def _peer_curves(durability: str) -> Callable[[Results, Axes], bool]:
    def draw(results: Results, axes: Axes) -> bool:
        theirs = [each for each in _all_series(results, "peers") if each.durability == durability]
        own = _all_series(results, "unbatched" if durability == "memory" else "durability")
        if not theirs:
            return False
        _curves(axes, [*own[:1], *theirs], lambda each: each.system)
        where = "data on disk" if durability == "disk" else "data in memory"
        axes.set_title(f"Peers: {where} (numbers: clients)")
        _legend(axes)
        return True

    return draw


def leader_kill(results: Results, axes: Axes) -> bool:
    series = _all_series(results, "leader_kill")
    if not series:
        return False
    points = [each.points[0] for each in series]
    axes.bar(
        [each.system for each in series],
        [point.median(gap) for point in points],
        yerr=_error_bars(points, gap),
        color=[_COLOURS[number % len(_COLOURS)] for number in range(len(points))],
        width=0.6,
        capsize=3,
    )
    for place, point in enumerate(points):
        axes.annotate(
            f"{point.median(gap):.0f} ms",
            (place, point.median(gap)),
            textcoords="offset points",
            xytext=(0, 4),
            ha="center",
            fontsize=9,
        )
    axes.margins(y=0.12)
    axes.grid(visible=False, axis="x")
    axes.set_ylabel("Longest time without an answer [ms]")
    axes.set_title(f"The leader is killed under load, {points[0].clients} clients")
    return True


FIGURES: dict[str, Callable[[Results, Axes], bool]] = {
    "unbatched": unbatched,
    "batched": batched,
    "partitions": partitions,
    "failures": proposer_failures,
    "durability": durability,
    "faults": faults,
    "payload": payload,
    "reads": reads,
    "steps": steps,
    "peers-disk": _peer_curves("disk"),
    "peers-memory": _peer_curves("memory"),
    "leader-kill": leader_kill,
}
