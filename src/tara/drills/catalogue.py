"""All drills by name, what each can be told, and how they are run: `tara drill`."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from tara.drills.bad_network import network
from tara.drills.endurance import chaos, flat
from tara.drills.fuzz import fuzz
from tara.drills.log_readers import log
from tara.drills.processes import hang, kill, kill_twice, loss, memory
from tara.drills.servers import sites, workers
from tara.drills.slow_disk import slow_disk
from tara.drills.storage import storage
from tara.operations.deployment import Say


class AnyVerdict(Protocol):
    """What came of a drill."""

    drill: str

    @property
    def failures(self) -> list[str]: ...
    @property
    def summary(self) -> str: ...


DRILLS: dict[str, Callable[..., AnyVerdict]] = {
    "kill": kill,
    "kill-twice": kill_twice,
    "hang": hang,
    "loss": loss,
    "flat": flat,
    "chaos": chaos,
    "workers": workers,
    "sites": sites,
    "memory": memory,
    "network": network,
    "slow-disk": slow_disk,
    "storage": storage,
    "fuzz": fuzz,
    "log": log,
}
#: What a drill can be told.
OPTIONS: dict[str, tuple[str, ...]] = {
    "loss": ("times",),
    "flat": ("minutes", "state_mb"),
    "chaos": ("minutes", "seed"),
    "memory": ("kills",),
    "network": ("seconds", "seed"),
    "slow-disk": ("seconds",),
    "fuzz": ("frames", "seed"),
    "log": ("commands",),
    "storage": ("damages", "starts", "seed"),
}


def run(names: Iterable[str], directory: Path, say: Say, **options: float | None) -> list[AnyVerdict]:
    """Options that a drill does not know, or that are None, are left out."""
    verdicts = []
    for name in names:
        drill = DRILLS[name]
        say(f"{name}: {drill.__doc__}")
        given = {key: options[key] for key in OPTIONS.get(name, ()) if options.get(key) is not None}
        verdicts.append(drill(directory, say, **given))
    return verdicts
