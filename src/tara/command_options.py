"""Options that commands share, wherever these are defined: in `tara.cli`, or in the package of an application.

Types for typer only. The command line stands on the applications, so they could not take these from `tara.cli`. What is
called a setting is taken from a file unless it is given.
"""

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, on the last line.")]
Faults = Annotated[int, typer.Option("--f", help="Crashes per stage that are survived.", min=0, max=3)]
Partitions = Annotated[int, typer.Option(help="Consensus pipelines that are merged into one order.", min=1, max=8)]

DATA_DIR = Path("tara-data")
DataDir = Annotated[Path, typer.Option(help="Where the cluster keeps its journals, bases and logs.")]
Endpoints = Annotated[
    str | None,
    typer.Option(help="host:port,host:port; by default those of the data directory.", envvar="TARA_ENDPOINTS"),
]
Keys = Annotated[
    str | None,
    typer.Option(help="The directory with keys; by default that of the data directory.", envvar="TARA_KEYS"),
]

ConfigFile = Annotated[Path | None, typer.Option(help="A TOML file with settings.")]
FaultsSetting = Annotated[int | None, typer.Option("--f", help="Crashes per stage that are survived.")]
PartitionsSetting = Annotated[int | None, typer.Option(help="Consensus pipelines.")]
PackingSetting = Annotated[str | None, typer.Option(help="site or node.")]
