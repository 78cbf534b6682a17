"""The templates for real clusters: settings that load, and tokens that Spark understands."""

import json
import subprocess
from pathlib import Path

import pytest

from tara.configuration.settings import load_settings
from tara.live.sites.site import site_settings

DEPLOY = Path(__file__).parent.parent / "deploy"
MANAGERS = ("standalone", "yarn", "kubernetes")


@pytest.mark.parametrize("manager", MANAGERS)
def test_the_settings_load(manager: str) -> None:
    settings = load_settings(DEPLOY / manager / "tara.toml", environment={})

    assert not settings.local
    assert settings.keys
    assert settings.container_host


def test_the_settings_of_sites_load() -> None:
    settings = load_settings(DEPLOY / "site" / "tara.toml", environment={})

    for site, host in enumerate(("10.0.0.11", "10.0.0.12", "10.0.0.13")):
        assert site_settings(settings, site)[0].host == host


@pytest.mark.parametrize("manager", MANAGERS)
def test_sparks_settings_are_names_and_values(manager: str) -> None:
    lines = (DEPLOY / manager / "spark-defaults.conf").read_text().splitlines()
    pairs = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]

    assert all(name.startswith("spark.") and value for name, value in pairs)


def test_the_token_is_one() -> None:
    output = subprocess.run([DEPLOY / "tara-token.sh"], capture_output=True, text=True, check=True).stdout

    assert json.loads(output) == {"name": "tara", "addresses": ["0"]}
