"""What ends a run: an invariant is broken."""

from tara.simulator.checks.kinds import CHECKS


class Violation(Exception):
    def __init__(self, kind: str, detail: str) -> None:
        assert kind in CHECKS, kind
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail
