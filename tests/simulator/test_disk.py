"""The virtual disk: what it says of the harm that it does."""

import random
from pathlib import Path

from tara.simulator.disk import VirtualDisk


def test_no_harm_goes_unreported() -> None:
    """Also if it was done to another file than the one that was meant."""
    paths = [Path(f"/data/{name}") for name in "ab"]
    for seed in range(300):
        draw = random.Random(seed)
        disk = VirtualDisk(draw)
        disk.make_directory(Path("/data"))
        for path in paths:
            file = disk.create(path)
            file.append(draw.randbytes(300))
            # The same once more: what was there before is what is there now.
            file.write(0, disk.read(path))
        before = [disk.read(path) for path in paths]
        kind = disk.damage(paths[0], paths)
        after = [disk.read(path) if disk.exists(path) else b"" for path in paths]
        assert (kind is not None) == (before != after), seed


def test_every_power_cut_is_another_start() -> None:
    disk = VirtualDisk(random.Random(1))
    starts = [disk.boot_id(), disk.clone().boot_id()]
    disk.end_process()
    assert disk.boot_id() == starts[0]
    for _ in range(3):
        disk.lose_power()
        starts.append(disk.boot_id())
    assert len(set(starts)) == len(starts)
