"""The layers: imports point downward only, and the protocol is pure."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parent.parent
#: The packages whose modules have layers, and where these are.
PACKAGES = {"tara": CHECKOUT / "src" / "tara", "evaluation": CHECKOUT / "evaluation"}

#: From the bottom up; a module may import its own layer and those below.
LAYERS = [
    "tara.protocol",
    "tara.host",
    "tara.storage",
    "tara.net",
    "tara.table",
    "tara.application",
    # Not in the table: applications by name.
    "tara.named",
    "tara.client",
    "tara.simulator",
    "tara.configuration",
    "tara.live.observability",
    "tara.live",
    "tara.live.sites",
    "tara.operations",
    "tara.streaming",
    # Not in the table: options that the commands of the command line and of the applications share.
    "tara.command_options",
    "tara.apps",
    "tara.bench",
    "tara.drills",
    "tara.cli",
    # Outside the wheel.
    "evaluation",
]

#: The commands that run the evaluation, where there is one.
MAY_IMPORT_EVALUATION = "tara.cli.evaluation"

#: Of the standard library, what would bring I/O, a clock, threads or randomness of its own into the protocol.
IMPURE = {
    "_thread", "asyncio", "concurrent", "ctypes", "datetime", "fcntl", "glob", "http", "io", "logging", "mmap",
    "multiprocessing", "os", "pathlib", "queue", "random", "sched", "secrets", "select", "selectors", "shutil",
    "signal", "socket", "socketserver", "ssl", "subprocess", "sys", "tempfile", "threading", "time", "urllib", "uuid",
}  # fmt: skip

#: What a module may import all the same, with a reason in its docstring.
EXCEPTIONS = {("tara.protocol.depth", "sys")}

IMPURE_BUILTINS = {"open", "print", "input", "exec", "eval", "__import__"}


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sources() -> dict[str, str]:
    return {
        module_name(path, root): path.read_text() for root in PACKAGES.values() for path in sorted(root.rglob("*.py"))
    }


def imports(name: str, source: str, is_module: frozenset[str] = frozenset()) -> Iterator[str]:
    """Every module that the source imports, wherever in it; `from package import module` counts as the module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: a relative import hides its layer"
            assert node.module is not None
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in is_module else node.module


def layer(name: str) -> int | None:
    """The number of a module's layer; None for the package `tara` itself, which all may import."""
    for number, prefix in enumerate(LAYERS):
        if name == prefix or name.startswith(prefix + "."):
            return number
    assert name == "tara", f"{name} is in no layer"
    return None


def upward_imports(modules: dict[str, str]) -> list[str]:
    known = frozenset(modules)
    found = []
    for name, source in modules.items():
        own = layer(name)
        if own is None:
            continue
        for imported in imports(name, source, known):
            package = imported.split(".")[0]
            if package == "evaluation" and name == MAY_IMPORT_EVALUATION:
                continue
            if package in PACKAGES and (layer(imported) or 0) > own:
                found.append(f"{name} imports {imported}")
    return found


#: Packages that may use themselves, those before them, the pure part of the standard library, and msgspec.
PURE = ("tara.protocol", "tara.host")


def impure_imports(name: str, source: str) -> list[str]:
    found = []
    (package,) = (package for package in PURE if name.startswith(package))
    below = PURE[: PURE.index(package) + 1]
    for imported in imports(name, source):
        top = imported.split(".")[0]
        pure_library = top in sys.stdlib_module_names and top not in IMPURE
        own = any(imported == package or imported.startswith(f"{package}.") for package in below)
        if not (pure_library or top == "msgspec" or own or (name, imported) in EXCEPTIONS):
            found.append(f"{name} imports {imported}")
    return found


def impure_calls(name: str, source: str) -> list[str]:
    return [
        f"{name} calls {node.func.id}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_BUILTINS
    ]


def test_imports_point_downward_only() -> None:
    modules = sources()
    assert {"tara.protocol.nodes.committer", "evaluation.peers.etcd"} <= set(modules)
    assert upward_imports(modules) == []


@pytest.mark.parametrize(("package", "modules_min"), [("tara.protocol", 10), ("tara.host", 1)])
def test_the_protocol_and_the_host_are_pure(package: str, modules_min: int) -> None:
    pure = {name: source for name, source in sources().items() if name.startswith(package)}
    assert len(pure) > modules_min
    assert [found for name, source in pure.items() for found in impure_imports(name, source)] == []
    assert [found for name, source in pure.items() for found in impure_calls(name, source)] == []


def test_the_zookeeper_front_end_is_pure_but_for_its_sockets() -> None:
    """So that it can be run without any: time and randomness are handed in."""
    prefix, host = "tara.apps.coordination.gateway.", ("listener", "stream")
    parts = {name: source for name, source in sources().items() if name.startswith(prefix)}
    pure = {name: source for name, source in parts.items() if name.removeprefix(prefix) not in host}
    assert len(pure) >= 7
    assert len(parts) == len(pure) + len(host)
    used = {name: {imported.split(".")[0] for imported in imports(name, source)} for name, source in pure.items()}
    assert {name: found & IMPURE for name, found in used.items() if found & IMPURE} == {}
    assert [found for name, source in pure.items() for found in impure_calls(name, source)] == []


def test_nodes_have_one_host() -> None:
    """Whoever hosts nodes drives a site. The mutants break its parts on purpose."""
    modules = sources()
    users = {name for name, source in modules.items() if "tara.host.nodes" in imports(name, source, frozenset(modules))}
    assert users == {"tara.host.bare_site", "tara.simulator.mutants.protocol"}


#: Whoever hosts nodes, stores for them, or drives a host.
HOSTING = ("tara.host", "tara.storage", "tara.net", "tara.live", "tara.streaming", "tara.simulator.driver")
#: Who looks into nodes all the same, and changes nothing there.
LOOKING = {
    # What `tara status` shows, and what becomes an event.
    "tara.live.reporting",
    "tara.live.node_events",
    # A node is the state that it keeps between two micro-batches: which fields that is, and bringing it back.
    "tara.streaming.host",
    "tara.streaming.node_fields",
}


def classes_of_nodes(name: str, source: str) -> list[str]:
    """The classes of nodes that the source imports."""
    return [
        f"{name} imports {alias.name}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tara.protocol.nodes")
        for alias in node.names
        if alias.name[0].isupper() and not alias.name.isupper()
    ]


def test_hosts_know_nodes_by_their_contract_only() -> None:
    """They speak by tuples, and ask what `tara.protocol.node` has for all nodes."""
    hosting = {name: source for name, source in sources().items() if name.startswith(HOSTING)}
    found = {name: classes for name, source in hosting.items() if (classes := classes_of_nodes(name, source))}
    assert {name: classes for name, classes in found.items() if name not in LOOKING} == {}
    assert set(found) == LOOKING


def test_the_application_knows_the_protocol_only() -> None:
    """Users import it everywhere: it must not pull a runtime in."""
    found = [name for name in imports("tara.application", sources()["tara.application"]) if name.startswith("tara.")]
    assert [name for name in found if not name.startswith(("tara.protocol", "tara.table"))] == []
    assert [name for name in imports("tara.table", sources()["tara.table"]) if name.startswith("tara.")] == []


@pytest.mark.parametrize(
    "source",
    [
        "import tara.simulator.run",
        "from tara.simulator import run",
        "from tara import application",
        "def late():\n    from tara.cli import app",
        "if True:\n    import tara.client",
        "from evaluation import machine",
    ],
)
def test_an_upward_import_is_found_wherever_it_is(source: str) -> None:
    modules = {"tara": "", "tara.application": "", "tara.protocol.window": source}
    assert len(upward_imports(modules)) == 1


@pytest.mark.parametrize("source", ["from tara import __version__", "import json", "from tara.protocol import graph"])
def test_a_downward_import_is_fine(source: str) -> None:
    assert upward_imports({"tara": "", "tara.cli": source}) == []


def test_only_the_commands_that_run_the_evaluation_import_it() -> None:
    source = "def command():\n    from evaluation import machine"
    assert upward_imports({"tara": "", "tara.cli.evaluation": source}) == []
    assert len(upward_imports({"tara": "", "tara.cli.bench": source, "tara.bench.load": source})) == 2


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from os import path",
        "import os.path",
        "import numpy",
        "def f():\n    import random",
        "import tara",
    ],
)
def test_an_impure_import_is_found_wherever_it_is(source: str) -> None:
    assert len(impure_imports("tara.protocol.window", source)) == 1


def test_an_exception_is_made_for_one_module_only() -> None:
    assert impure_imports("tara.protocol.depth", "import sys") == []
    assert impure_imports("tara.protocol.window", "import sys") == ["tara.protocol.window imports sys"]


def test_an_impure_call_is_found() -> None:
    assert impure_calls("tara.protocol.window", "def f():\n    return open('x')") == ["tara.protocol.window calls open"]


def test_the_class_of_a_node_is_found() -> None:
    source = "def late():\n    from tara.protocol.nodes.executor import LOAD_PAUSE_MS, Executor"
    assert classes_of_nodes("tara.host.site", source) == ["tara.host.site imports Executor"]


def test_a_relative_import_is_refused() -> None:
    with pytest.raises(AssertionError, match="relative import"):
        list(imports("tara.protocol.window", "from . import graph"))


def test_a_module_outside_the_layers_is_refused() -> None:
    with pytest.raises(AssertionError, match=r"tara\.helpers is in no layer"):
        upward_imports({"tara.helpers": ""})
