"""Settings that all tests share, and the order of the files."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tara.operations import registry_client

TESTS = Path(__file__).parent
#: What takes longest, longest first, and while there are any, one without processes of its own after each one with.
#: `make test` hands out files in this order. Begun last, they would be waited for while one processor is idle; begun
#: together, two clusters are in each other's way.
LONGEST = (
    "live/test_shapes.py",
    "simulator/test_run.py",
    "streaming/test_query.py",
    "simulator/test_mutants.py",
    "live/test_site.py",
    "simulator/test_shrink.py",
    "drills/test_hostile_world.py",
    "streaming/test_live_log.py",
    "drills/test_log_readers.py",
    "simulator/test_applications.py",
    "evaluation/test_evaluation.py",
    "live/test_exposure.py",
    "drills/test_processes.py",
    "drills/test_storage.py",
    "live/test_log_live.py",
    "apps/coordination/test_failover.py",
    "live/test_trouble.py",
    "live/test_recovery.py",
    "streaming/test_connector.py",
    "streaming/test_log_source.py",
    "live/test_live.py",
    "test_examples.py",
    "apps/coordination/test_spark_masters.py",
    "apps/coordination/test_client.py",
    "apps/coordination/test_kazoo.py",
    "apps/coordination/test_against_zookeeper.py",
    "live/test_apart.py",
    "live/test_security.py",
    "evaluation/test_peers.py",
)

# A user is told soon that nobody answers; on a machine that stands still, a test would be told a lie.
registry_client.TIMEOUT_S = 60.0

# A deadline would make slow machines fail; on CI a failure must be repeatable from the log alone.
settings.register_profile(
    "tara", deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("tara-ci", settings.get_profile("tara"), derandomize=True, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("tara-ci" if os.environ.get("CI") else "tara"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {TESTS / name: number for number, name in enumerate(LONGEST)}
    missing = [path for path in place if not path.exists()]
    if missing:
        raise pytest.UsageError(f"tests/conftest.py names files that are not there: {missing}")
    items.sort(key=lambda item: place.get(item.path, len(place)))
