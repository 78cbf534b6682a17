"""The checkout: the evaluation is not part of what is installed, but stands beside `src` in the source tree."""

import importlib.util
import sys
from pathlib import Path

import tara


def use_evaluation(command: str, *packages: str) -> None:
    """Make `evaluation` importable; a clear error if there is no checkout around this very `tara`, or if a package of
    the development tools is missing that the command needs.

    By its place, not by what happens to be importable: another checkout's evaluation would measure something else.
    """
    from tara.protocol.errors import ConfigurationError

    root = Path(tara.__file__).resolve().parent.parent.parent
    if not (root / "evaluation" / "__init__.py").is_file():
        raise ConfigurationError(
            f"`{command}` needs Tara's source tree, because the evaluation is not part of the installed package: run "
            "`make setup` in a checkout, and there `.venv/bin/tara`"
        )
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        raise ConfigurationError(f"`{command}` needs {', '.join(missing)}: pip install --editable '{root}[dev]'")
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
