"""What every drill asks in the end, whatever it did to the cluster."""

from msgspec import Struct


class Safety(Struct, kw_only=True):
    """Was anything lost, executed twice or answered out of order, and do the replicas agree?"""

    lost: int
    duplicated: int
    #: Of the recorded operations.
    linearizable: bool
    recorded: int
    replicas_equal: bool
    #: Nodes that a broken invariant stopped, and why.
    halted: dict[str, str]

    @property
    def violations(self) -> list[str]:
        """In words."""
        found = [f"{name} has halted: {reason}" for name, reason in self.halted.items()]
        if self.lost:
            found.append(f"{self.lost} commands lost")
        if self.duplicated:
            found.append(f"{self.duplicated} commands executed twice")
        if not self.linearizable:
            found.append("the history is not linearizable")
        if not self.replicas_equal:
            found.append("the replicas differ")
        return found

    @property
    def in_short(self) -> str:
        return (
            f"{self.lost} lost, {self.duplicated} executed twice, {self.recorded} recorded operations linearizable: "
            f"{self.linearizable}, replicas equal: {self.replicas_equal}"
        )
