"""Which lines of what ships a campaign reaches: what no seed runs, no seed can find a defect in.

The campaign runs in interpreters of its own, under coverage.py, so that every line counts from the first import on.
"""

import os
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import msgspec
from msgspec import Struct

import tara
from tara.protocol.errors import ConfigurationError, TaraError
from tara.simulator.campaign import Job, run_seed
from tara.simulator.missed_lines import Explained, explain
from tara.simulator.unreached import UNREACHED

#: What each package of the report is, below `tara`.
PACKAGES = {
    "protocol": "protocol",
    "host": "host",
    "client": "client",
    "storage": "storage",
    "gateway": "apps/coordination/gateway",
}
#: What the simulator cannot run, and why.
OMITTED = {
    "client/connection.py": "sockets and threads",
    "client/key_value.py": "typed calls of the client with sockets; it decides nothing",
    "client/secrets.py": "reads files and the environment",
    "storage/disk.py": "the real disk",
    "storage/worker.py": "threads",
    "storage/log_reader.py": "reads logs for people and Spark; no site does",
    "storage/log_rows.py": "reads logs for people and Spark; no site does",
    "apps/coordination/gateway/__init__.py": "makes the gateway that has sockets, with what an operator has configured",
    "apps/coordination/gateway/allowance.py": "the time that handshakes of TLS may take; the listener's",
    "apps/coordination/gateway/listener.py": "sockets",
    "apps/coordination/gateway/stream.py": "sockets",
}


#: What each package has to reach.
PERCENT_MIN = 95.0


class Coverage(Struct, kw_only=True):
    #: Percent of the lines.
    packages: dict[str, float]
    #: Lines that no seed reached, by file.
    missed: dict[str, list[int]]
    #: Of those, what it is known of why no seed gets there: by file and place (`tara.simulator.unreached`).
    explained: dict[str, dict[str, Explained]]
    #: And those of which nothing is known.
    unexplained: dict[str, list[int]]
    #: Places that have an explanation and were reached.
    reached_after_all: dict[str, list[str]]
    #: Files that do not count, and why.
    omitted: dict[str, str]
    seeds: int
    seconds: float
    violations: list[str]

    @property
    def holds(self) -> bool:
        return not self.violations and min(self.packages.values()) >= PERCENT_MIN


def jobs_of(seeds: int) -> list[Job]:
    """All shapes, and both applications with a simulation of their own; most with journals."""
    jobs = []
    for seed in range(seeds):
        match seed % 10:
            case 0:
                jobs.append(Job(seed, 2, 1))
            case 1 | 2:
                jobs.append(Job(seed, 1, 3, "disk"))
            case 3 | 4:
                # With one container per site, most of them have gateways.
                jobs.append(Job(seed, 1, 1, app="coordination", packing="site"))
            case 5:
                jobs.append(Job(seed, 1, 1, "memory"))
            case 9:
                jobs.append(Job(seed, 1, 1, "disk", kind="fatal"))
            case _:
                jobs.append(Job(seed, 1, 1, "disk"))
    return jobs


def measure(seeds: int, processes: int) -> Coverage:
    if find_spec("coverage") is None:
        raise ConfigurationError("coverage.py is not installed: pip install 'tara[dev]'")
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        settings = Path(scratch) / "coveragerc"
        settings.write_text(_settings(Path(scratch)))
        running = [_begin(settings, seeds, part, processes) for part in range(processes)]
        violations = [line for process in running for line in _await(process)]
        _coverage(settings, "combine", "-q")
        report = Path(scratch) / "report.json"
        _coverage(settings, "json", "-q", "-o", str(report))
        measured = msgspec.json.decode(report.read_bytes(), type=_Report)
    return _coverage_of(measured, seeds, round(time.monotonic() - started_s, 1), violations)


class _Summary(Struct):
    covered_lines: int
    num_statements: int


class _File(Struct):
    summary: _Summary
    missing_lines: list[int]


class _Report(Struct):
    files: dict[str, _File]


def _settings(scratch: Path) -> str:
    root = Path(tara.__file__).parent
    sources = "\n".join(f"    {root / folder}" for folder in PACKAGES.values())
    omitted = "\n".join(f"    {root / name}" for name in OMITTED)
    # Nothing is left out by a comment in the code.
    return (
        f"[run]\ndata_file = {scratch / 'data'}\nparallel = true\nsource =\n{sources}\nomit =\n{omitted}\n"
        "[report]\nexclude_lines =\n    if TYPE_CHECKING:\n    ^\\s*\\.\\.\\.$\n    : \\.\\.\\.$\n"
    )


def _begin(settings: Path, seeds: int, part: int, parts: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", __name__]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(tara.__file__).parent.parent), *sys.path])}
    return subprocess.Popen(
        [*command, str(seeds), str(part), str(parts)], stdout=subprocess.PIPE, text=True, env=environment
    )


def _await(process: "subprocess.Popen[str]") -> list[str]:
    output, _ = process.communicate()
    if process.returncode != 0:
        raise TaraError(f"a part of the campaign ended with {process.returncode}")
    return output.splitlines()


def _coverage(settings: Path, command: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "coverage", command, f"--rcfile={settings}", *arguments], capture_output=True, text=True
    )
    if done.returncode != 0:
        raise TaraError(f"coverage {command}: {done.stdout}{done.stderr}".strip())


def _coverage_of(measured: _Report, seeds: int, seconds: float, violations: list[str]) -> Coverage:
    root = Path(tara.__file__).parent
    files = {str(Path(name).resolve().relative_to(root)): file for name, file in measured.files.items()}
    packages = {}
    for package, folder in PACKAGES.items():
        own = [file.summary for name, file in files.items() if name.startswith(f"{folder}/")]
        lines = sum(summary.num_statements for summary in own)
        packages[package] = round(100 * sum(summary.covered_lines for summary in own) / lines, 2) if lines else 0.0
    missed = {name: file.missing_lines for name, file in sorted(files.items()) if file.missing_lines}
    found = {name: explain((root / name).read_text(), missed.get(name, []), UNREACHED.get(name, {})) for name in files}
    return Coverage(
        packages=packages,
        missed=missed,
        explained={name: explained for name, (explained, _, _) in found.items() if explained},
        unexplained={name: lines for name, (_, lines, _) in found.items() if lines},
        reached_after_all={name: places for name, (_, _, places) in found.items() if places},
        omitted=OMITTED,
        seeds=seeds,
        seconds=seconds,
        violations=violations,
    )


def main() -> None:
    """One part of the campaign; prints what was violated."""
    seeds, part, parts = map(int, sys.argv[1:])
    for job in jobs_of(seeds)[part::parts]:
        outcome = run_seed(job)
        if outcome.violation:
            print(f"{job}: {outcome.violation}: {outcome.detail[:300]}", flush=True)


if __name__ == "__main__":
    main()
