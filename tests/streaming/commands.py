"""Commands in files, `tara stream` as a process, and what must be true of its results."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq

APP = "tara.application:AppendRegister"
ROOT = Path(__file__).parent.parent.parent


def write_commands(
    directory: Path, files: int, per_file: int, clients: str = "abc", untidy: random.Random | None = None
) -> list[tuple[str, int, str]]:
    """JSON files, each with the next commands of every client. Their times are a second apart: a stream takes them in
    the order of their times, and of files that are as old as each other in any order. `untidy`: rows are shuffled, and
    some come again, in the same file or in a later one. Returns each command once."""
    directory.mkdir(parents=True, exist_ok=True)
    written: list[tuple[str, int, str]] = []
    oldest_s = time.time() - files
    for file in range(files):
        rows = [
            (client, number, f"{client}{number}")
            for number in range(file * per_file, (file + 1) * per_file)
            for client in clients
        ]
        lines = rows
        if untidy is not None:
            # No further back than what is remembered of a client.
            lines = rows + untidy.choices([*written[-3 * len(rows) :], *rows], k=len(rows) // 4)
            untidy.shuffle(lines)
        text = "".join(json.dumps({"client": c, "number": n, "payload": p}) + "\n" for c, n, p in lines)
        path = directory / f"{file:04}.json"
        path.write_text(text)
        os.utime(path, (oldest_s + file, oldest_s + file))
        written += rows
    return written


def stream(source: Path, output: Path, log: Path) -> subprocess.Popen[bytes]:
    """`tara stream --drain` in a process of its own."""
    script = (
        "import sys; from pathlib import Path; from tara.streaming.run import run; "
        f"run(Path({str(source)!r}), Path({str(output)!r}), {APP!r}, 'local[2,4]', drain=True, files_per_batch=1)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *sys.path])}
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-c", script], env=environment, stdout=file, stderr=file, start_new_session=True
        )


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """The driver and all that it started, at once."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def python_workers(pid: int) -> list[int]:
    """The Python workers of a driver: what PySpark's daemon has forked."""
    children: dict[int, list[int]] = {}
    names: dict[int, str] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                fields = (path / "stat").read_text().rsplit(")", 1)[1].split()
                names[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (OSError, IndexError):
                continue
            children.setdefault(int(fields[1]), []).append(int(path.name))
    found, queue = [], [pid]
    while queue:
        parent = queue.pop()
        for child in children.get(parent, []):
            queue.append(child)
            if "pyspark.daemon" in names.get(child, "") and "pyspark.daemon" in names.get(parent, ""):
                found.append(child)
    return found


def results_of(output: Path) -> list[dict[str, object]]:
    tables = [pq.read_table(path) for path in sorted((output / "results").glob("*.parquet"))]
    return [row for table in tables for row in table.to_pylist()]


def check(results: list[dict[str, object]], sent: list[tuple[str, int, str]]) -> None:
    """Every command once, in one order; the register's answers say that its state is that of one execution each."""
    assert [row["status"] for row in results] == ["ok"] * len(sent)
    assert sorted((row["client"], row["number"]) for row in results) == sorted((c, n) for c, n, _ in sent)
    assert [row["counter"] for row in results] == list(range(1, len(sent) + 1))
    lengths = [int.from_bytes(b, "big") for row in results for b in [_plain(row["result"])]]
    assert lengths == list(range(1, len(sent) + 1))


def _plain(packed: object) -> bytes:
    """The digits of a MessagePack integer."""
    assert isinstance(packed, bytes)
    return packed if len(packed) == 1 else packed[1:]
