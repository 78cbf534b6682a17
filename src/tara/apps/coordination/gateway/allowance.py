"""A share of the time for work that strangers can ask for: what is used comes back as time passes."""


class Allowance:
    def __init__(self, share: float, saved_s_max: float) -> None:
        self._share = share
        self._saved_s_max = saved_s_max
        #: What is left; below zero after work that took longer than what was left.
        self._saved_s = saved_s_max
        self._looked_s = 0.0

    def has_some(self, now_s: float) -> bool:
        self._saved_s = min(self._saved_s + (now_s - self._looked_s) * self._share, self._saved_s_max)
        self._looked_s = now_s
        return self._saved_s > 0

    def use(self, seconds: float) -> None:
        self._saved_s -= seconds
