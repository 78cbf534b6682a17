"""Settings that all tests share."""

import os

import pytest
from hypothesis import HealthCheck, settings

# A deadline would make slow machines fail; on CI a failure must be repeatable from the log alone.
settings.register_profile(
    "tara", deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("tara-ci", settings.get_profile("tara"), derandomize=True, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("tara-ci" if os.environ.get("CI") else "tara"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first: whoever begins the last of them would keep all others waiting."""
    items.sort(key=lambda item: item.get_closest_marker("spark") is None)
