"""Host-side draws for shapes and menus, torch-free: collection uses them."""

import hashlib
from typing import TypeVar

T = TypeVar("T")


class Draws:
    """Small host-side draws for shapes and menus: SHA-256 of (family, seed, index, n-th draw)."""

    def __init__(self, *key: object) -> None:
        self._key = repr(key)
        self._drawn = 0

    def integer(self, bound: int) -> int:
        """A uniform integer in ``[0, bound)``."""
        self._drawn += 1
        raw = hashlib.sha256(f"{self._key}/{self._drawn}".encode()).digest()
        return int.from_bytes(raw[:8], "little") % bound

    def pick(self, menu: tuple[T, ...]) -> T:
        """One entry of ``menu``."""
        return menu[self.integer(len(menu))]

    def chance(self, numerator: int, denominator: int) -> bool:
        """True with probability numerator / denominator."""
        return self.integer(denominator) < numerator
