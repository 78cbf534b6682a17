"""Settings that all tests share."""

import os

from hypothesis import HealthCheck, settings

# A deadline would make slow machines fail; on CI a failure must be repeatable from the log alone.
settings.register_profile(
    "tara", deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("tara-ci", settings.get_profile("tara"), derandomize=True, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("tara-ci" if os.environ.get("CI") else "tara"))
