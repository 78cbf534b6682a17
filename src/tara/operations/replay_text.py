"""`tara replay` for people and for programs."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from tara.operations.log_text import short
from tara.operations.replay import LISTED_MAX, Difference, ReplayOrder, ReplayReport, State, replay

PROGRESS_S = 0.5


def run_replay(data_dir: Path, request: ReplayOrder, as_json: bool, echo: Callable[[str], None]) -> bool:
    """Replay, and say what came of it; whether results differ."""
    progress = _Progress()
    report = replay(data_dir, request, progress.add)
    progress.end()
    if as_json:
        echo(msgspec.json.encode(report).decode())
    else:
        for line in _lines(report):
            echo(line)
    return bool(report.differing)


class _Progress:
    """How many commands are done, on a terminal."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._count = 0
        self._due_s = time.monotonic() + PROGRESS_S
        self._any = False

    def add(self, count: int) -> None:
        self._count += count
        if self._shown and time.monotonic() >= self._due_s:
            self._due_s = time.monotonic() + PROGRESS_S
            self._any = True
            sys.stderr.write(f"\r{self._count} commands")
            sys.stderr.flush()

    def end(self) -> None:
        if self._any:
            sys.stderr.write("\r\x1b[K")


def _lines(report: ReplayReport) -> list[str]:
    seconds, milliseconds = divmod(report.time_ms, 1000)
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))
    began = f"base {report.base}, command {report.began_after}" if report.base else "the beginning"
    lines = [
        f"as of command {report.to}, {when}.{milliseconds:03}: {report.commands} commands executed again from {began}",
        _state(report.state),
    ]
    if report.against is not None:
        lines.append(_state(report.against))
    if report.differing is None:
        return lines
    lines.append(f"{report.differing} commands have other results")
    lines += map(_difference, report.differences)
    if report.differing > LISTED_MAX:
        lines.append(f"… and {report.differing - LISTED_MAX} more")
    return lines


def _state(state: State) -> str:
    answer = "" if state.answer is None else f", answers {_answer(state.answer)}"
    return f"{state.app}: {state.bytes} bytes of state, digest {state.digest}{answer}"


def _difference(difference: Difference) -> str:
    answers = {"recorded": difference.recorded, "replayed": difference.replayed, "against": difference.against}
    told = ", ".join(f"{name} {_answer(answer)}" for name, answer in answers.items() if answer is not None)
    return f"{difference.counter:>10}  {difference.kind:8}{short(difference.command)}: {told}"


def _answer(answer: list[object]) -> str:
    status, result = answer
    return short(result) if status == "ok" else f"{status}: {short(result)}"
