"""What the storage of a container says of itself, in the virtual world: what it finds damaged must have been harmed."""

from typing import TYPE_CHECKING

from tara.simulator.checks.violation import Violation

if TYPE_CHECKING:
    from tara.simulator.container import SimulatedContainer
    from tara.simulator.world import World


class StorageEvents:
    """Takes the place of an event log (`tara.storage.site_storage.Events`)."""

    def __init__(self, world: "World", container: "SimulatedContainer") -> None:
        self._world = world
        self._container = container

    def info(self, event: str, node: str | None = None, view: int | None = None, **details: object) -> None:
        pass

    def warning(self, event: str, node: str | None = None, view: int | None = None, **details: object) -> None:
        if event == "execution_record_refused":
            self._must_be_harmed(event, details)

    def error(self, event: str, node: str | None = None, view: int | None = None, **details: object) -> None:
        self._must_be_harmed(event, details)
        self._world.count_fault({"journal_set_aside": "journal_given_up"}.get(event, event))
        if event == "journal_set_aside":
            self._world.journal_lost(self._container)

    def flood(self, event: str, node: str | None = None, **details: object) -> None:
        if "rows are given up" in str(details.get("reason")):
            raise Violation("log", f"{self._container.label}: {details}"[:2000])

    def _must_be_harmed(self, event: str, details: dict[str, object]) -> None:
        container = self._container
        if container.on_old_disk or (event == "journal_set_aside" and container.was_founding):
            # It is outdated, or of another era.
            return
        if self._container.index not in self._world.repairs_due:
            raise Violation("storage", f"{self._container.label}: {event} {details}"[:2000])
