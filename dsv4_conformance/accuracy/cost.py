"""What recording a golden will cost, told before it begins."""

from __future__ import annotations

from dataclasses import dataclass

TOKENS = {"gsm8k": 200, "aime25": 20_000}
"""Completion tokens of a reply, roughly as in public runs: GSM8K without thinking, AIME25 with a lot of it."""
ITEMS = {"gsm8k": 1319, "aime25": 30}
SPEED = 3000.0
"""Tokens per second of a whole server, a middling figure: public AIME25 runs lie between 500 and 6,000."""


@dataclass(frozen=True)
class Cost:
    """Requests, completion tokens and hours of ``passes`` passes at ``speed`` tokens per second."""

    requests: int
    tokens: int
    speed: float

    @property
    def hours(self) -> float:
        """At the given speed."""
        return self.tokens / self.speed / 3600

    def sentence(self) -> str:
        """For the user, before anything is asked."""
        hours = f"{self.hours:.1f} hours" if self.hours >= 1 else f"{max(1, round(60 * self.hours))} minutes"
        return (
            f"{self.requests:,} requests, about {self.tokens / 1e6:,.1f} million completion tokens: about {hours} at "
            f"{self.speed:,.0f} tokens per second"
        )


def cost_of(task: str, passes: int, *, speed: float = SPEED, tokens: float | None = None, items: int = 0) -> Cost:
    """The cost of ``passes`` passes; ``tokens`` per reply, where an earlier golden has measured them."""
    requests = (items or ITEMS[task]) * passes
    return Cost(requests, round(requests * (tokens or TOKENS[task])), speed)
