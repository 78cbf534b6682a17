"""Every rule about settings: the error names the setting, its value and the rule."""

import re
from typing import Any

import msgspec
import pytest

from tara.protocol.errors import ConfigurationError, TaraError
from tara.protocol.limits import Limits

MAY_BE_ZERO = {"f", "batch_delay_ms", "skip_delay_ms", "proposer_rate_max"}
SETTINGS = Limits.__struct_fields__


def refuse(message: str, **settings: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"^{re.escape(message)}"):
        Limits(**settings)


def test_the_defaults_obey_the_rules() -> None:
    limits = Limits()
    assert (limits.f, limits.partitions, limits.quorum, limits.replicas) == (1, 1, 2, 3)


@pytest.mark.parametrize("setting", [name for name in SETTINGS if name not in MAY_BE_ZERO])
@pytest.mark.parametrize("value", [0, -1])
def test_most_settings_must_be_positive(setting: str, value: int) -> None:
    refuse(f"{setting} = {value}: must be positive", **{setting: value})


@pytest.mark.parametrize("setting", sorted(MAY_BE_ZERO))
def test_some_settings_may_be_zero_but_not_negative(setting: str) -> None:
    assert getattr(Limits(**{setting: 0}), setting) == 0
    refuse(f"{setting} = -1: must not be negative", **{setting: -1})


#: Rule by rule: settings that just break it, and the message.
BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"f": 11}, "f = 11: must be at most 10"),
    ({"partitions": 65, "checkpoint_interval": 65}, "partitions = 65: must be at most 64"),
    (
        {"partitions": 3, "checkpoint_interval": 16, "window": 100},
        "checkpoint_interval = 16: must be divisible by partitions (3)",
    ),
    (
        {"checkpoint_interval": 8, "window": 15},
        "window = 15: must be at least 2 · checkpoint_interval / partitions (16)",
    ),
    (
        {"partitions": 2, "checkpoint_interval": 8, "window": 7},
        "window = 7: must be at least 2 · checkpoint_interval / partitions (8)",
    ),
    (
        {"report_interval_ms": 100.0, "controller_timeout_ms": 299.0},
        "controller_timeout_ms = 299.0: must be at least 3 · report_interval_ms (300.0)",
    ),
    (
        {"controller_timeout_ms": 500.0, "controller_timeout_ms_max": 499.0},
        "controller_timeout_ms_max = 499.0: must be at least controller_timeout_ms (500.0)",
    ),
    (
        {"session_timeout_ms_min": 5_000, "session_timeout_ms_max": 4_999},
        "session_timeout_ms_max = 4999: must be at least session_timeout_ms_min (5000)",
    ),
    (
        {"session_timeout_ms_min": 999, "session_clock_step_ms_max": 500},
        "session_clock_step_ms_max = 500: must be at most half of session_timeout_ms_min (999)",
    ),
    (
        {"batch_size": 50, "command_bytes_max": 100, "run_bytes_max": 50, "frame_bytes_max": 599},
        "frame_bytes_max = 599: must be at least 4 · (command_bytes_max + run_bytes_max)",
    ),
]

#: The same rules, just obeyed.
OBEYED: list[dict[str, Any]] = [
    {"f": 10},
    {"partitions": 64, "checkpoint_interval": 64},
    {"partitions": 3, "checkpoint_interval": 15, "window": 10},
    {"checkpoint_interval": 8, "window": 16},
    {"partitions": 2, "checkpoint_interval": 8, "window": 8},
    {"report_interval_ms": 100.0, "controller_timeout_ms": 300.0},
    {"controller_timeout_ms": 500.0, "controller_timeout_ms_max": 500.0},
    {"session_timeout_ms_min": 5_000, "session_timeout_ms_max": 5_000},
    {"session_timeout_ms_min": 1_000, "session_clock_step_ms_max": 500},
    {"batch_size": 50, "command_bytes_max": 100, "run_bytes_max": 50, "frame_bytes_max": 600},
]


@pytest.mark.parametrize(("settings", "message"), BROKEN, ids=[message.split(" = ")[0] for _, message in BROKEN])
def test_a_broken_rule_is_named(settings: dict[str, Any], message: str) -> None:
    refuse(message, **settings)


@pytest.mark.parametrize("settings", OBEYED, ids=str)
def test_a_rule_that_is_just_obeyed(settings: dict[str, Any]) -> None:
    limits = Limits(**settings)
    assert {name: getattr(limits, name) for name in settings} == settings


def test_the_window_must_outlast_the_checkpoint_that_empties_it() -> None:
    """L15; the message says why."""
    with pytest.raises(TaraError, match="fills before the checkpoint that empties it is stable"):
        Limits(checkpoint_interval=100, window=199)


def test_a_rule_holds_for_changed_copies_too() -> None:
    with pytest.raises(ConfigurationError, match=r"^window = 1:"):
        msgspec.structs.replace(Limits(), window=1)


def test_rules_and_types_are_checked_when_read_from_a_file() -> None:
    with pytest.raises(ConfigurationError, match=r"^f = 11: must be at most 10"):
        msgspec.convert({"f": 11}, Limits)
    with pytest.raises(msgspec.ValidationError, match=r"\$\.window"):
        msgspec.convert({"window": "large"}, Limits)
    with pytest.raises(msgspec.ValidationError, match="windows"):
        msgspec.convert({"windows": 7}, Limits)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_time_is_a_finite_number(value: float) -> None:
    with pytest.raises(ConfigurationError, match=r"^keepalive_interval_ms"):
        Limits(keepalive_interval_ms=value)


@pytest.mark.parametrize(("f", "quorum", "replicas"), [(0, 1, 1), (1, 2, 3), (2, 3, 5)])
def test_quorums_of_all_replicas_share_one(f: int, quorum: int, replicas: int) -> None:
    limits = Limits(f=f)
    assert (limits.quorum, limits.replicas) == (quorum, replicas)
    assert 2 * limits.quorum > limits.replicas


def test_slots_of_a_partition_between_checkpoints() -> None:
    assert Limits(partitions=4, checkpoint_interval=20, window=10).checkpoint_slots == 5
