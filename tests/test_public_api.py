"""What `import tara` offers, and what it does not load."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tara
import tara.client

CHECKOUT = Path(__file__).parent.parent
#: What users see: programs of the pages, and examples.
PROGRAMS = {
    str(path.relative_to(CHECKOUT)): "\n".join(re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL))
    for path in (CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").glob("*.md")))
} | {str(path.relative_to(CHECKOUT)): path.read_text() for path in sorted((CHECKOUT / "examples").glob("*.py"))}


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


@pytest.mark.parametrize("where", [where for where, program in PROGRAMS.items() if program])
def test_programs_for_users_take_what_is_public_from_the_public_api(where: str) -> None:
    imported = re.findall(r"^from (tara(?:\.\w+)*) import (.*)$", PROGRAMS[where], re.MULTILINE)
    assert imported
    for module, names in imported:
        for name in re.split(r",\s*", names):
            assert (module == "tara") == (name in tara.__all__), f"{where}: {name} of {module}"


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


def test_the_program_of_the_readme_prints_what_it_says() -> None:
    (program,) = [part for part in re.split(r"(?m)^(?=from collections)", PROGRAMS["README.md"]) if "Scene" in part]
    program = program.partition("from kazoo")[0]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = [line.split("# ")[1].split(", from")[0] for line in program.splitlines() if line.startswith("print(")]
    assert done.stdout.splitlines() == said
