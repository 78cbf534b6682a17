"""Development effort: code lines by the paper's rule, file by file, in the paper's categories.

The rule: what a programmer has to write and a reader has to understand. No imports, blank lines, comments, docstrings,
and no lines that are only brackets. Files count as a whole, formatted as the project is. The categories below the
paper's five are what its prototype does not have.
"""

import ast
import io
import tokenize
from pathlib import Path
from typing import NamedTuple

import tara
from tara.protocol.errors import TaraError

SOURCES = Path(tara.__file__).parent
#: What is counted: these packages and modules.
COUNTED = ("protocol", "runtime", "application.py")
#: Packages that a live cluster needs or that its operators use, and that the paper's prototype either does not have or
#: gets from its framework. They are counted beside the categories, each as a whole.
BESIDE = ("client", "configuration", "host", "net", "transport", "storage", "observability", "operations", "sites")

REQUEST_HANDLING = "request_handling"
GARBAGE_COLLECTION = "garbage_collection"
VIEW_CHANGE = "view_change"
DATA_STRUCTURES = "data_structures"
INFRASTRUCTURE = "infrastructure"
#: The categories of the paper's table I.
PAPER_CATEGORIES = (REQUEST_HANDLING, GARBAGE_COLLECTION, VIEW_CHANGE, DATA_STRUCTURES, INFRASTRUCTURE)

APPLICATIONS = "applications"
CLUSTERS = "clusters"
JOURNAL = "journal"
OBSERVABILITY = "observability"
READS = "reads"
RESENDING = "resending"
SESSIONS = "sessions"
THROTTLING = "throttling"
BEYOND_CATEGORIES = (APPLICATIONS, CLUSTERS, JOURNAL, OBSERVABILITY, READS, RESENDING, SESSIONS, THROTTLING)

#: The category of every file. One that is missing here, or here only, is an error.
CATEGORIES: dict[str, str] = {
    "application.py": APPLICATIONS,
    "protocol/__init__.py": INFRASTRUCTURE,
    "protocol/depth.py": APPLICATIONS,
    "protocol/errors.py": DATA_STRUCTURES,
    "protocol/graph.py": INFRASTRUCTURE,
    "protocol/journal.py": JOURNAL,
    "protocol/kept.py": SESSIONS,
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
    "protocol/sessions.py": SESSIONS,
    "protocol/skips.py": APPLICATIONS,
    "protocol/status.py": DATA_STRUCTURES,
    "protocol/throttle.py": THROTTLING,
    "protocol/transfer.py": VIEW_CHANGE,
    "protocol/tuples.py": DATA_STRUCTURES,
    "protocol/window.py": DATA_STRUCTURES,
    "runtime/__init__.py": INFRASTRUCTURE,
    "runtime/container.py": INFRASTRUCTURE,
    "runtime/control.py": INFRASTRUCTURE,
    "runtime/hosting.py": INFRASTRUCTURE,
    "runtime/placing.py": CLUSTERS,
    "runtime/registry.py": INFRASTRUCTURE,
    "runtime/reporting.py": OBSERVABILITY,
    "runtime/spark.py": INFRASTRUCTURE,
    "runtime/spark_session.py": INFRASTRUCTURE,
    "runtime/start_phases.py": OBSERVABILITY,
    "runtime/watching.py": OBSERVABILITY,
    "runtime/worker_daemon.py": INFRASTRUCTURE,
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


def counted_files(root: Path = SOURCES) -> list[str]:
    """The files of the packages that are counted, by their path below `root`."""
    found: list[Path] = []
    for name in COUNTED:
        path = root / name
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return [path.relative_to(root).as_posix() for path in found]


def count(root: Path = SOURCES) -> list[FileLines]:
    """All files with their categories; an error if the table does not fit them."""
    files = counted_files(root)
    missing, gone = sorted(set(files) - set(CATEGORIES)), sorted(set(CATEGORIES) - set(files))
    if missing or gone:
        parts = [f"no category for {', '.join(missing)}"] if missing else []
        parts += [f"no file {', '.join(gone)}"] if gone else []
        raise UnknownCategory(f"CATEGORIES in evaluation.code_lines: {'; '.join(parts)}")
    return [FileLines(file, CATEGORIES[file], code_lines((root / file).read_text())) for file in files]


def beside(root: Path = SOURCES) -> dict[str, int]:
    """The lines of the packages that are counted beside the categories."""
    return {
        package: sum(code_lines(path.read_text()) for path in sorted((root / package).rglob("*.py")))
        for package in BESIDE
    }


def totals(files: list[FileLines]) -> dict[str, int]:
    """`total`, and the lines of each category."""
    sums = {"total": sum(file.lines for file in files)}
    for category in (*PAPER_CATEGORIES, *BEYOND_CATEGORIES):
        sums[category] = sum(file.lines for file in files if file.category == category)
    return sums
