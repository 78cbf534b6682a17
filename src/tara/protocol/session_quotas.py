"""How much the replicated state keeps for clients, and when that is too much.

Sessions keep results until they are acknowledged, commands that came too early, and what a key was claimed for. Each of
the three is bounded in bytes: per session, per principal, and over all sessions. What is kept is a function of the log,
so every replica reaches a bound at the same command, and answers it alike.

Everything kept counts some bytes more than its contents: also empty results take room.
"""

from typing import Protocol

from tara.protocol.limits import Limits

#: What a result or a command takes beside its payload.
OVERHEAD_BYTES = 256


class Owner:
    """What the sessions of one principal keep together."""

    __slots__ = ("claims_bytes", "early_bytes", "results_bytes", "sessions")

    def __init__(self) -> None:
        self.sessions = 0
        self.results_bytes = 0
        self.early_bytes = 0
        self.claims_bytes = 0


class Keeper(Protocol):
    """What the quotas need to know of a session."""

    owner: bytes
    results_bytes: int


class SessionQuotas:
    """The sums, per principal and over all. The session's own are with the session."""

    def __init__(self, limits: Limits) -> None:
        self._session_max = limits.session_bytes_max
        self._principal_max = limits.principal_bytes_max
        self._all_max = limits.sessions_bytes_max
        #: While all sessions together keep less, no principal and not all of them keep too much.
        self._roomy = min(self._principal_max, self._all_max)
        self._sessions_max = limits.sessions_max
        self._principal_sessions_max = limits.principal_sessions_max
        #: By principal; and all together.
        self.owners: dict[bytes, Owner] = {}
        self.all = Owner()

    def open(self, principal: bytes) -> None:
        owner = self.owners.setdefault(principal, Owner())
        owner.sessions += 1
        self.all.sessions += 1

    def close(self, principal: bytes) -> None:
        owner = self.owners[principal]
        owner.sessions -= 1
        self.all.sessions -= 1
        if not owner.sessions:
            del self.owners[principal]

    def add_results(self, principal: bytes, size: int) -> None:
        """A negative size takes away; as with the others."""
        self.owners[principal].results_bytes += size
        self.all.results_bytes += size

    def add_early(self, principal: bytes, size: int) -> None:
        self.owners[principal].early_bytes += size
        self.all.early_bytes += size

    def add_claim(self, principal: bytes, size: int) -> None:
        self.owners[principal].claims_bytes += size
        self.all.claims_bytes += size

    def is_roomy(self, session: Keeper) -> bool:
        """Whether there is certainly room for another result: the quick question, before `no_result`."""
        return session.results_bytes < self._session_max and self.all.results_bytes < self._roomy

    # Why there is no room; None: there is.

    def no_session(self, principal: bytes) -> str | None:
        if self.all.sessions >= self._sessions_max:
            return f"there are {self._sessions_max} sessions, as many as there may be (sessions_max)"
        owner = self.owners.get(principal)
        if owner is not None and owner.sessions >= self._principal_sessions_max:
            return f"you have {self._principal_sessions_max} sessions, as many as one may have (principal_sessions_max)"
        return None

    def no_result(self, session: Keeper) -> str | None:
        """Before a command executes: how long its result will be, nobody knows. So one result may be beyond a bound."""
        kept = session.results_bytes
        if kept >= self._session_max:
            return f"the session keeps {kept} bytes of results (session_bytes_max): acknowledge them first"
        kept = self.owners[session.owner].results_bytes
        if kept >= self._principal_max:
            return f"your sessions keep {kept} bytes of results (principal_bytes_max): acknowledge them first"
        if self.all.results_bytes >= self._all_max:
            return f"all sessions keep {self.all.results_bytes} bytes of results (sessions_bytes_max): try again later"
        return None

    def no_early(self, principal: bytes, session_bytes: int, size: int) -> str | None:
        """Before a command is kept until those with lower numbers have come."""
        if session_bytes + size > self._session_max:
            return f"{session_bytes} bytes of commands wait in the session (session_bytes_max): send the next one first"
        kept = self.owners[principal].early_bytes
        if kept + size > self._principal_max:
            return f"{kept} bytes of commands wait in your sessions (principal_bytes_max): send the next ones first"
        if self.all.early_bytes + size > self._all_max:
            return (
                f"{self.all.early_bytes} bytes of commands wait in all sessions (sessions_bytes_max): try again later"
            )
        return None

    def no_claim(self, principal: bytes, size: int) -> str | None:
        kept = self.owners[principal].claims_bytes
        if kept + size > self._principal_max:
            return f"your sessions keep {kept} bytes of claims (principal_bytes_max): close one"
        if self.all.claims_bytes + size > self._all_max:
            return f"all sessions keep {self.all.claims_bytes} bytes of claims (sessions_bytes_max): close one"
        return None
