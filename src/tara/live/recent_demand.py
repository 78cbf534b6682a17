"""Whether somebody has asked for something recently: what is expensive is done only then."""


class RecentDemand:
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until_s = float("-inf")

    def renew(self, now_s: float) -> None:
        """Somebody asks for it, perhaps again."""
        self._until_s = now_s + self._seconds

    def holds(self, now_s: float) -> bool:
        return now_s < self._until_s
