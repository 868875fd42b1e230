"""What has come of suspending and resuming one slice since nvcd started."""

from __future__ import annotations


class Counts:
    """How often, and for how long programs waited that needed the GPU of a suspended slice."""

    __slots__ = ("suspends", "resumes", "suspend_failures", "hook_failures", "wakes", "waited", "longest")

    def __init__(self) -> None:
        self.suspends = self.resumes = self.suspend_failures = self.hook_failures = 0
        self.wakes = self.waited = self.longest = 0  # resumes because of use; nanoseconds

    def woke(self, waited: int) -> None:
        """Its programs have what they waited for."""
        self.wakes += 1
        self.waited += waited
        self.longest = max(self.longest, waited)

    def document(self) -> dict[str, int]:
        """For programs."""
        return {
            "suspends": self.suspends,
            "resumes": self.resumes,
            "failures": self.suspend_failures,
            "hookFailures": self.hook_failures,
            "wakes": self.wakes,
            "waitedNs": self.waited,
            "longestNs": self.longest,
        }
