"""The page for operators says what is there: every setting, every metric, every event."""

import re
from pathlib import Path

import msgspec
import pytest

from tara.apps.coordination import limits
from tara.cli import bounds_table
from tara.configuration.settings import Settings, known_settings
from tara.live.observability import prometheus
from tara.net import bounds

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "operations.md").read_text()
TARA = ROOT / "src" / "tara"
RUNTIME = "".join(path.read_text() for part in ("live", "storage") for path in sorted((TARA / part).rglob("*.py")))


@pytest.mark.parametrize("name", known_settings())
def test_every_setting_is_in_the_table(name: str) -> None:
    assert re.search(rf"^\|[^|]*`{name}`", PAGE, re.MULTILINE)


def shown(value: object) -> set[str]:
    """How a default may be written."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return {f"`{value}`"}
    forms = {f"{value:,g}" if value < 1e5 else f"{value:,.0f}", f"`{value:g}`"}
    forms |= {f"{value // size:.0f} {unit}" for size, unit in ((1 << 30, "GiB"), (1 << 20, "MiB")) if value % size == 0}
    return forms | {f"{value / ms:g} {unit}" for ms, unit in ((1e3, "s"), (3.6e6, "h"))}


@pytest.mark.parametrize("page", ["operations.md", "protocol.md"])
def test_settings_have_the_defaults_that_the_tables_say(page: str) -> None:
    settings = msgspec.to_builtins(Settings())
    defaults = {**settings.pop("limits"), **settings}
    rows = re.findall(r"^\| (`[^|]*) \| ([^|]*) \|", (ROOT / "docs" / page).read_text(), re.MULTILINE)
    said = [(name, cell) for names, cell in rows for name in re.findall(r"`(\w+)`", names) if defaults.get(name)]
    wrong = [
        (name, cell)
        for name, cell in said
        if not any(re.search(rf"(?<![\d,]){re.escape(form)}(?!\d|,\d)", cell) for form in shown(defaults[name]))
    ]
    assert (wrong, len(said) > 30) == ([], True)


def test_every_metric_is_in_the_table_and_no_other() -> None:
    source = Path(prometheus.__file__).read_text()
    assert set(re.findall(r'"(tara_[a-z_]+)"', source)) == set(re.findall(r"`(tara_[a-z_]+)`", PAGE))


def test_every_event_is_in_the_table() -> None:
    logged = r'(?:events|self\._events)\.(?:info|warning|error|flood)\(\s*"([a-z_]+)"'
    events = set(re.findall(logged, RUNTIME))
    assert {"started", "failed", "halted", "kill"} <= events
    events |= {"became_active", "became_idle", "rejoining", "rejoined", "registered", "restarted"}
    events |= {"base_saved", "base_loaded", "base_fetched", "base_refused", "base_given_up", "store_error"}
    documented = {
        name for row in re.findall(r"^\| (`[^|]*) \|", PAGE, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    assert events <= documented


def test_the_table_of_bounds_is_the_code() -> None:
    """`python -m tara.cli.bounds_table` prints it."""
    assert "\n".join(bounds_table.lines()) in PAGE


def test_every_bound_of_the_ports_is_in_the_table() -> None:
    listed = {row.name for section in bounds_table.sections() for row in section.rows}
    assert {name for name in vars(bounds) if name.isupper()} <= listed


#: What bounds nothing that somebody else could make grow: times, pauses, what we send, our own failures.
NO_BOUNDS = {
    "ALLOWANCE_MS_MAX",
    "BACKOFF_MAX",
    "BARRED_MAX",
    "FREE_BYTES_MAX",
    "HEAPS_MAX",
    "IN_FLIGHT_BYTES_MAX",
    "IN_FLIGHT_MAX",
    "LISTED_MAX",
    "NAMES_MAX",
    "PAUSE_MAX",
    "PRINCIPAL_BYTES_MAX",
    "REASON_LENGTH_MAX",
    "REPLY_BYTES_MAX",
    "REPORTS_MISSED_MAX",
    "SAMPLE_AGE_S_MAX",
    "SILENT_S_MAX",
    "STEP_S_MAX",
    "STRIKES_MAX",
    "TOUCHED_MAX",
    "UNCONFIRMED_MS_MAX",
}


def test_every_other_bound_is_in_the_table_or_bounds_nothing_of_others() -> None:
    listed = {row.name for section in bounds_table.sections() for row in section.rows}
    named: set[str] = set()
    for part in ("protocol", "host", "net", "apps/coordination/gateway"):
        for path in (TARA / part).rglob("*.py"):
            named |= set(re.findall(r"^([A-Z][A-Z_]*_(?:MAX|CACHED))\b[^=\n]*=", path.read_text(), re.MULTILINE))
    assert named - listed == NO_BOUNDS
    assert {"SECRET_BYTES_MAX", "PRINCIPALS_CACHED", "ROUTES_MAX"} <= named


def test_every_bound_of_the_zookeeper_port_is_in_the_table() -> None:
    scopes = ("the ZooKeeper port", "the coordination service")
    listed = {
        row.name for section in bounds_table.sections() if section.scope.startswith(scopes) for row in section.rows
    }
    assert {name for name in vars(limits) if name.isupper()} == listed
