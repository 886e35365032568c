"""Faults that take their process with them, for tests of what is left then; not part of the catalogue's models."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from dsv4_conformance.faults.fault import fault
from dsv4_conformance.implementations.builtin import Builtin


@fault("S44", breaks="INV-65", on="SlotMapping")
class Crashes(Builtin):
    """Ends its process by a signal."""

    def compressed_slots(self, *given: Any) -> Any:
        os.kill(os.getpid(), signal.SIGSEGV)


@fault("S19", breaks="INV-65", on="SlotMapping")
class Hangs(Builtin):
    """Never answers."""

    def compressed_slots(self, *given: Any) -> Any:
        time.sleep(600)


@fault("S67", breaks="INV-65", on="SlotMapping")
class Survives(Builtin):
    """Is right."""


@fault("S65", breaks="INV-100", on="SlotMapping")
class KilledByAnother(Builtin):
    """Breaks another requirement than it names."""

    def compressed_slots(self, *given: Any) -> Any:
        return super().compressed_slots(*given) + 1


@fault("S25", breaks="INV-65", on="SlotMapping")
class OnlyRaises(Builtin):
    """Raises where the public bug gave wrong answers."""

    def compressed_slots(self, *given: Any) -> Any:
        raise IndexError("index out of range")
