"""What is installed: everything of `tara`, and nothing of the checkout around it."""

import subprocess
import sys
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest

from tara.cli import checkout
from tara.protocol.errors import ConfigurationError

ROOT = Path(__file__).parent.parent
#: Only the evaluation needs them, or only development.
NOT_NEEDED = ("matplotlib", "pysyncobj", "kazoo", "pytest", "hypothesis")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = directory.glob("*.whl")
    return built


def test_the_wheel_has_every_module_of_the_sources_and_no_other(wheel: Path) -> None:
    sources = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py")}
    with ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.endswith(".py")}
    assert packed == sources
    assert {name.split("/")[0] for name in packed} == {"tara", "pyspark_tara"}


def test_whoever_installs_it_gets_no_tools_of_the_evaluation(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("METADATA"))
        required = Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist") or []
    always = [requirement for requirement in required if "extra ==" not in requirement]
    assert any(requirement.startswith("pyspark") for requirement in always)
    assert [requirement for requirement in always if requirement.startswith(NOT_NEEDED)] == []


@pytest.mark.parametrize("command", ["paper", "loc", "zookeeper", "zookeeper-scale"])
def test_the_evaluation_is_refused_in_one_sentence_where_there_is_no_checkout(
    command: str, wheel: Path, tmp_path: Path
) -> None:
    with ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    program = f"import sys; sys.path.insert(0, {str(tmp_path / 'installed')!r}); from tara.cli import main; main()"
    # Also if a directory of that name happens to be where the command is given.
    done = subprocess.run(
        [sys.executable, "-c", program, "bench", command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"tara: `tara bench {command}` needs Tara's source tree")
    assert len(done.stderr.splitlines()) == 1


def test_a_checkout_without_the_development_tools_is_told_what_is_missing() -> None:
    checkout.use_evaluation("tara bench paper")
    with pytest.raises(ConfigurationError, match=r"`tara bench paper` needs no_such_package: pip install --editable"):
        checkout.use_evaluation("tara bench paper", "no_such_package")
