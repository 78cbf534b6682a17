"""Where applications of one's own are looked for."""

import os
import sys
from pathlib import Path


def look_here() -> None:
    """An application is looked for where the command is given, too, by this process and by those that it starts."""
    sys.path.insert(0, str(Path.cwd()))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])])
