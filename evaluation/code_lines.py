"""Development effort: code lines by the paper's rule, of everything that a live cluster runs.

The rule: what a programmer has to write and a reader has to understand. No imports, blank lines, comments, docstrings,
and no lines that are only brackets. Files count as a whole, formatted as the project is.

What counts is not chosen: the live path is all packages of which the processes of a cluster or a client import a module
(a test compares), each with every file. Its files are also sorted by the paper's five categories, and by what the
paper's prototype does not have. All other packages are listed beside it, so that nothing is left out.
"""

import ast
import io
import tokenize
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import tara
from tara.protocol.errors import TaraError

SOURCES = Path(tara.__file__).parent
#: The processes of a live cluster, and its clients, begin in these modules.
BEGINNINGS = (
    "tara.live.spark",
    "tara.live.worker_daemon",
    "tara.live.hosting",
    "tara.live.sites.site",
    "tara.client",
)
#: What they need of Tara: packages, and modules that are in none.
LIVE_PATH = (
    "protocol", "host", "live", "net", "storage", "configuration", "client",
    "application.py", "named.py", "table.py", "__init__.py",
)  # fmt: skip

REQUEST_HANDLING = "request_handling"
GARBAGE_COLLECTION = "garbage_collection"
VIEW_CHANGE = "view_change"
DATA_STRUCTURES = "data_structures"
INFRASTRUCTURE = "infrastructure"
#: The categories of the paper's table I.
PAPER_CATEGORIES = (REQUEST_HANDLING, GARBAGE_COLLECTION, VIEW_CHANGE, DATA_STRUCTURES, INFRASTRUCTURE)

APPLICATIONS = "applications"
CLIENTS = "clients"
CLUSTERS = "clusters"
OBSERVABILITY = "observability"
READS = "reads"
RESENDING = "resending"
SECURITY = "security"
SESSIONS = "sessions"
STORAGE = "storage"
THROTTLING = "throttling"
#: What the paper's prototype does not have.
BEYOND_CATEGORIES = (
    APPLICATIONS, CLIENTS, CLUSTERS, OBSERVABILITY, READS, RESENDING, SECURITY, SESSIONS, STORAGE, THROTTLING,
)  # fmt: skip

#: The category of every file of the live path, by its main purpose; with a slash at the end, of the files in a
#: directory that are not named themselves. A file without one is an error.
CATEGORIES: dict[str, str] = {
    "__init__.py": INFRASTRUCTURE,
    "application.py": APPLICATIONS,
    "client/": CLIENTS,
    "configuration/": INFRASTRUCTURE,
    "host/": INFRASTRUCTURE,
    "named.py": APPLICATIONS,
    "net/": INFRASTRUCTURE,
    "net/certificates.py": SECURITY,
    "net/keygen.py": SECURITY,
    "net/tls.py": SECURITY,
    "live/observability/": OBSERVABILITY,
    "protocol/__init__.py": INFRASTRUCTURE,
    "protocol/acceptor.py": REQUEST_HANDLING,
    "protocol/backoff.py": RESENDING,
    "protocol/base_taker.py": STORAGE,
    "protocol/bases.py": STORAGE,
    "protocol/depth.py": APPLICATIONS,
    "protocol/errors.py": DATA_STRUCTURES,
    "protocol/execution.py": REQUEST_HANDLING,
    "protocol/graph.py": INFRASTRUCTURE,
    "protocol/incarnations.py": VIEW_CHANGE,
    "protocol/journal.py": STORAGE,
    "protocol/limits.py": INFRASTRUCTURE,
    "protocol/node.py": INFRASTRUCTURE,
    "protocol/nodes/__init__.py": INFRASTRUCTURE,
    "protocol/nodes/committer.py": REQUEST_HANDLING,
    "protocol/nodes/controller.py": VIEW_CHANGE,
    "protocol/nodes/executor.py": REQUEST_HANDLING,
    "protocol/nodes/factory.py": INFRASTRUCTURE,
    "protocol/nodes/gc_source.py": GARBAGE_COLLECTION,
    "protocol/nodes/learner.py": REQUEST_HANDLING,
    "protocol/nodes/proposer.py": VIEW_CHANGE,
    "protocol/nodes/reads.py": READS,
    "protocol/nodes/request_source.py": REQUEST_HANDLING,
    "protocol/nodes/sink.py": INFRASTRUCTURE,
    "protocol/nodes/view_source.py": VIEW_CHANGE,
    "protocol/observer.py": DATA_STRUCTURES,
    "protocol/opinions.py": DATA_STRUCTURES,
    "protocol/places.py": APPLICATIONS,
    "protocol/principals.py": SESSIONS,
    "protocol/progress.py": DATA_STRUCTURES,
    "protocol/resend.py": RESENDING,
    "protocol/restoration.py": STORAGE,
    "protocol/session_quotas.py": SESSIONS,
    "protocol/sessions.py": SESSIONS,
    "protocol/skips.py": APPLICATIONS,
    "protocol/stalls.py": VIEW_CHANGE,
    "protocol/state_digest.py": DATA_STRUCTURES,
    "protocol/status.py": DATA_STRUCTURES,
    "protocol/throttle.py": THROTTLING,
    "protocol/transfer.py": VIEW_CHANGE,
    "protocol/tuples/": DATA_STRUCTURES,
    "protocol/window.py": DATA_STRUCTURES,
    "live/": INFRASTRUCTURE,
    "live/node_events.py": OBSERVABILITY,
    "live/reporting.py": OBSERVABILITY,
    "live/start_phases.py": OBSERVABILITY,
    "live/task_placement.py": CLUSTERS,
    "live/sites/": CLUSTERS,
    "storage/": STORAGE,
    "table.py": APPLICATIONS,
}

_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip
_BRACKETS = set("()[]{},:")
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class UnknownCategory(TaraError):
    """The table of categories and the files differ."""


class FileLines(NamedTuple):
    file: str
    category: str
    lines: int


def code_lines(source: str) -> int:
    """The lines of a Python source that count."""
    excluded = _excluded_lines(source)
    counted: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in _NO_CODE or token.string in _BRACKETS:
            continue
        counted.update(range(token.start[0], token.end[0] + 1))
    return len(counted - excluded)


def _excluded_lines(source: str) -> set[int]:
    """The lines of imports and docstrings."""
    excluded: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            excluded.update(_lines_of(node))
        elif isinstance(node, _Documented) and ast.get_docstring(node, clean=False) is not None:
            excluded.update(_lines_of(node.body[0]))
    return excluded


def _lines_of(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def package_of(file: str) -> str:
    """The package below `tara`; a module that is in none stands for itself."""
    return file.split("/")[0]


def category_of(file: str) -> str | None:
    """Its own, or that of the nearest directory that has one."""
    directories = [f"{parent.as_posix()}/" for parent in PurePosixPath(file).parents]
    return next((CATEGORIES[name] for name in (file, *directories) if name in CATEGORIES), None)


def all_files(root: Path = SOURCES) -> list[str]:
    """Every module, by its path below `root`."""
    return [path.relative_to(root).as_posix() for path in sorted(root.rglob("*.py"))]


def live_files(root: Path = SOURCES) -> list[str]:
    return [file for file in all_files(root) if package_of(file) in LIVE_PATH]


def count(root: Path = SOURCES) -> list[FileLines]:
    """The files of the live path with their categories; an error if the table does not fit them."""
    files = live_files(root)
    missing = [file for file in files if category_of(file) is None]
    gone = [name for name in CATEGORIES if not (root / name).exists()]
    if missing or gone:
        parts = [f"no category for {', '.join(missing)}"] if missing else []
        parts += [f"no file {', '.join(gone)}"] if gone else []
        raise UnknownCategory(f"CATEGORIES in evaluation.code_lines: {'; '.join(parts)}")
    return [FileLines(file, category_of(file) or "", code_lines((root / file).read_text())) for file in files]


def totals(files: Iterable[FileLines]) -> dict[str, int]:
    """`total`, and the lines of each category."""
    sums = dict.fromkeys(("total", *PAPER_CATEGORIES, *BEYOND_CATEGORIES), 0)
    for file in files:
        sums["total"] += file.lines
        sums[file.category] += file.lines
    return sums


def live_packages(files: Iterable[FileLines]) -> dict[str, int]:
    """The lines of each package of the live path."""
    sums = dict.fromkeys(LIVE_PATH, 0)
    for file in files:
        sums[package_of(file.file)] += file.lines
    return sums


def other_packages(root: Path = SOURCES) -> dict[str, int]:
    """The lines of everything else: applications, the simulator, the streaming runtime, tools."""
    sums: dict[str, int] = {}
    for file in all_files(root):
        if package_of(file) not in LIVE_PATH:
            sums[package_of(file)] = sums.get(package_of(file), 0) + code_lines((root / file).read_text())
    return sums
