"""What `import tara` offers, and what it does not load."""

import subprocess
import sys

import pytest

import tara
import tara.client


@pytest.mark.parametrize("name", tara.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(tara, name) is not None
    assert name in dir(tara)


def test_every_error_of_a_client_is_public() -> None:
    errors = {name for name in tara.client.__all__ if issubclass(getattr(tara.client, name), tara.TaraError)}
    defined = {
        name
        for name, value in vars(sys.modules["tara.client.errors"]).items()
        if isinstance(value, type) and issubclass(value, tara.ClientError)
    }
    assert defined == errors
    assert errors <= set(tara.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = tara.Nothing


def test_a_client_loads_no_spark_and_an_application_no_client() -> None:
    program = """
import sys, tara
assert not [name for name in sys.modules if name.startswith("tara.")], "nothing is loaded before it is needed"
tara.StateMachine
assert "tara.client" not in sys.modules
tara.Client
assert "pyspark" not in sys.modules and "pyarrow" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
