"""Settings and the cluster's identity."""

from pathlib import Path

import pytest

from tara.configuration.settings import load_settings
from tara.configuration.state import StateFile
from tara.named import application_of
from tara.protocol.errors import ConfigurationError


def test_flags_beat_the_environment_and_the_environment_beats_the_file(tmp_path: Path) -> None:
    path = tmp_path / "tara.toml"
    path.write_text('durability = "memory"\nwindow = 40000\npacking = "node"\n')

    settings = load_settings(path, {"TARA_WINDOW": "50000", "TARA_PACKING": "site"}, {"packing": "node", "f": None})

    assert (settings.durability, settings.limits.window, settings.packing) == ("memory", 50_000, "node")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"durability": "tape"}, "durability = tape: must be one of disk, memory"),
        ({"windo": 5}, "unknown setting 'windo'"),
        ({"window": 5}, "window = 5: must be at least"),
        ({"host": "0.0.0.0"}, "host = 0.0.0.0: must be an address that others"),
        ({"result_bytes_max": (16 << 20) + 1}, "result_bytes_max = 16777217: must be at most 16777216"),
        ({"window": "wide"}, "window"),
    ],
)
def test_a_bad_setting_is_named(flags: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(environment={}, flags=flags)
    assert message in str(caught.value)


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.toml"):
        load_settings(tmp_path / "none.toml", {})
    broken = tmp_path / "broken.toml"
    broken.write_text("window = = 3")
    with pytest.raises(ConfigurationError, match=r"broken\.toml"):
        load_settings(broken, {})


@pytest.mark.parametrize("name", ["nothing", "no.such.module:Class", "tara.application:Nothing", "json:loads"])
def test_an_application_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="app = "):
        application_of(name)


def test_an_application_is_found_by_its_name() -> None:
    assert application_of("tara.application:Counter").__name__ == "Counter"


def test_a_durable_cluster_keeps_its_identity_and_a_volatile_one_does_not(tmp_path: Path) -> None:
    for durability, kept in (("disk", True), ("memory", False)):
        file = StateFile(tmp_path / durability)
        settings = load_settings(environment={}, flags={"durability": durability})
        first = file.open(settings)
        assert (file.open(settings).cluster == first.cluster) is kept


def test_a_cluster_is_not_started_with_another_shape(tmp_path: Path) -> None:
    StateFile(tmp_path).open(load_settings(environment={}, flags={"f": 1}))

    with pytest.raises(ConfigurationError, match=r"f = 2: the cluster in .* was made with 1"):
        StateFile(tmp_path).open(load_settings(environment={}, flags={"f": 2}))
    with pytest.raises(ConfigurationError, match=r"checkpoint_interval = 5040: the cluster in .* was made with 15120"):
        StateFile(tmp_path).open(load_settings(environment={}, flags={"checkpoint_interval": 5040}))
    StateFile(tmp_path).open(load_settings(environment={}, flags={"batch_size": 2, "controller_timeout_ms": 999}))


def test_a_directory_without_a_cluster_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no cluster here"):
        StateFile(tmp_path).read()
